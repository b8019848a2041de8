"""Processes on this machine: telling the ones that are ours from those that got their number."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psutil

_PROC: Final = Path("/proc")
_START_TICKS: Final = 19
"""Where a process's start, in ticks since the system was booted, stands behind its name in ``stat``."""


def birth(pid: int) -> str:
    """What no other process of that pid has: the boot it was started in, and when after it.

    Setting the clock does not change it. Where the system has no ``/proc``, the time of the start.

    :raises psutil.NoSuchProcess: it is gone.
    """
    if not (_PROC / "self" / "stat").exists():
        return str(psutil.Process(pid).create_time())
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        raise psutil.NoSuchProcess(pid) from None
    return f"{_boot()} {text.rpartition(')')[2].split()[_START_TICKS]}"


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "-"


def find(pid: int, born: str, env: tuple[str, str]) -> psutil.Process | None:
    """The process of that pid if it is the one meant, alive; None if it is gone or the pid is another's.

    :param born: its :func:`birth`.
    :param env: a variable, with its value, that the process was started with.
    """
    try:
        process = psutil.Process(pid)
        if birth(pid) != born or process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process if process.environ().get(env[0]) == env[1] else None
    except psutil.Error:
        return None
