"""The state directory in use: one writer at a time, and a log that holds whatever was acknowledged.

:class:`State` appends events to the log, keeps its snapshot and passes events on. :class:`ScheduleFile`
keeps ``schedule.json``, a copy of the last decision, which may lag behind the log for a moment.
:func:`read_log` is for bystanders: it needs no lock. The times that are written never run backwards, whatever
happens to the system's clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from pathlib import Path
from typing import Final, Self

from pliant.schemas.errors import PliantError, ServiceMissingError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.file_io.events import EventWriter, LogReader
from pliant.schemas.file_io.files import Draft, atomic_write, remove_temporaries, write_error
from pliant.schemas.io import write_schedule
from pliant.schemas.job import Job
from pliant.schemas.schedule import Schedule
from pliant.schemas.text import EPOCH_LIKE_S, counted, did_you_mean
from pliant.tools.run.statedir.contract.folders import PRIVATE
from pliant.tools.run.statedir.contract.liveness import FileClock
from pliant.tools.run.statedir.directory import (
    ROOT,
    Lock,
    StateDir,
    account_name,
    check_job,
    claim,
    make_own,
    make_shared,
    unusable,
)
from pliant.tools.run.statedir.log.archive import ShorterLog
from pliant.tools.run.statedir.log.events import with_loss, with_use
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.log.repair import repair_locked
from pliant.tools.run.statedir.log.snapshot import LogView, Rebuilding, records_kept_small, renew_snapshot
from pliant.tools.run.statedir.log.worker_reports import with_progress
from pliant.tools.run.statedir.slot_faults import may_pass
from pliant.tools.schedule.session.saved import Basis, SavedSession

SLEW: Final = 0.5
"""Speed of a clock that is ahead of the system's, until the system has caught up."""


class Clock:
    """Seconds since the epoch, as the log has them.

    It follows the system's clock, also after a suspend or a step forward. After that was set back, this one
    goes on at half its speed until the other has caught up.

    :param wall: the system's clock.
    :param steady: a clock that cannot be set.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        # Seconds of the clock that cannot be set: deadlines are measured with it.
        self.steady = steady
        self._wall = wall
        self._shown_s = wall()
        self._looked_s = steady()

    def __call__(self) -> float:
        passed_s = self.steady() - self._looked_s
        self._looked_s += passed_s
        self._shown_s = max(self._wall(), self._shown_s + passed_s * SLEW)
        return self._shown_s

    def not_before(self, time_s: float, passed_s: float) -> None:
        """Go on from a log, unless the system's clock is past its last time already.

        :param time_s: its last time.
        :param passed_s: since that was written, by the file system's clock (see :func:`passed_since`).
        """
        now_s = self()
        if now_s < time_s:
            self._shown_s = time_s + max(0.0, passed_s) * SLEW


def passed_since(path: Path) -> float:
    """Seconds since a file was written; 0 if there is none, or its folder cannot be written to.

    By the clock of its file system, which the system's may differ from by days.
    """
    try:
        written_s = path.stat().st_mtime
    except OSError:
        return 0.0
    return max(0.0, FileClock().now_s(str(path)) - written_s)


def origin(schedule_time_s: float, now_s: float, known_s: float | None = None) -> float:
    """UTC seconds at which the clock of a schedule shows 0; ``known_s`` is that of the log, if it has one."""
    if schedule_time_s >= EPOCH_LIKE_S:
        return 0.0
    return now_s - schedule_time_s if known_s is None else known_s


Sink = Callable[[Sequence[Event]], None]
TAIL_BYTES: Final = 1 << 16
"""Bytes of the log that are cheap to read; after more than that a snapshot is due."""
_log = logging.getLogger("pliant")


class UnknownLogError(ServiceMissingError):
    """It cannot be told which file is the log now: nothing more may be acknowledged."""


class State:
    """A state directory that this process writes to. Events go to the log first, then to all sinks."""

    def __init__(
        self,
        path: str | Path,
        *,
        wait_s: float = 0.0,
        view: LogView | None = None,
        restored: bool = False,
        shared: bool = False,
    ) -> None:
        """Lock and read a state directory, making it for its owner alone if it is not there.

        :param view: of its log, from before the lock was taken.
        :param restored: the caller says that no job runs any more in the directory that this is a copy of.
        :param shared: several accounts are to share it, see :func:`make_shared`.
        :raises LockedError: another process still writes to it after ``wait_s``.
        :raises UsageError: the folder cannot be made or used, is not this user's alone, or is a copy of one
            in which jobs run.
        :raises ServiceMissingError: its disk is full or broken.
        :raises BadInputError: its log is damaged.
        """
        self.dirs = StateDir(Path(path).resolve())
        self._lock = Lock(self.dirs.lock)
        try:
            make_own(self.dirs)
            self._lock.acquire(wait_s=wait_s)
        except OSError as error:
            self._lock.release()
            raise unusable(Path(path), error) from error
        try:
            if shared:
                make_shared(self.dirs)
            # Seconds since the log was last written, when this process began.
            self.quiet_s = passed_since(self.dirs.events)
            self._view = view or LogView(self.dirs, keeps_events=True)
            self.log = self._whole_log()
            running = sorted(job_id for job_id, job in self.log.active.items() if job.gpus)
            claim(self.dirs, running, restored=restored)
            self.log.jobs = self._jobs = records_kept_small(self.log.jobs)
            self._sweep()
            self._writer = EventWriter(self.dirs.events)
        except BaseException:
            self._lock.release()
            raise
        self._sinks: list[Sink] = []
        # What a snapshot needs besides the log; without it none is written.
        self.rebuilding: Rebuilding | None = None
        self._in_snapshot, snapshot_bytes = self._view.in_snapshot
        self._pause_bytes = snapshot_bytes // 8

    def _whole_log(self) -> RunLog:
        """The log, after writing back what it has lost and its snapshot knows.

        A snapshot of another log is removed: after further events it could pass for this log's own.
        """
        if self.dirs.snapshot.exists() and not self.dirs.events.exists():
            self.dirs.events.touch(PRIVATE)  # all of it is lost
        log = self._view.refresh(to_the_end=True)
        if not self._view.stale:
            return log
        if self._view.misfit is not None and self._view.misfit.kind == "cut":
            for line in repair_locked(self.dirs):
                _log.warning("%s", line)
        self.dirs.snapshot.unlink(missing_ok=True)
        self._view.start_again()
        return self._view.refresh(to_the_end=True)

    def _sweep(self) -> None:
        """Remove files that an earlier writer left half-written when it was killed."""
        remove_temporaries(self.dirs.path)
        remove_temporaries(self.dirs.archive)
        for job_id in self.log.may_be_there():
            check_job(self.dirs, job_id)
            job = self.dirs.job(job_id)
            remove_temporaries(job.kept or job.path)

    def record(self, events: Iterable[Event]) -> None:
        """Append events: on disk when this returns.

        :raises ServiceMissingError: the disk is full or broken; none of the events is recorded.
        """
        batch = tuple(
            with_use(with_loss(with_progress(event, self.log), self.log), self.log, self.dirs.job)
            for event in events
        )
        if not batch:
            return
        self._writer.append(batch)
        self._view.forget()
        reloads = self.log.reloads
        for event in batch:
            self.log.add(event)
        if self.log.reloads != reloads:  # the session is to be rebuilt on another cluster from now on
            self.rebuilding = None
        about = {event.job for event in batch if event.job is not None}
        self._jobs.put_away(about - self.log.active.keys())
        self._keep_snapshot()
        for sink in tuple(self._sinks):
            self._pass_on(sink, batch)

    def add_sink(self, sink: Sink, *, past: bool = True) -> None:
        """Pass all further events to a sink until it fails; ``past`` ones first."""
        self._sinks.append(sink)
        for events in LogReader(self.dirs.events).read_all() if past else ():
            if sink in self._sinks:
                self._pass_on(sink, events)

    def history(self, basis: Basis) -> tuple[SavedSession | None, Iterable[Event]]:
        return self._view.history(basis)

    def _keep_snapshot(self) -> None:
        """Write a snapshot if the log after the last one takes a while to read; a failure stops nothing."""
        size = self._writer.size
        if self.rebuilding is None or size - self._in_snapshot < max(TAIL_BYTES, self._pause_bytes):
            return
        self._in_snapshot = size
        try:
            self._pause_bytes = renew_snapshot(self.dirs, self.log, self.rebuilding)
        except (OSError, PliantError) as error:
            level = logging.DEBUG if may_pass(error) else logging.WARNING
            _log.log(level, "%s is not written: %s", self.dirs.snapshot, error)

    def shorten(self, shorter: ShorterLog) -> None:
        """Put a log without jobs that ended long ago in the place of the log.

        :raises UnknownLogError: it may have been done.
        :raises PliantError: it cannot be done; the log is as it was.
        """
        writer = self._publish(shorter.draft)
        self._writer.close()
        self._writer = writer
        for job_id in shorter.gone:
            del self.log.jobs[job_id]
        self.log.archives, self.log.archived = shorter.archives, shorter.archived
        self._view.start_again()
        self._view.forget()
        self._in_snapshot, self._pause_bytes = self._writer.size, len(shorter.snapshot) // 8
        try:
            atomic_write(self.dirs.snapshot, shorter.snapshot, mode=PRIVATE)
        except PliantError as error:
            _log.warning("%s is not written: %s", self.dirs.snapshot, error)

    def _publish(self, draft: Draft) -> EventWriter:
        """Make a draft the log; returns its writer, which is open before nothing may fail any more."""
        try:
            writer = EventWriter(draft.path)
        except BaseException:
            draft.drop()
            raise
        try:
            draft.publish()
        except OSError as error:
            if not self._is_log(writer):
                writer.close()
                draft.drop()
                raise write_error(error, str(self.dirs.events)) from error
            _log.warning("%s: its folder is not forced to disk: %s", self.dirs.events, error)
        writer.path = self.dirs.events
        return writer

    def _is_log(self, writer: EventWriter) -> bool:
        try:
            return writer.is_at(self.dirs.events)
        except OSError as error:
            what = "it is unknown whether a shorter log has taken its place"
            raise UnknownLogError(f"{self.dirs.events}: {what}: {error}") from error

    def _pass_on(self, sink: Sink, events: Sequence[Event]) -> None:
        try:
            sink(events)
        except Exception as error:  # noqa: BLE001 - what is recorded stays recorded, whether or not a sink can take it
            self._sinks.remove(sink)
            _log.warning("events are in %s only from here on: %s", self.dirs.events, error)

    def close(self) -> None:
        self._writer.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def size_and_time(dirs: StateDir) -> tuple[int, float]:
    """Bytes of the log, and when it was last written by the system's clock; zeros if there is none."""
    try:
        status = dirs.events.stat()
    except FileNotFoundError:
        return 0, 0.0
    return status.st_size, status.st_mtime


def newest_by_name(
    jobs: Iterable[Job], living: Container[str] = (), user: str | None = None
) -> dict[str, str]:
    """The ids that names mean which were used again: their newest job, and the first one as ``NAME-1``.

    :param jobs: in order of their submissions.
    :param living: ids of jobs that have not ended, which mean themselves.
    :param user: whose jobs names mean, where several accounts share the run; None: all.
    """
    listed = list(jobs)
    id_of = {job.name: job.id for job in listed if job.name is not None and is_of(job, user)}
    ids = {job.id for job in listed} if id_of else set()
    firsts = {f"{name}-1": name for name in id_of if name in ids}
    newest = {name: job_id for name, job_id in id_of.items() if name not in living}
    return newest | {first: name for first, name in firsts.items() if first not in ids}


def is_of(job: Job, user: str | None) -> bool:
    """Whether it is this user's, or None is given. In a shared run a job that states none is root's."""
    return user is None or (job.user or account_name(ROOT)) == user


def no_such_job(state: Path, unknown: Sequence[str], known: Collection[str], undone: str = "") -> UsageError:
    """:param undone: what was not done therefore."""
    near = did_you_mean(unknown[0], known) if len(unknown) == 1 else ""
    few = f"it has {counted(len(known), 'job')}: pliant status lists them" if known else "it has none"
    text = f"{state} has no job {', '.join(unknown)}{undone and f': {undone}'}"
    return UsageError(f"{text}; {near or few}")


def no_state_directory(path: str | Path) -> UsageError:
    what = f"{path}: no state directory (it has no {StateDir(Path()).events.name})"
    return UsageError(f"{what}: name the folder that pliant run or pliant submit was given as --state")


def read_log(path: str | Path) -> RunLog:
    """The log of a state directory, read without the lock.

    :raises UsageError: there is no log.
    :raises BadInputError: it is damaged.
    """
    dirs = StateDir(Path(path))
    if not dirs.events.is_file():
        raise no_state_directory(path)
    return LogView(dirs).refresh(to_the_end=True)


class ScheduleFile:
    """``schedule.json`` of a run, and the decision that is still to be written to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._due: Schedule | None = None

    @property
    def is_behind(self) -> bool:
        return self._due is not None

    def write(self, schedule: Schedule) -> None:
        """Make this the last decision, now or, if the machine is short of something, a little later.

        :raises PliantError: it cannot be written, and that will not pass.
        """
        self._due = schedule
        self.catch_up()

    def catch_up(self) -> None:
        """Write what could not be written before; raises as :meth:`write`."""
        if self._due is None:
            return
        try:
            write_schedule(self._due, self._path, mode=PRIVATE)
        except PliantError as error:
            if not may_pass(error):
                raise
            _log.debug("%s; it is tried again", error)
        else:
            self._due = None
