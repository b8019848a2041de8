"""Progress in pieces: a job advances at one rate from bound to bound, and nobody need look at it meanwhile.

The pieces of a job that trains on are laid end to end once; where it is at some time, and when it ends, is
then looked up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from pliant.tools.replay.progress.protocol import Segment

_SNAP: Final = 1e-9
"""Parts of a piece within which a job stands at its end: the difference is rounding."""


class Pieces:
    """Bounds in samples and the rates between them, shared by all jobs of a kind on equal GPUs.

    :param whole_seconds: each piece lasts a whole number of seconds, the nearest.
    """

    def __init__(
        self, bounds: Sequence[float], rates: Sequence[float], *, whole_seconds: bool = False
    ) -> None:
        """``bounds`` are one more than ``rates``, which are samples per second."""
        self.bounds = bounds
        self.rates = rates
        self.whole_seconds = whole_seconds
        exact_s = [(end - start) / rate for start, end, rate in zip(bounds, bounds[1:], rates, strict=False)]
        lasts_s = [float(round(seconds)) for seconds in exact_s] if whole_seconds else exact_s
        self.cut_short = [last < exact for last, exact in zip(lasts_s, exact_s, strict=True)]
        """Pieces that were rounded down."""
        self.ends_s = list(accumulate(lasts_s, initial=0.0))
        """When each bound is reached, from the start of the first piece."""

    def segment(self, piece: int) -> Segment:
        """One piece by itself: its rate, up to its end; the last one ends with the work."""
        is_last = piece == len(self.rates) - 1
        return Segment(self.rates[piece], None if is_last else self.bounds[piece + 1])

    def piece_at(self, samples: float) -> int:
        """The piece in which a job is that has done so much; at a bound the one that begins there."""
        last = len(self.rates) - 1
        piece = min(bisect_right(self.bounds, samples) - 1, last)
        width = self.bounds[piece + 1] - self.bounds[piece]
        return min(piece + 1, last) if self.bounds[piece + 1] - samples <= _SNAP * width else piece


class PieceTrajectory:
    """The trajectory of one job from where it is to the end of the last piece."""

    __slots__ = (
        "_done",
        "_first",
        "_first_s",
        "_is_first_short",
        "_offset_s",
        "_pieces",
        "_round_s",
        "seconds",
    )

    def __init__(self, pieces: Pieces, done: float, round_s: float | None = None) -> None:
        """``done``: samples at its start; ``round_s``: seconds between decisions, if rounding hides ends."""
        self._pieces = pieces
        self._done = done
        self._round_s = round_s
        self._first = pieces.piece_at(done)
        left_s = max(0.0, pieces.bounds[self._first + 1] - done) / pieces.rates[self._first]
        self._first_s = float(round(left_s)) if pieces.whole_seconds else left_s
        self._is_first_short = self._first_s < left_s
        self._offset_s = pieces.ends_s[self._first + 1] - self._first_s
        self.seconds = pieces.ends_s[-1] - self._offset_s
        """To the end of the work."""

    @property
    def rate(self) -> float:
        """Samples per second at its start."""
        return self._pieces.rates[self._first]

    def samples_done(self, since_s: float, time_s: float) -> float:
        """Samples done at ``time_s`` by a job that is on its way since ``since_s``.

        A piece that was rounded down to the very time of a round is not over in that round.
        """
        passed_s = time_s - since_s
        if passed_s <= 0:
            return self._done
        pieces = self._pieces
        at_s = passed_s + self._offset_s
        piece = bisect_left(pieces.ends_s, at_s, self._first + 1) - 1
        while piece < len(pieces.rates) and self._is_over(piece, at_s, time_s):
            piece += 1
        if piece == self._first:
            return min(self._done + passed_s * pieces.rates[piece], pieces.bounds[piece + 1])
        if piece == len(pieces.rates):
            return pieces.bounds[piece]
        in_piece_s = at_s - pieces.ends_s[piece]
        return min(pieces.bounds[piece] + in_piece_s * pieces.rates[piece], pieces.bounds[piece + 1])

    def is_late(self, since_s: float, end_s: float) -> bool:
        """Whether a decision at the very moment of the end still sees the job."""
        del since_s
        return self._is_short(len(self._pieces.rates) - 1) and self._is_round(end_s)

    def _is_over(self, piece: int, at_s: float, time_s: float) -> bool:
        end_s = self._pieces.ends_s[piece + 1]
        return end_s < at_s or (end_s == at_s and not (self._is_short(piece) and self._is_round(time_s)))

    def _is_short(self, piece: int) -> bool:
        return self._is_first_short if piece == self._first else self._pieces.cut_short[piece]

    def _is_round(self, time_s: float) -> bool:
        return self._round_s is not None and time_s % self._round_s == 0
