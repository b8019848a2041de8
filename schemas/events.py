"""What happened, typed: one class for each kind of event, and the codec between them and the table's rows.

A row (:class:`~pliant.schemas.event.Event`) is what files hold; its ``detail`` is a free object.
:func:`typed` reads a row, :func:`row_of` makes one; nothing else looks into a detail. A field that is None
was not stated. Keys that a class does not know, and values of another type than its field's, are in
``other``: every row comes back equal, with its keys in their order.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cache
from math import nan
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypedDict, get_args

from pliant.schemas.event import Event, EventName

if TYPE_CHECKING:
    from pliant.schemas.cluster import Cluster
    from pliant.schemas.job import Changes
    from pliant.schemas.runinfo import RunInfo, SubmitDetail

Placement = tuple[tuple[str, int], ...]
_MOST_EPOCHS: Final = 10**9
"""Upper bound for a count of epochs; scripts write it."""


class Null(Enum):
    """A null in the file where that says something: what was so ends."""

    NULL = None


class Observed(TypedDict):
    """The time of a step, and the configuration it was measured in."""

    placement: Sequence[int]
    local_batch: int
    accum: int
    step_seconds: float


class Slowness(TypedDict):
    """A worker that is slower than others; ``times`` is None once it is not."""

    slot: str
    times: float | None


@dataclass(frozen=True, eq=False, repr=False)
class _Happened:
    """The columns of any event; ``pliant.schemas.event`` says what each holds."""

    name: ClassVar[EventName]

    time: float
    job: str | None = None
    gpus: int | None = None
    placement: Placement | None = None
    global_batch: int | None = None
    samples_done: float | None = None
    loss: float | None = None
    metric: float | None = None
    overhead_seconds: float | None = None
    keys: tuple[str, ...] | None = field(default=None, kw_only=True)
    """Keys of the detail in the order of the file; None: there was none, or the event is new."""
    other: Mapping[str, Any] | None = field(default=None, kw_only=True)
    """What else the detail says."""

    def __repr__(self) -> str:
        """What differs from the defaults."""
        stated = ((each.name, getattr(self, each.name)) for each in fields(self))
        words = (f"{name}={value!r}" for name, value in stated if value is not None)
        return f"{type(self).__name__}({', '.join(words)})"


@dataclass(frozen=True, eq=False, repr=False)
class _OfJob(_Happened):
    """An event of one job; the reader of a file refuses one without."""

    job: str = field()


@dataclass(frozen=True, eq=False, repr=False)
class RunBegan(_Happened):
    """Which run it is: the first event of a file."""

    name = "decision"

    stated: Mapping[str, Any] | None = field(default=None, kw_only=True)
    """Fields of a :class:`~pliant.schemas.runinfo.RunInfo`."""

    @property
    def policy(self) -> str:
        """The policy that decided at first."""
        return str((self.stated or {}).get("policy", ""))

    def info(self) -> RunInfo:
        """:raises ValidationError: it does not say what a run has to say."""
        from pliant.schemas.runinfo import RunInfo

        return RunInfo.model_validate_json(json.dumps(self.stated or {}))


@dataclass(frozen=True, eq=False, repr=False)
class Submitted(_OfJob):
    """A job arrived."""

    name = "submit"

    stated: Mapping[str, Any] | None = field(default=None, kw_only=True)
    """Fields of a :class:`~pliant.schemas.runinfo.SubmitDetail`."""

    @property
    def spec(self) -> Mapping[str, Any]:
        """The job as it was written."""
        spec: Mapping[str, Any] = (self.stated or {}).get("job", {})
        return spec

    @property
    def uid(self) -> int | None:
        """The account that submitted it; None: the owner of the state directory."""
        uid: int | None = (self.stated or {}).get("uid")
        return uid

    def submission(self) -> SubmitDetail:
        """:raises ValidationError: it does not describe a job."""
        from pliant.schemas.runinfo import SubmitDetail

        return SubmitDetail.model_validate(self.stated, strict=False)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Decided(_Happened):
    """The policy was asked, or a schedule was read."""

    name = "decision"

    origin_s: float | None = None
    """UTC seconds at which the clock of ``submit_time`` shows 0."""
    policy: str | None = None
    decision_seconds: float | None = None
    error: str | None = None
    """Reason why the policy has decided nothing."""
    once: bool | None = None
    """Whether the call does not stay, such as one from cron."""
    forecasts: Mapping[str, Any] | None = None
    """Predictions by job id."""
    admissions: Mapping[str, Any] | None = None
    """By job id, what the policy says of jobs that it admitted or that are to wait."""
    teams: Sequence[Mapping[str, Any]] | None = None
    """Standings of the teams that share the cluster."""
    restored: Mapping[str, Any] | None = None
    """Fields of the records of a snapshot that no other event says."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class _Placed(_OfJob):
    """A job has GPUs; written when it is decided, before anything is done."""

    accum: int | None = None
    lr_scale: float | None = None
    reason: str | None = None
    servers: Sequence[Any] | None = None
    """[[node, parameter servers], …]"""
    beside: str | None = None
    """Job that has the same GPUs."""
    wait_seconds: float | None = None
    """Time for which the job gets no further GPU."""
    setback: bool | None = None
    """Whether workers died or a node went down, rather than that the policy chose it."""
    straggled: str | None = None
    """Slot that the job left because a worker was slow there."""
    lost_gpu_hours: float | None = None
    """GPU hours since its last change, lost as the job cannot save."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Started(_Placed):
    """A job without GPUs got some."""

    name: ClassVar[EventName] = "start"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Resumed(Started):
    """It had held some before."""

    name = "resume"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Resized(_Placed):
    """A running job has more or fewer GPUs: :class:`Grown` or :class:`Shrunk`."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Grown(Resized):
    """More GPUs."""

    name = "grow"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Shrunk(Resized):
    """Fewer GPUs."""

    name = "shrink"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Moved(_Placed):
    """As many GPUs elsewhere, or a changed batch on the same ones."""

    name = "move"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class _Stopped(_OfJob):
    """A job gave up its GPUs."""

    attempt: int | None = None
    """Attempt that failed, or has finished."""
    over: int | None = None
    """Attempt that is over without a failure of its own."""
    reason: str | None = None
    failures: int | None = None
    """Failures in a row."""
    exit_code: int | None = None
    at_samples: float | None = None
    """Samples at which the same failure would be the last one."""
    retries: int | None = None
    """Failures in a row that are retried."""
    displacements: int | None = None
    """Attempts in a row whose place was taken away."""
    wait_seconds: float | None = None
    """Time for which the job is not started."""
    timed_out: bool | None = None
    """Whether a limit of its own ended it."""
    user: str | None = None
    """Who ordered it, by name and account."""
    uid: int | None = None
    from_start: bool | None = None
    """Whether its work begins at the start."""
    order: int | None = None
    """Number of the order that this executes."""
    lost_gpu_hours: float | None = None
    used_gpu_seconds: float | None = None
    """GPU (or CPU slot) seconds in which these were busy, over all attempts of a job that ends."""
    memory_gpu_seconds: float | None = None
    """GPU seconds times the part of their memory that was taken."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Preempted(_Stopped):
    """The policy took its GPUs away."""

    name = "preempt"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Requeued(_Stopped):
    """It lost them without the policy's doing, and waits again."""

    name = "requeue"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Finished(_Stopped):
    """Its work is done."""

    name = "finish"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Failed(_Stopped):
    """It is given up."""

    name = "fail"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Cancelled(_Stopped):
    """Its user ended it, or it waited for a job that did not finish."""

    name = "cancel"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Rejected(_Stopped):
    """The policy will never run it."""

    name = "reject"

    admission: Mapping[str, Any] | None = None
    """What the policy says of it besides."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Released(_OfJob):
    """Nothing is left of a job that ended while something of it might run."""

    name = "release"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class _Trained(_Happened):
    """Workers trained, or the service measured them."""

    job: str = field(default="", kw_only=False)
    """Empty until the writer of a worker's file adds it."""

    attempt: int | None = None
    generation: int | None = None
    step: int | None = None
    mechanism: str | None = None
    """How a change was made: "in place" or "relaunched"."""
    reason: str | None = None
    observed: Observed | None = None
    noise_scale: float | None = None
    step_seconds: float | None = None
    warning: str | None = None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Progressed(_Trained):
    """Training goes on."""

    name = "progress"

    first_step: bool | None = None
    ready_s: float | None = None
    """Seconds until a new worker was ready."""
    workers: int | None = None
    parts: Mapping[str, Any] | None = None
    """Seconds of each part of a change in place."""
    lost: bool | None = None
    """Whether a worker was lost at the change."""
    after: str | None = None
    """Name of the change whose first step this is."""
    lost_workers: Sequence[Any] | None = None
    """Slots whose workers died; the others train on."""
    idle: float | Null | None = None
    """Part of its slots that the job uses, which the cluster's rule calls idle; null: it is busy again."""
    straggler: Slowness | None = None
    progress: Any = None
    """Forecast of its work."""
    admission: Mapping[str, Any] | None = None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Checkpointed(_Trained):
    """Training can go on from here."""

    name = "checkpoint"

    count: int | None = None
    """Checkpoints since the last such event."""
    lost_samples: float | None = None
    """Work after its last save, which is lost with an attempt."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class EpochEnded(_Trained):
    """An epoch is done."""

    name = "epoch"

    epoch: int | None = None
    """Number of the epoch, from 0."""

    @property
    def epochs_done(self) -> int | None:
        """None if the event, which scripts write, does not say."""
        number = self.epoch
        return None if number is None or not 0 <= number < _MOST_EPOCHS else number + 1


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class NodeDown(_Happened):
    """The backend cannot use a node."""

    name = "node_down"

    node: str
    reason: str | None = None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class NodeUp(_Happened):
    """It can use it again."""

    name = "node_up"

    node: str


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SlotQuarantined(_Happened):
    """A job, or without one every job, does not get a slot for a while."""

    name = "slot_down"

    slot: str
    seconds: float
    by: str | None = None
    """Job whose worker died there."""
    reason: str | None = None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SlotCleared(_Happened):
    """A worker has trained there for long enough."""

    name = "slot_up"

    slot: str


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class _Ordered(_Happened):
    """An order of a user was executed."""

    user: str | None = None
    uid: int | None = None
    reason: str | None = None
    order: int | None = None
    """Number of the order."""


@dataclass(frozen=True, eq=False, repr=False)
class _JobOrdered(_OfJob, _Ordered):
    """An order about a job."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Held(_JobOrdered):
    """The policy does not see the job."""

    name = "hold"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Unheld(_JobOrdered):
    """It sees it again."""

    name = "unhold"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Prioritized(_JobOrdered):
    """The job has another priority."""

    name = "priority"

    priority: float


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Updated(_JobOrdered):
    """Fields of the job changed."""

    name = "update"

    changes: Changes


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Drained(_Ordered):
    """A node gets no work."""

    name = "drain"

    node: str
    now: bool | None = None
    """Whether its jobs leave it at once."""
    until: float | None = None
    """Time by which nothing may run there."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Undrained(_Ordered):
    """It gets work again."""

    name = "undrain"

    node: str


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Reloaded(_Ordered):
    """The run goes on with another cluster, or a file was refused."""

    name = "reload"

    error: str | None = None
    """Reason of a refusal; nothing has changed then."""
    cluster: Mapping[str, Any] | None = None
    """The cluster from now on; nodes that jobs still have to leave are in it as they were."""
    next_cluster: Mapping[str, Any] | None = None
    """The cluster of the file, while there are such nodes."""
    leaving: Sequence[Any] | None = None
    """Names of these nodes, which get no work."""
    back: Sequence[Any] | None = None
    """Nodes that were to leave, and get work again."""
    now: bool | None = None
    """Whether jobs leave these nodes at the next decision."""
    lines: Sequence[Any] | None = None
    """Changes of the file, a line for each."""

    def clusters(self) -> tuple[Cluster, Cluster | None]:
        """The cluster from now on, and the one of the file while they differ.

        :raises ValidationError: it does not state a cluster.
        """
        from pliant.schemas.cluster import Cluster

        now = Cluster.model_validate_json(json.dumps(self.cluster or {}))
        return now, None if self.next_cluster is None else Cluster.model_validate_json(
            json.dumps(self.next_cluster)
        )


Placed = Started | Resumed | Grown | Shrunk | Moved
Ended = Finished | Failed | Cancelled | Rejected
Trained = Progressed | Checkpointed | EpochEnded
Ordered = Held | Unheld | Prioritized | Updated | Drained | Undrained | Reloaded
TypedEvent = (
    RunBegan | Decided | Submitted | Placed | Preempted | Requeued | Ended | Released | Trained
    | NodeDown | NodeUp | SlotQuarantined | SlotCleared | Ordered
)  # fmt: skip

_BY_NAME: Final[Mapping[EventName, type[TypedEvent]]] = {kind.name: kind for kind in get_args(TypedEvent)}
PLACED: Final[Mapping[str, type[Placed]]] = {kind.name: kind for kind in get_args(Placed)}
"""Kinds of events that give a job GPUs, by their names."""
_ANYTHING: Final = frozenset({str, int, float, bool, list, tuple, dict})
_TYPES: Final[Mapping[str, frozenset[type]]] = {
    "str": frozenset({str}),
    "int": frozenset({int}),
    "float": frozenset({int, float}),
    "bool": frozenset({bool}),
    "Null": frozenset({NoneType}),
    "Sequence[Any]": frozenset({list, tuple}),
    "Sequence[Mapping[str, Any]]": frozenset({list, tuple}),
    "Mapping[str, Any]": frozenset({dict}),
    "Observed": frozenset({dict}),
    "Slowness": frozenset({dict}),
    "Changes": frozenset({dict}),
    "Any": _ANYTHING,
    "None": frozenset(),
}
"""Types in which a file holds values of a field, by the words of its annotation."""
_NO_TYPE: Final = frozenset[type]()
_REQUIRED: Final[Mapping[EventName, Mapping[str, Any]]] = {
    **{kind.name: {"node": ""} for kind in (NodeDown, NodeUp, Drained, Undrained)},
    SlotQuarantined.name: {"slot": "", "seconds": nan},
    SlotCleared.name: {"slot": ""},
    Prioritized.name: {"priority": nan},
    Updated.name: {"changes": {}},
}
"""Keys without which events of a kind mean nothing, and the objects that :func:`typed` sets instead."""
_COLUMNS: Final = frozenset({*(each.name for each in fields(_Happened)), "stated"})


@cache
def _keys_of(name: EventName) -> Mapping[str, frozenset[type]]:
    """The types that each key of a detail may have; keys in the order in which they are written."""
    return {
        each.name: frozenset().union(*(_TYPES[word] for word in str(each.type).split(" | ")))
        for each in fields(_BY_NAME[name])
        if each.name not in _COLUMNS
    }


def typed(row: Event) -> TypedEvent:
    """The event of a row."""
    kind, detail = _BY_NAME[row.event], row.detail
    if kind is Decided and detail is not None and "trace_hash" in detail:
        kind = RunBegan
    event: TypedEvent = object.__new__(kind)
    # What is not stated stays the default of the class: a third of the time of __init__.
    said = event.__dict__
    said.update(
        time=row.time,
        job=row.job,
        gpus=row.gpus,
        placement=row.placement,
        global_batch=row.global_batch,
        samples_done=row.samples_done,
        loss=row.loss,
        metric=row.metric,
        overhead_seconds=row.overhead_seconds,
    )
    if row.event in _REQUIRED:
        said.update(_REQUIRED[row.event])
    if kind is Submitted or kind is RunBegan:
        said["stated"] = detail
    elif detail is not None:
        types, other = _keys_of(row.event), dict[str, Any]()
        for key, value in detail.items():
            if type(value) in types.get(key, _NO_TYPE):
                said[key] = Null.NULL if value is None else value
            elif isinstance(value, float) and float in types.get(key, _NO_TYPE):
                said[key] = value  # of numpy
            else:
                other[key] = value
        said["keys"], said["other"] = tuple(detail), other or None
    return event


def checked(row: Event) -> TypedEvent:
    """The event of a row that a record is to follow.

    Scripts write what they report of their training: there a value of another type counts as unstated.

    :raises ValueError: it lacks a key, or a value is of another type than its field's.
    """
    event = typed(row)
    for key in _REQUIRED.get(row.event, ()):
        if key not in (event.keys or ()):
            raise ValueError(f"the event does not state {key!r}")
    if isinstance(event, Trained):
        return event
    if event.other and (wrong := event.other.keys() & _keys_of(row.event).keys()):
        raise ValueError(f"{min(wrong)!r} of the event has the wrong type")
    return event


def row_of(event: TypedEvent) -> Event:
    """The row of an event."""
    return Event(
        *(event.time, event.name, event.job, event.gpus, event.placement, event.global_batch),
        *(event.samples_done, event.loss, event.metric, event.overhead_seconds, detail_of(event)),
    )


def with_only(row: Event, keys: Container[str]) -> Event:
    """A row that says nothing but these keys beside its columns."""
    detail = {key: value for key, value in (row.detail or {}).items() if key in keys}
    return replace(row, detail=detail)


def detail_of(event: TypedEvent) -> Mapping[str, Any] | None:
    """What a row says beside its columns."""
    if isinstance(event, RunBegan | Submitted):
        return event.stated
    known, other, detail = _keys_of(event.name), event.other or {}, dict[str, Any]()
    unread = _REQUIRED.get(event.name, {})
    for key in dict.fromkeys((*(event.keys or ()), *known, *other)):
        value = getattr(event, key) if key in known else None
        if value is not None and value is not unread.get(key):
            detail[key] = None if value is Null.NULL else value
        elif key in other:  # a field that was set since replaces what a script wrote in its place
            detail[key] = other[key]
    return detail if detail or event.keys is not None else None
