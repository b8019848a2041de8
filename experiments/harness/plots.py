"""Jobs completed over time, drawn as the papers draw them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from experiments.harness.replays import Outcome, matching
from experiments.harness.spec import Experiment, Plot
from pliant.schemas.file_io.files import atomic_write
from pliant.tools.report.figures.style import GREY, axes, image, legend, line_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MINUTE_S: Final = 60.0
_POINTS: Final = 400
"""Of one line: more than a page shows."""


def write_plots(experiment: Experiment, outcomes: Mapping[str, Outcome], folder: Path) -> None:
    """Write every figure as SVG; equal outcomes give equal bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for plot in experiment.plots:
        drawn = image(completed_over_time(plot, outcomes), plot.name, "svg")
        atomic_write(folder / f"{plot.name}.svg", drawn)


def completed_over_time(plot: Plot, outcomes: Mapping[str, Outcome]) -> Figure:
    """One figure: total jobs completed by minutes, beside the arrivals."""
    figure, chart = axes(plot.title, "Minutes", "Jobs completed")
    runs = {label: matching(pattern, outcomes)[0] for label, pattern in plot.lines.items()}
    arrivals = next(iter(runs.values())).arrivals_s
    chart.plot(*_steps(arrivals), drawstyle="steps-post", label="arrivals", color=GREY, linewidth=1.0)
    for index, (label, run) in enumerate(runs.items()):
        chart.plot(*_steps(run.completions_s), drawstyle="steps-post", label=label, **line_style(index))
    chart.set_xlim(left=0)
    chart.set_ylim(bottom=0)
    legend(figure, chart)
    return figure


def _steps(times_s: tuple[float, ...]) -> tuple[list[float], list[int]]:
    """Minutes, and how many until then; of many times a selection, both ends among them."""
    count = len(times_s)
    shown = sorted({round(count * point / _POINTS) for point in range(_POINTS + 1)})
    return [times_s[number - 1] / _MINUTE_S if number else 0.0 for number in shown], shown
