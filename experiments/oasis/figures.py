"""Figures 3 to 8 as the paper draws them: medians over the seeds, and the range behind them."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING

from experiments.harness.spec import Findings
from experiments.oasis.values import (
    NAMES,
    Values,
    bar_ratios,
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
        "figure5": _bars("Figure 5: the offline optimum over OASiS", found),
        "figure6": _lines("Figure 6: L not as it should be", inaccurate(found, "L")),
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


def _bars(title: str, found: Findings) -> Figure:
    figure, chart = axes(title, "Servers", "Ratio of totals")
    ratios = bar_ratios(found, "oasis")
    values = sorted({value for row in ratios.values() for value in row}, reverse=True)
    for index, value in enumerate(values):
        at = [number + (index - 1.5) / 5 for number in range(len(ratios))]
        heights = [row.get(value, 0.0) for row in ratios.values()]
        label = f"γ1 in [{value[0]:g}, {value[1]:g}]"
        chart.bar(at, heights, width=0.18, label=label, color=line_style(index)["color"])
    chart.set_xticks(range(len(ratios)), [str(count) for count in ratios])
    chart.set_ylim(1.0, 1.6)
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
