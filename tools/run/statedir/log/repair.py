"""``pliant log --repair``: make a damaged log readable again, lose as little as can be, and say what is lost.

A line whose checksum is wrong, or that is not an event, is dropped, and so is one that stands there twice.
What is left must fold to one state, so lines that lost lines contradict are dealt with, too:

- events of a job whose submission is lost are dropped: nothing says what the job was;
- a run whose first event is lost gets another one, from the schedule of the state directory;
- a job that by the log still holds GPUs that another one is given (the line that took them away is lost)
  loses them by a ``requeue`` event, and goes on from its last checkpoint.
- a slot that goes out of service while a job holds it (the line that freed it is lost) stays in service;
  one that a job gets while it is out of service is put back by a ``slot_up`` event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from pliant.schemas.errors import BadInputError, PliantError, UsageError
from pliant.schemas.event import EVENT, Event
from pliant.schemas.file_io.events import LOG_HEADER, read_event, sealed_lines
from pliant.schemas.file_io.files import atomic_write
from pliant.schemas.file_io.jsonlines import LineReader, is_torn
from pliant.schemas.file_io.seals import DAMAGED, FIRST, OUT_OF_ORDER, Seals, link_of
from pliant.schemas.io import read_schedule
from pliant.schemas.trace_hash import trace_hash
from pliant.tools.run.statedir.layout import StateDir
from pliant.tools.run.statedir.lock import Lock
from pliant.tools.run.statedir.log.consistency import fit_together
from pliant.tools.run.statedir.log.events import run_event
from pliant.tools.run.statedir.log.fold import RunLog
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
        return _repair(dirs)
    finally:
        lock.release()


def _repair(dirs: StateDir) -> list[str]:
    data = dirs.events.read_bytes()
    lines = list(read_each(data, str(dirs.events)))
    said = [text for line in lines for text in _said(line)]
    kept, more = _consistent([line for line in lines if line.event is not None], dirs)
    if not said and not more:
        return [f"{dirs.events} is whole: there is nothing to repair"]
    if not kept:
        raise BadInputError.one(str(dirs.events), "no event of it can be read: it is left as it is")
    names = (dirs.events.with_name(f"{dirs.events.name}.damaged-{number}") for number in count(1))
    copy = next(path for path in names if not path.exists())
    atomic_write(copy, data, mode=PRIVATE)
    dirs.snapshot.unlink(missing_ok=True)  # it is of the log as it was
    atomic_write(dirs.events, LOG_HEADER + sealed_lines(kept, FIRST)[0])
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
            yield Line(number, found.event, found.wrong, gap=wrong == OUT_OF_ORDER)


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


def _consistent(lines: Sequence[Line], dirs: StateDir) -> tuple[list[Event], list[str]]:
    """The events that fold to one state, those that this needs added, and what was done for it."""
    events, said = _begun([line.event for line in lines if line.event is not None], dirs)
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
    return kept, said + more


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
