"""Jobs completed over time, and how their times are distributed, drawn as the papers draw them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from experiments.harness.replays import Outcome, matching
from experiments.harness.spec import Distribution, Experiment, Plot
from pliant.schemas.file_io.files import atomic_write
from pliant.tools.report.figures.style import GREY, axes, image, legend, line_style, plain_log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MINUTE_S: Final = 60.0
_POINTS: Final = 400
"""Of one line: more than a page shows."""


def write_plots(experiment: Experiment, outcomes: Mapping[str, Outcome], folder: Path) -> None:
    """Write every figure as SVG; equal outcomes give equal bytes."""
    write_figures({plot.name: drawn(plot, outcomes) for plot in experiment.plots}, folder)


def write_figures(figures: Mapping[str, Figure], folder: Path) -> None:
    """Write figures by their names."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        atomic_write(folder / f"{name}.svg", image(figure, name, "svg"))


def drawn(plot: Plot | Distribution, outcomes: Mapping[str, Outcome]) -> Figure:
    """One figure."""
    if isinstance(plot, Plot):
        return completed_over_time(plot, outcomes)
    return boxes(plot, outcomes) if plot.form == "boxes" else cumulative(plot, outcomes)


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


def boxes(plot: Distribution, outcomes: Mapping[str, Outcome]) -> Figure:
    """Median, quartiles, the 5th and the 95th percentile of each policy, and a diamond at the mean."""
    figure, chart = axes(plot.title, "", "Seconds")
    found = _values(plot, outcomes)
    chart.boxplot(
        list(found.values()),
        whis=(5, 95),
        showfliers=False,
        showmeans=True,
        meanprops={"marker": "D", "markerfacecolor": "white", "markeredgecolor": "black", "markersize": 5},
        medianprops={"color": "black"},
    )
    chart.set_xticks(range(1, len(found) + 1), list(found))
    chart.set_ylim(bottom=0)
    return figure


def cumulative(plot: Distribution, outcomes: Mapping[str, Outcome]) -> Figure:
    """Share of the jobs by time, the time on a logarithmic axis."""
    figure, chart = axes(plot.title, "Seconds", "Share of jobs")
    found = _values(plot, outcomes)
    for index, (label, values) in enumerate(found.items()):
        count = len(values)
        shown = sorted({round((count - 1) * point / _POINTS) for point in range(_POINTS + 1)})
        x, y = [values[number] for number in shown], [(number + 1) / count for number in shown]
        chart.plot(x, y, drawstyle="steps-post", label=label, **line_style(index))
    longest = max(values[-1] for values in found.values())
    plain_log(chart, 1.0, longest)
    chart.set_ylim(0, 1.02)
    legend(figure, chart)
    return figure


def _values(plot: Distribution, outcomes: Mapping[str, Outcome]) -> dict[str, list[float]]:
    """The times of the first replay of each line, ascending; no time is shown as less than a second."""
    runs = {label: matching(pattern, outcomes)[0] for label, pattern in plot.lines.items()}
    name = f"{plot.value}_s"
    return {
        label: sorted(max(1.0, getattr(job, name)) for job in run.jobs.values())
        for label, run in runs.items()
    }


def _steps(times_s: tuple[float, ...]) -> tuple[list[float], list[int]]:
    """Minutes, and how many until then; of many times a selection, both ends among them."""
    count = len(times_s)
    shown = sorted({round(count * point / _POINTS) for point in range(_POINTS + 1)})
    return [times_s[number - 1] / _MINUTE_S if number else 0.0 for number in shown], shown
