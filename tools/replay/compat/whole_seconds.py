"""Pieces of progress that last whole seconds, as a simulator that steps through seconds sees them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from pliant.tools.replay.progress.trajectory import Pieces, PieceTrajectory


class WholeSecondPieces(Pieces):
    """Each piece lasts the nearest whole number of seconds.

    A piece that was rounded down to the very time of a round is not over in that round.
    """

    def __init__(self, bounds: Sequence[float], rates: Sequence[float], round_s: float | None = None) -> None:
        """``round_s``: seconds between decisions; None: there are no rounds."""
        super().__init__(bounds, rates)
        self.round_s = round_s

    def trajectory(self, done: float) -> PieceTrajectory:
        """Rounded from where the job is, too."""
        return _WholeSecondTrajectory(self, done)

    def lasts_s(self, exact_s: Sequence[float]) -> Sequence[float]:
        """The nearest whole seconds."""
        rounded = [float(round(seconds)) for seconds in exact_s]
        self.cut_short = [last < exact for last, exact in zip(rounded, exact_s, strict=True)]
        return rounded


class _WholeSecondTrajectory(PieceTrajectory):
    __slots__ = ("_is_first_short", "_whole")

    def __init__(self, pieces: WholeSecondPieces, done: float) -> None:
        self._whole = pieces
        super().__init__(pieces, done)

    def is_late(self, end_s: float) -> bool:
        return self._is_short(len(self._whole.rates) - 1) and _is_round(end_s, self._whole.round_s)

    def _first_lasts_s(self, left_s: float) -> float:
        rounded = float(round(left_s))
        self._is_first_short = rounded < left_s
        return rounded

    def _piece_at(self, at_s: float, time_s: float) -> int:
        ends_s = self._whole.ends_s
        piece = bisect_left(ends_s, at_s, self._first + 1) - 1
        while piece < len(self._whole.rates) and self._is_over(piece, at_s, time_s):
            piece += 1
        return piece

    def _is_over(self, piece: int, at_s: float, time_s: float) -> bool:
        end_s = self._whole.ends_s[piece + 1]
        if end_s != at_s:
            return end_s < at_s
        return not (self._is_short(piece) and _is_round(time_s, self._whole.round_s))

    def _is_short(self, piece: int) -> bool:
        return self._is_first_short if piece == self._first else self._whole.cut_short[piece]


def whole_second_end(from_s: float, lasts_s: float, interval_s: float | None) -> tuple[float, bool]:
    """When a segment ends, and whether a decision at that moment still sees the job as before."""
    if lasts_s == math.inf:
        return math.inf, False
    end_s = from_s + round(lasts_s)
    return end_s, round(lasts_s) < lasts_s and _is_round(end_s, interval_s)


def _is_round(time_s: float, round_s: float | None) -> bool:
    return round_s is not None and time_s % round_s == 0
