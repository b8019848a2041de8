"""The tables of a report as text cells; what prints them does not matter here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from pliant.schemas.metrics import RunMetrics
from pliant.tools.report.rendering.units import (
    TimeUnit,
    duration,
    number,
    p_text,
    percent,
    ratio_text,
    time_unit,
)
from pliant.tools.report.report import Report, RunReport

Kind = Literal["time", "percent", "ratio", "count", "ms"]


@dataclass(frozen=True, slots=True)
class Section:
    """A titled table. The first ``text_columns`` columns are words, the others numbers.

    Where it is shown in blocks of columns, each has the first ``keys`` columns.
    """

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int = 1
    notes: tuple[str, ...] = ()
    keys: int = 1


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the metrics table."""

    name: str
    """Field of :class:`~pliant.schemas.metrics.RunMetrics`."""
    title: str
    kind: Kind


FIGURES: Final = (
    Figure("mean_jct_s", "JCT, mean", "time"),
    Figure("median_jct_s", "JCT, median", "time"),
    Figure("p90_jct_s", "JCT, 90th percentile", "time"),
    Figure("p99_jct_s", "JCT, 99th percentile", "time"),
    Figure("mean_queueing_delay_s", "queueing delay, mean", "time"),
    Figure("makespan_s", "makespan", "time"),
    Figure("mean_ftf", "FTF (fair share), mean", "ratio"),
    Figure("worst_ftf", "FTF (fair share), worst", "ratio"),
    Figure("unfair_fraction", "unfair fraction (fair share)", "percent"),
    Figure("mean_ftf_gps", "FTF (linear GPS), mean", "ratio"),
    Figure("worst_ftf_gps", "FTF (linear GPS), worst", "ratio"),
    Figure("unfair_fraction_gps", "unfair fraction (linear GPS)", "percent"),
    Figure("mean_ftf_isolated", "FTF (isolated), mean", "ratio"),
    Figure("worst_ftf_isolated", "FTF (isolated), worst", "ratio"),
    Figure("unfair_fraction_isolated", "unfair fraction (isolated)", "percent"),
    Figure("gps_bound_s", "GPS bound", "time"),
    Figure("worst_gps_delay_s", "completion after GPS, worst", "time"),
    Figure("jobs_past_gps_bound", "jobs past the GPS bound", "count"),
    Figure("worst_bound_used", "time taken of that of the bound, worst", "percent"),
    Figure("utilization", "GPUs held", "percent"),
    Figure("preemptions_per_job", "preemptions per job", "ratio"),
    Figure("rescales_per_job", "rescales per job", "ratio"),
    Figure("moves_per_job", "moves per job", "ratio"),
    Figure("rescales_per_hour", "rescales per hour", "ratio"),
    Figure("sjs_efficiency", "SJS efficiency", "percent"),
    Figure("drop_ratio", "jobs rejected", "percent"),
    Figure("jobs_admitted", "jobs admitted", "count"),
    Figure("total_utility", "total utility", "ratio"),
    Figure("jobs_on_time", "jobs finished by their target", "count"),
    Figure("median_late_s", "completion after the target, median", "time"),
    Figure("stdev_late_s", "… standard deviation", "time"),
    Figure("mean_decision_ms", "decision time, mean", "ms"),
    Figure("bound_jct_s", "lower bound of the mean JCT", "time"),
    Figure("bound_jct_alone_s", "… every job alone", "time"),
    Figure("bound_jct_pooled_s", "… GPUs pooled", "time"),
    Figure("bound_makespan_s", "lower bound of the makespan", "time"),
    Figure("cheapest_gpu_s", "GPU time at the cheapest sizes", "time"),
)
_OF_ONE_REFERENCE: Final = {
    "fair-share": ("mean_ftf", "worst_ftf", "unfair_fraction"),
    "gps": ("mean_ftf_gps", "worst_ftf_gps", "unfair_fraction_gps"),
    "isolated": ("mean_ftf_isolated", "worst_ftf_isolated", "unfair_fraction_isolated"),
}
_NOT_COMPARED: Final = frozenset(
    (
        *("gps_bound_s", "worst_gps_delay_s", "jobs_past_gps_bound", "worst_bound_used"),
        *("median_late_s", "stdev_late_s"),
    )
)


def metrics_section(report: Report) -> Section:
    """The runs side by side; a figure that applies to none of them is left out."""
    shown = _shown(report)
    times = [value for row in shown if row.kind == "time" for value in _values(report, row)]
    unit = time_unit(times)
    rows = [_jobs_row(report), *_completed_rows(report)]
    for row in shown:
        cells = [_cell(row, each, report.baseline, unit) for each in report.runs]
        rows.append((row.title, _unit_name(row.kind, unit), *cells))
    notes = (f"{each.label}: {note}" for each in report.runs for note in (each.provenance, *each.caveats))
    compared = report.baseline is not None and len(report.runs) > 1
    base = (f"in brackets: relative to {report.baseline.label}",) if report.baseline and compared else ()
    headers = ("", "", *(each.label for each in report.runs))
    return Section("Runs", headers, tuple(rows), 2, (*notes, *base, *report.warnings), keys=2)


def paired_section(report: Report) -> Section:
    """Whether jobs fare differently than under the baseline; without rows where there is nothing to test."""
    base = "" if report.baseline is None else report.baseline.label
    headers = ("", "jobs in both", "p, two-sided", "p, larger", "p, smaller")
    rows = tuple(
        (label, str(found.pairs), *map(p_text, (found.two_sided, found.greater, found.less)))
        for label, found in report.paired.items()
    )
    notes = (
        "JCTs of the same jobs, paired; two-sided: near 0, they differ",
        f"larger, smaller: near 0, they are larger or smaller than under {base}",
    )
    return Section(f"Against {base}: Wilcoxon's signed-rank tests", headers, rows, 1, notes)


def value_of(metrics: RunMetrics, name: str) -> float | None:
    """One figure by its field name."""
    value = getattr(metrics, name)
    return None if value is None else float(value)


def ratio_to(metrics: RunMetrics, base: RunMetrics, name: str) -> float | None:
    """A figure relative to the baseline's; None where that says nothing."""
    value, reference = value_of(metrics, name), value_of(base, name)
    return value / reference if value is not None and reference and name not in _NOT_COMPARED else None


def _shown(report: Report) -> list[Figure]:
    others = (names for reference, names in _OF_ONE_REFERENCE.items() if reference != report.reference)
    hidden = {name for names in others for name in names}
    if not any(each.metrics.jobs_rejected for each in report.runs):
        hidden.add("drop_ratio")
    return [
        row
        for row in FIGURES
        if row.name not in hidden and any(_shows(each, row.name) for each in report.runs)
    ]


def _shows(each: RunReport, name: str) -> bool:
    """Whether a run has the figure, or should have it: then a dash stands for it, and a note says why."""
    return name in each.unknown or value_of(each.metrics, name) is not None


def _values(report: Report, row: Figure) -> list[float | None]:
    return [value_of(each.metrics, row.name) for each in report.runs]


def _jobs_row(report: Report) -> tuple[str, ...]:
    counts = (f"{m.jobs_finished} of {m.jobs_submitted}" for m in (each.metrics for each in report.runs))
    return ("jobs finished", "", *counts)


def _completed_rows(report: Report) -> list[tuple[str, ...]]:
    """Jobs finished by the times that were asked for; the runs have the same."""
    counts = [each.metrics.jobs_completed_at for each in report.runs]
    return [
        (f"jobs finished by {duration(at[0][0])}", "", *(str(finished) for _, finished in at))
        for at in zip(*counts, strict=True)
    ]


def _cell(row: Figure, each: RunReport, base: RunReport | None, unit: TimeUnit) -> str:
    text = _writer(row.kind, unit)(value_of(each.metrics, row.name))
    ratio = None if base in (None, each) else ratio_to(each.metrics, base.metrics, row.name)
    return text if ratio is None else f"{text} ({ratio_text(ratio)}×)"


def _writer(kind: Kind, unit: TimeUnit) -> Callable[[float | None], str]:
    writers: dict[Kind, Callable[[float | None], str]] = {
        "time": unit.text,
        "percent": percent,
        "ratio": partial(number, digits=3),
        "count": partial(number, digits=0),
        "ms": partial(number, digits=3),
    }
    return writers[kind]


def _unit_name(kind: Kind, unit: TimeUnit) -> str:
    return {"time": unit.name, "percent": "%", "ms": "ms"}.get(kind, "")
