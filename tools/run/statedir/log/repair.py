"""``pliant log --repair``: make a damaged log readable, lose as little as possible, say what is lost.

A line whose checksum is wrong, or that is not an event, is dropped, and so is a repeated line. The rest must
fold to one state (:func:`fit_together`):

- events of a job whose submission is lost are dropped: nothing says what the job was;
- a run whose first event is lost gets another one, from the schedule of the state directory;
- a job that seems to hold GPUs that another one is given (the line that took them away is lost) loses them by
  a ``requeue`` event, and goes on from its last checkpoint; so does one that seems to hold some on a node
  that goes down;
- what a snapshot knows and the lines do not say any more is written back, so no ended job is shown running;
- a slot that goes out of service while a job holds it (the line that freed it is lost) stays in service;
  one that a job gets while it is out of service is put back by a ``slot_up`` event.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, groupby
from pathlib import Path
from typing import Final

from pliant.schemas.errors import BadInputError, PliantError, UsageError
from pliant.schemas.event import ALLOCATION_EVENTS, ENDS, EVENT, Event
from pliant.schemas.events import (
    Decided,
    Moved,
    NodeDown,
    NodeUp,
    Placed,
    Preempted,
    Reloaded,
    Resized,
    RunBegan,
    SlotCleared,
    SlotQuarantined,
    Started,
    Submitted,
    row_of,
    typed,
)  # fmt: skip
from pliant.schemas.file_io.events import LOG_HEADER, read_event, sealed_lines
from pliant.schemas.file_io.files import atomic_write
from pliant.schemas.file_io.json_lines import (
    DAMAGED,
    FIRST,
    OUT_OF_ORDER,
    LineReader,
    Seals,
    followed_by,
    is_torn,
    link_of,
)
from pliant.schemas.io import read_schedule
from pliant.schemas.job import trace_hash
from pliant.schemas.text import counted
from pliant.tools.run.statedir.contract.folders import PRIVATE
from pliant.tools.run.statedir.directory import Lock, StateDir, check_own
from pliant.tools.run.statedir.log.events import interruption_event, run_event
from pliant.tools.run.statedir.log.fold import LeftOut, RunLog, fold
from pliant.tools.run.statedir.log.snapshot import (
    LogSnapshot,
    bytes_behind,
    fold_into,
    is_past_of,
    read_snapshot,
    restoring,
)
from pliant.tools.schedule.jobs import NodeGpus
from pliant.tools.schedule.session.quarantine import node_of

_REASON: Final = "the log was repaired: a line about its GPUs is lost"
_WORD: Final = re.compile(rb'"(event|job)":"([A-Za-z0-9._-]{1,128})"')


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log: its event, or why it has none."""

    number: int
    event: Event | None = None
    wrong: str = ""
    """Why it is dropped."""
    gap: bool = False
    """Lines are missing before it."""
    link: str | None = None
    """What the next line continues; None if it is not sealed."""
    follows: str | None = None
    """What it continues itself."""


def repair(state: Path) -> list[str]:
    """Rewrite the log without what is damaged; returns what was done, a line each.

    The damaged log is kept beside it. A log that is whole stays as it is.

    :raises LockedError: a run holds the state directory.
    :raises UsageError: it has no log.
    :raises BadInputError: nothing of the log can be read, or its first event cannot be replaced.
    """
    dirs = StateDir(state.resolve())
    if not dirs.events.is_file():
        raise UsageError(f"{state}: no state directory (it has no {dirs.events.name})")
    check_own(dirs)
    lock = Lock(dirs.lock)
    lock.acquire()
    try:
        return repair_locked(dirs)
    finally:
        lock.release()


def repair_locked(dirs: StateDir) -> list[str]:
    """As :func:`repair`; the caller holds the lock."""
    data = dirs.events.read_bytes()
    lines = list(read_each(data, str(dirs.events)))
    words = [text for line in lines for text in _said(line)]
    snapshot = read_snapshot(dirs)
    short = bytes_behind(dirs) - len(data)
    kept, more = _consistent([line for line in lines if line.event is not None], dirs, snapshot)
    if not words and not more:
        if (snapshot is not None and snapshot.place.is_in(dirs.events)) or not dirs.snapshot.exists():
            return [f"{dirs.events} is whole: there is nothing to repair"]
        why = "is of another log"
        if short > 0 and snapshot is None:
            why = f"cannot be used, and the log lacks {short:,} bytes that it had: what they said is lost"
        elif snapshot is None:
            return [f"{dirs.events} is whole: there is nothing to repair"]
        dirs.snapshot.unlink()
        return [f"{dirs.events} is whole as it is; its snapshot {why}, and is removed"]
    if not kept:
        raise BadInputError.one(str(dirs.events), "no event of it can be read: it is left as it is")
    names = (dirs.events.with_name(f"{dirs.events.name}.damaged-{number}") for number in count(1))
    copy = next(path for path in names if not path.exists())
    atomic_write(copy, data, mode=PRIVATE)
    atomic_write(dirs.events, LOG_HEADER + sealed_lines(kept, FIRST)[0])
    dirs.snapshot.unlink(missing_ok=True)  # it is of the log as it was, which has all that it knows now
    return [*words, *more, f"{dirs.events} holds {len(kept)} events now; the damaged log is kept as {copy}"]


def read_each(data: bytes, source: str) -> Iterator[LogLine]:
    """Every line that holds something, except headers and a torn end."""
    seals, seen = Seals(), set[bytes]()
    lines = data.split(b"\n")
    if is_torn(lines[-1]):
        lines.pop()
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if not line:
            continue
        body, wrong = seals.open(line)
        link = link_of(line)
        if wrong == DAMAGED:
            yield LogLine(number, wrong=_described(line, wrong))
        elif link is not None and wrong == OUT_OF_ORDER and line in seen:
            yield LogLine(number, wrong=_described(line, "the line is there twice"))
        else:
            judged = _judged(number, body, source)
            if judged.event is None and not judged.wrong:
                seals.restart()
                continue
            seen.add(line)
            own = None if link is None else link.decode()
            follows = None if link is None else followed_by(line).decode()
            yield LogLine(number, judged.event, judged.wrong, wrong == OUT_OF_ORDER, own, follows)


def _judged(number: int, body: bytes, source: str) -> LogLine:
    """One line without its seal; a header has neither an event nor a fault."""
    reader = LineReader(source, EVENT.kind, read_event, first_line=number)
    try:
        reader.feed([body])
    except BadInputError:
        return LogLine(number, wrong=_described(body, "no header of an event file"))
    if reader.problems:
        return LogLine(number, wrong=_described(body, reader.problems[0].message))
    return LogLine(number, reader.records[0][1] if reader.records else None)


def _described(line: bytes, why: str) -> str:
    """Why a line is dropped, and what it seems to have been."""
    matches = _WORD.findall(line)
    words = dict(reversed(matches))
    more = sum(name == b"event" for name, _ in matches) > 1
    what = f"a {words[b'event'].decode()!r} event" if b"event" in words else "a line"
    whose = f" of job {words[b'job'].decode()}" if b"job" in words else ""
    return f"{why}; it looks like {what}{whose}{' and at least one more event' if more else ''}"


def _said(line: LogLine) -> Iterator[str]:
    if line.gap:
        yield f"line {line.number}: lines are missing before it"
    if line.wrong:
        yield f"line {line.number}: dropped: {line.wrong}"


def _consistent(
    lines: Sequence[LogLine], dirs: StateDir, snapshot: LogSnapshot | None
) -> tuple[list[Event], list[str]]:
    """The events that fold to one state, and what was done for that."""
    events, back = _restored(lines, snapshot)
    events, words = _begun(events, dirs)
    kept, more = fit_together(events)
    return kept, [*back, *words, *more]


def _restored(lines: Sequence[LogLine], snapshot: LogSnapshot | None) -> tuple[list[Event], list[str]]:
    """The events of lines, with what only the snapshot knows; and what was written back."""
    events = [line.event for line in lines if line.event is not None]
    if snapshot is None:
        return events, []
    at, known = _place_of(lines, snapshot), snapshot.log
    before, after = events[:at], events[at:]
    try:
        if not is_past_of(fold(before), known):
            return events, []
        lost = restoring(before, known)
        latest_s = max((event.time for event in before), default=0.0)
        early = [each for each in lost if each.event in (Submitted.name, *ENDS) and each.time < latest_s]
        if early:  # so that those who got the GPUs of a job that had ended did not get them from it
            before = _merged(before, early)
            lost = restoring(before, known)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return events, []
    back = [*early, *lost]
    if not back:
        return events, []
    jobs = {event.job for event in back if event.job is not None}
    about = f" about {counted(len(jobs), 'job')}" if jobs else ""
    words = f"written back from the snapshot: {counted(len(back), 'event')}{about}"
    return [*before, *lost, *after], [words]


def _place_of(lines: Sequence[LogLine], snapshot: LogSnapshot) -> int:
    """How many of the lines were there when the snapshot was made."""
    for index, line in enumerate(lines):
        if snapshot.place.link is not None and line.link == snapshot.place.link:
            return index + 1
        if snapshot.place.link is not None and line.follows == snapshot.place.link:
            return index
    until_s = snapshot.log.last_s
    return next(
        (i for i, line in enumerate(lines) if line.event is not None and line.event.time > until_s),
        len(lines),
    )


def _merged(events: Sequence[Event], early: Sequence[Event]) -> list[Event]:
    """Events with others at their times; the first ones keep their order."""
    times_s = accumulate((event.time for event in events), max)
    placed = [*zip(times_s, events, strict=True), *((event.time, event) for event in early)]
    return [event for _, event in sorted(placed, key=lambda each: each[0])]


def _begun(events: list[Event], dirs: StateDir) -> tuple[list[Event], list[str]]:
    """The events, with a first one that names the run."""
    if not events:
        return [], []
    try:
        fold_into(log := RunLog(), [(1, events[0])], str(dirs.events))
        if log.info is not None:
            return events, []
    except BadInputError:
        pass
    try:
        schedule = read_schedule(dirs.schedule)
    except PliantError as error:
        text = f"its first event, which names the run, is lost, and the schedule cannot replace it: {error}"
        raise BadInputError.one(str(dirs.events), text) from error
    first = run_event(schedule, trace_hash(schedule.jobs), events[0].time)
    return [first, *events], [f"the first event, which names the run, is replaced from {dirs.schedule}"]


def fit_together(events: Iterable[Event]) -> tuple[list[Event], list[str]]:
    """The events that fold, without contradictions, and what was done for that."""
    fitting = _Fitting()
    numbered = enumerate(events)
    groups = groupby(
        numbered, key=lambda each: (each[1].time, -1 if each[1].event in ALLOCATION_EVENTS else each[0])
    )
    kept = [found for _, group in groups for found in fitting.take([event for _, event in group])]
    return kept, [*fitting.said, *fitting.unknown_jobs()]


class _Fitting:
    """The log as it is kept so far, and what its next events become."""

    def __init__(self) -> None:
        self.said: list[str] = []
        # GPUs by node, of the cluster as it is then; empty: nothing is known of them.
        self._node_gpus: Mapping[str, int] = {}
        self._log = RunLog()
        self._now_s = 0.0
        # Jobs of the changes at hand that hold nothing so far, as all change at once.
        self._moving: set[str] = set()
        self._unknown: dict[str, int] = {}

    def take(self, group: Sequence[Event]) -> list[Event]:
        """The events that replace one event, or changes of GPUs that were decided together."""
        first = group[0]
        self._now_s = first.time
        match event := typed(first):
            case SlotQuarantined() | SlotCleared():
                return self._slot(event)
            case Started() | Resized() | Moved() | Preempted():
                return self._changes([row for row in group if self._is_known(row.job or "")])
            case NodeDown() | NodeUp():
                return self._node(event)
            case Submitted(job=job_id) if job_id in self._log.jobs:
                self.said.append(f"job {job_id}: a second submission is dropped")
                return []
            case Submitted():
                return self._keep(first)
            case RunBegan() | Decided() | Reloaded():
                kept, info = self._keep(first), self._log.info
                nodes = () if info is None else info.cluster.expanded()
                self._node_gpus = {node.name: node.gpus for node in nodes}
                return kept
        return self._keep(first) if first.job is None or self._is_known(first.job) else []

    def unknown_jobs(self) -> list[str]:
        return [
            f"job {job_id}: its submission is lost, so it cannot be taken up; its other lines ({count}) are "
            "dropped. End its processes if some still run, and submit it under another id"
            for job_id, count in sorted(self._unknown.items())
        ]

    def _keep(self, row: Event) -> list[Event]:
        """Fold an event. Returns nothing if that is impossible."""
        self._moving.discard(row.job or "")
        try:
            fold_into(self._log, [(0, row)], "")
        except BadInputError as error:
            self.said.append(f"dropped: {error.problems[0].message}")
            return []
        return [row]

    def _is_known(self, job_id: str) -> bool:
        if job_id not in self._log.jobs:
            self._unknown[job_id] = self._unknown.get(job_id, 0) + 1
        return job_id in self._log.jobs

    def _node(self, event: NodeDown | NodeUp) -> list[Event]:
        node = event.node
        if self._node_gpus and node not in self._node_gpus:
            self.said.append(f"a {event.name!r} event of the unknown node {node} is dropped")
            return []
        there = [job_id for job_id in sorted(self._log.jobs) if self._is_on(job_id, node)]
        lost = [each for job_id in there if isinstance(event, NodeDown) for each in self._take_from(job_id)]
        return lost + self._keep(row_of(event))

    def _is_on(self, job_id: str, node: str) -> bool:
        return any(name == node for name, _ in self._log.jobs[job_id].placement)

    def _take_from(self, job_id: str) -> list[Event]:
        """A job holds nothing from now on: the line that said so is lost."""
        self.said.append(f"job {job_id}: {_REASON}; it goes on from its last checkpoint")
        return self._keep(interruption_event(job_id, self._now_s, _REASON))

    def _slot(self, event: SlotQuarantined | SlotCleared) -> list[Event]:
        """A slot that goes out of service has to be free."""
        slot, for_all = event.slot, event.job is None
        if not for_all and not self._is_known(event.job or ""):
            return []
        if self._node_gpus and node_of(slot) not in self._node_gpus:
            self.said.append(f"a {event.name!r} event of the unknown slot {slot} is dropped")
            return []
        is_new = for_all and isinstance(event, SlotQuarantined) and slot not in self._out_of_service
        if is_new and not self._can_be_withdrawn(node_of(slot)):
            self.said.append(f"slot {slot}: the line that freed it is lost; it stays in service")
            return []
        return self._keep(row_of(event))

    @property
    def _out_of_service(self) -> Mapping[str, LeftOut]:
        return self._log.out_of_service(self._now_s)

    def _can_be_withdrawn(self, node: str) -> bool:
        return not self._node_gpus or node in self._log.down or self._free(node) > 0

    def _back_in_service(self, place: NodeGpus) -> list[Event]:
        """Put slots that a job got back into service: the lines that did so are lost."""
        events: list[Event] = []
        for slot, _ in sorted(self._out_of_service.items(), key=lambda each: each[1].until_s):
            if self._has_room(place):
                break
            if any(node == node_of(slot) and self._free(node) < count for node, count in place):
                self.said.append(f"slot {slot}: the line that put it back into service is lost, and replaced")
                events += self._keep(row_of(SlotCleared(self._now_s, slot=slot)))
        return events

    def _changes(self, events: Sequence[Event]) -> list[Event]:
        """What was decided together; jobs in the way lose their GPUs first."""
        together = {event.job or "" for event in events}
        self._moving = {*together}
        lost: list[Event] = []
        kept: list[Event] = []
        for event in events:
            job_id, place = event.job or "", event.placement or ()
            if not self._joins(event):
                lost += self._back_in_service(place)
                lost += self._make_room(place, together)
                if not self._has_room(place):
                    lost += self._take_from(job_id)
                    continue
            kept += self._keep(event)
        return lost + kept

    def _joins(self, row: Event) -> bool:
        """Whether a job comes to share the GPUs of another one."""
        change = typed(row)
        other = change.beside if isinstance(change, Placed) else None
        if other is None or other in self._moving or other not in self._log.active:
            return False
        partner = self._log.active[other]
        return partner.placement == row.placement and partner.beside in {None, row.job, *self._moving}

    def _make_room(self, place: NodeGpus, together: set[str]) -> Iterator[Event]:
        """Take this place from other jobs."""
        for job_id in sorted(self._log.jobs.keys() - together):
            if self._has_room(place):
                break
            if any(self._is_on(job_id, name) for name, _ in place):
                yield from self._take_from(job_id)

    def _has_room(self, place: NodeGpus) -> bool:
        return not self._node_gpus or all(self._free(name) >= count for name, count in place)

    def _free(self, node: str) -> int:
        if node in self._log.down:
            return 0
        staying = (job for job_id, job in self._log.jobs.items() if job_id not in self._moving)
        taken = sum(
            count
            for job in staying
            if job.beside is None or job.job.id < job.beside or job.beside in self._moving
            for name, count in job.placement
            if name == node
        )
        withdrawn = sum(node_of(slot) == node for slot in self._out_of_service)
        return self._node_gpus.get(node, 0) - taken - withdrawn
