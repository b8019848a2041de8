"""Processes on this machine: telling the ones that are ours from those that got their number."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import psutil

_PROC: Final = Path("/proc")
_START_TICKS: Final = 19
"""Where a process's start, in ticks since the system was booted, stands behind its name in ``stat``."""
_ENDED: Final = frozenset(("Z", "X", ""))
"""States of a process that has ended, whether or not its parent has taken note."""
_STOPPED: Final = "T"
_STAT_BYTES: Final = 4096
"""More than ``stat`` has."""
_LOOK_S: Final = 1.0
"""Between two looks at whether a launcher stands still."""
_SURE_S: Final = 1.0
"""For so long after a process was recognised, one of its number is it."""


def birth(pid: int) -> str:
    """What no other process of that pid has: the boot it was started in, and when after it.

    Setting the clock does not change it. Where the system has no ``/proc``, the time of the start.

    :raises psutil.NoSuchProcess: it is gone.
    """
    return _identity(pid)[0]


def _identity(pid: int) -> tuple[str, bool]:
    """A process's :func:`birth`, and whether it has not ended yet.

    :raises psutil.NoSuchProcess: it is gone.
    """
    if not (_PROC / "self" / "stat").exists():
        process = psutil.Process(pid)
        return str(process.create_time()), process.status() != psutil.STATUS_ZOMBIE
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        raise psutil.NoSuchProcess(pid) from None
    state, *rest = text.rpartition(")")[2].split()
    return f"{_boot()} {rest[_START_TICKS - 1]}", state not in _ENDED


class Waker:
    """Lets launchers go on that stand still although what they started has ended: they alone know how.

    A launcher is the keeper of a unit or the command that it started. Each is looked at once a second.
    """

    def __init__(self) -> None:
        self._next_s: dict[int, float] = {}
        self._commands: dict[int, int] = {}
        """By keeper; whatever else its children are, it has adopted them."""
        self._idle: dict[int, bool] = {}

    def look(self, keeper: int) -> bool:
        """Wake a keeper that runs, and its command, where that is due.

        Whether the command is stopped and nothing that it started lives.
        """
        now_s = time.monotonic()
        if now_s >= self._next_s.get(keeper, now_s):
            self._next_s[keeper] = now_s + _LOOK_S
            self._idle[keeper] = self._wake(keeper)
        return self._idle[keeper]

    def _wake(self, keeper: int) -> bool:
        known = self._commands.get(keeper)
        if known is not None and _STOPPED not in (_state(keeper), _state(known)):
            return False  # by far the most frequent case, and what follows costs twice as much
        children = _children(keeper)
        command = self._commands.setdefault(keeper, children[0]) if children else -1
        if _state(keeper) == _STOPPED and (command not in children or _state(command) in _ENDED):
            _continue(keeper)
        if _state(command) != _STOPPED:
            return False
        started = _children(command)
        if any(_state(pid) not in _ENDED for pid in started):
            return False
        if started:
            _continue(command)
        return True

    def forget(self, keeper: int) -> None:
        for known in (self._next_s, self._commands, self._idle):
            known.pop(keeper, None)


def _continue(pid: int) -> None:
    with suppress(OSError):
        os.kill(pid, signal.SIGCONT)


def _children(pid: int) -> list[int]:
    """What a process has started, or adopted since, and not taken note of the end of; the oldest first.

    Nothing where the system does not say.
    """
    found: list[int] = []
    with suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def _state(pid: int) -> str:
    """The letter of a process's state; empty where it is gone."""
    try:
        descriptor = os.open(f"{_PROC}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _STAT_BYTES).rpartition(b") ")[2][:1].decode()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


@cache
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
        if not _still_is(pid, born):
            return None
        return process if process.environ().get(env[0]) == env[1] else None
    except psutil.Error:
        return None


class Watched:
    """Processes that are looked for again and again: recognised once a second, else only asked for by number.

    So a process that dies is missed at once. Where another one gets its number right away, or its parent
    takes no note of its end, it is missed within a second.
    """

    def __init__(self) -> None:
        self._sure_until_s: dict[tuple[int, str], float] = {}

    def runs(self, pid: int, born: str, env: tuple[str, str]) -> bool:
        """Whether :func:`find` finds the process."""
        known, now_s = self._sure_until_s.get((pid, born)), time.monotonic()
        if known is not None and now_s < known and _is_there(pid):
            return True
        if find(pid, born, env) is None if known is None else not _still_is(pid, born):
            self._sure_until_s.pop((pid, born), None)
            return False
        self._sure_until_s[pid, born] = now_s + _SURE_S
        return True


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _still_is(pid: int, born: str) -> bool:
    """Whether a process that was recognised before has neither ended nor been replaced by another one."""
    try:
        return _identity(pid) == (born, True)
    except psutil.Error:
        return False
