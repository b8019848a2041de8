"""What one job is worth to the optimizer of elastic-dp by its number of GPUs: :class:`Gains`.

Every job gets its smallest size; what is left to decide is how many GPUs more. Gains are multiples of
:data:`GRID`, so sums of them have no rounding error below 2**21 and equally good allocations are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

GRID: Final = 2.0**-32
"""Resolution of gains, in throughput scaling factors."""

_NOTHING: Final = np.zeros(1)


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
    def of(cls, worth: Floats) -> Gains | None:
        """Gains of a curve, ``worth[k]`` with k GPUs, -inf where infeasible; ``worth[0]`` is not looked at.

        Increments that grow by less than the grid are rounding, and count as concave. None: no size is
        feasible.
        """
        values: list[float] = worth.tolist()
        least = next((size for size in range(1, len(values)) if values[size] > -inf), None)
        if least is None:
            return None
        base = values[least]
        gains, steps = [0.0], [inf]
        reached, concave = 0, True
        for value in values[least + 1 :]:
            gain = value - base
            if gain > gains[reached]:
                step = gain - gains[reached]
                concave = concave and reached == len(gains) - 1 and step <= steps[-1] + GRID
                steps.append(min(step, steps[-1]))
                reached = len(gains)
                gains.append(gain)
            else:
                gains.append(-inf)
        by_extra = _sums(steps[1:]) if concave else _on_grid(gains[: reached + 1])
        return cls(least, base, by_extra, concave)


def _on_grid(values: list[float]) -> Floats:
    return np.rint(np.array(values) / GRID) * GRID


def _sums(steps: list[float]) -> Floats:
    rounded = _on_grid(steps)
    return np.concatenate((_NOTHING, np.cumsum(rounded[: np.count_nonzero(rounded)])))
