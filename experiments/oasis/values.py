"""The series of the figures, from what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from experiments.harness.spec import Findings
from experiments.oasis.measure import is_proven

NAMES: Final = {
    "oasis": "OASiS",
    "oasis-exact": "OASiS, bounds as printed",
    "fifo": "FIFO",
    "drf": "DRF",
    "rrh": "RRH",
    "dorm": "Dorm",
}
BASELINES: Final = ("fifo", "drf", "rrh", "dorm")
RATIO_LIMIT: Final = 1.6
"""Of the optimum over OASiS: what is more than this would not be in the paper's figure 5."""
Values = Mapping[str, Mapping[Any, list[float]]]
"""By scheduler or setting, then by column: one value a seed."""


def utilities(found: Findings) -> Values:
    """Figure 3."""
    return by_jobs(found["figure3"], "utility")


def inaccurate(found: Findings, moves: str) -> Values:
    """Figure 6, by the part of the right U/L; U or L is what is wrong."""
    every = by_jobs(found["figure6"], "utility")
    return {name.split()[1]: row for name, row in every.items() if name.startswith(moves)}


def bar_ratios(found: Findings, scheduler: str) -> dict[int, dict[tuple[float, float], float]]:
    """Figure 5: the optimum over a scheduler, of the totals of all instances, by servers and γ1."""
    bars: dict[int, dict[tuple[float, float], list[Mapping[str, Any]]]] = {}
    for row in proven(found):
        low, high = row["value"]
        bars.setdefault(row["servers"], {}).setdefault((low, high), []).append(row)
    return {
        servers: {
            value: sum(each["optimum"] for each in rows) / sum(each["utility"][scheduler] for each in rows)
            for value, rows in by_value.items()
        }
        for servers, by_value in sorted(bars.items())
    }


def offline_ratios(found: Findings, scheduler: str) -> list[float]:
    """Figure 5: the proven optimum over a scheduler, infinite where that one has nothing."""
    return [over(row, scheduler) for row in proven(found)]


def proven(found: Findings) -> list[Mapping[str, Any]]:
    """The worlds of figure 5 with jobs that can end, and an optimum that is proven."""
    return [row for row in found["figure5"] if is_proven(row)]


def over(row: Mapping[str, Any], scheduler: str) -> float:
    """The optimum of one instance over what a scheduler earned there."""
    utility = row["utility"][scheduler]
    return float(row["optimum"] / utility) if utility > 0 else float("inf")


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
