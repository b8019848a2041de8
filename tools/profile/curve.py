"""Piecewise linear curves through measured points."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final, TypeVar

T = TypeVar("T")
_X: Final = itemgetter(0)


class Curve:
    """Seconds by batch or by weights: linear between the points, which it goes through exactly."""

    def __init__(self, points: Iterable[tuple[int, float]]) -> None:
        self._points = sorted(points)

    @property
    def low(self) -> int:
        """Smallest x that was measured."""
        return self._points[0][0]

    @property
    def high(self) -> int:
        """Largest x that was measured."""
        return self._points[-1][0]

    def inside(self, x: int) -> float:
        """The value at ``x``, the nearest end's outside of the points."""
        (left, at_left), (right, at_right) = around(self._points, x)
        return at_left if left == right else between(x, left, at_left, right, at_right)

    def costly(self, x: int) -> float:
        """The value at ``x``: below the points no less than at the first, above them in proportion."""
        return self.inside(x) * max(1.0, x / self.high)


def around(points: Sequence[tuple[int, T]], x: int) -> tuple[tuple[int, T], tuple[int, T]]:
    """The neighbours of ``x`` among points of ascending x.

    At a point, and beyond the ends, both are the same. Of several points of one x the first counts.
    """
    after = bisect_left(points, x, key=_X)
    if after == len(points):
        return points[-1], points[-1]
    if after == 0 or points[after][0] == x:
        return points[after], points[after]
    return points[after - 1], points[after]


def between(x: float, left: float, at_left: float, right: float, at_right: float) -> float:
    """The line through two points at ``x``, never outside of their values by rounding."""
    value = at_left + (at_right - at_left) * ((x - left) / (right - left))
    return min(max(value, min(at_left, at_right)), max(at_left, at_right))
