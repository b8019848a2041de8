"""What is left of some jobs: exact where they state their work, else drawn from their predicted progress.

After ONES (SC '21), section 3.2.1: the progress ρ of a job is distributed as Be(α, β), and what remains of
it is Y = Y_processed (1/ρ − 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LEAST_PROGRESS: Final = 1e-3
"""Smaller progress counts as this, to keep the remaining work finite."""


@dataclass(frozen=True)
class RemainingWork:
    """Samples by job, in the order asked for."""

    exact: Floats
    """Left of jobs that state their work; NaN for others."""
    reached: Floats
    """Y_processed: samples so far, or those of the first epoch while it lasts."""
    before: Floats
    """Samples until then; 0 after the first epoch."""
    alpha: Floats
    beta: Floats

    def draws(self, rng: np.random.Generator, count: int = 1) -> Floats:
        """Samples left by [draw, job]; the order of the jobs decides which draw a job gets."""
        totals = np.broadcast_to(self.exact, (count, len(self.exact))).copy()
        unknown = np.flatnonzero(np.isnan(self.exact))
        if len(unknown):
            drawn = rng.beta(self.alpha[unknown], self.beta[unknown], size=(count, len(unknown)))
            beyond = self.reached[unknown] * (1.0 / np.maximum(drawn, _LEAST_PROGRESS) - 1.0)
            totals[:, unknown] = beyond + self.before[unknown]
        return totals

    def expected(self) -> Floats:
        """Samples left at the mean of the progress."""
        beyond = self.reached * self.beta / self.alpha
        return np.where(np.isnan(self.exact), beyond + self.before, self.exact)

    def only(self, rows: Sequence[int]) -> RemainingWork:
        parts = (self.exact, self.reached, self.before, self.alpha, self.beta)
        return RemainingWork(*(part[rows] for part in parts))


def known_work(samples: Sequence[float] | Floats) -> RemainingWork:
    ones = np.ones(len(samples))
    return RemainingWork(np.asarray(samples, dtype=np.float64), ones, 0 * ones, ones, ones)
