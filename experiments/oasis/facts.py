"""What the page says of the results: tables, and which of the paper's claims hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np

from experiments.harness.spec import Findings
from experiments.oasis.measure import PROVEN_GAP
from pliant.tools.report.rendering.markdown import markdown_table

NAMES: Final = {
    "oasis": "OASiS",
    "oasis-exact": "OASiS, bounds as printed",
    "fifo": "FIFO",
    "drf": "DRF",
    "rrh": "RRH",
    "dorm": "Dorm",
}
BASELINES: Final = ("fifo", "drf", "rrh", "dorm")
Values = Mapping[str, Mapping[Any, list[float]]]
"""By scheduler or setting, then by column: one value a seed."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence of the paper, and whether it holds here."""

    where: str
    says: str
    holds: bool
    ours: str


def facts(found: Findings) -> Mapping[str, Any]:
    """All that the template asks for."""
    return {
        "figure3": _table(utilities(found), "jobs"),
        "ended": _table(by_jobs(found["figure3"], "ended"), "jobs"),
        "ratios": _table(ratios(found), "jobs", digits=2),
        "literal": _table(by_jobs(found["literal"], "utility"), "jobs"),
        "literal_ended": _table(by_jobs(found["literal"], "ended"), "jobs", spread=False),
        "figure4": _late_table(found),
        "figure5": _ratio_table(found),
        "figure6": _table(inaccurate(found), "jobs"),
        "figure7": _table(testbed_utilities(found), ""),
        "figure8": _late_row(testbed_late(found)),
        "claims": claims(found),
        "broken": sum(sum(row["broken"].values()) for row in _totals(found)),
        "committed": sum(row["ended"][name] for row in _totals(found) for name in row["broken"]),
        "offline": offline_ratios(found, "oasis"),
        "offline_exact": offline_ratios(found, "oasis-exact"),
        "unfit": sum(row["optimum"] == 0 for row in found["figure5"]),
        "bound": median(row["bound"] for row in found["figure5"]),
        "unproven": sum(row["optimum"] > 0 and row["gap"] > PROVEN_GAP for row in found["figure5"]),
    }


def claims(found: Findings) -> list[Claim]:
    """The paper's sentences on its figures, in their order."""
    medians = _medians(utilities(found))
    sizes = sorted(medians["oasis"])
    least = {jobs: min(medians["oasis"][jobs] / medians[name][jobs] for name in BASELINES) for jobs in sizes}
    first, most = sizes[0], sizes[-1]
    middles, spread = _lateness(found)
    nearest = [kind for kind, row in middles.items() if min(row, key=lambda name: abs(row[name])) == "oasis"]
    narrowest = [kind for kind, row in spread.items() if min(row, key=lambda name: row[name]) == "oasis"]
    offline = offline_ratios(found, "oasis")
    wrong = {float(part): row[most] for part, row in _medians(inaccurate(found)).items()}
    under = min(value for part, value in wrong.items() if part < 1)
    over = max(value for part, value in wrong.items() if part > 1)
    bed = {name: row[""] for name, row in _medians(testbed_utilities(found)).items()}
    best = max(BASELINES, key=lambda name: bed[name])
    leads = ", ".join(f"{least[jobs]:.2f} at {jobs} jobs" for jobs in sizes)
    return [
        Claim(
            "Figure 3",
            "OASiS has the largest total utility of the five",
            min(least.values()) > 1,
            f"over the best of the others: {leads}",
        ),
        Claim(
            "Figure 3",
            "the lead is larger where jobs are more",
            least[most] > least[first],
            f"{least[first]:.2f} times the best of the others at {first} jobs, {least[most]:.2f} at {most}",
        ),
        Claim(
            "Figure 4",
            "jobs end closest to their targets under OASiS, sensitive and critical ones",
            len(nearest) == len(middles),
            f"closest median for: {', '.join(nearest) or 'none'}",
        ),
        Claim(
            "Figure 4",
            "with the smallest variance",
            len(narrowest) == len(spread),
            f"smallest standard deviation for: {', '.join(narrowest) or 'none'}",
        ),
        Claim(
            "Figure 5",
            "the offline optimum is around 1.1 to 1.5 times OASiS",
            1.0 <= median(offline) <= 1.6,
            f"median {median(offline):.2f}, three quarters below {np.quantile(offline, 0.75):.2f}, "
            f"largest {max(offline):.2f}",
        ),
        Claim(
            "Figure 6",
            "an underestimate of U/L leads to more utility than an overestimate where resources are scarce",
            under > over,
            f"at {most} jobs {under:,.0f} or more when underestimated, {over:,.0f} or less when over",
        ),
        Claim(
            "Figure 7",
            "OASiS has the largest total utility on the testbed",
            bed["oasis"] > bed[best],
            f"{bed['oasis']:.0f}, as printed {bed['oasis-exact']:.0f}, {NAMES[best]} {bed[best]:.0f}",
        ),
    ]


def _medians(values: Values) -> dict[str, dict[Any, float]]:
    return {name: {column: median(each) for column, each in row.items()} for name, row in values.items()}


def utilities(found: Findings) -> Values:
    """Figure 3."""
    return by_jobs(found["figure3"], "utility")


def ratios(found: Findings) -> Values:
    """OASiS over each baseline, seed by seed."""
    every = utilities(found)
    return {
        name: {
            jobs: [
                ours / theirs for ours, theirs in zip(every["oasis"][jobs], values, strict=True) if theirs > 0
            ]
            for jobs, values in every[name].items()
        }
        for name in BASELINES
    }


def inaccurate(found: Findings) -> Values:
    """Figure 6, by the part of the right U/L."""
    return by_jobs(found["figure6"], "utility")


def offline_ratios(found: Findings, scheduler: str) -> list[float]:
    """Figure 5: the proven optimum over a scheduler, infinite where that one has nothing."""
    return [_over(row, scheduler) for row in proven(found)]


def proven(found: Findings) -> list[Mapping[str, Any]]:
    """The worlds of figure 5 with jobs that can end, and an optimum that is proven."""
    return [row for row in found["figure5"] if row["optimum"] > 0 and row["gap"] <= PROVEN_GAP]


def _over(row: Mapping[str, Any], scheduler: str) -> float:
    utility = row["utility"][scheduler]
    return float(row["optimum"] / utility) if utility > 0 else float("inf")


def _totals(found: Findings) -> list[Mapping[str, Any]]:
    return [*found["figure3"], *found["literal"]]


def by_jobs(rows: Sequence[Mapping[str, Any]], key: str) -> Values:
    """One value a seed, by name and number of jobs."""
    result: dict[str, dict[Any, list[float]]] = {}
    for row in rows:
        for name, value in row[key].items():
            result.setdefault(name, {}).setdefault(row["jobs"], []).append(value)
    return result


def testbed_utilities(found: Findings) -> Values:
    """Figure 7, in one column."""
    return by_jobs([{**row, "jobs": ""} for row in found["figure78"]], "utility")


def testbed_late(found: Findings) -> dict[str, list[float]]:
    """Figure 8: as figure 4, for all jobs together."""
    rows = found["figure78"]
    return {name: [value for row in rows for value in row["late"][name]] for name in rows[0]["late"]}


def late(found: Findings, kind: str) -> dict[str, list[float]]:
    """Figure 4: slots between target and end, by scheduler, over all seeds."""
    rows = found["figure4"]
    return {name: [value for row in rows for value in row["late"][name][kind]] for name in rows[0]["late"]}


def _lateness(found: Findings) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Median and standard deviation by kind, of the five schedulers of the paper."""
    kinds = {
        kind: {name: values for name, values in late(found, kind).items() if name != "oasis-exact" and values}
        for kind in ("sensitive", "critical")
    }
    medians = {kind: {name: median(values) for name, values in row.items()} for kind, row in kinds.items()}
    spread = {
        kind: {name: float(np.std(values)) for name, values in row.items()} for kind, row in kinds.items()
    }
    return medians, spread


def _table(values: Values, what: str, *, digits: int = 0, spread: bool = True) -> str:
    """Medians over the seeds, the smallest and the largest behind them."""
    columns = list(next(iter(values.values())))
    head = ("", *(f"{column} {what}".strip() or "median (smallest to largest)" for column in columns))
    body = []
    for name, row in values.items():
        cells = (_cell(row[column], digits, spread=spread) for column in columns)
        body.append((_name(name), *cells))
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


def _late_row(values: Mapping[str, Sequence[float]]) -> str:
    head = ("", "jobs ended", "median", "middle half", "standard deviation")
    return markdown_table(head, [(NAMES[name], *_late_cells(each)) for name, each in values.items()])


def _late_cells(values: Sequence[float]) -> tuple[str, ...]:
    if not values:
        return ("0", "", "", "")
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return str(len(values)), f"{middle:+.1f}", f"{low:+.1f} to {high:+.1f}", f"{np.std(values):.1f}"


def _ratio_table(found: Findings) -> str:
    """Medians of the optimum over OASiS, by servers and γ1."""
    rows = proven(found)
    values = list(dict.fromkeys(tuple(row["value"]) for row in found["figure5"]))
    servers = sorted({row["servers"] for row in found["figure5"]})
    head = (
        "servers",
        *(f"γ1 in [{low:g}, {high:g}]" for low, high in values),
        "ours, bounds as printed",
        "2α",
    )
    body = []
    for count in servers:
        mine = [row for row in rows if row["servers"] == count]
        each = [[_over(row, "oasis") for row in mine if tuple(row["value"]) == value] for value in values]
        printed = [_over(row, "oasis-exact") for row in mine]
        cells = (_cell(ratio, 2, spread=True) for ratio in (*each, printed))
        body.append((str(count), *cells, f"{median(row['bound'] for row in mine):.0f}" if mine else ""))
    return markdown_table(head, body)
