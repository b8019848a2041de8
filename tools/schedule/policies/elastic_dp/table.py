"""The dynamic program of elastic-dp: one row a job, P(j, κ) = max over g of P(j - 1, κ - g) + gain of j by g.

"Effective Elastic Scaling of Deep Learning Workloads" (Saxena et al., 2020), equations 4 and 5. Departures:
rows count GPUs beyond the smallest sizes, say what *at most* κ of them gain, and end where all that the jobs
so far can use is given. The printed pseudo-code indexes the gain with κ where the share g is meant and adds
one to κ - g; the equations are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from pliant.tools.schedule.policies.elastic_dp.gains import Floats, Gains, Ints

_CELLS: Final = 16_384
"""Sums that are looked at together: they stay in the fastest caches."""


class Table:
    """Rows of jobs of any gains. Of equally good shares of a job the smallest is taken, last job first."""

    def __init__(self) -> None:
        self._gains: list[Gains] = []
        self._shares: list[Ints] = []
        """[job][κ] the GPUs beyond its smallest size that the job gets."""
        self._row = np.zeros(1)
        self._budget = 0

    def update(self, gains: Sequence[Gains], budget: int) -> None:
        """Make the rows of these jobs for up to ``budget`` GPUs, which is never more than it was before.

        Rows that are there stay if they are those of the first of these jobs.
        """
        if not self._is_start_of(gains):
            self._gains, self._shares, self._row = [], [], np.zeros(1)
        for each in gains[len(self._gains) :]:
            self._row, shares = max_plus(self._row, each.by_extra, budget)
            self._gains.append(each)
            self._shares.append(shares)
        self._budget = budget

    def curve(self) -> Floats:
        """[GPUs] the most that N gain, for N from 0 up to the budget or where gains end."""
        return self._row[: self._budget + 1]

    def extras(self, budget: int) -> list[int]:
        """GPUs of each job when ``budget`` are shared, the fewest that gain what they gain."""
        found = []
        for shares in reversed(self._shares):
            share = int(shares[budget])
            found.append(share)
            budget -= share
        return found[::-1]

    def _is_start_of(self, gains: Sequence[Gains]) -> bool:
        pairs = zip(self._gains, gains, strict=False)
        return len(self._gains) <= len(gains) and all(known is wanted for known, wanted in pairs)


def max_plus(row: Floats, gains: Floats, budget: int) -> tuple[Floats, Ints]:
    """[κ] max over g of row[κ - g] + gains[g], and the smallest such g, for κ up to ``budget`` at most.

    ``row`` goes on beyond its end as at its end; where both end, so does the result.
    """
    most, size = len(gains) - 1, row.itemsize
    reach = min(budget, len(row) - 1 + most)
    padded = np.empty(most + reach + 1)
    padded[:most] = -np.inf
    padded[most : most + len(row)] = row[: reach + 1]
    padded[most + len(row) :] = row[-1]
    shifted = np.ndarray((reach + 1, most + 1), row.dtype, padded, most * size, (size, -size))
    """[κ, g] is row[κ - g]."""
    best, shares = np.empty(reach + 1), np.empty(reach + 1, np.min_scalar_type(most))
    width = max(1, _CELLS // (most + 1))
    for start in range(0, reach + 1, width):
        sums = shifted[start : start + width] + gains
        found = sums.argmax(axis=1)
        shares[start : start + width] = found
        best[start : start + width] = sums[np.arange(len(found)), found]
    return best, shares
