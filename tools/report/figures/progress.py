"""Predicted progress with its 90 % band against what happened, job by job (ONES, figure 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pliant.tools.report.figures.style import COLOURS, axes_below, legend
from pliant.tools.report.records import JobRecord
from pliant.tools.report.report import RunReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_JOBS: Final = 4
_FEWEST: Final = 3
"""Predictions of a job that is drawn."""


def progress(each: RunReport) -> Figure | None:
    """The jobs of one run of which most was predicted; None where there is none that finished."""
    jobs = shown(each)
    if not jobs:
        return None
    figure, plots = axes_below(
        f"Predicted progress: {each.label}", "samples trained, part of all", "progress", len(jobs)
    )
    for plot, job in zip(plots, jobs, strict=True):
        _draw(plot, job)
    legend(figure, plots[0])
    return figure


def shown(each: RunReport) -> list[JobRecord]:
    """The jobs that are drawn, in order of submission."""
    known = [job for job in each.run.jobs if job.forecasts_held[1] >= _FEWEST]
    most = sorted(known, key=lambda job: -job.forecasts_held[1])[:MOST_JOBS]
    return [job for job in known if job in most]


def _draw(plot: Axes, job: JobRecord) -> None:
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
