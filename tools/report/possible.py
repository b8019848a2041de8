"""The values that a figure of a report can have, whatever the run: the last guard before one is shown.

Logs can contradict themselves, and the speeds that references rest on can be wrong. A figure outside its
range is not knowledge then: the report withholds it and says so. The tables below name every number of a
run, of a job and of a paired test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, Final, TypeGuard

from pliant.schemas.metrics import RunMetrics

_ROUNDING: Final = 1e-9
_SUPERLINEAR: Final = 1.1
"""Two GPUs may be more than twice as fast as one, as each has less to hold in its caches, but not by much."""


@dataclass(frozen=True, slots=True)
class Range:
    """From ``low`` to ``high``, both included."""

    low: float = -inf
    high: float = inf
    above: bool = False
    """Whether ``low`` itself is excluded."""
    least: str = ""
    """Name of a figure that it is not below."""
    most: str = ""
    """Name of a figure that it does not exceed."""

    def holds(self, value: float, others: Mapping[str, Any]) -> bool:
        """``others``: the figures that stand beside it."""
        slack = _ROUNDING * max(1.0, abs(value))
        low = max(self.low, _number(others.get(self.least), -inf))
        high = min(self.high, _number(others.get(self.most), inf))
        return (
            isfinite(value)
            and low - slack <= value <= high + slack
            and not (self.above and value <= self.low)
        )

    def text(self) -> str:
        limits = (
            (f"above {self.low:g}" if self.above else f"at least {self.low:g}") if self.low > -inf else "",
            f"at least {self.least}" if self.least else "",
            f"at most {self.high:g}" if self.high < inf else "",
            f"at most {self.most}" if self.most else "",
        )
        return " and ".join(filter(None, limits)) or "a number"


ANY: Final = Range()
AMOUNT: Final = Range(0.0)
RATIO: Final = Range(0.0, above=True)
PART: Final = Range(0.0, 1.0)

OF_RUNS: Final[Mapping[str, Range]] = {
    "seed": AMOUNT,
    "jobs_submitted": AMOUNT,
    "jobs_finished": Range(0.0, most="jobs_submitted"),
    "jobs_rejected": Range(0.0, most="jobs_submitted"),
    "jobs_failed": Range(0.0, most="jobs_submitted"),
    "jobs_cancelled": Range(0.0, most="jobs_submitted"),
    "mean_jct_s": Range(0.0, most="makespan_s"),
    "median_jct_s": Range(0.0, most="p90_jct_s"),
    "p90_jct_s": Range(0.0, most="p99_jct_s"),
    "p99_jct_s": Range(0.0, most="makespan_s"),
    "makespan_s": AMOUNT,
    "mean_queueing_delay_s": AMOUNT,
    "mean_ftf": RATIO,
    "worst_ftf": Range(0.0, above=True, least="mean_ftf"),
    "unfair_fraction": PART,
    "mean_ftf_gps": RATIO,
    "worst_ftf_gps": Range(0.0, above=True, least="mean_ftf_gps"),
    "unfair_fraction_gps": PART,
    "mean_ftf_isolated": RATIO,
    "worst_ftf_isolated": Range(0.0, above=True, least="mean_ftf_isolated"),
    "unfair_fraction_isolated": PART,
    "gps_bound_s": ANY,
    "worst_gps_delay_s": Range(most="makespan_s"),
    "jobs_past_gps_bound": Range(0.0, most="jobs_finished"),
    "worst_bound_used": AMOUNT,
    "utilization": PART,
    "preemptions_per_job": AMOUNT,
    "rescales_per_job": AMOUNT,
    "moves_per_job": AMOUNT,
    "sjs_efficiency": Range(0.0, _SUPERLINEAR, above=True),
    "drop_ratio": PART,
    "rescales_per_hour": AMOUNT,
    "total_utility": ANY,
    "jobs_on_time": Range(0.0, most="jobs_finished"),
    "deadlines_met": PART,
    "median_late_s": Range(most="makespan_s"),
    "stdev_late_s": AMOUNT,
    "jobs_admitted": Range(0.0, most="jobs_submitted"),
    "mean_decision_ms": AMOUNT,
    "bound_jct_s": AMOUNT,
    "bound_jct_alone_s": Range(0.0, most="bound_jct_s"),
    "bound_jct_pooled_s": Range(0.0, most="bound_jct_s"),
    "bound_makespan_s": AMOUNT,
    "cheapest_gpu_s": AMOUNT,
}

OF_JOBS: Final[Mapping[str, Range]] = {
    "submit_s": AMOUNT,
    "queueing_delay_s": AMOUNT,
    "jct_s": Range(0.0, least="queueing_delay_s"),
    "ftf": RATIO,
    "ftf_gps": RATIO,
    "ftf_isolated": RATIO,
    "gpu_seconds": AMOUNT,
    "overhead_s": AMOUNT,
    "preemptions": AMOUNT,
    "rescales": AMOUNT,
    "moves": AMOUNT,
    "restarts": AMOUNT,
    "utility": ANY,
    "late_s": Range(most="jct_s"),
    "first_loss": ANY,
    "last_loss": ANY,
}

OF_TESTS: Final[Mapping[str, Range]] = {
    "pairs": Range(1.0),
    "two_sided": PART,
    "greater": PART,
    "less": PART,
}


def impossible(figures: Mapping[str, Any], ranges: Mapping[str, Range]) -> tuple[str, ...]:
    """Names of the figures with a value that they cannot have."""
    return tuple(
        name
        for name, within in ranges.items()
        if _is_number(value := figures.get(name)) and not within.holds(value, figures)
    )


def withheld(metrics: RunMetrics) -> tuple[RunMetrics, dict[str, str]]:
    """The figures without the impossible ones, and why each of those is missing."""
    figures = dict(metrics)
    names = [name for name in impossible(figures, OF_RUNS) if RunMetrics.model_fields[name].default is None]
    reasons = {name: f"{figures[name]:.6g} is impossible, expected {OF_RUNS[name].text()}" for name in names}
    return metrics.model_copy(update=dict.fromkeys(names)), reasons


def _number(value: object, otherwise: float) -> float:
    return float(value) if _is_number(value) else otherwise


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
