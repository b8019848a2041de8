"""The argument lists that start workers, and the environment of a CPU slot: data, never a shell."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
"""A CPU slot is one thread: several would take the cores of the neighbours' slots."""


RUN_TORCHRUN: Final = str(Path(__file__).with_name("run_torchrun.py"))
NO_STORE: Final = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Keeps torchrun from opening a store for its workers: it would listen on every address."""


def torchrun(command: Sequence[str], workers: int, rendezvous: Sequence[str], logs: Path) -> tuple[str, ...]:
    """The argument list of one torchrun; output of each worker goes to files under ``logs``.

    The environment of :data:`NO_STORE` belongs to it. What follows ``--`` is the script's own.
    """
    return (
        *(sys.executable, "-P", RUN_TORCHRUN),
        *rendezvous,
        f"--nproc-per-node={workers}",
        *("--max-restarts", "0"),
        *("--log-dir", str(logs), "--redirects", "3"),
        "--",
        *command,
    )


ONE_WORKER: Final = str(Path(__file__).with_name("one_worker.py"))
ALONE: Final = {
    **{f"{scope}RANK": "0" for scope in ("", "LOCAL_", "GROUP_", "ROLE_")},
    **{f"{scope}WORLD_SIZE": "1" for scope in ("", "LOCAL_", "GROUP_", "ROLE_")},
}
"""What torchrun says to an only worker."""


def one_worker(command: Sequence[str], logs: Path) -> tuple[str, ...]:
    """The argument list of a script that is one worker; its output goes to files where torchrun's would.

    The environment of :data:`ALONE` belongs to it.
    """
    return (sys.executable, "-I", "-S", ONE_WORKER, str(logs / "worker" / "attempt_0" / "0"), *command)


def standalone(address: str) -> tuple[str, ...]:
    """The rendezvous of one torchrun with itself, in its own memory: no other process can take part.

    :param address: what the workers of the node reach each other at.
    """
    return (
        *("--nnodes=1", "--rdzv-backend=one-node", "--rdzv-endpoint=none", "--rdzv-id=pliant"),
        f"--local-addr={address}",
    )
