"""GPUs in use over time, one row a run: lines of several runs would hide each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pliant.tools.report.figures.style import GREY, axes_below, line_style, whole_numbers
from pliant.tools.report.rendering.units import TimeUnit, time_unit
from pliant.tools.report.report import Report, RunReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS: Final = 1500
"""More steps than this are averaged over equal intervals: more cannot be distinguished on a page."""


def gpu_use(report: Report) -> Figure | None:
    """GPUs held over time, a row a run; None if no run has any length."""
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
    for index, (plot, each) in enumerate(zip(rows, report.runs, strict=True)):
        _draw(plot, each, unit, line_style(index)["color"])
        plot.set_xlim(0, end_s / unit.seconds)
    return figure


def _draw(plot: Axes, each: RunReport, unit: TimeUnit, colour: str) -> None:
    times, held = thinned(each.usage.times_s, each.usage.held)
    plot.fill_between(
        [time / unit.seconds for time in times], held, step="post", facecolor=colour, linewidth=0
    )
    times, up = thinned(each.usage.times_s, each.usage.available)
    plot.plot([time / unit.seconds for time in times], up, drawstyle="steps-post", color=GREY, linewidth=0.9)
    plot.set_ylim(0, 1.08 * max(1, *up, *each.usage.held))
    plot.set_title(each.label, loc="left", fontsize=9, color=GREY, pad=3)
    whole_numbers(plot, most=4)


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
