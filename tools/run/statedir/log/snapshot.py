"""What the log of a state directory says now, read without the lock; and what it folds to, kept beside it.

With the snapshot only the lines after it are read, and a log that was cut can be restored.

``snapshot.jsonl`` can always be made from the log again. It names the checksum of the bytes that it was made
of; if the log begins with other bytes, or this version folds to other things, it is ignored. Its first line
has the checksum of the rest; the second one names the place in the log, the jobs, and the session that
``pliant schedule`` would rebuild; the third one is the run. Then each job has a line as ``run`` sees it, and
one as a session does; each is parsed when its job is asked for.

A log that ends before the place of its snapshot was cut, by a file system after a crash or by an older copy.
It then gets events that lead to what the snapshot knows (:func:`restoring`): submissions and ends at their
own times; then, at the snapshot's last time, who holds which GPUs, which nodes are down or drained, which
slots are out of service, what is held or waits for a retry, and how far jobs are. One last ``decision``
brings the fields that no other event says.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeVar
from zlib import crc32

from pydantic import TypeAdapter
from pydantic_core import from_json

from pliant import __version__
from pliant.schemas.errors import BadInputError
from pliant.schemas.event import Event
from pliant.schemas.events import (
    Cancelled,
    Decided,
    Drained,
    Ended,
    Failed,
    Finished,
    Grown,
    Held,
    Moved,
    NodeDown,
    NodeUp,
    Placed,
    Prioritized,
    Progressed,
    Rejected,
    Reloaded,
    Requeued,
    Resumed,
    RunBegan,
    Shrunk,
    SlotCleared,
    SlotQuarantined,
    Started,
    Undrained,
    Unheld,
    Updated,
    row_of,
)  # fmt: skip
from pliant.schemas.file_io.events import LogPlace, LogReader
from pliant.schemas.file_io.files import atomic_write, read_failure
from pliant.schemas.file_io.limits import garbage_collection_paused
from pliant.schemas.job import CHANGEABLE, Changes, Job
from pliant.schemas.runinfo import RunInfo
from pliant.tools.run.statedir.contract.folders import PRIVATE
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import on_clock, submit_event
from pliant.tools.run.statedir.log.fold import (
    JOB_RECORD,
    PARTS,
    RENAMED,
    RESTORED,
    RUN_RECORD,
    Drain,
    JobLog,
    JobPhase,
    LeftOut,
    RunLog,
    fold,
)
from pliant.tools.schedule.from_log import SessionFold
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.session.saved import STATES, Basis, LazyDict, SavedSession, SessionFacts, raw_of
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Change

T = TypeVar("T")
SessionStates = tuple[SessionFacts, Mapping[str, bytes]]
"""A session, and the states of its jobs."""
SCHEMA: Final = "pliant.snapshot/1"
MEANING: Final = 13
"""To be raised when events come to mean something else, so that older snapshots are made again."""
_HEAD_BYTES: Final = 4096
"""A first line is shorter."""
_ELSEWHERE: Final = {"jobs", "active", *(field.name for field in fields(RunLog) if not field.compare)}
"""Fields of the run's record that have lines of their own, or are not part of what the log says."""


_ENDS: Final[Mapping[JobPhase, type[Ended]]] = {
    "finished": Finished,
    "failed": Failed,
    "cancelled": Cancelled,
    "rejected": Rejected,
}
_AS_SUBMITTED: Final = frozenset({"job", "submitted_s"})
_part_record: Final = cache(TypeAdapter[Any])
_FIELDS: Final = frozenset(each.name for each in fields(JobLog)) - _AS_SUBMITTED - PARTS.keys()


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """A log up to one place in it."""

    place: LogPlace
    log: RunLog
    session: SavedSession | None
    """None if there was no cluster to rebuild one under."""
    size: int
    """Bytes of the file."""


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """How to rebuild the session that belongs to a log."""

    basis: Basis
    session: Callable[[], Session]
    """A new one, without jobs."""


def folds_to() -> str:
    """Identifies what a log is folded to: snapshots with another value are not used."""
    names = [
        [field.name for field in fields(kind)]
        for kind in (JobLog, *PARTS.values(), RunLog, SessionFacts, *STATES)
    ]
    slots = [JobState.__slots__, Change._fields]
    text = json.dumps([__version__, MEANING, names, slots])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@garbage_collection_paused()
def read_snapshot(dirs: StateDir) -> LogSnapshot | None:
    """The snapshot of a state directory. Returns None if there is none that this version can use.

    The caller checks whether it belongs to the log.
    """
    try:
        data = dirs.snapshot.read_bytes()
        first, _, rest = data.partition(b"\n")
        head = json.loads(first)
        if (head["schema"], head["folds_to"], head["crc"]) != (SCHEMA, folds_to(), crc32(rest)):
            return None
        second, run, *lines = rest.split(b"\n")
        return _decoded(from_json(second), RUN_RECORD.validate_json(run), lines, len(data))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def bytes_behind(dirs: StateDir) -> int:
    """Bytes of the log when its snapshot was made, even if that cannot be used; 0 if unknown."""
    try:
        with dirs.snapshot.open("rb") as file:
            return int(json.loads(file.readline(_HEAD_BYTES))["bytes"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return 0


def _decoded(values: dict[str, Any], log: RunLog, lines: list[bytes], size: int) -> LogSnapshot:
    ids = values["jobs"]
    jobs = records_kept_small(dict(zip(ids, lines, strict=False)))
    log.jobs, log.active = jobs, {job_id: jobs[job_id] for job_id in values["active"]}
    kept = None
    if values["session"] is not None:
        facts = SessionFacts.from_json(values["session"])
        states = dict(zip([*facts.active, *facts.ended], lines[len(ids) :], strict=False))
        kept = SavedSession(facts, states, lambda job_id: spec_on_clock(log, job_id, facts.origin_s))
    return LogSnapshot(LogPlace(**values["place"]), log, kept, size)


def records_kept_small(jobs: Mapping[str, bytes | JobLog]) -> LazyDict[JobLog]:
    """Records of jobs by id, parsed when they are asked for; what is not needed can be put away."""
    return LazyDict.of(jobs, lambda _, raw: JOB_RECORD.validate_json(raw), _encoded)


def _encoded(job: JobLog) -> bytes:
    return JOB_RECORD.dump_json(job, by_alias=True, exclude_defaults=True)


def spec_on_clock(log: RunLog, job_id: str, origin_s: float) -> Job:
    """A job with its submit time on a session's clock."""
    record = log.jobs[job_id]
    if not origin_s:
        return record.job
    return record.job.model_copy(update={"submit_time": max(0.0, record.submitted_s - origin_s)})


def renew_snapshot(dirs: StateDir, log: RunLog, rebuilding: Rebuilding) -> int:
    """Write the snapshot of a log as it is now. The caller holds the lock.

    Returns the bytes by which the log may grow until the next one is worth its cost: an eighth of the
    snapshot, or as much as the log has if it leads to no session, since the next one then reads all of it.

    :param log: the whole log, folded.
    :raises PliantError: the log cannot be read, or the snapshot not be written.
    """
    place, session = session_of_log(dirs, log, rebuilding)
    data = snapshot_bytes(place, log, session)
    atomic_write(dirs.snapshot, data, mode=PRIVATE)
    return place.bytes if session is None else len(data) // 8


def snapshot_bytes(place: LogPlace, log: RunLog, session: SessionStates | None) -> bytes:
    """The snapshot of a log up to a place in it."""
    data = b"\n".join(_lines(place, log, session))
    head = {"schema": SCHEMA, "folds_to": folds_to(), "crc": crc32(data), "bytes": place.bytes}
    return json.dumps(head).encode() + b"\n" + data


def session_of_log(
    dirs: StateDir, log: RunLog, rebuilding: Rebuilding
) -> tuple[LogPlace, SessionStates | None]:
    """Where a log ends, and the session that it leads to. The caller holds the lock.

    :raises PliantError: the log cannot be read.
    """
    before = read_snapshot(dirs)
    kept = before.session if before is not None and before.place.is_in(dirs.events) else None
    if kept is not None and kept.facts.basis != rebuilding.basis:
        kept = None
    reader = LogReader(dirs.events, before.place if before is not None and kept is not None else None)
    session = _session(rebuilding, kept, (event for _, event in reader.read()), dirs, log)
    return reader.place, session


def _session(
    rebuilding: Rebuilding, kept: SavedSession | None, events: Iterable[Event], dirs: StateDir, log: RunLog
) -> SessionStates | None:
    fold = SessionFold(rebuilding.session(), str(dirs.events), kept, reloads=log.reloads > 0)
    try:
        for event in on_clock(events, rebuilding.basis.origin_s):
            fold.add(event)
    except BadInputError:  # the caller that asks for a session says so
        return None
    return fold.keep(rebuilding.basis)


def _lines(place: LogPlace, log: RunLog, session: SessionStates | None) -> Iterator[bytes]:
    facts, states = session or (None, {})
    values = {
        "place": asdict(place),
        "jobs": list(log.jobs),
        "active": list(log.active),
        "session": None if facts is None else facts.to_json(),
    }
    yield json.dumps(values, separators=(",", ":")).encode()
    yield RUN_RECORD.dump_json(log, by_alias=True, exclude=_ELSEWHERE)
    for job_id in log.jobs:
        yield raw_of(log.jobs, job_id, _encoded)
    if facts is not None:
        for job_id in (*facts.active, *facts.ended):
            yield states[job_id]


# Restoring a log that was cut.


def is_past_of(log: RunLog, known: RunLog) -> bool:
    """Whether a log may be what another one was earlier: of the same run, with nothing later."""
    return (
        log.last_s <= known.last_s
        and log.archives.keys() <= known.archives.keys()
        and (log.info is None or _began(log) == _began(known))
        and all(
            job_id in known.jobs and known.jobs[job_id].submitted_s == job.submitted_s
            for job_id, job in log.jobs.items()
        )
    )


def _began(log: RunLog) -> RunInfo | None:
    """What a run began with, its cluster apart, which may change."""
    return None if log.info is None else log.info.model_copy(update={"cluster": None})


def restoring(events: Iterable[Event], known: RunLog) -> list[Event]:
    """The events that lead a log, a past of ``known``, to that; empty if its own do so already."""
    before = [*events]
    log, at_s = fold(before), known.last_s
    events_lost: list[Event] = []
    for part in (_begin, _come_and_end, _take_away, _open, _give, _close, _order, _report):
        more = list(part(log, known, at_s))
        for event in more:
            log.add(event)
        events_lost += more
    if (rest := rest_event(log, known)) is not None:
        events_lost.append(rest)
    return events_lost


def _begin(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    if log.info is None and known.info is not None:
        began_s = min([at_s, *(job.submitted_s for job in known.jobs.values())])
        stated = known.info.model_dump(mode="json", by_alias=True, exclude_none=True)
        yield row_of(RunBegan(began_s, stated=stated))


def _come_and_end(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    """Jobs that the log does not know, and ends of jobs."""
    for job_id, job in known.jobs.items():
        if job_id not in log.jobs:
            work = job.total_samples
            detail: dict[str, Any] = {"samples": work} if work is not None and math.isfinite(work) else {}
            if job.uid is not None:
                detail["uid"] = job.uid
            yield submit_event(job.job, job.submitted_s, detail)
    ended = (job for job_id, job in known.jobs.items() if job.ended and not _ended(log, job_id))
    for job in sorted(ended, key=lambda job: (job.ended_s or 0.0, job.job.id)):
        ended_s = at_s if job.ended_s is None else job.ended_s
        end = _ENDS.get(job.phase, Failed)(ended_s, job.job.id, 0, (), reason=job.reason)
        yield row_of(replace(end, samples_done=job.samples_done or None, loss=job.loss))


def _ended(log: RunLog, job_id: str) -> bool:
    return job_id in log.jobs and log.jobs[job_id].ended


def _take_away(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    """Free the GPUs of jobs that have lost them; a job that waits for its retry goes on waiting."""
    for job_id, job in sorted(known.active.items()):
        before = log.jobs[job_id]
        if before.ended:
            yield row_of(Requeued(at_s, job_id, 0, (), reason=job.reason, order=0))
        if job.gpus:
            continue
        wait_s = (
            0.0 if job.retry.retry_s in (None, before.retry.retry_s) else (job.retry.retry_s or 0.0) - at_s
        )
        if before.gpus or wait_s > 0:
            waits_s = wait_s if wait_s > 0 else None
            yield row_of(Requeued(at_s, job_id, 0, (), reason=job.reason, wait_seconds=waits_s))


def _open(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    for node in sorted(log.down.keys() - known.down.keys()):
        yield row_of(NodeUp(at_s, node=node))
    for node in sorted(log.drained.keys() - known.drained.keys()):
        yield row_of(Undrained(at_s, node=node))
    if log.info is not None and known.info is not None and log.info.cluster != known.info.cluster:
        cluster, next_cluster = (
            None if each is None else each.model_dump(mode="json", by_alias=True, exclude_defaults=True)
            for each in (known.info.cluster, known.next_cluster)
        )
        yield row_of(
            Reloaded(at_s, cluster=cluster, next_cluster=next_cluster, leaving=list(known.leaving) or None)
        )
    proven = log.slot_faults.slots.keys() - known.slot_faults.slots.keys()
    for slot in sorted(proven | _out_longer(log, known, at_s).keys()):
        yield row_of(SlotCleared(at_s, slot=slot))


def _out_longer(log: RunLog, other: RunLog, at_s: float) -> dict[str, LeftOut]:
    """Slots that are out of service in a log, and in another one not at all, or not as long."""
    return {
        slot: left
        for slot, left in log.out_of_service(at_s).items()
        if slot not in other.left_out or other.left_out[slot].until_s < left.until_s
    }


def _give(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    for job_id, job in sorted(known.active.items()):
        before = log.jobs[job_id]
        if not job.gpus or (before.allocation == job.allocation and not before.ended):
            continue
        kind: type[Placed] = Resumed if before.started_s is not None else Started
        if before.gpus:
            kind = Grown if job.gpus > before.gpus else Shrunk if job.gpus < before.gpus else Moved
        gpus = 0 if job.job.on_cpus else job.gpus
        yield row_of(
            kind(
                *(at_s, job_id, gpus, job.placement, job.global_batch),
                accum=job.attempt.accum,
                lr_scale=job.attempt.lr_scale,
                reason=job.reason,
                beside=job.beside,
            )
        )


def _close(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    for slot, left in sorted(_out_longer(known, log, at_s).items()):
        down = SlotQuarantined(at_s, slot=slot, seconds=left.until_s - at_s, reason=left.reason)
        yield row_of(down)
    for node, why in sorted(known.down.items()):
        if node not in log.down:
            yield row_of(NodeDown(at_s, node=node, reason=why))
    for node, drain in sorted(known.drained.items()):
        if _words(log.drained.get(node)) != _words(drain):
            drained = Drained(at_s, node=node, user=drain.user, reason=drain.reason, now=drain.now)
            yield row_of(replace(drained, until=drain.until_s))


def _words(drain: Drain | None) -> tuple[object, ...] | None:
    return None if drain is None else (drain.user, drain.reason, drain.now, drain.until_s)


def _order(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    for job_id, job in sorted(known.active.items()):
        before = log.jobs[job_id]
        new: set[str] = {name for name in CHANGEABLE if getattr(before.job, name) != getattr(job.job, name)}
        if new:
            changes: Changes = job.job.model_dump(mode="json", include=new)  # type: ignore[assignment]
            yield row_of(Updated(at_s, job_id, changes=changes))
        if before.job.priority != job.job.priority:
            yield row_of(Prioritized(at_s, job_id, priority=job.job.priority))
        if job.held is not None and before.held is None:
            yield row_of(Held(at_s, job_id, user=job.held[0]))
        elif job.held is None and before.held is not None:
            yield row_of(Unheld(at_s, job_id))


def _report(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    for job_id, job in sorted(known.active.items()):
        before = log.jobs[job_id]
        if (before.samples_done, before.loss) != (job.samples_done, job.loss):
            yield row_of(Progressed(at_s, job_id, samples_done=job.samples_done, loss=job.loss))


def rest_event(log: RunLog, known: RunLog) -> Event | None:
    """What no event has said. Returns None if nothing is left."""
    own = _differing(RUN_RECORD, log, known, RESTORED)
    jobs = {
        job_id: values for job_id, job in known.jobs.items() if (values := _of_job(log.jobs[job_id], job))
    }
    if not own and not jobs:
        return None
    policy = "" if known.info is None else known.info.policy
    former = {name: former for former, name in RENAMED.items()}
    restored = {**{former.get(name, name): value for name, value in own.items()}, "jobs": jobs}
    rest = Decided(known.last_s, origin_s=known.origin_s, policy=policy, restored=restored)
    return row_of(replace(rest, error=known.policy_error or None))


def _of_job(log: JobLog, known: JobLog) -> dict[str, Any]:
    """As :func:`_differing`, of a job and all parts of its record."""
    if log == known:
        return {}
    values = _differing(JOB_RECORD, log, known, _FIELDS)
    for part, kind in PARTS.items():
        names = [each.name for each in fields(kind)]
        values |= _differing(_part_record(kind), getattr(log, part), getattr(known, part), names)
    return dict(sorted(values.items()))


def _differing(adapter: TypeAdapter[T], log: T, known: T, names: Iterable[str]) -> dict[str, Any]:
    """The fields of ``known`` that differ in ``log``, as JSON."""
    changed = {name for name in names if getattr(log, name) != getattr(known, name)}
    if not changed:
        return {}
    values: dict[str, Any] = adapter.dump_python(known, mode="json", include=changed)
    return {name: value for name, value in sorted(values.items()) if _can_be_logged(value)}


def _can_be_logged(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class Misfit:
    """How a log and the snapshot beside it do not go together."""

    kind: Literal["cut", "lost", "replaced"]
    """``cut``: the log lacks its end, and the snapshot knows what it led to; ``lost``: it lacks its end, and
    the snapshot cannot be used; ``replaced``: they are of different runs.
    """
    bytes: int = 0
    """Bytes of the log that are missing, at least."""

    @property
    def words(self) -> str:
        if self.kind == "replaced":
            return "was cut or replaced: its snapshot is of another log, and is not used"
        was = "was cut" + (f" by {self.bytes:,} bytes" if self.bytes else "")
        if self.kind == "cut":
            return f"{was}: what is missing is taken from its snapshot"
        return f"{was}, and its snapshot cannot be used: jobs that it shows as active may have ended since"

    def advice(self, state: Path) -> str:
        return f"{'repair it' if self.kind == 'cut' else 'go on without it'} with: {repair_command(state)}"


class LogView:
    """The log, folded, and kept up to date; needs no lock. What a snapshot knows is not read again.

    What a log that was cut has lost is taken from its snapshot.

    :param keeps_events: of what was read, for :meth:`history`.
    """

    def __init__(self, dirs: StateDir, *, keeps_events: bool = False) -> None:
        self._dirs = dirs
        self._events: list[Event] | None = [] if keeps_events else None
        self._snapshot: LogSnapshot | None = None
        self._has_read = False
        self._until: int | None = None
        self.log = RunLog()
        # How the snapshot differs from the log; None if it does not, or there is none.
        self.misfit: Misfit | None = None
        # Whether the snapshot is of no use any more, with this log.
        self.stale = False
        # What the log has lost, made from the snapshot.
        self._lost: list[Event] = []

    def refresh(self, *, to_the_end: bool = False, until: int | None = None) -> RunLog:
        """Take up what was appended since the last call; a log that was replaced is read from its start.

        :param to_the_end: see :meth:`LogReader.read`.
        :param until: the number of bytes to look at.
        :raises BadInputError: the log is damaged; its one line says how to repair it.
        """
        self._until = until
        self._has_read = self._has_read and not self._lost
        try:
            if self._has_read:
                try:
                    self._read(to_the_end=to_the_end)
                except BadInputError:
                    self._has_read = False
            if not self._has_read:
                other = self._begin()
                self._read(to_the_end=to_the_end)
                self._compare(other)
        except FileNotFoundError:
            return self.log
        except OSError as error:
            raise read_failure(error, str(self._dirs.events)) from error
        except BadInputError as error:
            raise repairable(error, self._dirs.path) from error
        self._has_read = True
        return self.log

    def start_again(self) -> None:
        """Read all of it at the next call."""
        self._has_read = False
        self._events = []

    @property
    def in_snapshot(self) -> tuple[int, int]:
        """How many bytes of the log its snapshot covers, and the snapshot's own size."""
        snapshot = self._snapshot
        return (0, 0) if snapshot is None else (snapshot.place.bytes, snapshot.size)

    def history(
        self, basis: Basis, now_s: float | None = None
    ) -> tuple[SavedSession | None, Iterable[Event]]:
        """What the session as of the last :meth:`refresh` is rebuilt from. Call it once.

        :param now_s: nothing later counts (on the session's clock).
        :raises BadInputError: the log is damaged.
        """
        events, self._events = self._events, None
        if events is None and self._lost:
            events = self._all_events()
        kept = None if self._snapshot is None else self._snapshot.session
        if kept is not None and (kept.facts.basis != basis or (now_s is not None and kept.until_s > now_s)):
            kept = None
        if events is None or (kept is None and self._snapshot is not None):
            place = self._snapshot.place if self._snapshot is not None and kept is not None else LogPlace()
            numbered = LogReader(self._dirs.events, place).read(to_the_end=True, until=self._until)
            events = [event for _, event in numbered]
        return kept, on_clock(events, basis.origin_s)

    def forget(self) -> None:
        self._events = None

    def _begin(self) -> LogSnapshot | None:
        """Start with the snapshot, or from nothing; returns the snapshot if it is not of this log."""
        self.log, place = RunLog(), LogPlace()
        self._events = None if self._events is None else []
        self._lost = []
        snapshot = read_snapshot(self._dirs)
        fits = snapshot is not None and snapshot.place.is_in(self._dirs.events)
        if fits and snapshot is not None and self._until is not None and snapshot.place.bytes > self._until:
            snapshot = None  # it was made after the moment that is looked at
        self._snapshot = snapshot if fits else None
        if snapshot is not None and fits:
            self.log, place = snapshot.log, snapshot.place
        self._reader = LogReader(self._dirs.events, place)
        return None if fits else snapshot

    def _compare(self, other: LogSnapshot | None) -> None:
        """See how the snapshot and the log differ; take what the log has lost from ``other``."""
        before, self.misfit = self.misfit, None
        behind, size = bytes_behind(self._dirs), self._dirs.events.stat().st_size
        if other is not None and not self.log.archives.keys() <= other.log.archives.keys():
            self.stale = True  # an archive was made since, and then the process died
            return
        if other is not None and is_past_of(self.log, other.log):
            events = self._all_events()
            self._lost = restoring(events, other.log)
            if self._lost:
                self.log = fold([*events, *self._lost])
                self._events = None if self._events is None else [*events, *self._lost]
                self.misfit = Misfit("cut", max(0, other.place.bytes - size))
        elif other is not None:
            self.misfit = Misfit("replaced")
        elif self._snapshot is None and (short := behind - size) > 0:
            self.misfit = Misfit("lost", short)
        self.stale = other is not None or self.misfit is not None
        if self.misfit is not None and self.misfit != before:
            words, advice = self.misfit.words, self.misfit.advice(self._dirs.path)
            _log.warning("%s %s; %s", self._dirs.events, words, advice)

    def _all_events(self) -> list[Event]:
        numbered = LogReader(self._dirs.events).read(to_the_end=True, until=self._until)
        return [*(event for _, event in numbered), *self._lost]

    def _read(self, *, to_the_end: bool) -> None:
        numbered = self._reader.read(to_the_end=to_the_end, until=self._until)
        fold_into(self.log, numbered, str(self._dirs.events))
        if self._events is not None:
            self._events += [event for _, event in numbered]


def fold_into(log: RunLog, events: Iterable[tuple[int, Event]], source: str) -> None:
    """Fold further events, given with their line numbers.

    :raises BadInputError: one does not say what the fold needs.
    """
    for number, event in events:
        try:
            log.add(event)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            what = str(error).partition("\n")[0]
            text = f"this {event.event!r} event cannot be understood: {what}"
            raise BadInputError.one(source, text, line=number) from error


def repair_command(state: Path) -> str:
    return f"pliant log --repair --state {state}"


def repairable(error: BadInputError, state: Path) -> BadInputError:
    """The one line that a command ends with where the log of its state directory is damaged."""
    first, *others = error.problems or (error,)
    more = f" (and {len(others)} more)" if others else ""
    return BadInputError(f"{first}{more}; repair it with: {repair_command(state)}")
