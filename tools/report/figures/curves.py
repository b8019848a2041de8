"""Figures of curves: distributions of JCT and FTF and jobs completed over time, all runs in one plot; the JCT
distribution as characters, for a terminal; predicted progress with its 90 % band against what happened, job
by job (ONES, figure 6); and how much work a trace brings over time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from pliant.schemas.errors import require
from pliant.schemas.text import counted, width_of, wrapped
from pliant.tools.report.figures.style import (
    COLOURS,
    GREY,
    Form,
    axes,
    axes_below,
    image,
    legend,
    plain_log,
    run_styles,
    whole_numbers,
)
from pliant.tools.report.metrics import completions
from pliant.tools.report.records import JobRecord, kind
from pliant.tools.report.rendering.sections import time_unit
from pliant.tools.report.report import Report, RunReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_WIDE_JCT: Final = 30
_WIDE_FTF: Final = 3
"""The axis is logarithmic where the largest value is more than this many times the median."""
REFERENCE_NAMES: Final = {"fair-share": "fluid fair share", "gps": "linear GPS", "isolated": "isolated jobs"}
MOST_JOBS: Final = 4
_FEWEST: Final = 3
"""Predictions of a job that is drawn."""


def jcts(each: RunReport) -> list[float]:
    """Ascending, seconds."""
    return sorted(job.jct_s for job in each.run.jobs if job.jct_s is not None)


def cumulated(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """The empirical distribution of ascending values: x, and the share at or below x."""
    return [*values[:1], *values], [index / len(values) for index in range(len(values) + 1)]


def jct_cdf(report: Report) -> Figure | None:
    found = [jcts(each) for each in report.runs]
    if not any(found):
        return None
    unit = time_unit(value for values in found for value in values)
    figure, plot = axes("Job completion time", f"JCT, {unit.name}", "share of finished jobs")
    scaled = [[value / unit.seconds for value in values] for values in found]
    _draw_cdf(plot, report, scaled)
    _finish(figure, plot, scaled, wide=_WIDE_JCT)
    return figure


def ftf_cdf(report: Report) -> Figure | None:
    found = [sorted(each.fair[report.reference].ftf.values()) for each in report.runs]
    if not any(found):
        return None
    title = f"Finish-time fairness against {REFERENCE_NAMES[report.reference]}"
    figure, plot = axes(title, "FTF = JCT / JCT under fair sharing", "share of finished jobs")
    _draw_cdf(plot, report, found)
    plot.axvline(1, color=GREY, linewidth=0.9, zorder=1)
    note = plot.annotate(
        "unfair →", (1, 0), xytext=(4, 4), textcoords="offset points", color=GREY, fontsize=8
    )
    note.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1})  # curves run below it
    _finish(figure, plot, found, wide=_WIDE_FTF)
    return figure


def _draw_cdf(plot: Axes, report: Report, found: Sequence[Sequence[float]]) -> None:
    for each, values, style in zip(report.runs, found, run_styles(report.runs), strict=True):
        if values:
            x, y = cumulated(values)
            plot.plot(x, y, drawstyle="steps-post", label=_name(each, len(values)), **style.line())


def _name(each: RunReport, shown: int) -> str:
    missing = len(each.run.jobs) - shown
    info = each.run.info
    demand = [f"{info.demand} demand"] if info.demand != "stated" else []
    oracle = ["oracle"] if info.oracle and info.demand != "oracle" else []
    facts = [kind(each.run), *oracle, *demand]
    absent = [f"{counted(missing, 'job')} missing"] if missing else []
    return f"{each.label} ({', '.join([*facts, *absent])})"


def _finish(figure: Figure, plot: Axes, found: Sequence[Sequence[float]], *, wide: float) -> None:
    values = sorted(value for each in found for value in each)
    if values[-1] > wide * values[len(values) // 2] and values[0] > 0:
        plain_log(plot, values[0], values[-1])
    else:
        plot.set_xlim(left=0)
    plot.set_ylim(0, 1.02)
    legend(figure, plot, columns=2)


def completed_over_time(report: Report) -> Figure | None:
    found = [completions(each.run) for each in report.runs]
    if not any(found):
        return None
    end_s = max(each.run.last_event_s for each in report.runs)
    unit = time_unit([end_s])
    figure, plot = axes("Jobs completed", f"time since the first submission, {unit.name}", "finished jobs")
    for each, ends, style in zip(report.runs, found, run_styles(report.runs), strict=True):
        x = [0.0, *(end / unit.seconds for end in ends), each.run.last_event_s / unit.seconds]
        y = [*range(len(ends) + 1), len(ends)]
        name = f"{each.label} ({kind(each.run)})"
        plot.plot(x, y, drawstyle="steps-post", label=name, **style.line())
    plot.set_xlim(0, end_s / unit.seconds or None)
    plot.set_ylim(bottom=0)
    whole_numbers(plot)
    legend(figure, plot, columns=2)
    return figure


def progress(each: RunReport) -> Figure | None:
    """The finished jobs of one run with the most predictions."""
    jobs = shown(each)
    if not jobs:
        return None
    figure, plots = axes_below(
        f"Predicted progress: {each.label}", "samples trained, part of all", "progress", len(jobs)
    )
    for plot, job in zip(plots, jobs, strict=True):
        _draw_progress(plot, job)
    legend(figure, plots[0])
    return figure


def shown(each: RunReport) -> list[JobRecord]:
    """The jobs that are drawn, in order of submission."""
    known = [job for job in each.run.jobs if job.forecasts_held[1] >= _FEWEST]
    most = sorted(known, key=lambda job: -job.forecasts_held[1])[:MOST_JOBS]
    return [job for job in known if job in most]


def _draw_progress(plot: Axes, job: JobRecord) -> None:
    total = job.samples_done or 1.0
    happened = [each.samples_done / total for each in job.forecasts]
    low, high = [each.low for each in job.forecasts], [each.high for each in job.forecasts]
    plot.fill_between(happened, low, high, facecolor=COLOURS[0], alpha=0.2, label="90 % interval")
    plot.plot(happened, [each.mean for each in job.forecasts], color=COLOURS[0], label="predicted, mean")
    plot.plot([0, 1], [0, 1], color=COLOURS[1], linestyle="--", label="what happened")
    plot.set_xlim(0, 1)
    plot.set_ylim(0, 1)
    held, made = job.forecasts_held
    plot.set_title(f"{job.id}: {held} of {made} intervals held it", fontsize=8, fontweight="normal")


_HOUR_S: Final = 3600.0


def arriving_work(arriving_gpus: Sequence[float], bin_s: float, gpus: int | None = None) -> Figure:
    """Bars of the work submitted in each bin, as GPUs that it would keep busy; a line for the cluster.

    :param arriving_gpus: by bin of ``bin_s`` seconds (an hour or a day).
    :param gpus: of the cluster; None: no line.
    :raises ServiceMissingError: matplotlib is not installed.
    """
    require("matplotlib", "figures are drawn with matplotlib")
    unit = "hour" if bin_s == _HOUR_S else "day"
    figure, plot = axes("Work that arrives", f"Time since the first submission, {unit}s", "GPUs kept busy")
    plot.bar(range(len(arriving_gpus)), arriving_gpus, width=1.0, align="edge", color=COLOURS[0])
    if gpus is not None:
        plot.axhline(gpus, color=GREY, linestyle="--", linewidth=1.2)
        plot.annotate(
            f"the cluster, {gpus:,}",
            (0.99, gpus),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
        )
    plot.set_xlim(0, len(arriving_gpus))
    plot.set_ylim(bottom=0)
    return figure


def arriving_work_image(
    form: Form, arriving_gpus: Sequence[float], bin_s: float, gpus: int | None = None
) -> bytes:
    """The same as a file; equal traces give equal bytes."""
    return image(arriving_work(arriving_gpus, bin_s, gpus), "arrivals", form)


_MARKERS: Final = ("●", "+", "x", "o", "*", "#")
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
_HEIGHT: Final = 16
_INDENT: Final = "     "


def jct_plot(report: Report, width: int) -> str:
    """Share of finished jobs by JCT, ``width`` characters wide; empty if nothing finished."""
    import plotext

    found = [(each.label, jcts(each)) for each in report.runs]
    if not any(values for _, values in found):
        return ""
    unit = time_unit(value for _, values in found for value in values)
    figure = plotext.figure.clear()
    figure.plot_size(width, _HEIGHT)
    figure.theme("colorless")
    figure.title("share of finished jobs by JCT").label(f"JCT, {unit.name}")
    figure.ruler("x").lim(0, max(value for _, values in found for value in values) / unit.seconds)
    figure.ruler("y").lim(0, 1)
    for index, (_, values) in enumerate(found):
        if values:
            x, y = _corners([value / unit.seconds for value in values])
            figure.draw(figure.signal(x, y, marker=_MARKERS[index % len(_MARKERS)]).lines())
    drawn = _ESCAPES.sub("", str(figure.build()))
    figure.clear()
    names = (f"{_MARKERS[index % len(_MARKERS)]} {label}" for index, (label, _) in enumerate(found))
    return "\n".join([*(line.rstrip() for line in drawn.splitlines()), *_legend(names, width)])


def _legend(names: Iterable[str], width: int) -> list[str]:
    """Names beside each other as far as they fit, a longer one on several lines."""
    lines: list[str] = []
    for name in names:
        joined = f"{lines[-1]}   {name}" if lines else ""
        if lines and width_of(joined) <= width:
            lines[-1] = joined
        else:
            lines += [f"{_INDENT}{line}" for line in wrapped(name, width - len(_INDENT), indent="  ")]
    return lines


def _corners(values: list[float]) -> tuple[list[float], list[float]]:
    """The distribution with the corners of its steps written out."""
    x, y = cumulated(values)
    return [each for each in x for _ in range(2)][1:], [each for each in y for _ in range(2)][:-1]
