"""Figures 3 to 8 as the paper draws them: medians over the seeds, and the range behind them."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING

from experiments.harness.spec import Findings
from experiments.oasis.facts import (
    NAMES,
    Values,
    inaccurate,
    late,
    testbed_late,
    testbed_utilities,
    utilities,
)
from pliant.tools.report.figures.style import axes, legend, line_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figures(found: Findings) -> Mapping[str, Figure]:
    """Every figure by its name."""
    return {
        "figure3": _lines("Figure 3: total utility", utilities(found)),
        "figure4a": _boxes("Figure 4: time-sensitive jobs", late(found, "sensitive")),
        "figure4b": _boxes("Figure 4: time-critical jobs", late(found, "critical")),
        "figure6": _lines("Figure 6: U/L not as it should be", inaccurate(found)),
        "figure7": _utilities("Figure 7: the testbed", testbed_utilities(found)),
        "figure8": _boxes("Figure 8: the testbed", testbed_late(found)),
    }


def _lines(title: str, values: Values) -> Figure:
    figure, chart = axes(title, "Jobs", "Total utility")
    for index, (name, row) in enumerate(values.items()):
        style = line_style(index)
        x = list(row)
        label = NAMES.get(name) or f"{100 * float(name):.0f} %"
        chart.plot(x, [median(row[jobs]) for jobs in x], label=label, **style)
        low, high = [min(row[jobs]) for jobs in x], [max(row[jobs]) for jobs in x]
        chart.fill_between(x, low, high, color=style["color"], alpha=0.12, linewidth=0)
    chart.set_ylim(bottom=0)
    legend(figure, chart)
    return figure


def _boxes(title: str, values: Mapping[str, list[float]]) -> Figure:
    figure, chart = axes(title, "", "End less target, slots")
    shown = {name: each for name, each in values.items() if each}
    chart.boxplot(list(shown.values()), whis=(5, 95), showfliers=False, medianprops={"color": "black"})
    chart.set_xticks(range(1, len(shown) + 1), [NAMES[name].replace(", ", ",\n") for name in shown])
    chart.axhline(0, linewidth=0.6, color="black")
    return figure


def _utilities(title: str, values: Values) -> Figure:
    figure, chart = axes(title, "", "Total utility")
    chart.boxplot([row[""] for row in values.values()], whis=(0, 100), medianprops={"color": "black"})
    chart.set_xticks(range(1, len(values) + 1), [NAMES[name].replace(", ", ",\n") for name in values])
    chart.set_ylim(bottom=0)
    return figure
