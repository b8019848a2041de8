"""What a figure should be: one type for ``--expect``, the experiments and the benchmarks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf, isfinite, nextafter
from typing import Self

from pydantic import model_validator

from pliant.schemas.file_io.record import Record, broken_rule
from pliant.schemas.metrics import RunMetrics
from pliant.schemas.text.wording import shortened

_NOT_NUMBERS = ("policy", "trace_hash", "parameters", "simulated", "oracle", "demand", "jobs_completed_at")


@dataclass(frozen=True, slots=True)
class Expectation:
    """The range in which a figure is accepted, and the value that it is compared with."""

    value: float | None = None
    """Published or golden; None: there is only the range."""
    low: float | None = None
    high: float | None = None

    @classmethod
    def within(cls, value: float, tolerance: float) -> Self:
        """``tolerance``: largest relative deviation from ``value``."""
        slack = abs(value) * tolerance
        return cls(value, _finite(value - slack), _finite(value + slack))

    @classmethod
    def near(cls, value: float, factor: float, *, is_ratio: bool = False) -> Self:
        """Within a factor of ``value``; a ratio also lies on the same side of 1."""
        low, high = value / factor, value * factor
        if is_ratio and value > 1:
            low = max(low, nextafter(1, inf))
        if is_ratio and value < 1:
            high = min(high, nextafter(1, 0))
        return cls(value, _finite(low), _finite(high))

    def holds(self, found: float | None) -> bool:
        """Whether a figure is in the range; None, a figure that does not apply, is not."""
        above = self.low is None or (found is not None and found >= self.low)
        below = self.high is None or (found is not None and found <= self.high)
        return found is not None and above and below

    def deviation(self, found: float | None) -> float | None:
        """(found − value) / value; None where one of them is missing, or the value is next to 0."""
        if found is None or not self.value:
            return None
        return _finite((found - self.value) / abs(self.value))


def _finite(number: float) -> float | None:
    """Returns None for a bound, or a deviation, that is too large for a number."""
    return number if isfinite(number) else None


class ExpectedFigure(Record):
    """Which figure of a run is expected, as files name it."""

    metric: str
    """Field of the metrics schema."""
    over: str | None = None
    """A second run: the figure is then the ratio of the first to the second."""

    @classmethod
    def known(cls) -> Collection[str]:
        """The figures that may be named."""
        return [name for name in RunMetrics.model_fields if name not in _NOT_NUMBERS]

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        if self.metric not in self.known():
            raise broken_rule(f'"{shortened(self.metric)}" is not a figure of a report', "/metric")
        return self
