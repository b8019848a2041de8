"""What the page says of the results: tables, and which of the claims of the paper hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from experiments.harness.spec import Findings
from experiments.oasis.claims import claims, medians, ratio_words
from experiments.oasis.measure import LIMIT_S, is_proven
from experiments.oasis.values import (
    NAMES,
    Values,
    bar_ratios,
    by_jobs,
    inaccurate,
    late,
    over,
    proven,
    testbed_utilities,
    utilities,
)
from experiments.oasis.worlds import PAST_JOBS
from pliant.tools.report.rendering.text import markdown_table


def facts(found: Findings) -> Mapping[str, Any]:
    """All that the template asks for."""
    middles = medians(utilities(found))
    most = max(middles["oasis"])
    return {
        "most": most,
        "limit_s": f"{LIMIT_S:g}",
        "past": PAST_JOBS,
        "ours_at_most": f"{middles['oasis'][most]:,.0f}",
        "printed_at_most": f"{middles['oasis-exact'][most]:,.0f}",
        "rrh_at_most": f"{middles['rrh'][most]:,.0f}",
        "figure3": _table(utilities(found), "jobs"),
        "ended": _table(by_jobs(found["figure3"], "ended"), "jobs", spread=False),
        "literal": _literal(found),
        "figure4": _late_table(found),
        "figure5": _ratio_table(found),
        "figure6": _table(inaccurate(found, "L"), "jobs", spread=False),
        "quantiles": _quantile_table(found),
        "figure7": _table(testbed_utilities(found), ""),
        "claims": claims(found),
        "broken": sum(sum(row["broken"].values()) for row in _totals(found)),
        "committed": sum(row["ended"][name] for row in _totals(found) for name in row["broken"]),
        "offline": ratio_words(found, "oasis"),
        "offline_exact": ratio_words(found, "oasis-exact"),
        "unfit": sum(row["optimum"] == 0 for row in found["figure5"]),
        "bound": median(row["bound"] for row in found["figure5"]),
        "unproven": sum(row["optimum"] > 0 and not is_proven(row) for row in found["figure5"]),
    }


def _totals(found: Findings) -> list[Mapping[str, Any]]:
    return [*found["figure3"], *found["literal"]]


def _table(values: Values, what: str, *, digits: int = 0, spread: bool = True) -> str:
    """Medians over the seeds, the smallest and the largest behind them."""
    columns = list(next(iter(values.values())))
    head = ("", *(f"{column} {what}".strip() or "median (smallest to largest)" for column in columns))
    body = []
    for name, row in values.items():
        cells = (_cell(row[column], digits, spread=spread) for column in columns)
        body.append((_name(name), *cells))
    return markdown_table(head, body)


def _literal(found: Findings) -> str:
    """Utilities and ended jobs where a chunk is 10 to 100 mini-batches, a column for each number of jobs."""
    utility, ended = (by_jobs(found["literal"], field) for field in ("utility", "ended"))
    sizes = list(next(iter(utility.values())))
    head = ("", *(f"{jobs} jobs: {what}" for jobs in sizes for what in ("total utility", "jobs that ended")))
    body = []
    for name, row in utility.items():
        pairs = (
            (_cell(row[jobs], 0, spread=True), _cell(ended[name][jobs], 0, spread=False)) for jobs in sizes
        )
        body.append((_name(name), *(cell for pair in pairs for cell in pair)))
    return markdown_table(head, body)


def _name(name: str) -> str:
    return NAMES.get(name) or f"{100 * float(name):.0f} % of U/L"


def _cell(values: Sequence[float], digits: int, *, spread: bool) -> str:
    if not values:
        return "none"
    middle, low, high = (f"{value:,.{digits}f}" for value in (median(values), min(values), max(values)))
    return f"{middle} ({low} to {high})" if spread else middle


def _late_table(found: Findings) -> str:
    head = ("", "jobs ended", "median", "middle half", "standard deviation")
    body = []
    for kind in ("sensitive", "critical"):
        body += [(f"{NAMES[name]}, {kind}", *_late_cells(v)) for name, v in late(found, kind).items()]
    return markdown_table(head, body)


def _late_cells(values: Sequence[float]) -> tuple[str, ...]:
    if not values:
        return ("0", "", "", "")
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return str(len(values)), f"{middle:+.1f}", f"{low:+.1f} to {high:+.1f}", f"{np.std(values):.1f}"


def _ratio_table(found: Findings) -> str:
    """The optimum over OASiS, by servers and γ1: of totals, and of single instances."""
    ours, printed = bar_ratios(found, "oasis"), bar_ratios(found, "oasis-exact")
    values = sorted({value for row in ours.values() for value in row}, reverse=True)
    head = ("servers", "instances", *(f"γ1 in [{low:g}, {high:g}]" for low, high in values))
    body = []
    for count, row in ours.items():
        mine = [each for each in proven(found) if each["servers"] == count]
        bars = (f"{row[value]:.2f}" if value in row else "" for value in values)
        of_printed = list(printed[count].values())
        body.append(
            (
                *(str(count), str(len(mine)), *bars),
                _cell([over(each, "oasis") for each in mine], 2, spread=True),
                f"{min(of_printed):.2f} to {max(of_printed):.2f}",
                f"{median(each['bound'] for each in mine):.0f}",
            )
        )
    return markdown_table((*head, "single instances", "bounds as printed", "2α"), body)


def _quantile_table(found: Findings) -> str:
    """What L may be: utilities, and who is turned away by an empty cluster."""
    utility = by_jobs(found["quantiles"], "utility")
    sizes = list(next(iter(utility.values())))
    head = (
        "L is half of what a unit is worth to",
        *(f"{jobs} jobs" for jobs in sizes),
        "turned away where nothing runs",
    )
    body = []
    for name, row in utility.items():
        idle = median(each["turned_away"][name] for each in found["idle"])
        which = "the poorest job" if name == "0" else f"the job at {100 * float(name):.0f} %"
        body.append((which, *(_cell(row[jobs], 0, spread=True) for jobs in sizes), f"{100 * idle:.0f} %"))
    return markdown_table(head, body)
