"""A job as a report sees it: what it asked for and what happened to it.

All times are seconds since the first submission, simulated and live runs alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, NamedTuple

from pliant.schemas.event import End
from pliant.schemas.job import Job, Utility
from pliant.schemas.job_table import JobTable

Curve = tuple[tuple[int, float], ...]
"""(GPUs, samples per second), sizes ascending."""
_UNSTATED: Final = Utility()
Outcome = End | Literal["unfinished"]


class Specs:
    """What each job of a run asks for, in columns.

    The one that was asked for last is kept: who looks at a job looks at much of it.
    """

    def __init__(self, table: JobTable | None = None) -> None:
        self.table = JobTable() if table is None else table
        self._last: tuple[int, Job] | None = None

    def __getitem__(self, row: int) -> Job:
        if self._last is None or self._last[0] != row:
            self._last = row, self.table[row]
        return self._last[1]


@dataclass(slots=True, eq=False)
class JobRecord:
    """One job from its submission to its end, or to the end of the log."""

    id: str
    specs: Specs
    row: int
    """In these."""
    submit_s: float
    curve: Curve = ()
    """At the reference batch."""
    rates: Curve = ()
    """The same of every size with which the promise of the policy counts."""
    samples: float | None = None
    """All the work; None if unknown."""
    demand_gpu_s: float | None = None
    """GPU-seconds of all the work at the requested size, if the log says."""
    is_measured: bool = False
    """Whether this run measured curve and work."""
    outcome: Outcome = "unfinished"
    end_s: float | None = None
    jct_s: float | None = None
    """None unless it finished."""
    steps: list[AllocationStep] = field(default_factory=list)
    """Changes of its allocation, in order of time."""
    preemptions: int = 0
    moves: int = 0
    """Changes to as many other GPUs with the same batch."""
    restarts: int = 0
    """Returns to the queue after a failure."""
    samples_done: float | None = None
    """Samples trained so far, repetitions counted."""
    first_loss: float | None = None
    last_loss: float | None = None
    forecasts: Sequence[Forecast] = ()
    observed: Sequence[ObservedStep] = ()
    """Times of steps that its workers reported; of live runs only."""
    admission: Mapping[str, Any] | None = None
    """What the policy said last on admission or rejection."""

    def __eq__(self, other: object) -> bool:
        """Whether they are alike; that of another run is in other columns."""
        if not isinstance(other, JobRecord):
            return NotImplemented
        names = [each.name for each in fields(self) if each.name not in ("specs", "row")]
        return self.job == other.job and all(getattr(self, each) == getattr(other, each) for each in names)

    __hash__ = None  # type: ignore[assignment]

    @property
    def job(self) -> Job:
        """What it asks for."""
        return self.specs[self.row]

    @property
    def forecasts_held(self) -> tuple[int, int]:
        """(intervals that held the outcome, intervals predicted)."""
        total = self.samples_done if self.outcome == "finished" else None
        if not total:
            return 0, 0
        held = (each.low <= each.samples_done / total <= each.high for each in self.forecasts)
        return sum(held), len(self.forecasts)

    @property
    def utility(self) -> float | None:
        """0 if it will never finish. Returns None if it states no utility, or may yet finish."""
        if self.job.utility == _UNSTATED:
            return None
        if self.jct_s is not None:
            return self.job.utility.worth(self.jct_s)
        return None if self.outcome == "unfinished" else 0.0

    def held(self, until_s: float) -> Iterator[tuple[float, float, AllocationStep]]:
        """(start, end, step) of every time in which it held GPUs, cut at ``until_s``."""
        end = until_s if self.end_s is None else min(until_s, self.end_s)
        for index, step in enumerate(self.steps):
            after = self.steps[index + 1].time_s if index + 1 < len(self.steps) else end
            if step.gpus and after > step.time_s:
                yield step.time_s, after, step


@dataclass(slots=True)
class AllocationStep:
    """From ``time_s`` on the job holds ``gpus`` GPUs."""

    time_s: float
    gpus: int
    event: str
    overhead_s: float = 0.0
    checkpoint_s: float = 0.0
    """Time without training because of checkpoints."""
    shared: bool = False
    """Whether another job trains on the same GPUs."""
    batch: int | None = None
    """Global batch, where the log says it."""
    rescales: bool = False
    """Whether it began with a growth, a shrink or a change of the batch."""
    first: ReportedProgress | None = None
    """The first report on these GPUs; of live runs only."""
    last: ReportedProgress | None = None

    @property
    def counted_gpus(self) -> float:
        """Shared GPUs count one half, so that two jobs together count them once."""
        return self.gpus / 2 if self.shared else self.gpus


class ReportedProgress(NamedTuple):
    """What workers reported, on the clock of the log."""

    time_s: float
    samples: float
    checkpoint_s: float
    """Time without training because of checkpoints, on the same GPUs before."""


class ObservedStep(NamedTuple):
    """The mean time of some steps on the same GPUs, as workers measured it."""

    placement: tuple[int, ...]
    """GPUs of each node, most first."""
    local_batch: int
    accum: int
    step_s: float
    global_batch: int | None
    """None where the log does not say it."""
    shared: bool = False
    """Whether another job trained on the same GPUs for at least some of the steps."""

    @property
    def batch(self) -> int:
        """The global batch, else what local batches and micro-steps make of it."""
        return self.global_batch or self.local_batch * self.accum * sum(self.placement)


class Forecast(NamedTuple):
    """What was predicted of a job's progress, as a part of its work."""

    samples_done: float
    mean: float
    low: float
    high: float
    """The 90 % interval."""
