"""How far policies are from the bound, and how that goes with the load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from experiments.harness.spec import Findings
from experiments.shadow_price.matrix import LOADS, RIVALS, SHORT
from experiments.shadow_price.rows import Rows
from experiments.shadow_price.verdict import WORDS
from pliant.tools.report.figures.style import GREY, axes, legend, line_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN: Final = 8


def figures(found: Findings) -> Mapping[str, Figure]:
    """Every figure by its name, of what was replayed."""
    rows = Rows(found)
    drawn = {"bound": _over_bound(rows)}
    for trace in rows.traces("load"):
        drawn[f"load-{trace}"] = _by_load(rows, trace)
    return drawn


def _over_bound(rows: Rows) -> Figure:
    """Mean JCT over the lower bound, by workload, of the policies that are nearest to it."""
    figure, chart = axes("Mean JCT over the lower bound", "", "Ratio")
    traces = [trace for trace in SHORT if rows.bound_s(trace)]
    for index, policy in enumerate(rows.policies("policies")[:_SHOWN]):
        jcts = [rows.figure("mean_jct_s", "policies", trace=trace, policy=policy) for trace in traces]
        over = [(jct or 0.0) / (rows.bound_s(trace) or 1.0) for jct, trace in zip(jcts, traces, strict=True)]
        chart.plot(range(len(traces)), over, marker="o", label=policy, **line_style(index))
    chart.axhline(1.0, color=GREY, linewidth=0.8, linestyle=":")
    chart.set_xticks(range(len(traces)), [WORDS[trace] for trace in traces])
    chart.set_ylim(bottom=0)
    legend(figure, chart)
    return figure


def _by_load(rows: Rows, trace: str) -> Figure:
    """Mean JCT by load, on a logarithmic axis."""
    figure, chart = axes(f"Mean JCT by load, {WORDS[trace]}", "Load", "Seconds")
    for index, policy in enumerate(RIVALS):
        points = [
            (load, jct)
            for load in LOADS
            if (jct := rows.figure("mean_jct_s", "load", trace=trace, variant=f"{load:g}", policy=policy))
        ]
        if points:
            chart.plot(*zip(*points, strict=True), marker="o", label=policy, **line_style(index))
    bounds = [(load, bound_s) for load in LOADS if (bound_s := rows.bound_s(trace, load=load))]
    if bounds:
        chart.plot(*zip(*bounds, strict=True), color=GREY, linestyle=":", label="lower bound")
    chart.set_yscale("log")
    legend(figure, chart)
    return figure
