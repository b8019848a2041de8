"""The argument list of torchrun, and the environment of a CPU slot: data, never a shell."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
"""A CPU slot is one thread: several would take the cores of the neighbours' slots."""


NO_STORE: Final = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Keeps torchrun from opening a store for its workers: it would listen on every address."""


def torchrun(command: Sequence[str], workers: int, rendezvous: Sequence[str], logs: Path) -> tuple[str, ...]:
    """The argument list of one torchrun; output of each worker goes to files under ``logs``.

    The environment of :data:`NO_STORE` belongs to it. What follows ``--`` is the script's own.
    """
    return (
        *(sys.executable, "-m", "torch.distributed.run"),
        *rendezvous,
        f"--nproc-per-node={workers}",
        *("--max-restarts", "0"),
        *("--log-dir", str(logs), "--redirects", "3"),
        "--",
        *command,
    )


def standalone(address: str, meeting: Path) -> tuple[str, ...]:
    """The rendezvous of one torchrun with itself, in a file: nobody from outside can take part.

    :param address: what the workers of the node reach each other at.
    :param meeting: a path of its own, not there yet, in a folder that only the user can enter.
    """
    return (
        *("--nnodes=1", "--rdzv-backend=c10d", "--rdzv-conf=store_type=file"),
        *(f"--rdzv-endpoint={meeting}", "--rdzv-id=pliant", f"--local-addr={address}"),
    )
