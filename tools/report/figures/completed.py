"""Jobs completed over time, all runs in one plot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pliant.tools.report.figures.style import axes, legend, line_style, whole_numbers
from pliant.tools.report.labels import kind
from pliant.tools.report.metrics import completions
from pliant.tools.report.rendering.units import time_unit
from pliant.tools.report.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def completed_over_time(report: Report) -> Figure | None:
    """Finished jobs by the time since the first submission; None if nothing finished."""
    found = [completions(each.run) for each in report.runs]
    if not any(found):
        return None
    end_s = max(each.run.last_event_s for each in report.runs)
    unit = time_unit([end_s])
    figure, plot = axes("Jobs completed", f"time since the first submission, {unit.name}", "finished jobs")
    for index, (each, ends) in enumerate(zip(report.runs, found, strict=True)):
        x = [0.0, *(end / unit.seconds for end in ends), each.run.last_event_s / unit.seconds]
        y = [*range(len(ends) + 1), len(ends)]
        name = f"{each.label} ({kind(each.run)})"
        plot.plot(x, y, drawstyle="steps-post", label=name, **line_style(index))
    plot.set_xlim(0, end_s / unit.seconds or None)
    plot.set_ylim(bottom=0)
    whole_numbers(plot)
    legend(figure, plot, columns=2)
    return figure
