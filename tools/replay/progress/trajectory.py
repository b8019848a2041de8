"""Progress in pieces: a job advances at one rate from bound to bound, without an event in between.

The pieces of a job that trains on are laid end to end once; where it is at some time, and when it ends, is
then looked up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from pliant.tools.replay.progress.protocol import Segment

_SNAP: Final = 1e-9
"""Parts of a piece within which a job stands at its end: the difference is rounding."""


class Pieces:
    """Bounds in samples and the rates between them, shared by all jobs of a kind on equal GPUs."""

    def __init__(self, bounds: Sequence[float], rates: Sequence[float]) -> None:
        """``bounds`` are one more than ``rates``, which are samples per second."""
        self.bounds = bounds
        self.rates = rates
        exact_s = [(end - start) / rate for start, end, rate in zip(bounds, bounds[1:], rates, strict=False)]
        self.ends_s = list(accumulate(self.lasts_s(exact_s), initial=0.0))
        """When each bound is reached, from the start of the first piece."""

    def lasts_s(self, exact_s: Sequence[float]) -> Sequence[float]:
        """How long the pieces take that last ``exact_s`` by their rates."""
        return exact_s

    def trajectory(self, done: float) -> PieceTrajectory:
        """The trajectory of a job that has done this many samples."""
        return PieceTrajectory(self, done)

    def to_the_end(self, done: float) -> Segment:
        """All that comes for a job that has done this many samples."""
        trajectory = self.trajectory(done)
        return Segment(trajectory.rate, trajectory=trajectory)

    def segment(self, piece: int) -> Segment:
        """One piece by itself: its rate, up to its end; the last one ends with the work."""
        is_last = piece == len(self.rates) - 1
        return Segment(self.rates[piece], None if is_last else self.bounds[piece + 1])

    def piece_at(self, samples: float) -> int:
        """The piece of a job that has done this many samples; at a bound the one that begins there."""
        last = len(self.rates) - 1
        piece = min(bisect_right(self.bounds, samples) - 1, last)
        width = self.bounds[piece + 1] - self.bounds[piece]
        return min(piece + 1, last) if self.bounds[piece + 1] - samples <= _SNAP * width else piece


class PieceTrajectory:
    """The trajectory of one job from where it is to the end of the last piece."""

    __slots__ = ("_done", "_first", "_offset_s", "_pieces", "seconds")

    def __init__(self, pieces: Pieces, done: float) -> None:
        """``done``: samples at its start."""
        self._pieces = pieces
        self._done = done
        self._first = pieces.piece_at(done)
        left_s = max(0.0, pieces.bounds[self._first + 1] - done) / pieces.rates[self._first]
        self._offset_s = pieces.ends_s[self._first + 1] - self._first_lasts_s(left_s)
        self.seconds = pieces.ends_s[-1] - self._offset_s
        """To the end of the work."""

    @property
    def rate(self) -> float:
        """Samples per second at its start."""
        return self._pieces.rates[self._first]

    def samples_done(self, since_s: float, time_s: float) -> float:
        """Samples done at ``time_s`` by a job that follows it since ``since_s``."""
        passed_s = time_s - since_s
        if passed_s <= 0:
            return self._done
        pieces = self._pieces
        at_s = passed_s + self._offset_s
        piece = self._piece_at(at_s, time_s)
        if piece == self._first:
            return min(self._done + passed_s * pieces.rates[piece], pieces.bounds[piece + 1])
        if piece == len(pieces.rates):
            return pieces.bounds[piece]
        in_piece_s = at_s - pieces.ends_s[piece]
        return min(pieces.bounds[piece] + in_piece_s * pieces.rates[piece], pieces.bounds[piece + 1])

    def is_late(self, end_s: float) -> bool:
        """Whether a decision at the very moment of the end still sees the job."""
        del end_s
        return False

    def _first_lasts_s(self, left_s: float) -> float:
        """Seconds until the end of the piece in which the job is, by its rate ``left_s``."""
        return left_s

    def _piece_at(self, at_s: float, time_s: float) -> int:
        """The piece ``at_s`` after the start of the first one, which is ``time_s`` on the clock."""
        del time_s
        return bisect_right(self._pieces.ends_s, at_s, self._first + 1) - 1
