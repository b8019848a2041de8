"""Who held how many GPUs when: one band a job, or a model where there are many jobs; and GPUs in use over
time, one row a run, since lines of several runs would hide each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final

from pliant.tools.report.figures.style import (
    GREY,
    PALE,
    area_colour,
    axes,
    axes_below,
    ink,
    legend,
    run_styles,
    whole_numbers,
)
from pliant.tools.report.metrics import team_gpus_over_time
from pliant.tools.report.records import kind
from pliant.tools.report.rendering.sections import TimeUnit, time_unit
from pliant.tools.report.report import Report, RunReport

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
"""More steps are averaged over equal intervals."""


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
    times, up = thinned(each.usage.times_s, each.usage.available)
    plot.plot([time / unit.seconds for time in times], up, drawstyle="steps-post", color=GREY, lw=0.9)
    plot.set_xlim(0, end_s / unit.seconds)
    plot.set_ylim(0, 1.05 * max(*up, 1, *each.usage.held))
    whole_numbers(plot)
    if by_model:
        legend(figure, plot, columns=4)
    else:
        _name_bands(plot, bands, unit, end_s)
    return figure


def bands_of(each: RunReport) -> list[Band]:
    """A band for each job, in order of submission; beyond :data:`MOST_JOBS` for each model."""
    started = [job for job in each.run.jobs if job.first_start_s is not None]
    names = {job.id: job.id for job in started}
    if len(each.run.jobs) > MOST_JOBS:
        common = Counter(job.job.model for job in started)
        kept = sorted(common, key=lambda model: (-common[model], model))[:_MOST_MODELS]
        names = {job.id: job.job.model if job.job.model in kept else "other" for job in started}
    changes: dict[str, dict[float, float]] = {name: {} for name in dict.fromkeys(names.values())}
    for job in started:
        own = changes[names[job.id]]
        for start, end, step in job.held(each.run.last_event_s):
            own[start] = own.get(start, 0) + step.counted_gpus
            own[end] = own.get(end, 0) - step.counted_gpus
    times = each.usage.times_s
    bands = []
    for index, (name, own) in enumerate(changes.items()):
        held = list(accumulate(own.get(time, 0) for time in times))
        colour = PALE if name == "other" else area_colour(index)
        bands.append(Band(name, colour, *thinned(times, held)))
    return bands


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
    """GPUs held over time, a row a run. Returns None if no run has any length."""
    end_s = max(each.run.last_event_s for each in report.runs)
    if end_s <= 0:
        return None
    unit = time_unit([end_s])
    slots = "GPUs" if report.runs[0].run.info.cluster.slots == "gpu" else "CPU slots"
    figure, rows = axes_below(
        f"{slots} held, of those that are up",
        f"time since the first submission, {unit.name}",
        slots,
        len(report.runs),
    )
    for plot, each, style in zip(rows, report.runs, run_styles(report.runs), strict=True):
        _draw_usage(plot, each, unit, style.colour)
        plot.set_xlim(0, end_s / unit.seconds)
    return figure


def _draw_usage(plot: Axes, each: RunReport, unit: TimeUnit, colour: str) -> None:
    times, held = thinned(each.usage.times_s, each.usage.held)
    plot.fill_between(
        [time / unit.seconds for time in times], held, step="post", facecolor=colour, linewidth=0
    )
    times, up = thinned(each.usage.times_s, each.usage.available)
    plot.plot([time / unit.seconds for time in times], up, drawstyle="steps-post", color=GREY, linewidth=0.9)
    plot.set_ylim(0, 1.08 * max(1, *up, *each.usage.held))
    plot.set_title(each.label, loc="left", fontsize=9, color=GREY, pad=3)
    whole_numbers(plot, most=4)


def team_use(each: RunReport) -> Figure | None:
    """GPUs that each team held, and was entitled to, over time. Returns None of one pool."""
    end_s, found = each.run.last_event_s, team_gpus_over_time(each.run)
    if not found or end_s <= 0:
        return None
    unit = time_unit([end_s])
    slots = "GPUs" if each.run.info.cluster.slots == "gpu" else "CPU slots"
    largest = sorted(found, key=lambda name: (-sum(found[name][1]), name))[:_MOST_TEAMS]
    figure, rows = axes_below(
        f"{slots} held by teams; line: what they were entitled to: {each.label}",
        f"time since the first submission, {unit.name}",
        slots,
        len(largest),
    )
    for index, (plot, name) in enumerate(zip(rows, largest, strict=True)):
        times, held, entitled = found[name]
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
    import numpy as np

    at = np.asarray(times)
    grid = np.linspace(at[0], at[-1], points + 1)
    area = np.concatenate([[0.0], np.cumsum(np.diff(at) * np.asarray(values)[:-1])])
    means = np.diff(np.interp(grid, at, area)) / np.diff(grid)
    return grid.tolist(), [*means.tolist(), float(values[-1])]
