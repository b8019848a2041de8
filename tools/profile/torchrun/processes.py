"""What is started gets a clean environment, and all of it can be ended, wherever it hangs in the tree."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import psutil

FOREIGN: Final = ("PLIANT_", "SLURM_", "TORCHELASTIC_", "PMI_", "OMPI_")
TORCHRUN: Final = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "ROLE_NAME"}
    | {f"{scope}{name}" for scope in ("", "LOCAL_", "GROUP_", "ROLE_") for name in ("RANK", "WORLD_SIZE")}
)


def child_environment(base: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """The launcher's own environment, without what other launchers left in it, and ``added``."""
    kept = {
        name: value for name, value in base.items() if name not in TORCHRUN and not name.startswith(FOREIGN)
    }
    return {**kept, **added}


def tree(process: psutil.Process) -> list[psutil.Process]:
    """A process and all its descendants, children first."""
    try:
        return [*reversed(process.children(recursive=True)), process]
    except psutil.Error:
        return [process]


def strays(env: tuple[str, str]) -> Iterator[psutil.Process]:
    """Processes of this user that carry a variable with that value, wherever they hang in the tree.

    A worker whose parent was killed has no parent of ours; its environment still says whose it is.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(env[0]) == env[1]:
                yield process


def kill(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL; who is gone already is gone."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
