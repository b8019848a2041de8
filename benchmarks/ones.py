"""ONES: how often the 90 % interval of its predictor holds what jobs did that it did not learn from."""

from __future__ import annotations

from benchmarks.parts.figure import Figure
from benchmarks.parts.progress_coverage import interval_coverage


def figures() -> list[Figure]:
    """All figures."""
    return [interval_coverage()]
