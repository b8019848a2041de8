"""Piecewise linear curves through measured points."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable


class Curve:
    """Seconds by batch or by weights: linear between the points, which it goes through exactly."""

    def __init__(self, points: Iterable[tuple[int, float]]) -> None:
        ordered = sorted(points)
        self._x = [x for x, _ in ordered]
        self._y = [y for _, y in ordered]

    @property
    def low(self) -> int:
        """Smallest x that was measured."""
        return self._x[0]

    @property
    def high(self) -> int:
        """Largest x that was measured."""
        return self._x[-1]

    def inside(self, x: int) -> float:
        """The value at ``x``, the nearest end's outside of the points."""
        index = bisect_left(self._x, x)
        if index == len(self._x):
            return self._y[-1]
        if index == 0 or self._x[index] == x:
            return self._y[index]
        left, right = self._x[index - 1], self._x[index]
        return between(x, left, self._y[index - 1], right, self._y[index])

    def costly(self, x: int) -> float:
        """The value at ``x``: below the points no less than at the first, above them in proportion."""
        return self.inside(x) * max(1.0, x / self.high)


def between(x: float, left: float, at_left: float, right: float, at_right: float) -> float:
    """The line through two points at ``x``, never outside of their values by rounding."""
    value = at_left + (at_right - at_left) * ((x - left) / (right - left))
    return min(max(value, min(at_left, at_right)), max(at_left, at_right))
