"""The state directory in use: one writer at a time, and a log that holds whatever was acknowledged."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from pliant.schemas.errors import LockedError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import EventWriter, read_events
from pliant.tools.run.fold import RunLog, fold
from pliant.tools.run.layout import StateDir

Sink = Callable[[Sequence[Event]], None]
_log = logging.getLogger("pliant")


class Lock:
    """The one writer's lock on a state directory; the system drops it with its holder, however it dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self, *, wait: bool = False) -> None:
        """Take the lock.

        :raises LockedError: another process holds it, and ``wait`` is not set.
        """
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            holder = os.pread(self._descriptor, 64, 0).decode(errors="replace").strip()
            self.release()
            who = f" by process {holder}" if holder else ""
            raise LockedError(
                f"{self._path.parent} is in use{who}: try again later, or wait for it with --wait"
            ) from None
        except BaseException:
            self.release()
            raise
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let go of the lock. Twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class State:
    """A state directory that this process writes to. Events go to the file first, then to everybody else."""

    def __init__(self, path: str | Path, *, wait: bool = False) -> None:
        """Lock and read a state directory, making it for its owner alone if it is not there.

        :raises LockedError: another process writes to it.
        :raises UsageError: the folder cannot be made or used.
        """
        self.dirs = StateDir(Path(path).resolve())
        self._lock = Lock(self.dirs.lock)
        try:
            self.dirs.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.dirs.jobs.mkdir(mode=0o700, exist_ok=True)
            self._lock.acquire(wait=wait)
        except OSError as error:
            raise UsageError(f"{path}: cannot be used as state directory: {error.strerror}") from error
        try:
            self._writer = EventWriter(self.dirs.events)
            self.log: RunLog = fold(read_events(self.dirs.events))
        except BaseException:
            self._lock.release()
            raise
        self._sinks: list[Sink] = []

    def record(self, events: Iterable[Event]) -> None:
        """Append events: on disk when this returns.

        :raises ServiceMissingError: the disk is full or broken; none of the events is recorded.
        """
        batch = tuple(events)
        if not batch:
            return
        self._writer.append(batch)
        for event in batch:
            self.log.add(event)
        for sink in tuple(self._sinks):
            self._tell(sink, batch)

    def add_sink(self, sink: Sink) -> None:
        """Tell somebody of all events, those that are there already first. Whoever fails is told no more."""
        self._sinks.append(sink)
        self._tell(sink, self.log.events)

    def _tell(self, sink: Sink, events: Sequence[Event]) -> None:
        try:
            sink(events)
        except Exception as error:  # noqa: BLE001 - what is recorded stays recorded, whoever cannot hear of it
            self._sinks.remove(sink)
            _log.warning("events are in %s only from here on: %s", self.dirs.events, error)

    def close(self) -> None:
        """Close the log and let go of the lock."""
        self._writer.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_log(path: str | Path) -> RunLog:
    """The log of a state directory, read without the lock: what a bystander may know.

    :raises UsageError: there is no log.
    """
    events = StateDir(Path(path)).events
    if not events.is_file():
        raise UsageError(f"{path}: no state directory (it has no {events.name})")
    return fold(read_events(events))
