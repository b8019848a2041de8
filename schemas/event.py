"""The ``event`` kind: what happened, in order. State is a fold over events and nothing else is the truth.

JSON Lines while a run is live, Parquet when it is finished; the same columns in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pliant.schemas.formats.columns import Column, Table

EventName = Literal[
    "submit", "admit", "reject", "start", "grow", "shrink", "move", "preempt", "resume", "epoch", "progress",
    "checkpoint", "fail", "requeue", "finish", "cancel", "node_down", "node_up", "decision",
    "slot_down", "slot_up", "release",
]  # fmt: skip
EVENT_NAMES: Final[tuple[str, ...]] = EventName.__args__  # type: ignore[attr-defined]

OF_THE_CLUSTER: Final = ("decision", "node_down", "node_up", "slot_down", "slot_up")
"""Events that may be of no job."""

EVENT: Final = Table(
    "event",
    (
        Column("time", "float64", "seconds since the start of a trace; UTC seconds since the epoch when live", False, least=0),
        Column("job", "string", "job id; null for events of the cluster"),
        Column("event", "string", "what happened", False, words=EVENT_NAMES),
        Column("gpus", "int64", "GPUs that the job holds after the event", least=0),
        Column("placement", "json", "[[node, GPUs], …] after the event"),
        Column("global_batch", "int64", "samples per optimizer step after the event", least=1),
        Column("samples_done", "float64", "samples trained so far, repetitions counted", least=0),
        Column("loss", "float64", "training loss, mean since the last such event"),
        Column("metric", "float64", "validation metric, if the job states one"),
        Column("overhead_seconds", "float64", "time the job held these GPUs without training because of this event", least=0),
        Column("detail", "json", "free object: reason, attempt, exit status, node, parameters"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """One event; the columns and units of :data:`EVENT`.

    The first event of a run is a ``decision`` whose detail names the run: policy, parameters, seed,
    simulated, trace_hash, cluster (see ``pliant.schemas.runinfo``).
    """

    time: float
    event: EventName
    job: str | None = None
    gpus: int | None = None
    placement: tuple[tuple[str, int], ...] | None = None
    global_batch: int | None = None
    samples_done: float | None = None
    loss: float | None = None
    metric: float | None = None
    overhead_seconds: float | None = None
    detail: Mapping[str, Any] | None = field(default=None, hash=False)
