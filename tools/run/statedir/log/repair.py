"""``pliant log --repair``: make a damaged log readable again, lose as little as can be, and say what is lost.

A line whose checksum is wrong, or that is not an event, is dropped, and so is one that stands there twice.
What is left must fold to one state, so lines that lost lines contradict are dealt with, too:

- events of a job whose submission is lost are dropped: nothing says what the job was;
- a run whose first event is lost gets another one, from the schedule of the state directory;
- a job that by the log still holds GPUs that another one is given (the line that took them away is lost)
  loses them by a ``requeue`` event, and goes on from its last checkpoint.
- what a snapshot knows of the time before its place, and the lines do not say any more, is written back
  (``restore.py``): a log that was cut thus shows no job that has ended as running.
- a slot that goes out of service while a job holds it (the line that freed it is lost) stays in service;
  one that a job gets while it is out of service is put back by a ``slot_up`` event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from pathlib import Path
from typing import Final

from pliant.schemas.errors import BadInputError, PliantError, UsageError
from pliant.schemas.event import ENDS, EVENT, Event
from pliant.schemas.file_io.events import LOG_HEADER, read_event, sealed_lines
from pliant.schemas.file_io.files import atomic_write
from pliant.schemas.file_io.jsonlines import LineReader, is_torn
from pliant.schemas.file_io.seals import DAMAGED, FIRST, OUT_OF_ORDER, Seals, followed_by, link_of
from pliant.schemas.io import read_schedule
from pliant.schemas.text.wording import counted
from pliant.schemas.trace_hash import trace_hash
from pliant.tools.run.statedir.layout import StateDir
from pliant.tools.run.statedir.lock import Lock
from pliant.tools.run.statedir.log.consistency import fit_together
from pliant.tools.run.statedir.log.events import run_event
from pliant.tools.run.statedir.log.fold import RunLog, fold
from pliant.tools.run.statedir.log.restore import is_past_of, restoring
from pliant.tools.run.statedir.log.snapshot import Snapshot, bytes_behind, read_snapshot
from pliant.tools.run.statedir.log.view import take_up
from pliant.tools.run.statedir.private import PRIVATE, check_own

_WORD: Final = re.compile(rb'"(event|job)":"([A-Za-z0-9._-]{1,128})"')


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a log: its event, or why it has none."""

    number: int
    event: Event | None = None
    wrong: str = ""
    """Why it is dropped."""
    gap: bool = False
    """Lines are missing before it."""
    link: str | None = None
    """What the next line continues; None: it is not sealed."""
    follows: str | None = None
    """What it continues itself."""


def repair(state: Path) -> list[str]:
    """Rewrite the log without what is damaged; returns what was done, a line each.

    The log as it was is kept beside it. A log that is whole stays as it is.

    :raises LockedError: a run holds the state directory.
    :raises UsageError: it has no log.
    :raises BadInputError: nothing of the log can be read, or its first event can be replaced by nothing.
    """
    dirs = StateDir(state.resolve())
    if not dirs.events.is_file():
        raise UsageError(f"{state}: no state directory (it has no {dirs.events.name})")
    check_own(dirs)
    lock = Lock(dirs.lock)
    lock.acquire()
    try:
        return mend(dirs)
    finally:
        lock.release()


def mend(dirs: StateDir) -> list[str]:
    """As :func:`repair`, for a caller that holds the lock."""
    data = dirs.events.read_bytes()
    lines = list(read_each(data, str(dirs.events)))
    said = [text for line in lines for text in _said(line)]
    snapshot = read_snapshot(dirs)
    short = bytes_behind(dirs) - len(data)
    kept, more = _consistent([line for line in lines if line.event is not None], dirs, snapshot)
    if not said and not more:
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
    return [*said, *more, f"{dirs.events} holds {len(kept)} events now; the damaged log is kept as {copy}"]


def read_each(data: bytes, source: str) -> Iterator[Line]:
    """Every line that holds something, headers and a torn end left out, each judged for itself."""
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
            yield Line(number, wrong=_described(line, wrong))
        elif link is not None and wrong == OUT_OF_ORDER and line in seen:
            yield Line(number, wrong=_described(line, "the line is there twice"))
        else:
            found = _judged(number, body, source)
            if found.event is None and not found.wrong:
                seals.restart()
                continue
            seen.add(line)
            own = None if link is None else link.decode()
            follows = None if link is None else followed_by(line).decode()
            yield Line(number, found.event, found.wrong, wrong == OUT_OF_ORDER, own, follows)


def _judged(number: int, body: bytes, source: str) -> Line:
    """One line without its seal; a header has neither an event nor a fault."""
    reader = LineReader(source, EVENT.kind, read_event, first_line=number)
    try:
        reader.feed([body])
    except BadInputError:
        return Line(number, wrong=_described(body, "no header of an event file"))
    if reader.problems:
        return Line(number, wrong=_described(body, reader.problems[0].message))
    return Line(number, reader.records[0][1] if reader.records else None)


def _described(line: bytes, why: str) -> str:
    """Why a line is dropped, and what it seems to have been."""
    found = _WORD.findall(line)
    words = dict(reversed(found))
    more = sum(name == b"event" for name, _ in found) > 1
    what = f"a {words[b'event'].decode()!r} event" if b"event" in words else "a line"
    whose = f" of job {words[b'job'].decode()}" if b"job" in words else ""
    return f"{why}; it looks like {what}{whose}{' and at least one more event' if more else ''}"


def _said(line: Line) -> Iterator[str]:
    if line.gap:
        yield f"line {line.number}: lines are missing before it"
    if line.wrong:
        yield f"line {line.number}: dropped: {line.wrong}"


def _consistent(
    lines: Sequence[Line], dirs: StateDir, snapshot: Snapshot | None
) -> tuple[list[Event], list[str]]:
    """The events that fold to one state, those that this needs added, and what was done for it."""
    events, back = _restored(lines, snapshot)
    events, said = _begun(events, dirs)
    log = RunLog()
    folding: list[Event] = []
    for event in events:
        try:
            take_up(log, [(0, event)], "")
        except BadInputError as error:
            said.append(f"dropped: {error.problems[0].message}")
        else:
            folding.append(event)
    nodes = log.info.cluster.expanded() if log.info is not None else ()
    kept, more = fit_together(folding, {node.name: node.gpus for node in nodes})
    return kept, [*back, *said, *more]


def _restored(lines: Sequence[Line], snapshot: Snapshot | None) -> tuple[list[Event], list[str]]:
    """The events of lines, with what the snapshot knows and they do not say; and what was written back."""
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
        early = [each for each in lost if each.event in ("submit", *ENDS) and each.time < latest_s]
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
    said = f"written back from the snapshot: {counted(len(back), 'event')}{about}"
    return [*before, *lost, *after], [said]


def _place_of(lines: Sequence[Line], snapshot: Snapshot) -> int:
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
    """Events with others at their times; the order of the first ones stays as it is."""
    times_s = accumulate((event.time for event in events), max)
    placed = [*zip(times_s, events, strict=True), *((event.time, event) for event in early)]
    return [event for _, event in sorted(placed, key=lambda each: each[0])]


def _begun(events: list[Event], dirs: StateDir) -> tuple[list[Event], list[str]]:
    """The events, with a first one that names the run."""
    if not events:
        return [], []
    try:
        take_up(log := RunLog(), [(1, events[0])], str(dirs.events))
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
