"""A session rebuilt from a log, as it is kept beside that log, and how it is resumed.

:func:`facts_of` and :func:`states_of` say what is kept, :func:`resume` is their inverse. All fields of the
states of a session's parts, and of a job's record, are kept: a new one needs no code here.
Most jobs have ended: their states stay bytes in a :class:`LazyDict` until they are asked for.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from pydantic_core import from_json

from pliant.schemas.cluster import Cluster, Owner
from pliant.schemas.event import Event
from pliant.schemas.io import profile_to_columns
from pliant.schemas.job import Gpus, Job
from pliant.tools.schedule.jobs import (
    BatchChange,
    EpochEnd,
    JobProgress,
    JobState,
    Observation,
    Phase,
)
from pliant.tools.schedule.learned_speeds import LearnedState
from pliant.tools.schedule.placement import FreeGpus
from pliant.tools.schedule.session.book import BookState
from pliant.tools.schedule.session.changes import ChangesState
from pliant.tools.schedule.session.cluster import NodesState
from pliant.tools.schedule.session.hidden import HiddenJobs
from pliant.tools.schedule.session.quarantine import QuarantineState
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Change

if TYPE_CHECKING:
    from pliant.schemas.profile import Profile
    from pliant.tools.schedule.entitlements import TeamUsage

T = TypeVar("T")
STATES: Final = (ChangesState, NodesState, QuarantineState, BookState, HiddenJobs, LearnedState)
"""States of the parts of a session."""
_FORM: Final = 4
"""Raised when what is kept of jobs says something else than before."""
_ALWAYS: Final = frozenset(("arrival", "reference_batch", "total_samples"))
"""Attributes without a default, kept whatever their value."""
_JOB: Final = tuple(
    name
    for name in JobState.__slots__
    if name not in ("spec", "id", "kind", "requested", "min_gpus", "takes_room")
)
_SHAPES: Final[dict[str, Callable[[Any], Any]]] = {
    "phase": Phase,
    "_progress": lambda values: JobProgress(*values),
    "observations": lambda values: tuple(Observation(*each) for each in values),
    "epochs": lambda values: tuple(EpochEnd(*each) for each in values),
    "batch_changes": lambda values: tuple(BatchChange(*each) for each in values),
}
"""Constructors of values of types that JSON lacks."""


@dataclass(frozen=True, slots=True)
class Basis:
    """What a session was rebuilt from; another basis gives another session."""

    inputs: str
    """A hash of the cluster and the profile."""
    origin_s: float
    """Seconds by which the session's clock is behind that of the log."""

    @classmethod
    def of(cls, cluster: Cluster, profile: Profile | None, origin_s: float = 0.0) -> Basis:
        columns = None if profile is None else profile_to_columns(profile.rows)
        text = json.dumps([_FORM, cluster.model_dump(mode="json"), columns])
        import hashlib

        return cls(hashlib.sha256(text.encode()).hexdigest(), origin_s)


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """A session after all events of a log, before a decision of its own."""

    inputs: str
    origin_s: float
    events: int
    """Number of events that it has seen."""
    parts: Mapping[str, Mapping[str, Any]]
    """The states of its parts, with plain values."""
    usage: Sequence[Any] | None
    """Usage of teams; None: they do not share the cluster."""
    active: Sequence[str]
    """Job ids, in their order."""
    ended: Sequence[str]
    changes: Sequence[Sequence[Any]]
    """The fields of each change, jobs and nodes by name."""
    together: Sequence[Mapping[str, Any]]
    """The last events, where more of the same decision may follow."""

    @property
    def basis(self) -> Basis:
        return Basis(self.inputs, self.origin_s)

    def to_json(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SessionFacts:
        return cls(**{field.name: values[field.name] for field in fields(cls)})


@dataclass(frozen=True, slots=True)
class SavedSession:
    """Facts, and the states of the jobs that they name."""

    facts: SessionFacts
    jobs: Mapping[str, bytes]
    spec_of: Callable[[str], Job]
    """The job with an id, its submit_time on the session's clock."""

    @property
    def until_s(self) -> float:
        """The time of its last event, on the session's clock."""
        seen_s: float = self.facts.parts["changes"]["now_s"]
        return max([seen_s, *(float(event["time"]) for event in self.facts.together)])

    def state_of(self, job_id: str, raw: bytes) -> JobState:
        return _SavedState(job_id, from_json(raw), self.spec_of)


def facts_of(session: Session, basis: Basis, together: Sequence[Event], events: int) -> SessionFacts:
    """What to keep of a session that has seen events and decided nothing."""
    past = session.changes.past
    before = past.raw if isinstance(past, Past) else ()
    return SessionFacts(
        inputs=basis.inputs,
        origin_s=basis.origin_s,
        events=events,
        parts={name: _fields(part.state) for name, part in session.parts.items()},
        usage=None if session.usage is None else _usage(session.usage),
        active=list(session.jobs),
        ended=list(session.book.ended),
        changes=[*before, *map(_raw_change, session.changes.entries)],
        together=[{f.name: getattr(event, f.name) for f in fields(event)} for event in together],
    )


def _fields(state: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(state, field.name)) for field in fields(state)}


def states_of(session: Session) -> dict[str, bytes]:
    active = {job_id: encode_state(state) for job_id, state in session.jobs.items()}
    ended = session.book.ended
    return active | {job_id: raw_of(ended, job_id, encode_state) for job_id in ended}


def resume(session: Session, saved: SavedSession) -> list[Event]:
    """Bring a session without jobs to the saved point; returns the events yet to be applied."""
    facts, spec_of, capacities = saved.facts, saved.spec_of, session.cluster.capacities
    saved = replace(saved, spec_of=lambda job_id: capacities.without_what_never_fits(spec_of(job_id)))
    for name, part in session.parts.items():
        values = facts.parts[name]
        part.restore(type(part.state)(**{field: _shaped(value) for field, value in values.items()}))
    if session.usage is not None and facts.usage is not None:
        restore_usage(session.usage, facts.usage)
    session.jobs.update({job_id: saved.state_of(job_id, saved.jobs[job_id]) for job_id in facts.active})
    ended = {job_id: saved.jobs[job_id] for job_id in facts.ended}
    session.book.ended = states_kept_small(ended, saved.spec_of)
    for state in session.jobs.values():
        session.cluster.free.take(session.maintenance.counted(state))
    known = ChainMap(session.jobs, session.book.ended)
    session.changes.past = Past(facts.changes, known, session.cluster.free)
    return [Event(**{**each, "placement": _shaped(each["placement"])}) for each in facts.together]


def _usage(usage: TeamUsage) -> list[Any]:
    return [usage.since_s, usage.changed_s, *map(_by_owner, (usage.gpu_s, usage.held, usage.changes))]


def _by_owner(values: Mapping[Owner, float]) -> list[list[Any]]:
    return [[*owner, value] for owner, value in values.items()]


def usage_before(usage: Sequence[Any], time_s: float) -> list[Any]:
    """Usage with its times as seconds before another time, for another clock."""
    since_s, changed_s, *tables = usage
    return [since_s - time_s, changed_s - time_s, *tables]


def restore_usage(usage: TeamUsage, values: Sequence[Any], from_s: float = 0.0) -> None:
    """:param from_s: what its times count from."""
    since_s, changed_s, *tables = values
    usage.since_s, usage.changed_s = from_s + since_s, from_s + changed_s
    by_owner = [{Owner(team, user): value for team, user, value in table} for table in tables]
    usage.gpu_s, usage.held, usage.changes = by_owner


def states_kept_small(
    states: Mapping[str, bytes | JobState], spec_of: Callable[[str], Job]
) -> LazyDict[JobState]:
    return LazyDict.of(states, lambda job_id, raw: _SavedState(job_id, from_json(raw), spec_of), encode_state)


@cache
def _arrived() -> dict[str, Any]:
    """The attributes of a job that has just arrived."""
    job = JobState(Job(id="a", submit_time=0.0, model="a", gpus=Gpus(requested=1)), 1, None)
    return {name: getattr(job, name) for name in _JOB}


class _SavedState(JobState):
    """The state of a job whose specification is looked up on first use."""

    __slots__ = ("_spec", "_spec_of")

    def __init__(self, job_id: str, values: Mapping[str, Any], spec_of: Callable[[str], Job]) -> None:
        self.id = job_id
        self.kind = None
        self._spec: Job | None = None
        self._spec_of = spec_of
        for name, value in _arrived().items():
            setattr(self, name, value)
        self._progress = JobProgress()
        for name, value in values.items():
            setattr(self, name, _SHAPES[name](_shaped(value)) if name in _SHAPES else _shaped(value))

    @property
    def spec(self) -> Job:
        if self._spec is None:
            self._spec = self._spec_of(self.id)
        return self._spec

    @spec.setter
    def spec(self, spec: Job) -> None:
        self._spec = spec

    @property
    def requested(self) -> int:
        return self.spec.gpus.requested

    @requested.setter
    def requested(self, gpus: int) -> None:
        """It follows from what is looked up."""

    @property
    def takes_room(self) -> bool:
        return self.spec.takes_room

    @takes_room.setter
    def takes_room(self, takes: bool) -> None:
        del takes

    @property
    def min_gpus(self) -> int:
        return self.spec.min_gpus

    @min_gpus.setter
    def min_gpus(self, gpus: int) -> None:
        """It follows from what is looked up."""


def encode_state(state: JobState) -> bytes:
    """A job's state without its specification: what differs from a job that has just arrived."""
    arrived = _arrived()
    values = {
        name: _plain(value)
        for name in _JOB
        if (value := getattr(state, name)) != arrived[name] or name in _ALWAYS
    }
    return json.dumps(values, separators=(",", ":")).encode()


class Past(Sequence[Change]):
    """Changes before a session was resumed, each made on first use.

    It holds no reference to the session, so the two form no cycle.
    """

    def __init__(self, raw: Sequence[Sequence[Any]], jobs: Mapping[str, JobState], free: FreeGpus) -> None:
        self.raw = raw
        self._jobs = jobs
        self._free = free

    def __len__(self) -> int:
        return len(self.raw)

    @overload
    def __getitem__(self, at: int) -> Change: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Change]: ...
    def __getitem__(self, at: int | slice) -> Change | Sequence[Change]:
        if isinstance(at, slice):
            return [self._change(each) for each in self.raw[at]]
        return self._change(self.raw[at])

    def _change(self, raw: Sequence[Any]) -> Change:
        job_id, node = raw[_JOB_AT], raw[_NODE_AT]
        return Change(*raw)._replace(
            job=None if job_id is None else self._jobs[job_id],
            node=None if node is None else self._free.node(node),
        )


_JOB_AT: Final = Change._fields.index("job")
_NODE_AT: Final = Change._fields.index("node")


def _raw_change(change: Change) -> list[Any]:
    raw = list[Any](change)
    raw[_JOB_AT] = None if change.job is None else change.job.id
    raw[_NODE_AT] = None if change.node is None else change.node.name
    return raw


def _plain(value: Any) -> Any:
    """A value as JSON holds it; a mapping, whose keys may be of any type, as {"": [[key, value], …]}."""
    if isinstance(value, Mapping):
        return {"": [[_plain(key), _plain(item)] for key, item in value.items()]}
    if isinstance(value, JobProgress):
        return [getattr(value, each.name) for each in fields(value)]
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _shaped(value: Any) -> Any:
    """The inverse of :func:`_plain`; sequences become tuples."""
    if isinstance(value, dict):
        return {_shaped(key): _shaped(item) for key, item in value[""]}
    return tuple(map(_shaped, value)) if isinstance(value, list) else value


class LazyDict(MutableMapping[str, T], Generic[T]):
    """Values by name, in insertion order; each is decoded on first use, and again after it was put away.

    :param values: as they are, or as bytes; never bytes once decoded.
    :param make: decodes the value of a name.
    :param encode: its inverse.
    """

    def __init__(
        self, values: Mapping[str, bytes | T], make: Callable[[str, bytes], T], encode: Callable[[T], bytes]
    ) -> None:
        self._values: dict[str, bytes | T] = dict(values)
        self._made = {name for name, value in self._values.items() if not isinstance(value, bytes)}
        self._make = make
        self._encode = encode

    @classmethod
    def of(
        cls, values: Mapping[str, bytes | T], make: Callable[[str, bytes], T], encode: Callable[[T], bytes]
    ) -> LazyDict[T]:
        """The values of another mapping; the bytes of a lazy one stay bytes."""
        return cls(values._values if isinstance(values, LazyDict) else values, make, encode)

    def __getitem__(self, name: str) -> T:
        value = self._values[name]
        if isinstance(value, bytes):
            value = self._values[name] = self._make(name, value)
            self._made.add(name)
        return value

    def __setitem__(self, name: str, value: T) -> None:
        self._values[name] = value
        self._made.add(name)

    def __delitem__(self, name: str) -> None:
        del self._values[name]
        self._made.discard(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def raw(self, name: str) -> bytes | None:
        """The bytes of a value not yet decoded."""
        value = self._values[name]
        return value if isinstance(value, bytes) else None

    def made(self) -> set[str]:
        """The names of all decoded values."""
        return set(self._made)

    def put_away(self, names: Iterable[str]) -> None:
        """Keep these values, where present, as bytes: they take a fraction of the memory."""
        for name in self._made.intersection(names):
            value = self._values[name]
            if not isinstance(value, bytes):
                self._values[name] = self._encode(value)
            self._made.discard(name)


def raw_of(values: Mapping[str, T], name: str, encode: Callable[[T], bytes]) -> bytes:
    raw = values.raw(name) if isinstance(values, LazyDict) else None
    return encode(values[name]) if raw is None else raw
