"""The ``event`` kind: what happened, in order. State is a fold over events and nothing else is the truth.

JSON Lines while a run is live, Parquet when it is finished; the same columns in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pliant.schemas.file_io.columns import About, Broken, TableKind
from pliant.schemas.file_io.record import NOT_FINITE, as_pointer, nonfinite

EventName = Literal[
    "submit", "reject", "start", "grow", "shrink", "move", "preempt", "resume", "epoch", "progress",
    "checkpoint", "fail", "requeue", "finish", "cancel", "node_down", "node_up", "decision",
    "slot_down", "slot_up", "release", "hold", "unhold", "priority", "drain", "undrain", "update", "reload",
]  # fmt: skip
EVENT_NAMES: Final[tuple[str, ...]] = EventName.__args__  # type: ignore[attr-defined]

OF_NODES: Final = ("node_down", "node_up")
OF_SLOTS: Final = ("slot_down", "slot_up")
OF_DRAINS: Final = ("drain", "undrain")
OF_THE_CLUSTER: Final = ("decision", "reload", *OF_NODES, *OF_SLOTS, *OF_DRAINS)
"""Events that may be of no job."""
STARTS: Final = ("start", "resume")
"""Events that give GPUs to a job without any."""
RESCALES: Final = frozenset({"grow", "shrink", "move"})
"""Events that change the GPUs of a job that holds some."""
PLACED: Final = frozenset({*STARTS, *RESCALES})
"""Events that give a job GPUs."""
ALLOCATION_EVENTS: Final = frozenset({*PLACED, "preempt"})
"""Events by which a scheduler sets the GPUs of a job."""
WORKER_EVENTS: Final = frozenset({"progress", "epoch", "checkpoint"})
"""Events that workers report."""
End = Literal["finished", "failed", "cancelled", "rejected"]
ENDS: Final[Mapping[str, End]] = {
    "finish": "finished", "fail": "failed", "cancel": "cancelled", "reject": "rejected",
}  # fmt: skip
"""Events that end a job, and how; it holds nothing afterwards. A failed job may start again."""
FREES: Final = frozenset({*ENDS, "requeue"})
"""Events by which a job gives up its GPUs without a decision."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    The first event of a run is a ``decision`` whose detail names the run: policy, parameters, seed,
    simulated, trace_hash, cluster (see ``pliant.schemas.runinfo``).
    """

    time: Annotated[
        float, About("seconds since the start of a trace; UTC seconds since the epoch when live", least=0)
    ]
    event: Annotated[EventName, About("what happened")]
    job: Annotated[str | None, About("job id; null for events of the cluster")] = None
    gpus: Annotated[int | None, About("GPUs that the job holds after the event", least=0)] = None
    placement: Annotated[
        tuple[tuple[str, Annotated[int, About(least=1)]], ...] | None,
        About("[[node, GPUs], …] after the event"),
    ] = None
    global_batch: Annotated[int | None, About("samples per optimizer step after the event", least=1)] = None
    samples_done: Annotated[float | None, About("samples trained so far, repetitions counted", least=0)] = (
        None
    )
    loss: Annotated[float | None, About("training loss, mean since the last such event")] = None
    metric: Annotated[float | None, About("validation metric, if the job states one")] = None
    overhead_seconds: Annotated[
        float | None, About("time the job held these GPUs without training because of this event", least=0)
    ] = None
    detail: Annotated[
        Mapping[str, Any] | None, About("free object: reason, attempt, exit status, node, parameters")
    ] = field(default=None, hash=False)


def _broken(event: Event) -> Broken:
    broken = (
        []
        if event.detail is None
        else [("/detail" + as_pointer(at), NOT_FINITE) for at in nonfinite(event.detail)]
    )
    if event.job is None and event.event not in OF_THE_CLUSTER:
        broken.append(("/job", f"is null in a {event.event!r} event, expected a job id"))
    if event.event == "preempt" and event.gpus:
        broken.append(("/gpus", f"is {event.gpus:,} in a 'preempt' event, expected 0"))
    return broken


EVENT: Final = TableKind("event", Event, first=("time", "job"), broken=_broken)
