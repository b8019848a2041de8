"""How sure a difference is: 95 % intervals of means and of ratios of means, after Student.

Jobs that follow each other in a queue fare alike, so they are no independent observations: jobs are taken in
batches of neighbours in order of submission, and the batches count (method of batch means). Intervals of
ratios are symmetrical in the logarithm: they stay positive, and turn around with the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log, sqrt
from typing import Final

MOST_BATCHES: Final = 10
"""More would be too short to be independent of each other."""
LEAST_BATCH: Final = 3
FEWEST_JOBS: Final = 12
"""Four batches. Fewer tell nothing: they would call luck a difference."""
_Z: Final = 1.959963984540054
_T: Final = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)
"""The 97.5 % quantile for 1, 2, … degrees of freedom: scipy would cost a report more time than the rest."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its 95 % interval, null where there is but one value."""

    mean: float
    low: float | None
    high: float | None
    count: int
    """Independent values that it rests on."""

    @property
    def slack(self) -> float | None:
        """Half of the interval."""
        return None if self.high is None else self.high - self.mean


@dataclass(frozen=True, slots=True)
class Difference:
    """The ratio of two means over the same things, with its 95 % interval."""

    ratio: float
    low: float | None
    """Null, as ``high``: too few pairs."""
    high: float | None
    pairs: int

    def reversed(self) -> Difference:
        """The second mean / the first."""
        return Difference(1 / self.ratio, self.high and 1 / self.high, self.low and 1 / self.low, self.pairs)

    @property
    def is_known(self) -> bool:
        """Whether the interval leaves out that there is no difference."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def t_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's distribution."""
    if degrees <= len(_T):
        return _T[degrees - 1]
    z = _Z  # Abramowitz and Stegun, 26.7.5
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def estimate(values: Sequence[float]) -> Estimate | None:
    """The mean of independent values. Returns None without values."""
    count = len(values)
    if not count:
        return None
    middle = sum(values) / count
    if count == 1:
        return Estimate(middle, None, None, 1)
    variance = sum((value - middle) ** 2 for value in values) / (count - 1)
    slack = t_quantile(count - 1) * sqrt(variance / count)
    return Estimate(middle, middle - slack, middle + slack, count)


def difference(pairs: Sequence[tuple[float, float]], *, independent: bool = False) -> Difference | None:
    """Mean of the first values / mean of the second.

    :param pairs: of jobs, in order of submission.
    :param independent: each pair is an observation of its own: a seed or a trace, not a job.

    Returns None if there are no pairs, or a mean is 0.
    """
    count = len(pairs)
    first, second = (sum(pair[side] for pair in pairs) / max(1, count) for side in (0, 1))
    if first <= 0 or second <= 0:
        return None
    ratio = first / second
    if count < (2 if independent else FEWEST_JOBS):
        return Difference(ratio, None, None, count)
    batches = count if independent else min(MOST_BATCHES, count // LEAST_BATCH)
    # to first order, log(mean a / mean b) errs by the sum over pairs of (a / mean a − b / mean b) / count
    deviations = [left / first - right / second for left, right in pairs]
    cuts = [number * count // batches for number in range(batches + 1)]
    squares = sum(sum(deviations[low:high]) ** 2 for low, high in pairwise(cuts))
    error = sqrt(squares * batches / (batches - 1)) / count
    slack = t_quantile(batches - 1) * error
    return Difference(ratio, exp(log(ratio) - slack), exp(log(ratio) + slack), count)
