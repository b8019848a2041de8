"""The tables of a report as text cells, whatever prints them: a :class:`Section` is rendered for terminals,
HTML, Markdown and CSV. Numbers are written as people read them: one unit of time a table, few digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Any, Final

from pliant.schemas.cluster import OTHERS
from pliant.schemas.metrics import JOB_METRICS, RUN_METRICS, RUN_ROWS, Kind, RunMetrics, Unpredicted
from pliant.schemas.text import counted
from pliant.tools.report.fairness import REFERENCES, promise, why_unpromised
from pliant.tools.report.job_arrays import optional
from pliant.tools.report.report import Report, RunReport
from pliant.tools.report.usage import money_by_job

Row = dict[str, Any]
_NAMED: Final = 5
"""Latest jobs to name."""
NOTHING: Final = "–"
"""Text where a figure does not apply."""


@dataclass(frozen=True, slots=True)
class Section:
    """A titled table: ``text_columns`` columns of words, then numbers.

    In blocks of columns, each block has the first ``keys`` columns.
    """

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int = 1
    notes: tuple[str, ...] = ()
    keys: int = 1


def value_of(metrics: RunMetrics, name: str) -> float | None:
    value = getattr(metrics, name)
    return None if value is None else float(value)


def ratio_to(metrics: RunMetrics, base: RunMetrics, name: str) -> float | None:
    """Returns None where a ratio says nothing."""
    value, reference = value_of(metrics, name), value_of(base, name)
    return value / reference if value is not None and reference and RUN_METRICS[name].has_ratio else None


def ratios_to(metrics: RunMetrics, base: RunMetrics) -> dict[str, float]:
    """Each figure of which a ratio says something, divided by that of the baseline."""
    ratios = {name: ratio_to(metrics, base, name) for name in RUN_ROWS}
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}


def team_sections(report: Report) -> list[Section]:
    """A section for each run whose cluster is shared, with a row for each team and user."""
    headers = (
        "team",
        "user",
        "jobs",
        "JCT, mean",
        "JCT, p99",
        "GPU-h held",
        "GPU-h borrowed",
        "GPU-h lacked",
    )
    result = []
    for each in report.runs:
        unit = time_unit([row.p99_jct_s for row in each.teams if row.p99_jct_s is not None])
        rows = tuple(
            (
                "(no team)" if row.team == OTHERS else row.team,
                row.user or "all",
                number(row.jobs, 0),
                *(unit.text(seconds) for seconds in (row.mean_jct_s, row.p99_jct_s)),
                *(
                    NOTHING if hours is None else number(hours, 1)
                    for hours in (row.service_gpu_hours, row.borrowed_gpu_hours, row.deficit_gpu_hours)
                ),
            )
            for row in each.teams
        )
        notes = (
            f"JCT in {unit.name}; borrowed: beyond the own share",
            "lacked: below the entitlement while the team had jobs that waited",
        )
        if rows:
            result.append(Section(f"Teams of {each.label}", headers, rows, 2, notes))
    return result


def jobs_section(each: RunReport) -> Section:
    rows = job_rows(each)
    unit = time_unit([row["jct_s"] for row in rows] + [row["submit_s"] for row in rows])
    columns = {
        name: metric
        for name, metric in JOB_METRICS.items()
        if metric.kind and (not metric.shown_with or any(_is_stated(row[metric.shown_with]) for row in rows))
    }
    headers = (
        *("job", "outcome"),
        *(
            f"{metric.title}, {unit.name}" if metric.kind == "time" else metric.title
            for metric in columns.values()
        ),
    )
    cells = tuple(
        (
            row["job"],
            row["outcome"],
            *(_job_cell(row[name], metric.kind, unit) for name, metric in columns.items()),
        )
        for row in rows
    )
    return Section(f"Jobs of {each.label}", headers, cells, 2)


def _is_stated(value: object) -> bool:
    return value is not None and value != {}


def _job_cell(value: Any, kind: Kind | None, unit: TimeUnit) -> str:
    match kind:
        case "time":
            return unit.text(value)
        case "ratio":
            return number(value, 3)
        case "amount":
            return number(value, 4)
        case "payoff":
            return number((value or {}).get("payoff"), 4)
    return str(value)


def job_rows(each: RunReport) -> list[Row]:
    """One row a job, in order of submission; times in seconds. Money takes another pass over the events."""
    jobs, until_s = each.run.jobs, each.run.last_event_s
    fair, gps, isolated = (optional(each.fair[name].ftf) for name in REFERENCES)
    gpu_s, stalled_s = jobs.gpu_seconds(until_s).tolist(), jobs.stalled_s().tolist()
    waited_s, late_s = optional(jobs.queueing_delay_s), optional(jobs.late_s)
    rescales = jobs.rescales_until(inf).tolist()
    bill = money_by_job(each.run.source) if each.run.info.cluster.price else None
    return [
        {
            "run": each.label,
            "job": job.id,
            "model": job.job.model,
            "outcome": job.outcome,
            "submit_s": job.submit_s,
            "queueing_delay_s": waited_s[row],
            "jct_s": job.jct_s,
            "ftf": fair[row],
            "ftf_gps": gps[row],
            "ftf_isolated": isolated[row],
            "gpu_seconds": gpu_s[row] or 0,
            "overhead_s": stalled_s[row] if job.steps else 0,
            "preemptions": job.preemptions,
            "rescales": rescales[row],
            "moves": job.moves,
            "restarts": job.restarts,
            "utility": job.utility,
            "late_s": late_s[row],
            "admission": None if job.admission is None else dict(job.admission),
            "first_loss": job.first_loss,
            "last_loss": job.last_loss,
            "money": None if bill is None else bill.get(job.id, 0.0),
        }
        for row, job in enumerate(jobs)
    ]


def guarantee_section(report: Report) -> Section:
    """A row for each run whose policy promises a bound on delays against GPS."""
    rows = tuple(_row(each) for each in report.runs if each.metrics.gps_bound_s is not None)
    rows += tuple(
        (each.label, *(NOTHING,) * 5, f"nothing is promised: {why}")
        for each in report.runs
        if (why := why_unpromised(each.run)) is not None
    )
    headers = (
        *("", "bound", "worst delay", "time taken, % of that of the bound"),
        *("jobs past it", "of", "the latest of them, after GPS"),
    )
    notes = (
        "delay: completion time minus that in GPS (generalized processor sharing)",
        "bound: where each job has its own, the largest; it counts from the job's completion in GPS as well",
        "a bound rests on premises, which `pliant policies` names; where they fail, jobs can be past it",
    )
    return Section("What the policy promises against GPS", headers, rows, 1, notes)


def _row(each: RunReport) -> tuple[str, ...]:
    delays_s = each.fair["gps"].delays_s()
    bound_s, worst_s = each.metrics.gps_bound_s or 0.0, each.metrics.worst_gps_delay_s
    held = promise(each.run, each.fair["gps"], each.usage)
    past = [] if held is None else held.past.tolist()
    used = each.metrics.worst_bound_used
    latest = sorted((-delays_s.item(row), each.run.jobs.id(row)) for row in past)
    named = [f"{job_id} {duration(-before_s)}" for before_s, job_id in latest[:_NAMED]]
    more = [f"{len(latest) - _NAMED} more"] if len(latest) > _NAMED else []
    worst = NOTHING if worst_s is None else f"{'-' if worst_s < 0 else ''}{duration(abs(worst_s))}"
    return (
        each.label,
        duration(bound_s),
        worst,
        percent(used),
        number(len(past), 0),
        number(each.fair["gps"].jobs, 0),
        ", ".join(named + more),
    )


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """A unit of time and its length in seconds."""

    name: str
    seconds: float

    def text(self, value_s: float | None) -> str:
        """A duration in this unit, without its name."""
        return NOTHING if value_s is None else number(value_s / self.seconds, 2)


SECONDS: Final = TimeUnit("s", 1.0)
MINUTES: Final = TimeUnit("min", 60.0)
HOURS: Final = TimeUnit("h", 3600.0)


def time_unit(values_s: Iterable[float | None]) -> TimeUnit:
    """The unit in which the largest of these durations reads best."""
    largest = max((value for value in values_s if value is not None), default=0.0)
    if largest < 10 * 60:
        return SECONDS
    return MINUTES if largest < 10 * 3600 else HOURS


def duration(value_s: float) -> str:
    """A time with the unit in which it reads best."""
    unit = next((unit for unit in (HOURS, MINUTES) if value_s >= unit.seconds), SECONDS)
    return f"{value_s / unit.seconds:,.4g} {unit.name}"


def number(value: float | None, digits: int) -> str:
    """A number with thousands separated; no minus sign on zero."""
    if value is None:
        return NOTHING
    text = f"{value:,.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.,") else text


def ratio_text(value: float) -> str:
    """Two decimals, or two significant digits: 0.0042."""
    if value and abs(value) < 0.1:
        return f"{value:.2g}"
    return number(value, 2)


def p_text(p: float) -> str:
    """A p value: five decimals, or its power of ten where they would all be 0."""
    return f"{p:.5f}" if p >= 0.00001 or not p else f"{p:.1e}"


def percent(value: float | None) -> str:
    """A fraction as a percentage, without the sign."""
    return NOTHING if value is None else number(100 * value, 1)


_BUSY: Final = 0.1
"""Part of its time above which a row was measured on a busy machine."""
_UNPREDICTED: Final[dict[Unpredicted, str]] = {
    "batch": "not the job's own batch",
    "spread": "on more nodes than needed",
    "shared": "shares its GPUs with another job",
    "speed": "no speed is known",
}
_MEAN_TYPE: Final = "predicted: at the mean speed of the GPU types"
_MOST: Final = 2000
"""Rows of a page."""


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """One row of a profile."""

    model: str
    gpu_type: str
    placement: str
    local_batch: int
    accum_steps: int
    measured_s: float | None
    """Seconds of a step; None: it did not fit in memory."""
    stdev_s: float | None
    busy_share: float | None
    predicted_s: float | None
    """Predicted from the other rows; None where they do not say."""

    @property
    def residual(self) -> float | None:
        """Predicted over measured, minus 1."""
        if self.predicted_s is None or not self.measured_s:
            return None
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True, slots=True)
class GivenProfile:
    """A profile beside the runs of a report."""

    source: str
    sha256: str
    steps: tuple[ProfiledStep, ...]


def summary_section(profile: GivenProfile, used: Sequence[str | None]) -> Section:
    """A row for each model and GPU type.

    :param used: the hashes of the profiles that the runs state.
    """
    groups: dict[tuple[str, str], list[ProfiledStep]] = {}
    for step in profile.steps:
        groups.setdefault((step.model, step.gpu_type), []).append(step)
    rows = []
    for (model, gpu_type), steps in sorted(groups.items()):
        errors = [abs(step.residual) for step in steps if step.residual is not None]
        rows.append(
            (
                model,
                gpu_type,
                number(len(steps), 0),
                number(len(errors), 0),
                percent(median(errors) if errors else None),
                percent(max(errors, default=None)),
                number(sum(_is_busy(step) for step in steps), 0),
            )
        )
    headers = ("model", "GPU type", "rows", "rows held out", "error, median %", "worst %", "busy rows")
    remarks = ["error: of the model on a measured row of several GPUs that it was not shown"]
    if any(profile.sha256 != each for each in used):
        count = sum(profile.sha256 != each for each in used)
        remarks.append(f"{profile.source} is not the profile of {counted(count, 'run')} of {len(used)}")
    return Section(f"Profile: {profile.source}", headers, tuple(rows), 2, tuple(remarks))


def steps_section(profile: GivenProfile) -> Section:
    """A row for each measurement, the largest residuals first."""
    order = sorted(
        profile.steps,
        key=lambda step: (
            -abs(step.residual or 0.0),
            *(step.model, step.gpu_type, step.placement, step.local_batch, step.accum_steps),
        ),
    )
    rows = tuple(_step_row(step) for step in order[:_MOST])
    headers = (
        *("model", "GPU type", "GPUs per node", "local batch", "micro-steps", "measured, s", "± s"),
        *("predicted without it, s", "residual, %", "busy, %"),
    )
    more = len(order) - len(rows)
    remarks = (f"{more:,} rows with smaller residuals are not shown",) if more else ()
    return Section("Measured and predicted steps", headers, rows, 3, remarks)


def step_time_sections(report: Report) -> list[Section]:
    """A section for each live run whose workers reported times of steps, a row a configuration."""
    headers = ("model", "GPUs", "batch", "local", "reports", "predicted, s", "measured, s", "error, %")
    result = []
    for each in report.runs:
        rows = tuple(
            (
                row.model,
                row.placement,
                number(row.global_batch, 0),
                number(row.local_batch, 0) + (f" × {row.accum_steps}" if row.accum_steps > 1 else ""),
                number(row.reports, 0),
                _seconds(row.predicted_s),
                _seconds(row.measured_s),
                f"{NOTHING} {row.unpredicted}" if row.error is None else f"{100 * row.error:+.1f}",
            )
            for row in each.step_times
        )
        whys = dict.fromkeys(row.unpredicted for row in each.step_times if row.unpredicted)
        reasons = ", ".join(f"{why}: {_UNPREDICTED[why]}" for why in whys)
        notes = [
            "GPUs of each node, most first; local: batch of a GPU, × micro-steps where there are several",
            "measured: median of what workers reported; error: predicted / measured - 1",
            *([f"{NOTHING}: the log predicts nothing here; {reasons}"] if reasons else []),
            *([_MEAN_TYPE] if len({node.gpu_type for node in each.run.info.cluster.nodes}) > 1 else []),
        ]
        if rows:
            title = f"Steps of {each.label}: predicted and measured"
            result.append(Section(title, headers, rows, 2, tuple(notes)))
    return result


def _step_row(step: ProfiledStep) -> tuple[str, ...]:
    residual = step.residual
    return (
        step.model,
        step.gpu_type,
        step.placement,
        number(step.local_batch, 0),
        number(step.accum_steps, 0),
        _seconds(step.measured_s),
        _seconds(step.stdev_s),
        _seconds(step.predicted_s),
        NOTHING if residual is None else f"{100 * residual:+.1f}",
        percent(step.busy_share),
    )


def _seconds(value_s: float | None) -> str:
    return NOTHING if value_s is None else f"{value_s:.4g}"


def _is_busy(step: ProfiledStep) -> bool:
    return step.busy_share is not None and step.busy_share > _BUSY
