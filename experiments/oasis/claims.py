"""The sentences of the paper on its figures, and whether they hold here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final

import numpy as np

from experiments.harness.spec import Findings
from experiments.oasis.measure import MOVES
from experiments.oasis.values import (
    BASELINES,
    NAMES,
    RATIO_LIMIT,
    Values,
    bar_ratios,
    inaccurate,
    late,
    offline_ratios,
    testbed_utilities,
    utilities,
)

MATCHED: Final = ("0.2", "5")
"""Parts of the right U/L that are off by the same factor, one in each direction."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence of the paper, and whether it holds here."""

    where: str
    says: str
    holds: bool
    ours: str


def claims(found: Findings) -> list[Claim]:
    """The paper's sentences on its figures, in their order."""
    middles = medians(utilities(found))
    sizes = sorted(middles["oasis"])
    least = {jobs: min(middles["oasis"][jobs] / middles[name][jobs] for name in BASELINES) for jobs in sizes}
    first, most = sizes[0], sizes[-1]
    near, spread = _lateness(found)
    nearest = [kind for kind, row in near.items() if min(row, key=lambda name: abs(row[name])) == "oasis"]
    narrowest = [kind for kind, row in spread.items() if min(row, key=lambda name: row[name]) == "oasis"]
    bars = [ratio for row in bar_ratios(found, "oasis").values() for ratio in row.values()]
    wrong = {moves: inaccurate(found, moves) for moves in MOVES}
    by_five = {moves: _under_over(_only(values, MATCHED), most) for moves, values in wrong.items()}
    by_all = {moves: _under_over(values, most) for moves, values in wrong.items()}
    bed = {name: row[""] for name, row in medians(testbed_utilities(found)).items()}
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
            len(nearest) == len(near),
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
            all(1.0 <= ratio <= RATIO_LIMIT for ratio in bars),
            f"{min(bars):.2f} to {max(bars):.2f} for the bars of the figure, each the totals of up to "
            f"{found['seeds']} instances; {ratio_words(found, 'oasis')}",
        ),
        Claim(
            "Figure 6",
            "an underestimate of U/L leads to more utility than an overestimate where resources are scarce",
            all(median(each) > 1 for each in by_five.values()),
            f"at {most} jobs, a fifth of U/L over five times U/L: {_times(by_five['L'])} where L is wrong, "
            f"{_times(by_five['U'])} where U is. 5 is the only factor in both directions. The mean of all "
            f"underestimates over that of all overestimates, which are further off, is {_times(by_all['L'])} "
            f"and {_times(by_all['U'])}",
        ),
        Claim(
            "Figure 7",
            "OASiS has the largest total utility on the testbed",
            bed["oasis"] > bed[best],
            f"{bed['oasis']:.0f}, as printed {bed['oasis-exact']:.0f}, {NAMES[best]} {bed[best]:.0f}",
        ),
    ]


def medians(values: Values) -> dict[str, dict[Any, float]]:
    """Over the seeds."""
    return {name: {column: median(each) for column, each in row.items()} for name, row in values.items()}


def _lateness(found: Findings) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Median and standard deviation by kind, of the five schedulers of the paper."""
    kinds = {
        kind: {name: values for name, values in late(found, kind).items() if name != "oasis-exact" and values}
        for kind in ("sensitive", "critical")
    }
    middles = {kind: {name: median(values) for name, values in row.items()} for kind, row in kinds.items()}
    spread = {
        kind: {name: float(np.std(values)) for name, values in row.items()} for kind, row in kinds.items()
    }
    return middles, spread


def _under_over(values: Values, jobs: int) -> list[float]:
    """Seed by seed: the mean of the underestimates of U/L over that of the overestimates."""
    under = zip(*(row[jobs] for part, row in values.items() if float(part) < 1), strict=True)
    over = zip(*(row[jobs] for part, row in values.items() if float(part) > 1), strict=True)
    return [fmean(low) / fmean(high) for low, high in zip(under, over, strict=True)]


def _only(values: Values, parts: Sequence[str]) -> Values:
    return {part: values[part] for part in parts}


def _times(ratios: Sequence[float]) -> str:
    more = sum(ratio > 1 for ratio in ratios)
    return f"{median(ratios):.3g} (above 1 in {more} of {len(ratios)} instances)"


def ratio_words(found: Findings, scheduler: str) -> str:
    """Instance by instance."""
    ratios = offline_ratios(found, scheduler)
    above = sum(ratio > RATIO_LIMIT for ratio in ratios)
    return (
        f"of single instances the median is {median(ratios):.2f} and the largest {max(ratios):.2f}, "
        f"{above} of {len(ratios)} are above {RATIO_LIMIT:g}"
    )
