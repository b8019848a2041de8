"""A run as a report sees it: what happened to each job, and how many GPUs there were.

All times are seconds since the first submission, simulated and live runs alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from pliant.schemas.event import End
from pliant.schemas.job import Job, Utility
from pliant.schemas.runinfo import RunInfo

Curve = tuple[tuple[int, float], ...]
"""(GPUs, samples per second), sizes ascending."""
_UNSTATED: Final = Utility()
Outcome = End | Literal["unfinished"]


class Seen(NamedTuple):
    """How far workers said that a job is, on the clock of the log."""

    time_s: float
    samples: float
    checkpoint_s: float
    """Time without training because of checkpoints, on the same GPUs before."""


@dataclass(slots=True)
class Step:
    """From ``time_s`` on the job holds ``gpus`` GPUs."""

    time_s: float
    gpus: int
    event: str
    """Name of the event that changed the allocation."""
    overhead_s: float = 0.0
    """Time without training that the change cost."""
    checkpoint_s: float = 0.0
    """Time without training because of checkpoints."""
    shared: bool = False
    """Whether another job trains on the same GPUs."""
    first: Seen | None = None
    """The first report after training went on with these GPUs; kept of live runs alone."""
    last: Seen | None = None
    """The newest report."""

    @property
    def counted_gpus(self) -> float:
        """What counts of its GPUs: of shared ones one half, so that both jobs together count them once."""
        return self.gpus / 2 if self.shared else self.gpus


class Forecast(NamedTuple):
    """What was predicted of a job's progress, as a part of its work."""

    samples_done: float
    mean: float
    low: float
    high: float
    """The 90 % interval."""


@dataclass(slots=True)
class JobRecord:
    """One job from its submission to its end, or to the end of the log."""

    job: Job
    submit_s: float
    curve: Curve = ()
    """At the reference batch."""
    samples: float | None = None
    """All the work in samples; None: unknown."""
    demand_gpu_s: float | None = None
    """GPU-seconds of all the work at the requested size; None: the log does not say."""
    global_batch: int | None = None
    """As the last event says that names one."""
    is_measured: bool = False
    """Whether curve and work are what this run measured, and neither stated nor predicted before it."""
    outcome: Outcome = "unfinished"
    end_s: float | None = None
    steps: list[Step] = field(default_factory=list)
    """Every change of its allocation, in order of time."""
    preemptions: int = 0
    rescales: int = 0
    """Growths, shrinks and changes of the batch."""
    moves: int = 0
    """Changes to other GPUs, as many as before and with the same batch."""
    restarts: int = 0
    """How often it was put back into the queue after a failure."""
    samples_done: float | None = None
    """Samples trained as far as the log says, repetitions counted."""
    first_loss: float | None = None
    last_loss: float | None = None
    forecasts: list[Forecast] = field(default_factory=list)
    """What was predicted while it ran, in order of time."""
    admission: Mapping[str, Any] = field(default_factory=dict)
    """What the policy said last when it admitted or rejected it; empty: nothing."""

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job.id

    @property
    def first_start_s(self) -> float | None:
        """When it first held a GPU."""
        return next((step.time_s for step in self.steps if step.gpus), None)

    @property
    def forecasts_held(self) -> tuple[int, int]:
        """How many of its predicted intervals held what became of it, and how many there are of it."""
        total = self.samples_done if self.outcome == "finished" else None
        if not total:
            return 0, 0
        held = (each.low <= each.samples_done / total <= each.high for each in self.forecasts)
        return sum(held), len(self.forecasts)

    @property
    def jct_s(self) -> float | None:
        """Completion minus submission; None unless it finished."""
        return None if self.outcome != "finished" or self.end_s is None else self.end_s - self.submit_s

    @property
    def late_s(self) -> float | None:
        """Completion minus target, below 0 where it was early; None: it did not finish, or has no target."""
        target = self.job.utility.target
        return None if target is None or self.jct_s is None else self.jct_s - target

    @property
    def utility(self) -> float | None:
        """What it was worth, 0 if it will never finish; None: it states no utility, or it may yet finish."""
        if self.job.utility == _UNSTATED:
            return None
        if self.jct_s is not None:
            return self.job.utility.worth(self.jct_s)
        return None if self.outcome == "unfinished" else 0.0

    @property
    def queueing_delay_s(self) -> float | None:
        """First start minus submission; None if it never started."""
        start = self.first_start_s
        return None if start is None else start - self.submit_s

    def held(self, until_s: float) -> Iterator[tuple[float, float, Step]]:
        """(start, end, step) of every stretch of time in which it held GPUs, cut at ``until_s``."""
        end = until_s if self.end_s is None else min(until_s, self.end_s)
        for index, step in enumerate(self.steps):
            after = self.steps[index + 1].time_s if index + 1 < len(self.steps) else end
            if step.gpus and after > step.time_s:
                yield step.time_s, after, step

    def gpu_seconds(self, until_s: float) -> float:
        """GPU-seconds held, overheads included; of GPUs shared with another job one half."""
        return sum((end - start) * step.counted_gpus for start, end, step in self.held(until_s))


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One event file, folded."""

    source: str
    info: RunInfo
    jobs: tuple[JobRecord, ...]
    """In order of (submission, id)."""
    capacity: tuple[tuple[float, int], ...]
    """(time, GPUs that are up from then on); the first entry holds from the beginning."""
    origin_s: float
    """Time of the first submission on the log's own clock."""
    last_event_s: float
    decisions: int = 0
    """Timed decisions in the log, and the seconds they took."""
    decision_seconds: float = 0.0
    policies: tuple[str, ...] = ()
    """Every policy that decided, in order of appearance."""

    @property
    def total_gpus(self) -> int:
        """GPUs of the whole cluster."""
        return self.info.cluster.total_gpus

    @property
    def largest_gang(self) -> int:
        """Most GPUs that one job can hold: a job stays on one type."""
        by_type: dict[str, int] = {}
        for node in self.info.cluster.nodes:
            by_type[node.gpu_type] = by_type.get(node.gpu_type, 0) + node.gpus * (node.count or 1)
        return max(by_type.values(), default=0)

    def with_outcome(self, outcome: Outcome) -> list[JobRecord]:
        """The jobs that ended so."""
        return [job for job in self.jobs if job.outcome == outcome]

    @property
    def is_measured(self) -> bool:
        """Whether the speeds of its jobs were measured in this run, for want of a profile."""
        return any(job.is_measured for job in self.jobs)
