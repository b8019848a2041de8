"""What a policy may see: a :class:`Snapshot` of the cluster, its active jobs and what changed.

A snapshot has no clock, no files and no engine behind it, so a policy behaves the same in ``schedule``,
``run`` and ``replay``. Its jobs and nodes are the caller's own objects: a policy must not write to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from pliant.tools.schedule.jobs import JobState, NodeState, gpus_by_type

if TYPE_CHECKING:
    from pliant.schemas.job import Job
    from pliant.tools.schedule.forecast import WorkForecast
    from pliant.tools.schedule.placement import FreeGpus
    from pliant.tools.schedule.rates import Speeds


class Oracle(Protocol):
    """The truth about jobs, for policies that were published with such knowledge.

    Only a replay that is asked to gives it; a policy that uses it sets ``uses_oracle``.
    """

    def remaining_steps(self, job: JobState, time_s: float) -> float:
        """Optimizer steps that ``job`` still needs at its reference batch."""
        ...

    def step_seconds(self, job: JobState, gpus: int, gpu_type: str) -> float | None:
        """Seconds of one such step on ``gpus`` GPUs that lie together; None: it does not run there.

        The same for equal :meth:`kind`.
        """
        ...

    def max_gpus(self, job: JobState) -> int: ...

    def kind(self, job: JobState) -> object:
        """A key: jobs of one kind have the same step times."""
        ...


ChangeKind = Literal[
    "arrived", "finished", "cancelled", "failed", "rejected", "lost", "node_down", "node_up", "capacity",
    "priority", "batch",
]  # fmt: skip
ENDS: Final = frozenset({"finished", "cancelled", "failed", "rejected"})


class Change(NamedTuple):
    """One thing that happened since the policy was last asked; times never run backwards.

    ``cancelled``: the job left for good, or is held; a released job arrives again, with its progress.
    ``lost``: the job lost its GPUs (crash, node gone) and waits again, or what was decided about it was not
    carried out: it holds what it shows. ``rejected`` repeats the policy's own
    decision, so that its state can be rebuilt from changes. ``capacity``: GPUs of a node went out of service
    or came back. ``batch``: the job changed its batch by itself. Allocations are not changes: the policy
    decided them, and jobs show them.
    """

    time_s: float
    kind: ChangeKind
    job: JobState | None = None
    node: NodeState | None = None
    gpus: int = 0
    """GPUs that a node's change brought into service; negative: took out."""

    @property
    def ended_job(self) -> JobState | None:
        """The job that left with this change, if any."""
        return self.job if self.kind in ENDS else None


class Snapshot(NamedTuple):
    """Everything a policy may look at when it decides.

    ``changes`` holds what happened since the last decision of this policy object, or of the state it loaded;
    for a new one the whole history, so that state built from it equals state carried along.
    """

    time_s: float
    nodes: Sequence[NodeState]
    jobs: Mapping[str, JobState]
    """Active jobs by id, in order of submission, without held ones."""
    speeds: Speeds
    changes: Sequence[Change]
    total_gpus: int
    """GPUs of the nodes that are up."""
    free_gpus: Mapping[str, int]
    """GPUs that no job holds, by type, on nodes that are up."""
    free: FreeGpus
    """The same by node, for a policy that places jobs itself."""
    oracle: Oracle | None = None
    forecast: WorkForecast | None = None
    """Predictions for jobs that do not state their work; every session has one."""
    future: Sequence[Job] = ()
    """Jobs that have not arrived, for a policy whose traits say ``needs_future``; empty except in replays."""

    def arrivals(self) -> list[JobState]:
        """Active jobs, higher priority first, then in order of (submit_time, id)."""
        return sorted(self.jobs.values(), key=lambda job: job.turn)

    def gpus_by_type(self) -> dict[str, int]:
        """GPUs of nodes that are up, in order of the first node of each type."""
        if len(self.free_gpus) == 1 and self.total_gpus:
            return dict.fromkeys(self.free_gpus, self.total_gpus)
        return gpus_by_type(self.nodes)
