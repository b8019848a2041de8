"""Jobs that ended long ago leave the log for an archive, and are found there.

The archive is on disk before the log is replaced by one without these jobs, in one step: killed at any
moment, a run has one log or the other, and each job once. The new log says first what archives it has, and
last what no event of it says any more: totals, the usage of teams, and how many changes policies have seen.
It is folded before it takes the place of the old one; where it leads to anything else, all stays as it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic_core import from_json

from pliant.schemas.errors import BadInputError
from pliant.schemas.event import ENDS, End, Event
from pliant.schemas.events import Decided, row_of, typed
from pliant.schemas.file_io.archives import MARK, find_archived, is_mark, write_archive
from pliant.schemas.file_io.events import LOG_HEADER, LogReader, read_event, sealed_lines
from pliant.schemas.file_io.files import Draft, make_folder, sync_folder
from pliant.schemas.file_io.json_lines import FIRST, Seals, seal
from pliant.tools.run.statedir.contract.folders import PRIVATE
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import on_clock
from pliant.tools.run.statedir.log.fold import JobLog, RunLog, fold
from pliant.tools.run.statedir.log.snapshot import (
    Rebuilding,
    SessionStates,
    rest_event,
    session_of_log,
    snapshot_bytes,
)
from pliant.tools.schedule.from_log import SessionFold
from pliant.tools.schedule.session.saved import Basis, LazyDict, usage_before

_LINE: Final = re.compile(rb'\{"time":([^,]+),(?:"job":"([^"]+)",)?"event":"([a-z_]+)"')
_TRIES: Final = 5
Archived = dict[str, tuple[End, str | None]]
"""How jobs ended, and their arrays."""


class CannotArchiveError(Exception):
    """A log without these jobs would lead to something else."""


@dataclass(frozen=True, slots=True)
class ShorterLog:
    """A log whose archive is on disk, to take the place of a longer one."""

    draft: Draft
    snapshot: bytes
    gone: frozenset[str]
    """Jobs that it has no longer."""
    archives: dict[str, int]
    archived: Archived


def ended_before(log: RunLog, until_s: float) -> dict[str, float]:
    """Jobs of which nothing is left to happen that had ended by then, and when."""
    over = log.jobs.keys() - log.active.keys() - log.broken_off.keys()
    ends = ((job_id, _ended_s(log, job_id)) for job_id in log.jobs if job_id in over)
    return {job_id: ended_s for job_id, ended_s in ends if ended_s is not None and ended_s <= until_s}


def _ended_s(log: RunLog, job_id: str) -> float | None:
    """The record of a job that is kept small is not made for it."""
    raw = log.jobs.raw(job_id) if isinstance(log.jobs, LazyDict) else None
    return log.jobs[job_id].ended_s if raw is None else from_json(raw).get("ended_s")


def without_living_arrays(log: RunLog, job_ids: Iterable[str]) -> set[str]:
    """The jobs, but for those of arrays that are not over: how many of them failed counts."""
    living = {_array(job) for job in log.active.values()} - {None}
    return {each for each in job_ids if not living or _array(log.jobs[each]) not in living}


def _array(job: JobLog) -> tuple[str, float] | None:
    return None if job.job.array is None else (job.job.array.name, job.job.submit_time)


def lines_after(dirs: StateDir, place: int) -> tuple[set[str], float]:
    """The jobs of the lines after a place in the log, in bytes, and the time of the first line.

    :raises CannotArchiveError: a line is there that the next shorter log has no longer, whatever it keeps.
    """
    jobs, since_s = set[str](), math.inf
    with dirs.events.open("rb") as file:
        if place:  # perhaps within a line
            file.seek(place - 1)
            file.readline()
        for line in file:
            match = _LINE.match(line)
            if place and (match is None or (b'"restored"' in line and _is_mark(line))):
                raise CannotArchiveError("a target of notices has not heard of all that was before")
            if match is not None:
                since_s = min(since_s, float(match[1]))
                jobs.update([match[2].decode()] if match[2] is not None else ())
    return jobs, since_s


def _is_mark(line: bytes) -> bool:
    return MARK in ((from_json(line).get("detail") or {}).get("restored") or {})


def shorter_log(
    dirs: StateDir, log: RunLog, rebuilding: Rebuilding, gone: Collection[str], decided_before_s: float
) -> ShorterLog:
    """Write the archive of some jobs and of old decisions, and a log without them. The caller holds the lock.

    :param log: the whole log, folded.
    :raises CannotArchiveError: the log has to stay as it is.
    :raises PliantError: a file cannot be read or written; the log stays as it is.
    """
    name = f"{1 + max((int(each[:-8]) for each in log.archives), default=0):06d}.parquet"
    split = _Split(dirs, gone, decided_before_s)
    archived = {**log.archived, **{each: _outcome(log.jobs[each]) for each in gone}}
    kept = {job_id: job for job_id, job in log.jobs.items() if job_id not in gone}
    awaited = {other for job in kept.values() for other in job.job.after}
    archived = {job_id: end for job_id, end in archived.items() if job_id in awaited}
    _, session = session_of_log(dirs, log, rebuilding)
    draft = Draft(dirs.events, PRIVATE)
    try:
        archives, link = split.write(draft, {**log.archives, name: 0}, archived)
        known = replace(log, jobs=kept, archives=archives, archived=archived, newest={})
        snapshot = _Check(dirs, known, rebuilding, session).finish(draft, link)
        make_folder(dirs.archive, mode=0o700)
        sync_folder(dirs.path)
        names = {job_id: log.jobs[job_id].job.name for job_id in log.jobs if job_id in gone}
        write_archive(dirs.archive / name, split.moved(), names)
    except BaseException:
        draft.drop()
        raise
    finally:
        if isinstance(log.jobs, LazyDict):
            log.jobs.put_away(log.jobs.keys() - log.active.keys())
    return ShorterLog(draft, snapshot, frozenset(gone), archives, archived)


def _outcome(job: JobLog) -> tuple[End, str | None]:
    end = next(end for end in ENDS.values() if end == job.phase)
    return end, None if job.job.array is None else job.job.array.name


class _Split:
    """Which lines of a log stay in it, and which go to an archive."""

    def __init__(self, dirs: StateDir, gone: Collection[str], decided_before_s: float) -> None:
        self._dirs, self._gone, self._decided_before_s = dirs, {*gone}, decided_before_s

    def _lines(self) -> Iterator[tuple[bool, bytes]]:
        """Each line without its seal, and whether it stays; what earlier archives have left is dropped.

        :raises CannotArchiveError: a line is not as this version writes it.
        """
        seals, begun = Seals(), False
        with self._dirs.events.open("rb") as file:
            for number, raw in enumerate(file, 1):
                line, wrong = seals.open(raw.rstrip(b"\n"))
                match = _LINE.match(line)
                if match is None and line.startswith(b'{"schema"'):
                    seals.restart()
                elif match is None or wrong is not None or not raw.endswith(b"\n"):
                    raise CannotArchiveError(f"line {number} is damaged, or of another form")
                elif match[2] is not None:
                    yield match[2].decode() not in self._gone, line
                elif match[3] != Decided.name.encode() or not begun:
                    yield True, line
                elif b'"restored"' not in line or not is_mark(read_event(line)):
                    is_old = float(match[1]) <= self._decided_before_s
                    yield not (is_old and isinstance(typed(read_event(line)), Decided)), line
                begun |= match is not None

    def moved(self) -> list[tuple[int, Event]]:
        """What goes to the archive, and how many events that stay are before each."""
        place, rows = 0, list[tuple[int, Event]]()
        for stays, line in self._lines():
            place += stays
            if not stays:
                rows.append((place, read_event(line)))
        return rows

    def write(
        self, draft: Draft, archives: dict[str, int], archived: Archived
    ) -> tuple[dict[str, int], bytes]:
        """Write the lines that stay.

        Returns the archives, with the bytes by which the last one shortens the log, and what the next line
        continues.
        """
        kept = [len(line) for stays, line in self._lines() if stays]
        size, seal_bytes = self._dirs.events.stat().st_size, len(seal(b"{}", FIRST)[0]) - len(b"{}")
        left = size - len(LOG_HEADER) - sum(kept) - (seal_bytes + 1) * len(kept)
        name, link = next(reversed(archives)), FIRST
        lines = (line for stays, line in self._lines() if stays)
        first = next(lines)
        for _ in range(_TRIES):  # its length depends on what it says
            mark = row_of(Decided(read_event(first).time, restored={MARK: archives, "archived": archived}))
            shift = left - len(sealed_lines([mark], FIRST)[0])
            archives = {**archives, name: shift}
        draft.write(LOG_HEADER)
        for line in (first, None, *lines):
            data, link = sealed_lines([mark], link) if line is None else _sealed(line, link)
            draft.write(data)
        return archives, link


def _sealed(line: bytes, link: bytes) -> tuple[bytes, bytes]:
    sealed, link = seal(line, link)
    return sealed + b"\n", link


@dataclass(slots=True)
class _Check:
    """The fold of a shorter log, which has to lead to what the longer one leads to."""

    dirs: StateDir
    known: RunLog
    """What the longer log leads to, without the jobs that are gone."""
    rebuilding: Rebuilding
    session: SessionStates | None
    """The session that the longer log leads to."""

    def finish(self, draft: Draft, link: bytes) -> bytes:
        """Write the last line of the shorter log; returns the snapshot of it.

        :param link: what the line continues.
        :raises CannotArchiveError: the log leads to something else.
        """
        log, reader, known = RunLog(), LogReader(draft.path), self.known
        fold = SessionFold(self.rebuilding.session(), str(self.dirs.events), reloads=known.reloads > 0)
        try:
            for block in reader.read_all():
                self._add(block, log, fold)
            line, _ = sealed_lines([self._last_row(log)], link)
            draft.write(line)
            self._add((event for _, event in reader.read()), log, fold)
            differs = rest_event(log, known) is not None
            after = None if self.session is None else fold.keep(self.rebuilding.basis)
        except (ArithmeticError, LookupError, TypeError, ValueError, BadInputError) as error:
            raise CannotArchiveError(str(error).partition("\n")[0]) from error
        if self.session is not None and after is not None:
            differs |= [*self.session[0].active] != [*after[0].active]
        if differs:
            raise CannotArchiveError("it would lead to another state")
        return snapshot_bytes(reader.place, log, after)

    def _add(self, events: Iterable[Event], log: RunLog, fold: SessionFold) -> None:
        for row in events:
            log.add(row)
            for shown in on_clock([row], self.rebuilding.basis.origin_s) if self.session is not None else ():
                fold.add(shown)

    def _last_row(self, log: RunLog) -> Event:
        known, rest = self.known, rest_event(log, self.known)
        last = Decided(known.last_s) if rest is None else typed(rest)
        if not isinstance(last, Decided):
            raise TypeError(last.name)
        carried = {"session": _carried(self.session, known.last_s, self.rebuilding.basis)}
        restored = {MARK: known.archives, **(last.restored or {}), **carried}
        return row_of(replace(last, restored=restored))


def _carried(session: SessionStates | None, time_s: float, basis: Basis) -> Mapping[str, Any] | None:
    """What only a session knows of the jobs that are gone."""
    if session is None:
        return None
    facts = session[0]
    usage = None if facts.usage is None else usage_before(facts.usage, max(0.0, time_s - basis.origin_s))
    return {"changes": facts.parts["changes"]["before"] + len(facts.changes), "usage": usage}


# What archives hold.


def events_about(dirs: StateDir, job_id: str) -> Iterator[list[Event]]:
    """The log in blocks; if it has no event of a job, then those of the job from an archive.

    :raises BadInputError: a file is damaged.
    """
    is_there = False
    for block in LogReader(dirs.events).read_all():
        is_there = is_there or any(row.job == job_id for row in block)
        yield block
    for archive, job_ids in () if is_there else find_archived(dirs.events, [job_id]):
        yield [*archive.rows_of(job_ids)]


def with_archived(log: RunLog, dirs: StateDir, wanted: Collection[str] | None) -> RunLog:
    """A log with the records of jobs of its archives; the same one if these hold none of them.

    :param wanted: ids, or names, which mean the newest job; None for all jobs.
    :raises BadInputError: an archive is missing or damaged.
    """
    unknown = None if wanted is None else [each for each in wanted if each not in log.jobs]
    if not log.archives or unknown == []:
        return log
    jobs: dict[str, JobLog] = {}
    for archive, job_ids in find_archived(dirs.events, unknown):
        rows = archive.rows() if unknown is None else archive.rows_of(job_ids)
        place = archive.path.relative_to(dirs.path)
        for job_id, job in fold(row for row in rows if row.job is not None).jobs.items():
            jobs[job_id] = replace(job, reason=f"{job.reason}{'; ' if job.reason else ''}archived in {place}")
    return replace(log, jobs={**jobs, **log.jobs}) if jobs else log
