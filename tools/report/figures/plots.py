"""What each figure draws.

Curves: distributions of JCT and FTF and jobs completed over time, all runs in one plot; the JCT distribution
as characters, for a terminal; predicted progress with its 90 % band against what happened, job by job (ONES,
figure 6); and how much work a trace brings over time.

Bands: who held how many GPUs when, one band a job, or a model where there are many jobs; and GPUs in use over
time, one row a run, since lines of several runs would hide each other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pliant.schemas.errors import require
from pliant.schemas.text import counted, width_of, wrapped
from pliant.tools.report.figures.style import (
    COLOURS,
    GREY,
    PALE,
    Form,
    LineStyle,
    area_colour,
    axes,
    axes_below,
    image,
    ink,
    legend,
    plain_log,
    run_styles,
    whole_numbers,
)
from pliant.tools.report.groups import Group, groups
from pliant.tools.report.job_arrays import Floats, known
from pliant.tools.report.job_record import JobRecord
from pliant.tools.report.metrics import completions, team_gpus_over_time
from pliant.tools.report.records import kind
from pliant.tools.report.rendering.sections import TimeUnit, time_unit
from pliant.tools.report.report import Report, RunReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_WIDE_JCT: Final = 30
_WIDE_FTF: Final = 3
"""The axis is logarithmic where the largest value is more than this many times the median."""
REFERENCE_NAMES: Final = {"fair-share": "fluid fair share", "gps": "linear GPS", "isolated": "isolated jobs"}
_MOST_SHOWN: Final = 4
_FEWEST: Final = 3
"""Predictions of a job that is drawn."""


def jcts(each: RunReport) -> list[float]:
    """Ascending, seconds."""
    return sorted(known(each.run.jobs.jct_s))


def cumulated(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """The empirical distribution of ascending values: x, and the share at or below x."""
    return [*values[:1], *values], [index / len(values) for index in range(len(values) + 1)]


def jct_cdf(report: Report) -> Figure | None:
    unit = time_unit(value for each in report.runs for value in jcts(each))
    title = _title("Job completion time", report)
    figure, plot = axes(title, f"JCT, {unit.name}", "share of finished jobs")
    scaled = _draw_cdf(plot, report, lambda each: [value / unit.seconds for value in jcts(each)])
    if not scaled:
        return None
    _finish(figure, plot, scaled, wide=_WIDE_JCT)
    return figure


def _title(text: str, report: Report) -> str:
    """With what all runs are; a legend says it where they differ."""
    kinds = {kind(each.run) for each in report.runs}
    return f"{text} ({kinds.pop()})" if len(kinds) == 1 else text


def ftf_cdf(report: Report) -> Figure | None:
    title = _title(f"Finish-time fairness against {REFERENCE_NAMES[report.reference]}", report)
    figure, plot = axes(title, "FTF = JCT / JCT under fair sharing", "share of finished jobs")
    curves = _draw_cdf(plot, report, lambda each: sorted(known(each.fair[report.reference].ftf)))
    if not curves:
        return None
    plot.axvline(1, color=GREY, linewidth=0.9, zorder=1)
    note = plot.annotate(
        "unfair →", (1, 0), xytext=(4, 4), textcoords="offset points", color=GREY, fontsize=8
    )
    note.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1})  # curves run below it
    _finish(figure, plot, curves, wide=_WIDE_FTF)
    return figure


def _draw_cdf(
    plot: Axes, report: Report, values_of: Callable[[RunReport], list[float]]
) -> list[Sequence[float]]:
    """Returns the values of each run that has some, ascending."""
    curves: list[Sequence[float]] = []
    for column, style in _styled(report):
        of_runs = [(each, values_of(each)) for each in column.runs]
        own = [values for _, values in of_runs if values]
        if own:
            missing = sum(len(each.run.jobs) - len(values) for each, values in of_runs)
            _draw_steps(plot, [cumulated(values) for values in own], _name(column, report, missing), style)
            curves += own
    return curves


def _styled(report: Report) -> Iterator[tuple[Group, LineStyle]]:
    columns = groups(report)
    return zip(columns, run_styles([column.runs[0] for column in columns]), strict=True)


def _draw_steps(
    plot: Axes, curves: Sequence[tuple[Sequence[float], Sequence[float]]], name: str, style: LineStyle
) -> None:
    """A step function; of several their mean, and the band that they span."""
    if len(curves) == 1:
        x, y = map(np.asarray, curves[0])
    else:
        x, y, low, high = _mean_and_band(curves)
        plot.fill_between(x, low, high, step="post", facecolor=style.colour, alpha=0.2, linewidth=0)
    plot.plot(x, y, drawstyle="steps-post", label=name, **style.line())


def _mean_and_band(
    curves: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> tuple[Floats, Floats, Floats, Floats]:
    """x, and the mean, least and largest of step functions there; before it begins, one counts as 0."""
    x = np.unique(np.concatenate([np.asarray(x) for x, _ in curves]))
    x = x if len(x) <= POINTS else np.quantile(x, np.linspace(0, 1, POINTS))
    at = [np.append(0.0, y)[np.searchsorted(np.asarray(own), x, side="right")] for own, y in curves]
    return x, np.mean(at, axis=0), np.min(at, axis=0), np.max(at, axis=0)


def _name(column: Group, report: Report, missing: int) -> str:
    """A line of the legend: the label, and what the title does not say."""
    info = column.runs[0].run.info
    mixed = len({each.run.info.simulated for each in report.runs}) > 1
    facts = [kind(column.runs[0].run)] if mixed else []
    facts += ["oracle"] if info.oracle and info.demand != "oracle" else []
    facts += [f"{info.demand} demand"] if info.demand != "stated" else []
    facts += [column.units_text()] if len(column.runs) > 1 else []
    facts += [f"{counted(missing, 'job')} missing"] if missing else []
    return f"{column.label} ({', '.join(facts)})" if facts else column.label


def _finish(figure: Figure, plot: Axes, curves: Sequence[Sequence[float]], *, wide: float) -> None:
    values = sorted(value for each in curves for value in each)
    if values[-1] > wide * values[len(values) // 2] and values[0] > 0:
        plain_log(plot, values[0], values[-1])
    else:
        plot.set_xlim(left=0)
    plot.set_ylim(0, 1.02)
    legend(figure, plot, columns=2)


def completed_over_time(report: Report) -> Figure | None:
    if not any(completions(each.run) for each in report.runs):
        return None
    end_s = max(each.run.last_event_s for each in report.runs)
    unit = time_unit([end_s])
    title = _title("Jobs completed", report)
    figure, plot = axes(title, f"time since the first submission, {unit.name}", "finished jobs")
    for column, style in _styled(report):
        curves = []
        for each in column.runs:
            ends = completions(each.run)
            x = [0.0, *(end / unit.seconds for end in ends), each.run.last_event_s / unit.seconds]
            curves.append((x, [*range(len(ends) + 1), len(ends)]))
        _draw_steps(plot, curves, _name(column, report, 0), style)
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
    told = (each.run.jobs[row] for row, extras in sorted(each.run.jobs.extras.items()) if extras.forecasts)
    predicted = [job for job in told if job.forecasts_held[1] >= _FEWEST]
    most = sorted(predicted, key=lambda job: -job.forecasts_held[1])[:_MOST_SHOWN]
    return [job for job in predicted if job in most]


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

    jcts_by_run = [(each.label, jcts(each)) for each in report.runs]
    if not any(values for _, values in jcts_by_run):
        return ""
    unit = time_unit(value for _, values in jcts_by_run for value in values)
    figure = plotext.figure.clear()
    figure.plot_size(width, _HEIGHT)
    figure.theme("colorless")
    figure.title("share of finished jobs by JCT").label(f"JCT, {unit.name}")
    figure.ruler("x").lim(0, max(value for _, values in jcts_by_run for value in values) / unit.seconds)
    figure.ruler("y").lim(0, 1)
    for index, (_, values) in enumerate(jcts_by_run):
        if values:
            x, y = _corners([value / unit.seconds for value in values])
            figure.draw(figure.signal(x, y, marker=_MARKERS[index % len(_MARKERS)]).lines())
    drawn = _ESCAPES.sub("", str(figure.build()))
    figure.clear()
    names = (f"{_MARKERS[index % len(_MARKERS)]} {label}" for index, (label, _) in enumerate(jcts_by_run))
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


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_JOBS: Final = 30
"""With more jobs, those of one model share a band."""
_MOST_MODELS: Final = 8
_MOST_TEAMS: Final = 8
_ACROSS: Final = 0.0125
_UPRIGHT: Final = 0.045
"""Width of a character as a part of the plot's width, height of a line as a part of its height."""
POINTS: Final = 1500
"""Steps at most; more are averaged over equal intervals."""


def allocation(each: RunReport) -> Figure | None:
    """Bands of held GPUs over time, stacked.

    Returns None if no job ever started, or all share the band of one model: :func:`gpu_use` shows that.
    """
    bands = bands_of(each)
    end_s = each.run.last_event_s
    by_model = len(each.run.jobs) > MOST_JOBS
    if not bands or end_s <= 0 or (by_model and len(bands) == 1):
        return None
    unit = time_unit([end_s])
    slots = "GPUs" if each.run.info.cluster.slots == "gpu" else "CPU slots"
    title = f"Allocation by {'model' if by_model else 'job'}: {each.label} ({kind(each.run)})"
    figure, plot = axes(title, f"time since the first submission, {unit.name}", slots, height=3.8)
    _stack(plot, bands, unit, edges=not by_model)
    times, up = thinned(each.usage.times_s.tolist(), each.usage.available.tolist())
    plot.plot([time / unit.seconds for time in times], up, drawstyle="steps-post", color=GREY, lw=0.9)
    plot.set_xlim(0, end_s / unit.seconds)
    plot.set_ylim(0, 1.05 * max(*up, 1, *each.usage.held.tolist()))
    whole_numbers(plot)
    if by_model:
        legend(figure, plot, columns=4)
    else:
        _name_bands(plot, bands, unit, end_s)
    return figure


def bands_of(each: RunReport) -> list[Band]:
    """A band for each job, in order of submission; beyond :data:`MOST_JOBS` for each model."""
    jobs = each.run.jobs
    started = np.flatnonzero(~np.isnan(jobs.first_start_s))
    if len(jobs) > MOST_JOBS:
        models = jobs.texts(lambda job: job.model)
        common = Counter(models[row] for row in started.tolist())
        kept = sorted(common, key=lambda model: (-common[model], model))[:_MOST_MODELS]
        names = {row: models[row] if models[row] in kept else "other" for row in started.tolist()}
    else:
        names = {row: jobs.id(row) for row in started.tolist()}
    bands = {name: number for number, name in enumerate(dict.fromkeys(names.values()))}
    band_of = np.zeros(len(jobs), np.int64)
    band_of[started] = [bands[name] for name in names.values()]
    times, held = each.usage.times_s, jobs.held(each.run.last_event_s)
    result = []
    for name, number in bands.items():
        own = band_of[held.job] == number
        change_s = np.concatenate([held.start_s[own], held.end_s[own]])
        gpus = np.concatenate([held.counted_gpus[own], -held.counted_gpus[own]])
        changes = np.bincount(np.searchsorted(times, change_s), gpus, len(times))
        colour = PALE if name == "other" else area_colour(number)
        result.append(Band(name, colour, *thinned(times.tolist(), np.cumsum(changes).tolist())))
    return result


@dataclass(frozen=True, slots=True)
class Band:
    """GPUs held by one job or model: a step function of time."""

    name: str
    colour: str
    times_s: Sequence[float]
    gpus: Sequence[float]


def _stack(plot: Axes, bands: Sequence[Band], unit: TimeUnit, *, edges: bool) -> None:
    line: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.8} if edges else {"linewidth": 0.0}
    x = [time / unit.seconds for time in bands[0].times_s]
    low = [0.0] * len(x)
    for band in bands:
        high = [below + gpus for below, gpus in zip(low, band.gpus, strict=True)]
        name: str | None = band.name
        for first, last in _runs(band.gpus):
            times = _doubled(x[first : last + 1])[1:-1]
            below, above = _doubled(low[first:last]), _doubled(high[first:last])
            plot.fill_between(times, below, above, facecolor=band.colour, label=name, **line)
            name = None
        low = high


def _doubled(values: Sequence[float]) -> list[float]:
    return [value for value in values for _ in range(2)]


def _runs(gpus: Sequence[float]) -> list[tuple[int, int]]:
    """[first, last) of every run of steps in which something is held."""
    edges = [i for i in range(1, len(gpus)) if bool(gpus[i]) != bool(gpus[i - 1])]
    bounds = [0, *edges, len(gpus) - 1]
    return [(first, last) for first, last in pairwise(bounds) if gpus[first] and last > first]


def _name_bands(plot: Axes, bands: Sequence[Band], unit: TimeUnit, end_s: float) -> None:
    """Each job's name in its longest stretch, upright where that is narrow, if it fits there."""
    top = plot.get_ylim()[1]
    low = [0.0] * len(bands[0].times_s)
    for band in bands:
        stretch = _longest_stretch(band, low)
        if stretch is not None:
            first, last = stretch
            start, end, gpus = band.times_s[first], band.times_s[last], band.gpus[first]
            rotation = _rotation(len(band.name), (end - start) / end_s, gpus / top)
            if rotation is not None:
                x, y = (start + end) / 2 / unit.seconds, low[first] + gpus / 2
                text = plot.text(x, y, band.name, rotation=rotation, fontsize=7.5)
                text.set(ha="center", va="center", color=ink(band.colour))
        low = [below + gpus for below, gpus in zip(low, band.gpus, strict=True)]


def _rotation(characters: int, wide: float, high: float) -> float | None:
    """The angle at which a name fits. Returns None if it does not."""
    if wide > _ACROSS * (characters + 1) and high > _UPRIGHT:
        return 0.0
    return 90.0 if high > _UPRIGHT * (characters + 1) / 2 and wide > 1.8 * _ACROSS else None


def _longest_stretch(band: Band, low: Sequence[float]) -> tuple[int, int] | None:
    """The steps between which the band neither moves nor resizes for longest."""
    best: tuple[int, int] | None = None
    longest_s = 0.0
    start = 0
    for index in range(1, len(band.times_s)):
        same = band.gpus[index] == band.gpus[start] and low[index] == low[start]
        if same and index + 1 < len(band.times_s):
            continue
        seconds = band.times_s[index] - band.times_s[start]
        if band.gpus[start] and (best is None or seconds > longest_s):
            best, longest_s = (start, index), seconds
        start = index
    return best


def gpu_use(report: Report) -> Figure | None:
    """GPUs held over time, a row a run, of runs that differ in their seed the first. Returns None if no run
    has any length.
    """
    end_s = max(each.run.last_event_s for each in report.runs)
    if end_s <= 0:
        return None
    unit = time_unit([end_s])
    slots = "GPUs" if report.runs[0].run.info.cluster.slots == "gpu" else "CPU slots"
    figure, rows = axes_below(
        _title(f"{slots} held, of those that are up", report),
        f"time since the first submission, {unit.name}",
        slots,
        len(groups(report)),
    )
    for plot, (column, style) in zip(rows, _styled(report), strict=True):
        _draw_usage(plot, column.first, unit, style.colour)
        plot.set_xlim(0, end_s / unit.seconds)
    return figure


def _draw_usage(plot: Axes, each: RunReport, unit: TimeUnit, colour: str) -> None:
    times, held = thinned(each.usage.times_s.tolist(), each.usage.held.tolist())
    plot.fill_between(
        [time / unit.seconds for time in times], held, step="post", facecolor=colour, linewidth=0
    )
    times, up = thinned(each.usage.times_s.tolist(), each.usage.available.tolist())
    plot.plot([time / unit.seconds for time in times], up, drawstyle="steps-post", color=GREY, linewidth=0.9)
    plot.set_ylim(0, 1.08 * max(1, *up, *each.usage.held.tolist()))
    plot.set_title(each.label, loc="left", fontsize=9, color=GREY, pad=3)
    whole_numbers(plot, most=4)


def team_use(each: RunReport) -> Figure | None:
    """GPUs that each team held, and was entitled to, over time. Returns None of one pool."""
    end_s, gpus_by_team = each.run.last_event_s, team_gpus_over_time(each.run)
    if not gpus_by_team or end_s <= 0:
        return None
    unit = time_unit([end_s])
    slots = "GPUs" if each.run.info.cluster.slots == "gpu" else "CPU slots"
    largest = sorted(gpus_by_team, key=lambda name: (-sum(gpus_by_team[name][1]), name))[:_MOST_TEAMS]
    figure, rows = axes_below(
        f"{slots} held by teams; line: what they were entitled to: {each.label}",
        f"time since the first submission, {unit.name}",
        slots,
        len(largest),
    )
    for index, (plot, name) in enumerate(zip(rows, largest, strict=True)):
        times, held, entitled = gpus_by_team[name]
        at, gpus = thinned(times, held)
        x = [time / unit.seconds for time in at]
        plot.fill_between(x, gpus, step="post", facecolor=area_colour(index), linewidth=0)
        at, gpus = thinned(times, entitled)
        x = [time / unit.seconds for time in at]
        plot.plot(x, gpus, drawstyle="steps-post", color=GREY, linewidth=0.9)
        plot.set_ylim(0, 1.08 * max(1, *held, *entitled))
        plot.set_xlim(0, end_s / unit.seconds)
        plot.set_title(name, loc="left", fontsize=9, color=GREY, pad=3)
        whole_numbers(plot, most=4)
    return figure


def thinned(
    times: Sequence[float], values: Sequence[float], points: int = POINTS
) -> tuple[Sequence[float], Sequence[float]]:
    """A step function with at most ``points`` steps: as it is, else its exact means over equal intervals."""
    if len(times) <= points:
        return times, values
    at = np.asarray(times)
    grid = np.linspace(at[0], at[-1], points + 1)
    area = np.concatenate([[0.0], np.cumsum(np.diff(at) * np.asarray(values)[:-1])])
    means = np.diff(np.interp(grid, at, area)) / np.diff(grid)
    return grid.tolist(), [*means.tolist(), float(values[-1])]
