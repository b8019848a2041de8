"""Sharing GPUs among jobs with concave gains: the largest increments first, which is exact."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pliant.tools.schedule.policies.elastic_dp.gains import Floats, Gains, Ints


class Merge:
    """The max-plus sum of concave gains: all their increments in one order, largest first.

    Of equal increments those of the job that comes first in ``parts`` are taken first.
    """

    def __init__(self, parts: Sequence[Gains]) -> None:
        extras = np.array([part.most_extra for part in parts], dtype=np.int64)
        self._jobs = len(parts)
        self._owners = np.repeat(np.arange(len(parts)), extras)
        joined = np.concatenate([part.by_extra for part in parts]) if parts else np.zeros(1)
        self._steps = np.delete(np.diff(joined), np.cumsum(extras + 1)[:-1] - 1)

    def curve(self, budget: int) -> Floats:
        """[GPUs] the most that so many GPUs gain, for 0 up to ``budget`` or where gains end."""
        steps = self._steps
        if budget < steps.size:
            steps = -np.partition(-steps, budget)[:budget]
        return np.concatenate(([0.0], np.cumsum(np.sort(steps)[::-1])))

    def extras(self, budget: int) -> Ints:
        """GPUs of each part when ``budget`` are shared."""
        steps = self._steps
        if budget >= steps.size:
            return np.bincount(self._owners, minlength=self._jobs)
        if budget == 0:
            return np.zeros(self._jobs, dtype=np.int64)
        least = -np.partition(-steps, budget - 1)[budget - 1]
        taken = np.bincount(self._owners[steps > least], minlength=self._jobs)
        tied = self._owners[steps == least][: budget - int(taken.sum())]
        return taken + np.bincount(tied, minlength=self._jobs)
