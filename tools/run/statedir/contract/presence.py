"""Whether a worker is ready and lives: a file that it holds a lock on, which its death frees at once.

The lock is of the kind that children do not inherit, so loading processes that outlive their worker do not
hide its death. A thread sets the file's time every second; where that stands still, the whole process does,
or its host is gone: a file server keeps the lock of a dead host for minutes (see heartbeat.py). The file and
its lock need no process table: every process that shares the folder can look, on any host and in any
container.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import struct
import sys
import weakref
from pathlib import Path
from threading import Event, Thread
from typing import ClassVar, Final, Literal

BEAT_S: Final = 1.0
Life = Literal["absent", "alive", "gone"]
_KNOWS_FLOCK: Final = sys.platform == "linux" and struct.calcsize("P") == 8
_LAYOUT: Final = struct.Struct("hhqqi4x")
"""``struct flock`` there: type, whence, start, length, process."""
_WANTED: Final = _LAYOUT.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_FLAGS: Final = (os.O_RDONLY if _KNOWS_FLOCK else os.O_RDWR) | os.O_CLOEXEC


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
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return "absent"
    try:
        return "alive" if _is_locked(descriptor) else "gone"
    except OSError:
        return "alive"
    finally:
        os.close(descriptor)


class Sighting:
    """One worker's file, looked at again and again: it stays open while its worker lives.

    So a look costs one system call. Where half of the descriptors that the system allows are in use for
    this, further files are opened for each look.
    """

    _kept: ClassVar[int] = 0
    """Files that are open, of all workers."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._descriptor = -1
        self._close: weakref.finalize[[int], Sighting] | None = None

    def life(self) -> Life:
        """What the file says. Only a lock that is held is believed of a file that was opened before."""
        if self._close is not None:
            with contextlib.suppress(OSError):
                if _is_locked(self._descriptor):
                    return "alive"
            self._close()
            self._close = None
        found = life(self._path)
        if found == "alive" and _has_room(Sighting._kept):
            self._keep()
        return found

    def _keep(self) -> None:
        with contextlib.suppress(OSError):
            self._descriptor = os.open(self._path, _FLAGS)
            self._close = weakref.finalize(self, _let_go, self._descriptor)
            self._close.atexit = False
            Sighting._kept += 1


def _has_room(kept: int) -> bool:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return allowed == resource.RLIM_INFINITY or kept < allowed // 2


def _let_go(descriptor: int) -> None:
    Sighting._kept -= 1
    os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Whether another process holds the lock. Looking takes no lock, so several may look at once."""
    if not _KNOWS_FLOCK:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    found: int = _LAYOUT.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, _WANTED))[0]
    return found != fcntl.F_UNLCK
