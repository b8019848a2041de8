"""What is passed on to stdout: events of the log, and the output of a job's workers."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from pliant.schemas.errors import BadInputError, PliantError, UsageError
from pliant.schemas.event import ENDS, Event
from pliant.schemas.events import EpochEnded, Placed, Progressed, Submitted, typed, with_only
from pliant.schemas.file_io.archives import all_events, archives_of, is_mark, shifted
from pliant.schemas.file_io.events import LogPlace, LogReader, event_lines
from pliant.schemas.file_io.json_lines import FIRST, header
from pliant.schemas.text import counted
from pliant.tools.profile.torchrun.start import workers_of
from pliant.tools.run.backends.protocol import Handle, read_record
from pliant.tools.run.statedir.contract.as_user import files_of, opened
from pliant.tools.run.statedir.contract.folders import AttemptDir, JobDir
from pliant.tools.run.statedir.directory import StateDir, check_job, check_seen
from pliant.tools.run.statedir.log.archive import events_about, with_archived
from pliant.tools.run.statedir.log.fold import JobLog
from pliant.tools.run.statedir.log.snapshot import LogView, repairable
from pliant.tools.run.statedir.state import no_state_directory, no_such_job
from pliant.tools.run.watch.job_status import known_ids
from pliant.tools.run.watch.status import Watcher

PIECE: Final = 1 << 20
MOST_REPORTS: Final = 20_000
"""Maximum reports of a job that are passed on for its cost: a few MiB."""
_THIN: Final = frozenset({Progressed.name, EpochEnded.name})
Shown = Callable[[Event], Event | None]
"""Filter of events for a reader; it returns None for a hidden event."""
_POLL_S: Final = 0.5
_log = logging.getLogger("pliant")


def seen_of(events: Sequence[Event], shown: Shown | None) -> Sequence[Event]:
    """Events as their reader sees them."""
    if shown is None:
        return events
    return [seen for event in events if (seen := shown(event)) is not None]


def last_events(state: Path, count: int, *, shown: Shown | None = None) -> Iterator[bytes]:
    """The last events of the log of a state directory, as an event file of their own.

    :param shown: what the reader sees of each event; None: all of it.
    :raises UsageError: it has no log.
    :raises BadInputError: it is damaged.
    """
    dirs = StateDir(state)
    if not dirs.events.is_file():
        raise no_state_directory(state)
    check_seen(dirs)
    newest: deque[Event] = deque(maxlen=count)
    try:
        for read in (LogReader(dirs.events).read_all, partial(all_events, dirs.events)):
            newest.clear()
            for events in read():
                newest.extend(seen_of(events, shown))
            if len(newest) == count or not archives_of(dirs.events):
                break
    except BadInputError as error:
        raise repairable(error, state) from error
    yield header("event")
    yield from (event_lines([event]) for event in newest)


def job_events(state: Path, job_id: str, *, shown: Shown | None = None) -> Iterator[bytes]:
    """What the cost of one job is told from, as an event file: the run, the job, and jobs on the same GPUs.

    Of very many reports of the job some are left out, evenly.

    :raises UsageError: there is no log, or no such job in it.
    :raises BadInputError: it is damaged.
    """
    dirs = StateDir(state)
    if not dirs.events.is_file():
        raise no_state_directory(state)
    check_seen(dirs)
    about, submitted, shown_events = {job_id}, dict[str, Event](), list[Event]()
    try:
        for row in (row for rows in events_about(dirs, job_id) for row in rows):
            event, seen = typed(row), row if shown is None else shown(row)
            beside = event.beside if isinstance(event, Placed) else None
            if isinstance(event, Submitted) and seen is not None:
                submitted[event.job or ""] = seen
            other = beside if event.job == job_id else event.job if beside == job_id else None
            if other is not None and other not in about and other in submitted:
                about.add(other)
                shown_events.append(submitted[other])
            if not shown_events and event.job is None:
                shown_events += [] if seen is None else [seen]  # the run
            elif event.job in about and seen is not None:
                shown_events.append(with_only(seen, ("beside",)) if beside == job_id else seen)
    except BadInputError as error:
        raise repairable(error, state) from error
    if job_id not in submitted:
        raise no_such_job(state, [job_id], submitted)
    yield header("event")
    yield from (event_lines([event]) for event in _thinned(shown_events))


def _thinned(events: Sequence[Event]) -> list[Event]:
    reports = [i for i, row in enumerate(events) if row.event in _THIN and not row.overhead_seconds]
    kept = {*reports[:: 1 + len(reports) // MOST_REPORTS], *reports[-1:]}
    left_out = {*reports} - kept
    return [event for i, event in enumerate(events) if i not in left_out]


class EventStream:
    """A sink that writes JSON Lines. If its reader leaves or the disk is full, it stops; the run goes on."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write: Callable[[bytes], None] | None = write
        self._started = False

    def __call__(self, events: Sequence[Event]) -> None:
        lines = event_lines(events)
        if self._write is None or not lines:
            return
        try:
            self._write(lines if self._started else header("event") + lines)
        except BrokenPipeError:
            self._write = None
        except OSError as error:
            self._write = None
            _log.warning("no more events on stdout: %s; the log is complete", error.strerror or error)
        self._started = True


def events_to_come(state: Path, last: int = 0, *, shown: Shown | None = None) -> Iterator[bytes]:
    """The last events of the log of a state directory, then each new one, indefinitely.

    Yields empty pieces between looks, so that its reader can act. Waits for a log that does not exist yet;
    reads one that was cut or replaced from its start again.

    :param shown: what the reader sees of each event; None: all of it.
    :raises UsageError: there is no such folder, or it is not this user's to see.
    :raises BadInputError: the log is damaged.
    """
    dirs = StateDir(state)
    if not dirs.path.is_dir():
        raise no_state_directory(state)
    check_seen(dirs)
    yield header("event")
    log = _Log(dirs.events)
    newest = deque(seen_of(log.fresh(state), shown), maxlen=last)
    yield event_lines(newest)
    while True:
        yield b""
        time.sleep(_POLL_S)
        yield event_lines(seen_of(log.fresh(state), shown))


class _Log:
    """A log that is followed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = LogReader(path)
        self._file: tuple[int, int] | None = None
        self._archives = archives_of(path)

    def fresh(self, state: Path) -> list[Event]:
        """:param state: the directory as its user names it, for messages."""
        try:
            status = self._path.stat()
            file = status.st_dev, status.st_ino
            if self._file not in (None, file) or status.st_size < self._reader.place.bytes:
                before, self._archives = self._archives, archives_of(self._path)
                shorter = before.keys() < self._archives.keys()
                place = shifted(self._reader.place.bytes, before, self._archives) if shorter else 0
                self._reader = LogReader(self._path, LogPlace(place, 1, None if place else FIRST.decode()))
            self._file = file
            return [event for _, event in self._reader.read() if not is_mark(event)]
        except FileNotFoundError:
            return []
        except BadInputError as error:
            raise repairable(error, state) from error


def job_output(
    state: Path,
    job_id: str,
    *,
    follow: bool = False,
    lines: int | None = None,
    attempt: int | None = None,
    rank: int | None = None,
) -> Iterator[bytes]:
    """Output of an attempt in pieces, each file under a headline; with ``follow`` until the job ends.

    While following, it yields empty pieces between looks, so that its reader can act.

    :param lines: begin with this many of the last lines of each existing file; None for all.
    :param attempt: its number; None for the newest one, and for those that follow.
    :param rank: of the only worker; None for all of them.
    :raises UsageError: no such state directory, or no such job, attempt or worker in it.
    """
    dirs = StateDir(state)
    _check_known(dirs, job_id)
    check_job(dirs, job_id)
    output, log = JobOutput(dirs, job_id, lines, attempt, rank), _Log(dirs.events)
    while follow and all(event.job != job_id or event.event not in ENDS for event in log.fresh(state)):
        yield from output.fresh()
        yield b""
        time.sleep(_POLL_S)
    yield from output.fresh()


def _check_known(dirs: StateDir, *job_ids: str) -> None:
    known = known_ids(Watcher(dirs.path).look(archived=job_ids))
    if unknown := [job_id for job_id in job_ids if job_id not in known]:
        raise no_such_job(dirs.path, unknown, known)


def ends_of(state: Path, job_ids: Sequence[str]) -> Iterator[JobLog | None]:
    """Each of these jobs once it has ended, in that order; None between looks, so that a reader can act.

    A job that failed and is to be tried again has not ended.

    :raises UsageError: no such state directory, or one of the jobs is not in it (any more).
    """
    dirs, left = StateDir(state), list(dict.fromkeys(job_ids))
    _check_known(dirs, *left)
    view = LogView(dirs)
    jobs = with_archived(view.refresh(), dirs, left).jobs
    while left:
        for job_id in [each for each in left if each in jobs and jobs[each].ended]:
            left.remove(job_id)
            yield jobs[job_id]
        if left:
            if waiting := [each for each in left if each not in jobs]:
                _check_known(dirs, *waiting)
            yield None
            time.sleep(_POLL_S)
            jobs = view.refresh().jobs


class JobOutput:
    """What a job prints from its newest attempt on: each byte once, also across attempts.

    :param attempt: the only attempt whose output it is.
    :param rank: of the only worker whose output it is.
    :raises UsageError: there is no such attempt, or no such worker in it.
    """

    def __init__(
        self,
        dirs: StateDir,
        job_id: str,
        lines: int | None,
        attempt: int | None = None,
        rank: int | None = None,
    ) -> None:
        self._dirs = dirs
        self._job_id = job_id
        self._only, self._rank = attempt, rank
        self._attempt = self._newest()
        self._files: dict[Path, OutputFile] = {}
        self._shown: Path | None = None
        self._check()
        if lines is not None:
            for path in self._paths(self._attempt):
                self._files[path] = self._output(path)
                self._files[path].skip_all_but(lines)

    def _check(self) -> None:
        job = self._dirs.job(self._job_id)
        if self._only is not None and not 1 <= self._only <= (newest := job.newest_attempt()):
            has = counted(newest, "attempt") if newest else "not been started"
            raise UsageError(f"--attempt {self._only}: job {self._job_id} has {has}")
        if self._rank is None:
            return
        workers = number_of_workers(Handle.of(job, self._attempt))
        if workers and self._rank >= sum(workers):
            text = f"attempt {self._attempt} of job {self._job_id} has {counted(sum(workers), 'worker')}"
            raise UsageError(f"--rank {self._rank}: {text}, numbered from 0")

    def _paths(self, attempt: int) -> list[Path]:
        job = self._dirs.job(self._job_id)
        files = output_files(job.attempt(attempt))
        return files if self._rank is None else files_of_rank(Handle.of(job, attempt), files, self._rank)

    def fresh(self) -> Iterator[bytes]:
        """What was printed since the last call, beginning with the rest of the attempt shown last."""
        newest = self._newest()
        for number in range(self._attempt, newest + 1):
            for path in self._paths(number):
                yield from self._rest(path)
        self._attempt = newest

    def _rest(self, path: Path) -> Iterator[bytes]:
        for piece in self._files.setdefault(path, self._output(path)).rest():
            if self._shown != path:
                self._shown = path
                yield f"==> {path.relative_to(self._dirs.path)}\n".encode()
            yield piece if isinstance(piece, bytes) else _note(piece)

    def _output(self, path: Path) -> OutputFile:
        return OutputFile(path, self._dirs.job(self._job_id))

    def _newest(self) -> int:
        return self._only or max(1, self._dirs.job(self._job_id).newest_attempt())


def output_files(attempt: AttemptDir) -> list[Path]:
    with files_of(attempt):
        return [*sorted(attempt.logs.glob("*.log")), *sorted(attempt.logs.rglob("*/std*.log"))]


def number_of_workers(handle: Handle) -> list[int]:
    """How many workers each unit of an attempt has, in order of their ranks; empty if that is not known."""
    try:
        record = read_record(handle)
    except PliantError:
        return []
    return [workers_of(unit.argv) for unit in (record.units if record else ())]


def files_of_rank(handle: Handle, paths: Sequence[Path], rank: int) -> list[Path]:
    """The files of one worker, named UNIT/…/NUMBER_IN_IT/stdout.log below the folder of output."""
    workers, unit = number_of_workers(handle), 0
    while unit < len(workers) and rank >= workers[unit]:
        rank, unit = rank - workers[unit], unit + 1
    folders = [path.relative_to(handle.files.logs).parts for path in paths]
    wanted = str(unit if workers else rank), str(rank if workers else 0)
    return [
        path
        for path, parts in zip(paths, folders, strict=True)
        if (parts[0], parts[-2:-1]) == (wanted[0], (wanted[1],))
    ]


def _note(gone: int) -> bytes:
    return f"==> {counted(gone, 'byte')} printed before this are not kept (--log-bytes)\n".encode()


class OutputFile:
    """Gives out each byte once, and counts those that are no longer on disk.

    :param job: the folder of the job whose file it is; None for a file of one's own.
    """

    def __init__(self, path: Path, job: JobDir | None = None) -> None:
        self._path = path
        self._job = job or JobDir(path.parent)
        self._at = 0
        self._file: tuple[int, int] | None = None

    def _open(self) -> int:
        """:raises FileNotFoundError: it is not there, or is another user's that is not a plain file."""
        try:
            with files_of(self._job):
                return opened(self._path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError as error:
            if self._job.kept is None:
                raise
            raise FileNotFoundError(error.errno, error.strerror, str(self._path)) from error

    def skip_all_but(self, lines: int) -> None:
        """Begin with the last lines that are there now, including one without its end."""
        try:
            descriptor = self._open()
        except FileNotFoundError:
            return
        try:
            self._at = _last_lines(descriptor, lines)
        finally:
            os.close(descriptor)

    def rest(self) -> Iterator[bytes | int]:
        """What was printed between the last call and this one, from the start if the file was replaced."""
        try:
            descriptor = self._open()
        except FileNotFoundError:
            return
        try:
            status = os.fstat(descriptor)
            if self._file not in (None, (status.st_dev, status.st_ino)) or status.st_size < self._at:
                self._at = 0
            self._file = status.st_dev, status.st_ino
            yield from self._pieces(descriptor, status.st_size)
        finally:
            os.close(descriptor)

    def _pieces(self, descriptor: int, end: int) -> Iterator[bytes | int]:
        while self._at < end:
            data = os.pread(descriptor, min(PIECE, end - self._at), self._at)
            kept = min(end, _first_kept(descriptor, self._at))  # asked after reading: what is gone reads as 0
            if kept > self._at:
                yield kept - self._at
                self._at = kept
            elif data:
                self._at += len(data)
                yield data
            else:
                return


def _last_lines(descriptor: int, lines: int) -> int:
    """Where the last lines begin, searched from the end in pieces."""
    size = os.fstat(descriptor).st_size
    first, at = min(size, _first_kept(descriptor, 0)), size
    if lines == 0:
        return size
    while at > first:
        begin = max(first, at - PIECE)
        data = os.pread(descriptor, at - begin, begin)
        end = len(data)
        while (end := data.rfind(b"\n", 0, end)) >= 0:
            lines -= begin + end < size - 1  # the last line's own end begins no line
            if lines == 0:
                return begin + end + 1
        at = begin
    return first


def _first_kept(descriptor: int, place: int) -> int:
    """The first place from ``place`` on that is on disk; the end of the file if there is none."""
    try:
        return os.lseek(descriptor, place, os.SEEK_DATA)
    except OSError as error:
        return os.fstat(descriptor).st_size if error.errno == errno.ENXIO else place
