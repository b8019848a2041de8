"""The ``metrics`` kind: what a report computed, for CI and people (JSON, a list of runs)."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from pliant.schemas.file_io.record import NonNegativeFloat, NonNegativeInt, Record

Number = float | None
Better = Literal["lower", "higher"]
Unpredicted = Literal["batch", "spread", "shared", "speed"]
_LOWER: Final = frozenset(
    (
        *("mean_jct_s", "median_jct_s", "p90_jct_s", "p99_jct_s", "makespan_s", "mean_queueing_delay_s"),
        *("mean_ftf", "worst_ftf", "unfair_fraction"),
        *("mean_ftf_gps", "worst_ftf_gps", "unfair_fraction_gps"),
        *("mean_ftf_isolated", "worst_ftf_isolated", "unfair_fraction_isolated"),
        *("worst_gps_delay_s", "jobs_past_gps_bound", "worst_bound_used", "median_late_s", "stdev_late_s"),
        *("preemptions_per_job", "rescales_per_job", "moves_per_job", "rescales_per_hour"),
        *("jobs_rejected", "jobs_failed", "drop_ratio", "mean_decision_ms"),
    )
)
_HIGHER: Final = frozenset(
    ("jobs_finished", "jobs_admitted", "jobs_on_time", "deadlines_met", "total_utility", "sjs_efficiency")
)


class RunMetrics(Record):
    """The figures of one run; null where one does not apply. Times are seconds."""

    policy: str
    trace_hash: str
    seed: int | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    simulated: bool
    oracle: bool = False
    """The policy received facts that a real scheduler could not know."""
    demand: Literal["stated", "predicted", "oracle"] = "stated"
    """What the policy saw of the work of jobs: what they state, predictions, or the truth."""
    jobs_submitted: NonNegativeInt
    jobs_finished: NonNegativeInt
    jobs_rejected: NonNegativeInt
    jobs_failed: NonNegativeInt = 0
    jobs_cancelled: NonNegativeInt = 0
    jobs_completed_at: tuple[tuple[NonNegativeFloat, NonNegativeInt], ...] = ()
    """[[seconds since the first submission, jobs finished by then], …] at the times that were asked for."""
    mean_jct_s: Number = None
    median_jct_s: Number = None
    p90_jct_s: Number = None
    p99_jct_s: Number = None
    makespan_s: Number = None
    mean_queueing_delay_s: Number = None
    mean_ftf: Number = None
    worst_ftf: Number = None
    unfair_fraction: Number = None
    mean_ftf_gps: Number = None
    worst_ftf_gps: Number = None
    unfair_fraction_gps: Number = None
    mean_ftf_isolated: Number = None
    worst_ftf_isolated: Number = None
    unfair_fraction_isolated: Number = None
    gps_bound_s: Number = None
    """What the policy promises: no job ends later after its completion in GPS. Ares: (1/α − 1)·𝓛. Where it
    promises each job another time, the largest."""
    worst_gps_delay_s: Number = None
    """Largest completion time minus completion time in GPS."""
    jobs_past_gps_bound: int | None = None
    worst_bound_used: Number = None
    """The largest part that a job took of the time, from its submission on, in which it was to end."""
    utilization: Number = None
    preemptions_per_job: Number = None
    rescales_per_job: Number = None
    """Growths, shrinks and changes of the batch."""
    moves_per_job: Number = None
    """Changes to other GPUs, as many as before and with the same batch."""
    sjs_efficiency: Number = None
    drop_ratio: Number = None
    rescales_per_hour: Number = None
    """Of all jobs together, between the first submission and the last completion."""
    total_utility: Number = None
    """Of the finished jobs, where any states a utility."""
    jobs_on_time: int | None = None
    """Of the finished jobs with a target, those that finished by it."""
    deadlines_met: Number = None
    """Jobs that finished by their target / all with one: jobs turned away, failed or late miss it. Jobs that
    their owner cancelled before it, and those that may yet meet it, are not counted."""
    median_late_s: Number = None
    """Completion minus target, of the finished jobs with a target; below 0: early."""
    stdev_late_s: Number = None
    """Standard deviation of that."""
    jobs_admitted: int | None = None
    """Of a policy that admits jobs or rejects them on arrival."""
    mean_decision_ms: Number = None
    bound_jct_s: Number = None
    """No schedule of these jobs has a smaller mean JCT: the larger of the next two."""
    bound_jct_alone_s: Number = None
    bound_jct_pooled_s: Number = None
    bound_makespan_s: Number = None
    cheapest_gpu_s: Number = None
    """GPU-seconds of the finished jobs, each at the size at which it needs the fewest."""


class JobFigures(Record):
    """One job of a run (with --jobs). Times are seconds, those of submission since the first one."""

    job: str
    model: str
    outcome: str
    submit_s: float
    queueing_delay_s: Number = None
    jct_s: Number = None
    ftf: Number = None
    ftf_gps: Number = None
    ftf_isolated: Number = None
    gpu_seconds: float
    overhead_s: float
    """Holding GPUs without training: changes and checkpoints."""
    preemptions: NonNegativeInt
    rescales: NonNegativeInt
    moves: NonNegativeInt = 0
    restarts: NonNegativeInt
    utility: Number = None
    """What it was worth; null: it states none, or may yet finish."""
    late_s: Number = None
    """Completion minus target, below 0 where it was early."""
    admission: dict[str, Any] | None = None
    """What the policy said when it admitted or rejected it."""
    first_loss: Number = None
    last_loss: Number = None


class PairedJcts(Record):
    """Wilcoxon's signed-rank test of a run's JCTs against the baseline's, job by job."""

    pairs: NonNegativeInt
    """Jobs that finished in both runs."""
    two_sided: float
    """p of: they are alike. Small: they differ."""
    greater: float
    """p of: they are not larger. Small: they are larger than the baseline's."""
    less: float
    """p of: they are not smaller. Small: they are smaller than the baseline's."""


class StepTime(Record):
    """Steps of a live run in one configuration, beside what the profile predicted of them."""

    model: str
    gpus: NonNegativeInt
    placement: str
    """GPUs of each node, most first, like 4+2."""
    global_batch: NonNegativeInt
    local_batch: NonNegativeInt
    accum_steps: NonNegativeInt
    """Micro-steps of a step."""
    reports: NonNegativeInt
    """Measurements that workers reported."""
    measured_s: float
    """Their median."""
    predicted_s: Number = None
    """Null: the log has no prediction."""
    error: Number = None
    """Predicted / measured - 1."""
    unpredicted: Unpredicted | None = None
    """Why there is no prediction: another batch than the job's own (batch), more nodes than it needs
    (spread), GPUs shared with another job (shared), or no known speed (speed)."""


class TeamFigures(Record):
    """How one team of a shared cluster fared, or one user of it."""

    team: str
    """"*": the jobs of no team."""
    user: str = ""
    """Empty: all of the team."""
    jobs: NonNegativeInt
    finished: NonNegativeInt
    mean_jct_s: Number = None
    p99_jct_s: Number = None
    service_gpu_hours: float = 0.0
    """GPU-hours held."""
    deficit_gpu_hours: Number = None
    """GPU-hours below its entitlement while it had jobs that waited; null for users without one."""
    borrowed_gpu_hours: Number = None
    """GPU-hours beyond its own share; null likewise."""


class ReportedRun(RunMetrics):
    """The figures of one run as a report names it, with what they leave out."""

    run: str | None = None
    """What the report calls it."""
    trace: str | None = None
    """What the trace is called, after its file."""
    caveats: tuple[str, ...] = ()
    """What its inputs left open and its figures do not say."""
    ratios: dict[str, float] | None = None
    """Each figure divided by the baseline's (with --baseline)."""
    paired: PairedJcts | None = None
    """The JCTs beside the baseline's (with --baseline); null: no job finished in both, or another trace."""
    jobs: tuple[JobFigures, ...] | None = None
    """In order of submission (with --jobs)."""
    step_times: tuple[StepTime, ...] | None = None
    """Of a live run with a profile whose workers reported times of steps; else left out."""
    teams: tuple[TeamFigures, ...] | None = None
    """Where teams share the cluster; else left out."""

    @model_serializer(mode="wrap")
    def _without_unknown_steps(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = fields(self)
        for name in ("step_times", "teams"):
            if getattr(self, name) is None:
                found.pop(name, None)
        return found


class FigureEstimate(Record):
    """A figure over seeds or traces: its mean and 95 % interval (Student's)."""

    mean: float
    low: Number = None
    """Null, as ``high``: there is one value."""
    high: Number = None
    count: NonNegativeInt
    """Values that it rests on: traces; of a single trace, seeds."""


class JctDifference(Record):
    """The mean JCT beside that of another, over the jobs that finished in both."""

    of: str
    """The group that this one is compared with."""
    ratio: float
    """Mean JCT / mean JCT of that one."""
    low: Number = None
    """The 95 % interval, null where there are too few pairs."""
    high: Number = None
    pairs: NonNegativeInt
    """Jobs; of groups of several runs, seeds or traces."""


class RunGroup(Record):
    """Runs of one policy that differ in their seed only; often a single run."""

    name: str
    runs: tuple[str, ...]
    """As they are called in ``runs``."""
    figures: dict[str, FigureEstimate] = Field(default_factory=dict)
    """Every figure that a run has, by its name there."""
    mean_jct: JctDifference | None = None
    """Null: it is what others are compared with, or nothing finished in both."""


class CheckedFigure(Record):
    """One figure of --expect and what was found."""

    policy: str
    """Policy or label of the run."""
    over: str | None = None
    """The second run where the figure is a ratio."""
    metric: str
    value: Number = None
    low: Number = None
    high: Number = None
    """The range that was accepted."""
    found: Number = None
    """Null where the figure does not apply."""
    deviation: Number = None
    """(found - value) / value."""
    holds: bool
    source: str = ""
    """Where the figure is published."""


class Metrics(Record):
    """A report's figures: always a list, one entry a run."""

    schema_: Literal["pliant.metrics/1"] = Field(default="pliant.metrics/1", alias="schema")
    runs: tuple[ReportedRun, ...]
    baseline: str | None = None
    """The run that ratios are relative to."""
    warnings: tuple[str, ...] = ()
    """What must be known before the runs are compared."""
    expectations: tuple[CheckedFigure, ...] | None = None
    """Null: nothing was expected."""
    answer: tuple[str, ...] = ()
    """What the report says first, in sentences."""
    groups: tuple[RunGroup, ...] = ()
    """Means over seeds and traces, with intervals."""

    @property
    def minor(self) -> int:
        """1: runs have ``step_times``; 2: they have ``teams``."""
        if any(run.teams is not None for run in self.runs):
            return 2
        return int(any(run.step_times is not None for run in self.runs))


def better(metric: str) -> Better | None:
    """Which direction of a figure is better, other figures being equal.

    Returns None where neither is: ``utilization`` rises when GPUs do more work and when they waste more.
    """
    if metric in _LOWER:
        return "lower"
    return "higher" if metric in _HIGHER else None
