"""What the log of a state directory folds to, kept beside it, so that only the lines after it are read.

``snapshot.jsonl`` can always be made again from the log. It names the checksum of the bytes of the log that
it was made of; where the log begins with other bytes, or this version folds to other things, it is ignored
and made again. Its first line has the checksum of the rest; the second one names the place in the log, the
jobs, and the session that ``pliant schedule`` would rebuild; the third one is the run. Then each job has a
line as ``run`` sees it, and one as a session does; they are parsed when somebody asks for the job.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.metadata import version
from typing import Any, Final
from zlib import crc32

from pydantic_core import from_json

from pliant.schemas.errors import BadInputError
from pliant.schemas.event import Event
from pliant.schemas.file_io.events import LogReader, Place
from pliant.schemas.file_io.files import atomic_write
from pliant.schemas.file_io.json_lines import garbage_collection_paused
from pliant.schemas.job import Job
from pliant.tools.run.statedir.contract.folders import PRIVATE
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import on_clock
from pliant.tools.run.statedir.log.fold import JOB_RECORD, RUN_RECORD, JobLog, RunLog
from pliant.tools.schedule.from_log import SessionFold
from pliant.tools.schedule.jobs import JobState, NodeState
from pliant.tools.schedule.session.saved import Basis, LazyDict, SavedSession, SessionFacts, raw_of
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.session.withheld import Withheld
from pliant.tools.schedule.snapshot import Change

SCHEMA: Final = "pliant.snapshot/1"
MEANING: Final = 8
"""To be raised where events come to mean something else, so that older snapshots are made again."""
_HEAD_BYTES: Final = 4096
"""A first line is shorter."""
_ELSEWHERE: Final = {"jobs", "active", *(field.name for field in fields(RunLog) if not field.compare)}
"""Fields of the run's record that have lines of their own, or are not part of what the log says."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A log up to one place in it."""

    place: Place
    log: RunLog
    session: SavedSession | None
    """None: there was no cluster to rebuild one under."""
    size: int
    """Bytes of the file."""


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """How to rebuild the session that belongs to a log."""

    basis: Basis
    session: Callable[[], Session]
    """A new one, without jobs."""


def folds_to() -> str:
    """Stands for all that a log is folded to: another value, and a snapshot is of another time."""
    names = [[field.name for field in fields(kind)] for kind in (JobLog, RunLog, SessionFacts)]
    slots = [JobState.__slots__, NodeState.__slots__, Change._fields, list(vars(Withheld()))]
    text = json.dumps([_own_version(), MEANING, names, slots])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _own_version() -> str:
    """It is looked up in files, by code that leaves garbage behind."""
    return version("pliant")


@garbage_collection_paused()
def read_snapshot(dirs: StateDir) -> Snapshot | None:
    """The snapshot of a state directory; None where there is none, or none that this version can use.

    Whether it belongs to the log is for the caller to see.
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
    """Bytes of the log when its snapshot was made, also where that cannot be used; 0: unknown."""
    try:
        with dirs.snapshot.open("rb") as file:
            return int(json.loads(file.readline(_HEAD_BYTES))["bytes"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return 0


def _decoded(values: dict[str, Any], log: RunLog, lines: list[bytes], size: int) -> Snapshot:
    ids = values["jobs"]
    jobs = records_kept_small(dict(zip(ids, lines, strict=False)))
    log.jobs, log.active = jobs, {job_id: jobs[job_id] for job_id in values["active"]}
    kept = None
    if values["session"] is not None:
        facts = SessionFacts.from_json(values["session"])
        states = dict(zip([*facts.active, *facts.ended], lines[len(ids) :], strict=False))
        kept = SavedSession(facts, states, lambda job_id: spec_on_clock(log, job_id, facts.origin_s))
    return Snapshot(Place(**values["place"]), log, kept, size)


def records_kept_small(jobs: Mapping[str, bytes | JobLog]) -> LazyDict[JobLog]:
    """What a log says of its jobs, by id; what is not asked for any more can be put away."""
    return LazyDict.of(jobs, lambda _, raw: JOB_RECORD.validate_json(raw), _encoded)


def _encoded(job: JobLog) -> bytes:
    return JOB_RECORD.dump_json(job, by_alias=True, exclude_defaults=True)


def spec_on_clock(log: RunLog, job_id: str, origin_s: float) -> Job:
    """A job on a session's clock (see :func:`~pliant.tools.run.statedir.log.events.on_clock`)."""
    found = log.jobs[job_id]
    if not origin_s:
        return found.job
    return found.job.model_copy(update={"submit_time": max(0.0, found.submitted_s - origin_s)})


def renew_snapshot(dirs: StateDir, log: RunLog, rebuilding: Rebuilding) -> int:
    """Write the snapshot of a log as it is now. The caller holds the lock.

    Returns by how many bytes the log grows until the next one is worth its cost. That is an eighth of the
    snapshot, or as much as the log has where it leads to no session: then the next one reads all of it.

    :param log: the whole log, folded.
    :raises PliantError: the log cannot be read, or the snapshot not be written.
    """
    before = read_snapshot(dirs)
    kept = before.session if before is not None and before.place.is_in(dirs.events) else None
    if kept is not None and kept.facts.basis != rebuilding.basis:
        kept = None
    reader = LogReader(dirs.events, before.place if before is not None and kept is not None else None)
    session = _session(rebuilding, kept, (event for _, event in reader.read()), dirs)
    data = b"\n".join(_lines(reader.place, log, session))
    head = {"schema": SCHEMA, "folds_to": folds_to(), "crc": crc32(data), "bytes": reader.place.bytes}
    atomic_write(dirs.snapshot, json.dumps(head).encode() + b"\n" + data, mode=PRIVATE)
    return reader.place.bytes if session is None else len(data) // 8


def _session(
    rebuilding: Rebuilding, kept: SavedSession | None, events: Iterable[Event], dirs: StateDir
) -> tuple[SessionFacts, Mapping[str, bytes]] | None:
    fold = SessionFold(rebuilding.session(), str(dirs.events), kept)
    try:
        for event in on_clock(events, rebuilding.basis.origin_s):
            fold.add(event)
    except BadInputError:  # the caller that asks for a session says so
        return None
    return fold.keep(rebuilding.basis)


def _lines(
    place: Place, log: RunLog, session: tuple[SessionFacts, Mapping[str, bytes]] | None
) -> Iterator[bytes]:
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
