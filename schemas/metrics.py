"""The ``metrics`` kind: what a report computed, for CI and people (JSON, a list of runs)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Annotated, Any, Final, Literal, TypeGuard

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from pliant.schemas.file_io.record import NonNegativeFloat, NonNegativeInt, Record

Number = float | None
Better = Literal["lower", "higher"]
Unpredicted = Literal["batch", "spread", "shared", "speed"]
Reference = Literal["fair-share", "gps", "isolated"]
Kind = Literal["time", "percent", "ratio", "amount", "count", "ms", "payoff"]
_ROUNDING: Final = 1e-9
_SUPERLINEAR: Final = 1.1
"""Two GPUs may be more than twice as fast as one, as each has less to hold in its caches, but not by much."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a report: how it is shown, explained, compared and checked.

    The field that has it gives the name, the unit (its ending), the definition (its docstring) and the order
    in JSON and CSV. Everything else that a report knows of the number is here.
    """

    title: str = ""
    """Header of its row or column in tables."""
    kind: Kind | None = None
    """Form in which tables show it; None: it has no row or column of its own."""
    meaning: str = ""
    """Line of ``--explain``."""
    better: Better | None = None
    """Direction that is better, other figures being equal. ``utilization`` has none: it rises when GPUs do
    more work and when they waste more."""
    low: float = 0.0
    """Smallest value possible."""
    positive: bool = False
    """Whether 0 is impossible."""
    high: float = inf
    """Largest value possible."""
    least: str = ""
    """Name of another number of the record that it is not below."""
    most: str = ""
    """Name of another number of the record that it does not exceed."""
    reference: Reference | None = None
    """Fair sharing that it is relative to; tables show one of them."""
    is_bound: bool = False
    """Whether only ``--bound`` computes it."""
    is_short: bool = False
    """Whether the short table has it."""
    is_expected: bool = False
    """Whether ``--write-expected`` writes it. Such a figure has a better direction, and does not depend on
    the speed of the machine that replays."""
    has_ratio: bool = True
    """Whether a ratio to the baseline's says something."""
    below: str = ""
    """Name of the metric whose row is above its own, unless that is the field before."""
    shown_with: str = ""
    """Name of the number without which no row of a table shows it."""

    def allows(self, value: float, others: Mapping[str, Any]) -> bool:
        """Whether the number can have this value.

        :param others: the record's other numbers, by name.
        """
        slack = _ROUNDING * max(1.0, abs(value))
        low = max(self.low, _number(others.get(self.least), -inf))
        high = min(self.high, _number(others.get(self.most), inf))
        return (
            isfinite(value)
            and low - slack <= value <= high + slack
            and not (self.positive and value <= self.low)
        )

    @property
    def range_text(self) -> str:
        """The values that it can have, in words."""
        limits = (
            (f"above {self.low:g}" if self.positive else f"at least {self.low:g}") if self.low > -inf else "",
            f"at least {self.least}" if self.least else "",
            f"at most {self.high:g}" if self.high < inf else "",
            f"at most {self.most}" if self.most else "",
        )
        return " and ".join(filter(None, limits)) or "a number"


def _number(value: object, otherwise: float) -> float:
    return float(value) if is_number(value) else otherwise


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
    jobs_submitted: Annotated[NonNegativeInt, Metric()]
    jobs_finished: Annotated[
        NonNegativeInt,
        Metric(
            "jobs finished",
            None,
            "of all that were submitted; the others are in no JCT",
            "higher",
            most="jobs_submitted",
            is_expected=True,
        ),
    ]
    jobs_rejected: Annotated[NonNegativeInt, Metric(better="lower", most="jobs_submitted")]
    jobs_failed: Annotated[NonNegativeInt, Metric(better="lower", most="jobs_submitted")] = 0
    jobs_cancelled: Annotated[NonNegativeInt, Metric(most="jobs_submitted")] = 0
    jobs_completed_at: tuple[tuple[NonNegativeFloat, NonNegativeInt], ...] = ()
    """[[seconds since the first submission, jobs finished by then], …] at the times that were asked for."""
    mean_jct_s: Annotated[
        Number,
        Metric(
            "JCT, mean",
            "time",
            "job completion time: completion minus submission, mean",
            "lower",
            most="makespan_s",
            is_short=True,
            is_expected=True,
        ),
    ] = None
    median_jct_s: Annotated[
        Number, Metric("JCT, median", "time", "half of the jobs took less", "lower", most="p90_jct_s")
    ] = None
    p90_jct_s: Annotated[
        Number,
        Metric("JCT, 90th percentile", "time", "nine of ten jobs took less", "lower", most="p99_jct_s"),
    ] = None
    p99_jct_s: Annotated[
        Number,
        Metric(
            "JCT, 99th percentile",
            "time",
            "99 of 100 jobs took less",
            "lower",
            most="makespan_s",
            is_short=True,
            is_expected=True,
        ),
    ] = None
    makespan_s: Annotated[
        Number,
        Metric(
            "makespan",
            "time",
            "from the first submission to the last completion",
            "lower",
            is_expected=True,
            below="mean_queueing_delay_s",
        ),
    ] = None
    mean_queueing_delay_s: Annotated[
        Number,
        Metric(
            "queueing delay, mean",
            "time",
            "first start minus submission",
            "lower",
            is_short=True,
            is_expected=True,
        ),
    ] = None
    mean_ftf: Annotated[
        Number,
        Metric(
            "FTF (fair share), mean",
            "ratio",
            "JCT / JCT with an equal share of the GPUs, mean",
            "lower",
            positive=True,
            reference="fair-share",
        ),
    ] = None
    worst_ftf: Annotated[
        Number,
        Metric(
            "FTF (fair share), worst",
            "ratio",
            "the same of the job that was served worst",
            "lower",
            positive=True,
            least="mean_ftf",
            reference="fair-share",
            is_short=True,
            is_expected=True,
        ),
    ] = None
    unfair_fraction: Annotated[
        Number,
        Metric(
            "unfair fraction (fair share)",
            "percent",
            "jobs that took longer than with their fair share",
            "lower",
            high=1.0,
            reference="fair-share",
        ),
    ] = None
    mean_ftf_gps: Annotated[
        Number,
        Metric(
            "FTF (linear GPS), mean",
            "ratio",
            "JCT / JCT in generalized processor sharing, mean",
            "lower",
            positive=True,
            reference="gps",
        ),
    ] = None
    worst_ftf_gps: Annotated[
        Number,
        Metric(
            "FTF (linear GPS), worst",
            "ratio",
            "the same of the job that was served worst",
            "lower",
            positive=True,
            least="mean_ftf_gps",
            reference="gps",
            is_short=True,
        ),
    ] = None
    unfair_fraction_gps: Annotated[
        Number,
        Metric(
            "unfair fraction (linear GPS)",
            "percent",
            "jobs that took longer than in GPS",
            "lower",
            high=1.0,
            reference="gps",
        ),
    ] = None
    mean_ftf_isolated: Annotated[
        Number,
        Metric(
            "FTF (isolated), mean",
            "ratio",
            "JCT / JCT alone on its average share, mean",
            "lower",
            positive=True,
            reference="isolated",
        ),
    ] = None
    worst_ftf_isolated: Annotated[
        Number,
        Metric(
            "FTF (isolated), worst",
            "ratio",
            "the same of the job that was served worst",
            "lower",
            positive=True,
            least="mean_ftf_isolated",
            reference="isolated",
            is_short=True,
        ),
    ] = None
    unfair_fraction_isolated: Annotated[
        Number,
        Metric(
            "unfair fraction (isolated)",
            "percent",
            "jobs that took longer than alone on their share",
            "lower",
            high=1.0,
            reference="isolated",
        ),
    ] = None
    gps_bound_s: Annotated[
        Number,
        Metric(
            "GPS bound",
            "time",
            "how much later than in GPS the policy lets a job end",
            low=-inf,
            has_ratio=False,
        ),
    ] = None
    """What the policy promises: no job ends later after its completion in GPS. Ares: (1/α − 1)·𝓛. Where it
    promises each job another time, the largest."""
    worst_gps_delay_s: Annotated[
        Number,
        Metric(
            "completion after GPS, worst",
            "time",
            "completion minus that in GPS",
            "lower",
            low=-inf,
            most="makespan_s",
            has_ratio=False,
        ),
    ] = None
    """Largest completion time minus completion time in GPS."""
    jobs_past_gps_bound: Annotated[
        int | None,
        Metric(
            "jobs past the GPS bound",
            "count",
            "jobs that ended later than the policy promises",
            "lower",
            most="jobs_finished",
            has_ratio=False,
        ),
    ] = None
    worst_bound_used: Annotated[
        Number,
        Metric(
            "time taken of that of the bound, worst",
            "percent",
            "above 100 % the promise was broken",
            "lower",
            has_ratio=False,
        ),
    ] = None
    """The largest part that a job took of the time, from its submission on, in which it was to end."""
    utilization: Annotated[
        Number,
        Metric("GPUs held", "percent", "GPU-time that jobs held / that was there", high=1.0, is_short=True),
    ] = None
    preemptions_per_job: Annotated[
        Number,
        Metric("preemptions per job", "ratio", "how often a job lost all its GPUs and waited again", "lower"),
    ] = None
    rescales_per_job: Annotated[
        Number,
        Metric("rescales per job", "ratio", "changes of a job's number of GPUs or of its batch", "lower"),
    ] = None
    """Growths, shrinks and changes of the batch."""
    moves_per_job: Annotated[
        Number, Metric("moves per job", "ratio", "changes to other GPUs, as many as before", "lower")
    ] = None
    """Changes to other GPUs, as many as before and with the same batch."""
    sjs_efficiency: Annotated[
        Number,
        Metric(
            "SJS efficiency",
            "percent",
            "time on one GPU / GPU-time held: what scaling cost",
            "higher",
            high=_SUPERLINEAR,
            positive=True,
        ),
    ] = None
    drop_ratio: Annotated[
        Number,
        Metric(
            "jobs rejected",
            "percent",
            "jobs that the policy turned away for good",
            "lower",
            high=1.0,
            is_short=True,
        ),
    ] = None
    rescales_per_hour: Annotated[
        Number, Metric("rescales per hour", "ratio", "of all jobs together", "lower", below="moves_per_job")
    ] = None
    """Rate of all jobs together, between the first submission and the last completion."""
    total_utility: Annotated[
        Number,
        Metric(
            "total utility",
            "ratio",
            "sum of what jobs were worth when they finished",
            "higher",
            low=-inf,
            is_expected=True,
        ),
    ] = None
    """Sum over the finished jobs, where any states a utility."""
    jobs_on_time: Annotated[
        int | None,
        Metric(
            "jobs finished by their target",
            "count",
            "jobs that finished by the target they state",
            "higher",
            most="jobs_finished",
            is_expected=True,
            below="deadlines_met",
        ),
    ] = None
    """Finished jobs with a target that finished by it."""
    deadlines_met: Annotated[
        Number,
        Metric(
            "deadlines met",
            "percent",
            "of all jobs with a target; late, failed and turned away: missed",
            "higher",
            high=1.0,
            is_short=True,
            is_expected=True,
        ),
    ] = None
    """Jobs that finished by their target / all with one: jobs turned away, failed or late miss it. Jobs that
    their owner cancelled before it, and those that may yet meet it, are not counted."""
    median_late_s: Annotated[
        Number,
        Metric(
            "completion after the target, median",
            "time",
            "minus: half of the jobs were early",
            "lower",
            low=-inf,
            most="makespan_s",
            has_ratio=False,
        ),
    ] = None
    """Completion minus target, of the finished jobs with a target; below 0: early."""
    stdev_late_s: Annotated[
        Number,
        Metric(
            "… standard deviation", "time", "how much that differs between jobs", "lower", has_ratio=False
        ),
    ] = None
    """Standard deviation of that."""
    jobs_admitted: Annotated[
        int | None,
        Metric(
            "jobs admitted",
            "count",
            "jobs that an admission policy let in",
            "higher",
            most="jobs_submitted",
            below="drop_ratio",
        ),
    ] = None
    """Count of a policy that admits jobs or rejects them on arrival."""
    mean_decision_ms: Annotated[
        Number, Metric("decision time, mean", "ms", "what the policy took to decide", "lower")
    ] = None
    bound_jct_s: Annotated[
        Number,
        Metric(
            "lower bound of the mean JCT",
            "time",
            "no schedule of these jobs has a smaller mean JCT",
            is_bound=True,
            is_short=True,
        ),
    ] = None
    """No schedule of these jobs has a smaller mean JCT: the larger of the next two."""
    bound_jct_alone_s: Annotated[
        Number,
        Metric(
            "… every job alone",
            "time",
            "every job at its best size from its submission on",
            most="bound_jct_s",
            is_bound=True,
        ),
    ] = None
    bound_jct_pooled_s: Annotated[
        Number,
        Metric(
            "… GPUs pooled",
            "time",
            "all GPUs on the job with the least left",
            most="bound_jct_s",
            is_bound=True,
        ),
    ] = None
    bound_makespan_s: Annotated[
        Number,
        Metric(
            "lower bound of the makespan",
            "time",
            "no schedule of these jobs ends earlier",
            is_bound=True,
            is_short=True,
        ),
    ] = None
    cheapest_gpu_s: Annotated[
        Number,
        Metric(
            "GPU time at the cheapest sizes",
            "time",
            "GPU-time if each job had its cheapest size",
            is_bound=True,
        ),
    ] = None
    """GPU-seconds of the finished jobs, each at the size at which it needs the fewest."""


class JobFigures(Record):
    """One job of a run (with --jobs). Times are seconds, those of submission since the first one."""

    job: str
    model: str
    outcome: str
    submit_s: Annotated[float, Metric("submitted", "time")]
    queueing_delay_s: Annotated[Number, Metric("waited", "time")] = None
    jct_s: Annotated[Number, Metric("JCT", "time", least="queueing_delay_s")] = None
    ftf: Annotated[Number, Metric("FTF (fair share)", "ratio", positive=True)] = None
    ftf_gps: Annotated[Number, Metric("FTF (linear GPS)", "ratio", positive=True)] = None
    ftf_isolated: Annotated[Number, Metric(positive=True)] = None
    gpu_seconds: Annotated[float, Metric()]
    overhead_s: Annotated[float, Metric()]
    """Holding GPUs without training: changes and checkpoints."""
    preemptions: Annotated[NonNegativeInt, Metric("preemptions", "count")]
    rescales: Annotated[NonNegativeInt, Metric("rescales", "count")]
    moves: Annotated[NonNegativeInt, Metric("moves", "count")] = 0
    restarts: Annotated[NonNegativeInt, Metric()]
    utility: Annotated[Number, Metric("utility", "amount", low=-inf, shown_with="utility")] = None
    """What it was worth; null: it states none, or may yet finish."""
    late_s: Annotated[Number, Metric("late", "time", low=-inf, most="jct_s", shown_with="utility")] = None
    """Completion minus target, below 0 where it was early."""
    admission: Annotated[dict[str, Any] | None, Metric("payoff", "payoff", shown_with="admission")] = None
    """What the policy said when it admitted or rejected it."""
    first_loss: Annotated[Number, Metric("first loss", "amount", low=-inf, shown_with="last_loss")] = None
    last_loss: Annotated[Number, Metric("last loss", "amount", low=-inf, shown_with="last_loss")] = None
    money: Annotated[Number, Metric("money", "amount", shown_with="money")] = None
    """By the prices of the cluster; null: it has none."""


class PairedJcts(Record):
    """Wilcoxon's signed-rank test of a run's JCTs against the baseline's, job by job."""

    pairs: Annotated[NonNegativeInt, Metric(low=1.0)]
    """Jobs that finished in both runs."""
    two_sided: Annotated[float, Metric(high=1.0)]
    """p of: they are alike. Small: they differ."""
    greater: Annotated[float, Metric(high=1.0)]
    """p of: they are not larger. Small: they are larger than the baseline's."""
    less: Annotated[float, Metric(high=1.0)]
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
    """Step times of a live run with a profile whose workers reported them; else left out."""
    teams: tuple[TeamFigures, ...] | None = None
    """Where teams share the cluster; else left out."""

    @model_serializer(mode="wrap")
    def _without_unknown_steps(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = fields(self)
        for name in ("step_times", "teams"):
            if getattr(self, name) is None:
                document.pop(name, None)
        return document


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


def _declared(record: type[Record]) -> dict[str, Metric]:
    """The metrics of a record, in its order."""
    return {
        name: each
        for name, field in record.model_fields.items()
        for each in field.metadata
        if isinstance(each, Metric)
    }


def _in_order_of_rows(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    names = [name for name, metric in metrics.items() if not metric.below]
    for name, metric in metrics.items():
        if metric.below:
            names.insert(names.index(metric.below) + 1, name)
    return {name: metrics[name] for name in names}


RUN_METRICS: Final = _declared(RunMetrics)
RUN_ROWS: Final = {name: metric for name, metric in _in_order_of_rows(RUN_METRICS).items() if metric.kind}
"""Metrics with a row in the table of runs, from its top to its bottom."""
JOB_METRICS: Final = _declared(JobFigures)
TEST_METRICS: Final = _declared(PairedJcts)
