"""Whether a worker is ready and lives: a file that it holds a lock on, which its death frees at once.

The lock is of the kind that children do not inherit, so loading processes that outlive their worker do not
hide its death. A thread sets the file's time every second; where that stands still, the whole process does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import sys
from pathlib import Path
from threading import Event, Thread
from typing import Final, Literal

BEAT_S: Final = 1.0
Life = Literal["absent", "alive", "gone"]
_KNOWS_FLOCK: Final = sys.platform == "linux" and struct.calcsize("P") == 8
_FLOCK: Final = "hhqqi4x"
"""``struct flock`` there: type, whence, start, length, process."""


class Presence:
    """A worker's own file. It is there from :meth:`begin` on, and locked before anybody can see it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._ended = Event()

    def begin(self) -> None:
        """Be seen."""
        temporary = self._path.with_suffix(".new")
        self._descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        temporary.replace(self._path)
        Thread(target=self._beat, name="pliant-presence", daemon=True).start()

    def end(self) -> None:
        """Beat no more; the lock goes with the process."""
        self._ended.set()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            with contextlib.suppress(OSError):
                os.utime(self._descriptor)


def life(path: str | Path) -> Life:
    """What another process's file says; never ask for one's own, that would free its lock."""
    try:
        descriptor = os.open(path, (os.O_RDONLY if _KNOWS_FLOCK else os.O_RDWR) | os.O_CLOEXEC)
    except OSError:
        return "absent"
    try:
        return "alive" if _is_locked(descriptor) else "gone"
    except OSError:
        return "alive"
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Whether another process holds the lock. Looking takes no lock, so several may look at once."""
    if not _KNOWS_FLOCK:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    found: int = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))[0]
    return found != fcntl.F_UNLCK


def last_beat(path: str | Path) -> float:
    """When the worker last showed that it runs, on the file system's clock; 0: there is no file."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
