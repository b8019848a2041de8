"""The optimizer of elastic-dp: the sizes of jobs for which their scaling factors have the largest sum.

"Effective Elastic Scaling of Deep Learning Workloads" (Saxena et al., 2020), section III-C: maximise the sum
of w_j · s_j(k_j) with kmin_j <= k_j <= kmax_j and no more than K GPUs in all, and no user's jobs above a
quota. Departures from the paper, none of which changes the optimum: the smallest sizes are paid first, so
trying one more job takes no row of the dynamic program; jobs with concave gains need no rows, as their
increments are merged (:class:`Merge`), and only the others go through the table (:class:`GainTable`); a user
with a quota is solved alone and takes part in the whole as one job.

Of equally good allocations: no job gets a GPU that gains nothing; jobs without concave gains (users with a
quota among them) together get the fewest; among either kind, those added later get fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from pliant.tools.schedule.policies.elastic_dp.curves import Floats, Gains, Ints

_CELLS: Final = 16_384
"""Sums that are looked at together: they stay in the fastest caches."""


class Optimizer:
    """The sizes of jobs, added one by one, on GPUs of one kind. What was solved before is used again."""

    def __init__(self, gpus: int, quota: int | None = None) -> None:
        """:param quota: GPUs that the jobs of one user may hold."""
        # GPUs beyond the smallest sizes of the jobs added.
        self.left = gpus
        self._quota = quota
        # Smallest sizes of the jobs, in order.
        self._sizes: list[int] = []
        self._free = _Group()
        # By user, where there is a quota.
        self._limited: dict[str, _Group] = {}
        self._whole = JointShare()

    def left_for(self, user: str = "") -> int:
        if self._quota is None or not user:
            return self.left
        known = self._limited.get(user)
        return min(self.left, self._quota if known is None else known.left)

    def add(self, gains: Gains, user: str = "") -> bool:
        """Returns False, and changes nothing, where the smallest sizes no longer fit."""
        if gains.least > self.left_for(user):
            return False
        self.left -= gains.least
        group = self._free
        if self._quota is not None and user:
            group = self._limited.setdefault(user, _Group(self._quota))
        group.left -= gains.least
        group.jobs.append(gains)
        group.places.append(len(self._sizes))
        self._sizes.append(gains.least)
        return True

    def sizes(self) -> list[int]:
        limited = self._limited.values()
        self._whole.update([*self._free.jobs, *(group.as_one(self.left) for group in limited)], self.left)
        extras = self._whole.extras(self.left)
        sizes = list(self._sizes)
        for place, extra in zip(self._free.places, extras, strict=False):
            sizes[place] += extra
        for group, budget in zip(limited, extras[len(self._free.jobs) :], strict=True):
            for place, extra in zip(group.places, group.share.extras(budget), strict=True):
                sizes[place] += extra
        return sizes


class JointShare:
    """Jobs that share GPUs: what they gain together, and how they share."""

    def __init__(self) -> None:
        self._jobs: Sequence[Gains] = ()
        self._budget = 0
        self._table = GainTable()
        self._merge = Merge(())

    def update(self, jobs: Sequence[Gains], budget: int) -> None:
        self._jobs, self._budget = jobs, budget
        self._merge = Merge([job for job in jobs if job.concave])
        self._table.update([job for job in jobs if not job.concave], budget)

    def curve(self) -> Floats:
        """[GPUs] the most that N gain, for N from 0 up to the budget or where gains end."""
        merged, row = self._merge.curve(self._budget), self._table.curve()
        if len(row) == 1 or len(merged) == 1:
            return max(row, merged, key=len)
        longer, shorter = sorted((row, merged), key=len, reverse=True)
        return max_plus(longer, shorter, self._budget)[0]

    def extras(self, budget: int) -> list[int]:
        """GPUs of each job beyond its smallest size when ``budget`` are shared."""
        for_table = self._for_table(budget)
        merged = iter(self._merge.extras(budget - for_table).tolist())
        tabled = iter(self._table.extras(for_table))
        return [next(merged if job.concave else tabled) for job in self._jobs]

    def _for_table(self, budget: int) -> int:
        """The smallest part of ``budget`` that is best given to the jobs without concave gains."""
        row = self._table.curve()[: budget + 1]
        if len(row) == 1:
            return 0
        merged = self._merge.curve(budget)
        left = np.minimum(budget - np.arange(len(row)), len(merged) - 1)
        return int((row + merged[left]).argmax())


@dataclass(slots=True)
class _Group:
    """Jobs whose GPUs are limited together, or by nothing but the whole."""

    left: int = 0
    """GPUs beyond their smallest sizes."""
    jobs: list[Gains] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """Where they stand among all jobs."""
    share: JointShare = field(default_factory=JointShare)

    def as_one(self, budget: int) -> Gains:
        """All of them as one job, for up to ``budget`` GPUs."""
        self.share.update(self.jobs, min(budget, self.left))
        gains = Gains.of(np.concatenate(([0.0], self.share.curve())))
        assert gains is not None, "nothing more is feasible"  # noqa: S101
        return gains


# Jobs with concave gains: increments merged.


class Merge:
    """The max-plus sum of concave gains: all increments, largest first, of equal ones the first part's."""

    def __init__(self, parts: Sequence[Gains]) -> None:
        extras = np.array([part.most_extra for part in parts], dtype=np.int64)
        self._jobs = len(parts)
        self._owners = np.repeat(np.arange(len(parts)), extras)
        joined = np.concatenate([part.by_extra for part in parts]) if parts else np.zeros(1)
        self._steps = np.delete(np.diff(joined), np.cumsum(extras + 1)[:-1] - 1)

    def curve(self, budget: int) -> Floats:
        """[GPUs] the most that N GPUs gain, for N from 0 up to ``budget`` or where gains end."""
        steps = self._steps
        if budget < steps.size:
            steps = -np.partition(-steps, budget)[:budget]
        return np.concatenate(([0.0], np.cumsum(np.sort(steps)[::-1])))

    def extras(self, budget: int) -> Ints:
        steps = self._steps
        if budget >= steps.size:
            return np.bincount(self._owners, minlength=self._jobs)
        if budget == 0:
            return np.zeros(self._jobs, dtype=np.int64)
        least = -np.partition(-steps, budget - 1)[budget - 1]
        taken = np.bincount(self._owners[steps > least], minlength=self._jobs)
        tied = self._owners[steps == least][: budget - int(taken.sum())]
        return taken + np.bincount(tied, minlength=self._jobs)


# The others: the dynamic program.


class GainTable:
    """The dynamic program, one row a job: P(j, κ) = max over g of P(j - 1, κ - g) + gain of job j by g.

    Equations 4 and 5 of the paper. Rows count GPUs beyond the smallest sizes, say what *at most* κ of them
    gain, and end where all that the jobs so far can use is given. The printed pseudo-code indexes the gain
    with κ where the share g is meant; the equations are right. Of equally good shares of a job the smallest
    is taken, last job first.
    """

    def __init__(self) -> None:
        self._gains: list[Gains] = []
        # [job][κ] the GPUs beyond its smallest size that the job gets.
        self._shares: list[Ints] = []
        self._row = np.zeros(1)
        self._budget = 0

    def update(self, gains: Sequence[Gains], budget: int) -> None:
        """Make the rows of these jobs for up to ``budget`` GPUs, never more than before.

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
        extra_shares = []
        for shares in reversed(self._shares):
            share = int(shares[budget])
            extra_shares.append(share)
            budget -= share
        return extra_shares[::-1]

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
    # [κ, g] is row[κ - g].
    shifted = np.ndarray((reach + 1, most + 1), row.dtype, padded, most * size, (size, -size))
    best, shares = np.empty(reach + 1), np.empty(reach + 1, np.min_scalar_type(most))
    width = max(1, _CELLS // (most + 1))
    for start in range(0, reach + 1, width):
        sums = shifted[start : start + width] + gains
        best_share = sums.argmax(axis=1)
        shares[start : start + width] = best_share
        best[start : start + width] = sums[np.arange(len(best_share)), best_share]
    return best, shares
