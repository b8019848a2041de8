"""What a report says first: one sentence, six figures, and which direction of a figure is better.

A change is the ratio of two mean JCTs over the jobs that finished in both runs. Its interval is that of a
ratio estimator: with residuals x - r·y of the pairs, the normal approximation of their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean
from typing import Final, Literal

from pliant.schemas.text import counted
from pliant.tools.report.rendering.sections import duration, number
from pliant.tools.report.report import Report, RunReport, paired_jcts_s

Direction = Literal["lower", "higher"]
SIX: Final = (
    *("mean_jct_s", "p99_jct_s", "mean_queueing_delay_s"),
    *("makespan_s", "worst_ftf", "utilization"),
)
_HIGHER: Final = frozenset(
    ("utilization", "sjs_efficiency", "jobs_admitted", "total_utility", "jobs_on_time", "jobs_finished")
)
_NEITHER: Final = ("gps_bound_s", "stdev_late_s", "bound_", "cheapest_gpu_s", "moves_per_job", "rescales_per")
_Z: Final = NormalDist().inv_cdf(0.975)
_FEWEST: Final = 8
"""Pairs below which no interval is stated."""


@dataclass(frozen=True, slots=True)
class Headline:
    """The first lines of a report."""

    sentence: str
    figures: tuple[str, ...]
    """Fields of :class:`~pliant.schemas.metrics.RunMetrics`."""


@dataclass(frozen=True, slots=True)
class Change:
    """A mean JCT divided by another, over the same jobs."""

    ratio: float
    low: float | None
    """The 95 % interval. None where there are too few jobs for one."""
    high: float | None
    pairs: int

    def text(self, base: str = "", interval: str = "") -> str:
        """As in "31 % below fifo (27 to 35 %)".

        :param interval: words before the interval.
        """
        sign = -1 if self.ratio < 1 else 1
        shown = f"{number(100 * abs(self.ratio - 1), 0)} % {'below' if sign < 0 else 'above'} {base}".strip()
        if self.low is None or self.high is None:
            return shown
        low, high = sorted(100 * sign * (end - 1) for end in (self.low, self.high))
        return f"{shown} ({interval}{number(low, 0)} to {number(high, 0)} %)"


def better(name: str) -> Direction | None:
    """The direction in which a figure is better. Returns None where neither is."""
    if name in _HIGHER:
        return "higher"
    return None if name.startswith(_NEITHER) else "lower"


def change(each: RunReport, base: RunReport) -> Change | None:
    """Returns None if no job finished in both runs, or they are of different traces."""
    return _change(paired_jcts_s(each.run, base.run))


def _change(pairs: Sequence[tuple[float, float]]) -> Change | None:
    mean = fmean(theirs for _, theirs in pairs) if pairs else 0.0
    if not mean:
        return None
    ratio = fmean(own for own, _ in pairs) / mean
    if len(pairs) < _FEWEST:
        return Change(ratio, None, None, len(pairs))
    spread = sum((own - ratio * theirs) ** 2 for own, theirs in pairs) / (len(pairs) - 1)
    half = _Z * sqrt(spread / len(pairs)) / mean
    return Change(ratio, ratio - half, ratio + half, len(pairs))


def headline(report: Report) -> Headline:
    """About the run with the smallest mean JCT, beside the baseline if there is one."""
    known = [each for each in report.runs if each.metrics.mean_jct_s is not None]
    if not known:
        return Headline("No job finished, so there is no mean JCT.", SIX)
    best = min(known, key=lambda each: each.metrics.mean_jct_s or 0.0)
    parts = [f"{best.label}: mean JCT {duration(best.metrics.mean_jct_s or 0.0)}"]
    base = report.baseline
    if base is not None and base is not best and (found := change(best, base)) is not None:
        alike = found.pairs == best.metrics.jobs_finished == base.metrics.jobs_finished
        of_pairs = "" if alike else f" over the {counted(found.pairs, 'job')} that finished in both"
        parts.append(found.text(base.label, "95 % interval ") + of_pairs)
    if best.metrics.worst_ftf is not None:
        parts.append(f"worst-off job {number(best.metrics.worst_ftf, 2)} times its fair share")
    return Headline(", ".join(parts) + ".", SIX)
