"""Processes on this machine: starting them, and distinguishing ours from others with the same pid."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO, Final

import psutil

_PROC: Final = Path("/proc")
_START_TICKS: Final = 19
"""The field of ``stat`` after the name with a process's start, in ticks since boot."""
_ENDED: Final = frozenset(("Z", "X", ""))
"""States of a process that has ended, whether or not it was reaped."""
_STOPPED: Final = "T"
_STAT_BYTES: Final = 4096
_LOOK_S: Final = 1.0
"""Between two looks at whether a launcher is stopped."""
_SURE_S: Final = 1.0
"""How long a pid is trusted after its process was recognised."""


def spawn(argv: tuple[str, ...], env: Mapping[str, str], output: BinaryIO, told: bytes = b"") -> int:
    """Start a process in a session of its own, with its output appended to a log; returns its pid.

    :param told: what it finds on its standard input.
    """
    with _input(told) as source:
        descriptors = ((source.fileno(), 0), (output.fileno(), 1), (output.fileno(), 2))
        return os.posix_spawnp(
            argv[0],
            argv,
            env,
            file_actions=[(os.POSIX_SPAWN_DUP2, source, to) for source, to in descriptors],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGCHLD),
        )


def _input(told: bytes) -> BinaryIO:
    """In memory, as it may be more than fits into a pipe, and holds secrets."""
    if not told:
        return open(os.devnull, "rb")
    file = open(os.memfd_create("pliant"), "w+b")  # noqa: SIM115 - the caller closes it
    file.write(told)
    file.seek(0)
    return file


def birth(pid: int) -> str:
    """Distinguishes a process from others with its pid: the boot id and the start in ticks since boot.

    Setting the clock does not change it. Without ``/proc``, the time of the start.

    :raises psutil.NoSuchProcess: it is gone.
    """
    return _identity(pid)[0]


def _identity(pid: int) -> tuple[str, bool]:
    """A process's :func:`birth`, and whether it has not ended yet."""
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
    """Continues stopped launchers whose processes have ended, since only they know how.

    A launcher is the keeper of a unit or the command that it started. Each is checked once a second.
    """

    def __init__(self) -> None:
        self._next_s: dict[int, float] = {}
        self._commands: dict[int, int] = {}
        """By keeper, which has adopted its other children."""
        self._idle: dict[int, bool] = {}

    def look(self, keeper: int) -> bool:
        """Wake a running keeper and its command if necessary.

        Returns whether the command is stopped and nothing that it started lives.
        """
        now_s = time.monotonic()
        if now_s >= self._next_s.get(keeper, now_s):
            self._next_s[keeper] = now_s + _LOOK_S
            self._idle[keeper] = self._wake(keeper)
        return self._idle[keeper]

    def _wake(self, keeper: int) -> bool:
        known = self._commands.get(keeper)
        if known is not None and _STOPPED not in (_state(keeper), _state(known)):
            return False  # by far the most frequent case; what follows costs twice as much
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
    """The children that a process has not reaped, oldest first; empty if the system does not say."""
    found: list[int] = []
    with suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def _state(pid: int) -> str:
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
    """The process with that pid if it is alive and ours.

    :param born: its :func:`birth`.
    :param env: a variable and its value that the process was started with.
    """
    try:
        process = psutil.Process(pid)
        if not _still_is(pid, born):
            return None
        return process if process.environ().get(env[0]) == env[1] else None
    except psutil.Error:
        return None


class Watched:
    """Processes that are checked repeatedly: identified once a second, otherwise only by pid.

    A death is noticed at once, or within a second if the pid is reused or the process is not reaped.
    """

    def __init__(self) -> None:
        self._sure_until_s: dict[tuple[int, str], float] = {}

    def runs(self, pid: int, born: str, env: tuple[str, str]) -> bool:
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
    try:
        return _identity(pid) == (born, True)
    except psutil.Error:
        return False
