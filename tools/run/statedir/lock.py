"""One writer at a time: the lock of a state directory."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pliant.schemas.errors import LockedError
from pliant.schemas.text import whole_number
from pliant.tools.run.statedir.private import PRIVATE

_GLANCE_S: Final = 0.25
"""For so long a lock that is held is tried again: somebody may only be looking whether it is."""
_RETRY_S: Final = 0.05


class Lock:
    """The one writer's lock on a state directory; the system drops it with its holder, however it dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self, *, wait_s: float = 0.0) -> None:
        """Take the lock.

        :raises LockedError: another process still holds it after ``wait_s``.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._descriptor = os.open(self._path, flags, PRIVATE)
        try:
            self._take(max(wait_s, _GLANCE_S))
        except BaseException:
            self.release()
            raise
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    @contextmanager
    def shared(self, *, wait_s: float = 0.0) -> Iterator[None]:
        """No process writes meanwhile; others may look, too. Without a writer so far, there is no lock.

        :raises LockedError: a writer still holds the lock after ``wait_s``.
        """
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield
            return
        try:
            self._take(max(wait_s, _GLANCE_S), fcntl.LOCK_SH)
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Let go of the lock. Twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _take(self, within_s: float, kind: int = fcntl.LOCK_EX) -> None:
        deadline_s = time.monotonic() + within_s
        while not _try(self._descriptor, kind):
            if time.monotonic() >= deadline_s:
                who = f" by process {holder}" if (holder := _written(self._descriptor)) else ""
                where = self._path.parent
                raise LockedError(
                    f"{where} is in use{who}: try again later, or wait for it with --wait SECONDS"
                )
            time.sleep(_RETRY_S)


def holder_of(path: Path) -> int | None:
    """The process that holds a lock (0: one that has not said its name yet); None: none does."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return None if _try(descriptor, fcntl.LOCK_SH) else _written(descriptor)
    finally:
        os.close(descriptor)


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _written(descriptor: int) -> int:
    return whole_number(os.pread(descriptor, 64, 0).decode("ascii", "replace").strip()) or 0
