"""What an event file says about the run it records.

The first event of a file is a ``decision`` whose detail is a :class:`RunInfo`; the detail of every ``submit``
event is a :class:`SubmitDetail`. So a report needs the event file alone. An :class:`Assumption` is what a
decision or a replay takes for granted.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from pliant.schemas.cluster import Cluster
from pliant.schemas.file_io.record import (
    MOST,
    GpuCount,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    Record,
    WorkAmount,
    broken_rule,
)
from pliant.schemas.job import Job


class Assumption(Record):
    """One thing that the inputs leave open or that an option says in vain."""

    kind: Literal[
        "speed",
        "gpu_type",
        "progress",
        "unused_option",
        "priority",
        "sharing",
        "busy_profile",
        "rigid",
        "cost",
        "recording",
    ]
    """``speed``: there is no profile; ``gpu_type``: it lacks a GPU type of the cluster; ``progress``: jobs
    name validation runs that are not there; ``unused_option``: an option names a model that no job has;
    ``priority``: the policy ignores priorities that jobs state; ``sharing``: how fast jobs are on
    the same GPUs that were not measured together; ``busy_profile``: the machine was busy when speeds were
    measured, measurements disagree, or the throughput model misses them; ``rigid``: no job is elastic, and
    the policy then decides as another one does, which ``--strict`` lets pass; ``cost``: no start or no
    rescale cost is known; ``recording``: what a trace recorded cannot have been on this cluster."""
    text: str
    """One line for people."""


_SLOWEST: Final = 1e-18
"""Samples per second of a job: slower, and the times of its work are not finite."""


class EqualDeals(Record):
    """Equal shares in whole GPUs, to which a job is submitted a grace after it really was."""

    grace: NonNegativeFloat
    """The grace, in times that the job would take alone on the GPUs that it requests."""
    grace_s: NonNegativeFloat
    """Seconds on top of it."""
    unstated_grace_s: NonNegativeFloat | None = None
    """All of the grace of a job that does not state its work, in seconds; null: ``grace_s``."""
    deal_s: PositiveFloat
    """Seconds for which GPUs are dealt out."""
    lost_s: NonNegativeFloat
    """Seconds of each deal in which no job trains."""
    rescale_s: NonNegativeFloat | None = None
    """Seconds that the policy takes a change to cost where none was measured; null: not said."""

    def grace_of(self, alone_s: float) -> float:
        """Seconds of grace of a job that takes ``alone_s`` seconds alone; 0: it does not state its work."""
        if not alone_s and self.unstated_grace_s is not None:
            return self.unstated_grace_s
        return self.grace_s + self.grace * alone_s


class PromisedBounds(Record):
    """What a policy promises of every run; a report holds the run against it."""

    gps_delay: float | None = None
    """No job ends later than in GPS by more than this times the longest time in which all GPUs are held."""
    equal_deals: EqualDeals | None = None
    """No job ends after the deal in which it ends there."""
    void: str | None = None
    """Why the policy does not promise it on this cluster, as a clause; null: it does."""


class RunInfo(Record):
    """The run: who decided, on which cluster, simulated or real, with which profile."""

    policy: str
    parameters: dict[str, Any] = Field(default_factory=dict)
    seed: NonNegativeInt = 0
    simulated: bool
    oracle: bool = False
    """Whether the policy received facts that no scheduler could know."""
    demand: Literal["stated", "predicted", "oracle"] = "stated"
    """What the policy saw of the work of jobs: what they state; predictions where they state none (a
    simulation with predictions shows no work at all); or the truth, which only a simulation has."""
    knew_work: bool = False
    """Whether decisions rested on what jobs state of their work, in a simulation: exactly what they take."""
    preemptible: Literal["all", "stated"] = "all"
    """Whose GPUs decisions could take or change: of all jobs, or of those that state or show that they can
    save."""
    progress: str = "samples"
    """The progress model of a simulation."""
    compat: str | None = None
    """The simulator whose quirks were switched on."""
    trace_hash: str
    """SHA-256 of the jobs, in order of (submit_time, id): equal for equal traces."""
    trace: str | None = None
    """What the trace is called, after its file; null: it came through a pipe, or there was none."""
    cluster: Cluster
    profile_hash: str | None = None
    """SHA-256 of the profile's rows; null: there was none, or ``profile`` holds them."""
    profile: dict[str, list[Any]] | None = None
    """The profile's rows as columns, in files of earlier versions; the curves of ``submit`` suffice."""
    pliant_version: str
    start_cost_s: dict[str, float] | float | None = None
    rescale_cost_s: dict[str, float] | float | None = None
    resume_cost_s: dict[str, float] | float | None = None
    """Where it is not that of rescales."""
    interference: NonNegativeFloat = 0.0
    """Part of their speed that jobs of a simulation lost where they spanned nodes and shared one."""
    interval_s: float | None = None
    bounds: PromisedBounds | None = None
    """What the policy promises; null: nothing, or the file is of a version that did not state it."""
    assumptions: tuple[Assumption, ...] = ()
    """What was taken for granted because no input said it."""
    counters: dict[str, float] = Field(default_factory=dict)


class SubmitDetail(Record):
    """The job that a ``submit`` event brings, with what the fair-share references need to know about it."""

    job: Job
    curve: tuple[tuple[GpuCount, Annotated[float, Field(ge=_SLOWEST, le=MOST)]], ...] = ()
    """[[GPUs, samples per second], …] at the reference batch, sizes ascending; empty: no speed is known."""
    rates: tuple[tuple[GpuCount, Annotated[float, Field(ge=_SLOWEST, le=MOST)]], ...] = ()
    """The same of every size with which the promise of the policy counts; empty: it has no use for them."""
    samples: WorkAmount | None = None
    """All the work in samples; null: unknown."""
    demand_gpu_s: PositiveFloat | None = None
    """GPU-seconds of all the work at the requested size, as the scheduler counts them; null: not stated."""
    uid: NonNegativeInt | None = None
    """The account that submitted it, as the kernel proved it; null: the owner of the state directory did."""

    @model_validator(mode="after")
    def _sizes_ascend(self) -> Self:
        for name, curve in (("curve", self.curve), ("rates", self.rates)):
            for index, ((before, _), (size, _)) in enumerate(pairwise(curve), 1):
                if size <= before:
                    text = f"{size} is not above {before}, expected sizes in ascending order"
                    raise broken_rule(text, f"/{name}/{index}/0")
        return self
