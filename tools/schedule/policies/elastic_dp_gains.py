"""What one job is worth to the optimizer of elastic-dp by its number of GPUs: :class:`Gains`.

Every job gets its smallest size; what is left to decide is how many GPUs more. Gains are multiples of
:data:`GRID`, so sums of them have no rounding error below 2**21 and equally good allocations are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

GRID: Final = 2.0**-32
"""Resolution of gains, in throughput scaling factors."""


@dataclass(frozen=True, slots=True, eq=False)
class Gains:
    """Worth of GPUs beyond the smallest size of one job, or of several that share GPUs."""

    least: int
    """The smallest feasible size, in GPUs."""
    base: float
    """What the smallest size is worth."""
    by_extra: Floats
    """[GPUs beyond ``least``] gain over ``base``, -inf where fewer GPUs are worth as much."""
    concave: bool
    """Whether each GPU more is worth no more than the one before."""

    @property
    def most_extra(self) -> int:
        """GPUs beyond ``least`` after which nothing is gained."""
        return len(self.by_extra) - 1

    @classmethod
    def of(cls, worth: npt.ArrayLike) -> Gains | None:
        """Gains of a curve, ``worth[k]`` with k GPUs, -inf where infeasible; ``worth[0]`` is not looked at.

        Increments that grow by less than the grid are rounding, and count as concave. None: no size is
        feasible.
        """
        values = np.asarray(worth, dtype=np.float64)[1:]
        feasible = np.flatnonzero(values > -np.inf)
        if not feasible.size:
            return None
        first = int(feasible[0])
        return cls(first + 1, float(values[first]), *_shape(values[first:] - values[first]))


def _shape(gains: Floats) -> tuple[Floats, bool]:
    """Gains on the grid without those that fewer GPUs reach, and whether they are concave."""
    best = np.maximum.accumulate(gains)
    better = np.flatnonzero(gains[1:] > best[:-1]) + 1
    last = int(better[-1]) if better.size else 0
    if better.size == last:
        steps = np.diff(gains[: last + 1])
        falling = np.minimum.accumulate(steps)
        if not (steps - falling > GRID).any():
            return _concave(falling), True
    return _arbitrary(gains[: last + 1])


def _concave(steps: Floats) -> Floats:
    steps = np.rint(steps / GRID) * GRID
    steps = steps[: np.count_nonzero(steps)]
    return np.concatenate(([0.0], np.cumsum(steps)))


def _arbitrary(gains: Floats) -> tuple[Floats, bool]:
    gains = np.rint(gains / GRID) * GRID
    reached = np.maximum.accumulate(gains)[:-1]
    gains[1:][gains[1:] <= reached] = -np.inf
    return gains, False
