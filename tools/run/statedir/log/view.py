"""What the log of a state directory says now, and whether it can be believed.

Write back into a log what it has lost, from the snapshot that was made of it before.

A log that ends before the place of its snapshot was cut, by a file system after a crash or by an older copy.
What happened in between is gone; what it led to is in the snapshot. So the log gets events that lead there:
submissions and ends at their own times, then, at the last time that the snapshot knows, who holds which GPUs,
which nodes are down or drained, what is held, and how far jobs are. One last ``decision`` brings the fields
that no other event says. What all of it folds to is what the snapshot holds, to the last field.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

from pliant.schemas.errors import BadInputError
from pliant.schemas.event import Event, EventName
from pliant.schemas.file_io.events import LogReader, Place
from pliant.schemas.file_io.files import read_failure
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import decision_event, interruption_event, on_clock, submit_event
from pliant.tools.run.statedir.log.fold import (
    JOB_RECORD,
    RESTORED,
    RUN_RECORD,
    Drain,
    JobLog,
    JobPhase,
    RunLog,
    fold,
)
from pliant.tools.run.statedir.log.snapshot import Snapshot, bytes_behind, read_snapshot
from pliant.tools.schedule.session.saved import Basis, SavedSession

_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class Misfit:
    """How a log and the snapshot beside it do not go together."""

    kind: Literal["cut", "lost", "replaced"]
    """``cut``: the log lacks its end, and the snapshot has what that led to; ``lost``: it lacks its end, and
    the snapshot cannot be used; ``replaced``: they are of different runs."""
    bytes: int = 0
    """Of the log that are not there any more, at least."""

    @property
    def words(self) -> str:
        """What is wrong, after the name of the log."""
        if self.kind == "replaced":
            return "was cut or replaced: its snapshot is of another log, and is not used"
        was = "was cut" + (f" by {self.bytes:,} bytes" if self.bytes else "")
        if self.kind == "cut":
            return f"{was}: what is missing is taken from its snapshot"
        return f"{was}, and its snapshot cannot be used: jobs that it shows as active may have ended since"

    def advice(self, state: Path) -> str:
        """What helps; the next run on the directory does the same."""
        return f"{'repair it' if self.kind == 'cut' else 'go on without it'} with: {repair_command(state)}"


class LogView:
    """The log, folded, and kept up to date; needs no lock. What a snapshot knows is not read again.

    Where the log was cut behind its snapshot, what it has lost is taken from there.

    :param keeps_events: of what was read, for :meth:`history`.
    """

    def __init__(self, dirs: StateDir, *, keeps_events: bool = False) -> None:
        self._dirs = dirs
        self._events: list[Event] | None = [] if keeps_events else None
        self._snapshot: Snapshot | None = None
        self._has_read = False
        self._until: int | None = None
        self.log = RunLog()
        self.misfit: Misfit | None = None
        """How the snapshot does not go with the log; None: it does, or there is none."""
        self.stale = False
        """Whether the snapshot is of no use any more, with this log."""
        self._lost: list[Event] = []
        """What the log has lost, made from the snapshot."""

    def refresh(self, *, to_the_end: bool = False, until: int | None = None) -> RunLog:
        """Take up what was appended since the last call; a log that was replaced is read from its start.

        :param to_the_end: see :meth:`LogReader.read`.
        :param until: the number of bytes to look at.
        :raises BadInputError: the log is damaged; the one line of its message says how to repair it.
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
        """Read all of it at the next call: it was replaced."""
        self._has_read = False
        self._events = []

    @property
    def in_snapshot(self) -> tuple[int, int]:
        """How many bytes of the log its snapshot covers, and how many that has itself."""
        found = self._snapshot
        return (0, 0) if found is None else (found.place.bytes, found.size)

    def history(
        self, basis: Basis, now_s: float | None = None
    ) -> tuple[SavedSession | None, Iterable[Event]]:
        """What the session is rebuilt from that stands where :meth:`refresh` got to. To be asked once.

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
            place = self._snapshot.place if self._snapshot is not None and kept is not None else Place()
            found = LogReader(self._dirs.events, place).read(to_the_end=True, until=self._until)
            events = [event for _, event in found]
        return kept, on_clock(events, basis.origin_s)

    def forget(self) -> None:
        """Keep no events any more."""
        self._events = None

    def _begin(self) -> Snapshot | None:
        """Start with the snapshot, or from nothing; returns the snapshot where it is not of this log."""
        self.log, place = RunLog(), Place()
        self._events = None if self._events is None else []
        self._lost = []
        found = read_snapshot(self._dirs)
        fits = found is not None and found.place.is_in(self._dirs.events)
        if fits and found is not None and self._until is not None and found.place.bytes > self._until:
            found = None  # it was made after the moment that is looked at
        self._snapshot = found if fits else None
        if found is not None and fits:
            self.log, place = found.log, found.place
        self._reader = LogReader(self._dirs.events, place)
        return None if fits else found

    def _compare(self, other: Snapshot | None) -> None:
        """See what is wrong where the snapshot is not of this log, and take from it what the log has lost.

        :param other: the snapshot; None: it goes with the log, or cannot be used.
        """
        before, self.misfit = self.misfit, None
        behind, size = bytes_behind(self._dirs), self._dirs.events.stat().st_size
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
        """Those of the log, read once more."""
        found = LogReader(self._dirs.events).read(to_the_end=True, until=self._until)
        return [*(event for _, event in found), *self._lost]

    def _read(self, *, to_the_end: bool) -> None:
        found = self._reader.read(to_the_end=to_the_end, until=self._until)
        take_up(self.log, found, str(self._dirs.events))
        if self._events is not None:
            self._events += [event for _, event in found]


def take_up(log: RunLog, events: Iterable[tuple[int, Event]], source: str) -> None:
    """Fold further events, given with their line numbers.

    :raises BadInputError: one does not say what the fold needs.
    """
    for number, event in events:
        try:
            log.add(event)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            text = f"this {event.event!r} event cannot be understood: {_first_line(error)}"
            raise BadInputError.one(source, text, line=number) from error


def repair_command(state: Path) -> str:
    """What mends a log."""
    return f"pliant log --repair --state {state}"


def repairable(error: BadInputError, state: Path) -> BadInputError:
    """The one line that a command ends with where the log of its state directory is damaged."""
    first, *others = error.problems or (error,)
    more = f" (and {len(others)} more)" if others else ""
    return BadInputError(f"{first}{more}; repair it with: {repair_command(state)}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


_ENDS: Final[Mapping[JobPhase, EventName]] = {
    "finished": "finish",
    "failed": "fail",
    "cancelled": "cancel",
    "rejected": "reject",
}
_AS_SUBMITTED: Final = frozenset({"job", "submitted_s"})


def is_past_of(log: RunLog, known: RunLog) -> bool:
    """Whether a log may be what another one was earlier: nothing in it is later, or of another run."""
    return (
        log.last_s <= known.last_s
        and log.info in (None, known.info)
        and all(
            job_id in known.jobs and known.jobs[job_id].submitted_s == job.submitted_s
            for job_id, job in log.jobs.items()
        )
    )


def restoring(events: Iterable[Event], known: RunLog) -> list[Event]:
    """The events that lead a log of these events to what is known of it; empty: they lead there.

    :param known: a log that this one is a past of (see :func:`is_past_of`).
    """
    before = [*events]
    log, at_s = fold(before), known.last_s
    found: list[Event] = []
    for part in (_begin, _come_and_end, _take_away, _open, _give, _close, _order, _report):
        more = list(part(log, known, at_s))
        for event in more:
            log.add(event)
        found += more
    if (rest := _rest(log, known)) is not None:
        found.append(rest)
    return found


def _begin(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    """The first event, which names the run."""
    if log.info is None and known.info is not None:
        began_s = min([at_s, *(job.submitted_s for job in known.jobs.values())])
        detail = known.info.model_dump(mode="json", by_alias=True, exclude_none=True)
        yield Event(began_s, "decision", detail=detail)


def _come_and_end(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    """Jobs that the log does not know, and ends of jobs."""
    for job_id, job in known.jobs.items():
        if job_id not in log.jobs:
            work = job.total_samples
            known_work = work is not None and math.isfinite(work)
            yield submit_event(job.job, job.submitted_s, {"samples": work} if known_work else None)
    ended = (job for job_id, job in known.jobs.items() if job.ended and not _ended(log, job_id))
    for job in sorted(ended, key=lambda job: (job.ended_s or 0.0, job.job.id)):
        samples = job.samples_done or None
        yield Event(
            *(job.ended_s if job.ended_s is not None else at_s, _ENDS.get(job.phase, "fail"), job.job.id),
            gpus=0,
            placement=(),
            samples_done=samples,
            loss=job.loss,
            detail={"reason": job.reason},
        )


def _ended(log: RunLog, job_id: str) -> bool:
    return job_id in log.jobs and log.jobs[job_id].ended


def _take_away(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    """Jobs that have lost their GPUs, or have others now: those are free first."""
    for job_id, job in sorted(known.active.items()):
        if log.jobs[job_id].gpus and not job.gpus:
            yield interruption_event(job_id, at_s, job.reason)


def _open(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    """Nodes and slots that can be used again."""
    for node in sorted(log.down.keys() - known.down.keys()):
        yield Event(at_s, "node_up", detail={"node": node})
    for node in sorted(log.drained.keys() - known.drained.keys()):
        yield Event(at_s, "undrain", detail={"node": node})
    for slot in sorted(log.suspects.slots):
        yield Event(at_s, "slot_up", detail={"slot": slot})


def _give(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    """Who holds what, all of it decided together."""
    for job_id, job in sorted(known.active.items()):
        before = log.jobs[job_id]
        if not job.gpus or (before.allocation == job.allocation and not before.ended):
            continue
        name: EventName = "resume" if before.started_s is not None else "start"
        if before.gpus:
            name = "grow" if job.gpus > before.gpus else "shrink" if job.gpus < before.gpus else "move"
        detail: dict[str, Any] = {"accum": job.accum, "lr_scale": job.lr_scale, "reason": job.reason}
        if job.beside is not None:
            detail["beside"] = job.beside
        yield Event(at_s, name, job_id, job.gpus, job.placement, job.global_batch, detail=detail)


def _close(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    """Nodes that are down or get no work."""
    for node, why in sorted(known.down.items()):
        if node not in log.down:
            yield Event(at_s, "node_down", detail={"node": node, "reason": why})
    for node, drain in sorted(known.drained.items()):
        if _words(log.drained.get(node)) != _words(drain):
            detail = {"node": node, "user": drain.user, "reason": drain.reason, "now": drain.now}
            yield Event(at_s, "drain", detail=detail)


def _words(drain: Drain | None) -> tuple[object, ...] | None:
    return None if drain is None else (drain.user, drain.reason, drain.now)


def _order(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    """What the owner has ordered of jobs."""
    for job_id, job in sorted(known.active.items()):
        before = log.jobs[job_id]
        if before.job.priority != job.job.priority:
            yield Event(at_s, "priority", job_id, detail={"priority": job.job.priority})
        if job.held is not None and before.held is None:
            yield Event(at_s, "hold", job_id, detail={"user": job.held[0]})
        elif job.held is None and before.held is not None:
            yield Event(at_s, "unhold", job_id)


def _report(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    """How far jobs are."""
    for job_id, job in sorted(known.active.items()):
        before = log.jobs[job_id]
        if (before.samples_done, before.loss) != (job.samples_done, job.loss):
            yield Event(at_s, "progress", job_id, samples_done=job.samples_done, loss=job.loss)


def _rest(log: RunLog, known: RunLog) -> Event | None:
    """What no event has said; None: nothing is left."""
    own = _differing(RUN_RECORD.dump_python, log, known, RESTORED)
    jobs = {
        job_id: found
        for job_id, job in known.jobs.items()
        if (found := _differing(JOB_RECORD.dump_python, log.jobs[job_id], job, _FIELDS))
    }
    if not own and not jobs:
        return None
    info = known.info
    event = decision_event(
        known.last_s,
        known.origin_s if known.origin_s is not None else 0.0,
        "" if info is None else info.policy,
        None,
        error=known.policy_error,
    )
    detail = dict(event.detail or {})
    if known.origin_s is None:
        del detail["origin_s"]
    return Event(event.time, event.event, detail={**detail, "restored": {**own, "jobs": jobs}})


_FIELDS: Final = frozenset(each.name for each in fields(JobLog)) - _AS_SUBMITTED


def _differing(dump: Any, log: object, known: object, names: Iterable[str]) -> dict[str, Any]:
    """Fields in which one record is not as the other, with what that one says, as JSON."""
    wanted = {name for name in names if getattr(log, name) != getattr(known, name)}
    if not wanted:
        return {}
    found: dict[str, Any] = dump(known, mode="json", include=wanted)
    return {name: value for name, value in sorted(found.items()) if _can_be_logged(value)}


def _can_be_logged(value: object) -> bool:
    """No log holds what is infinite."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return not isinstance(value, float) or math.isfinite(value)
