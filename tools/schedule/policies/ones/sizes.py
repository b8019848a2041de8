"""What jobs may have and what it is worth: allowed sizes, and GPU-seconds for a sample at each, as tables."""

from __future__ import annotations

import numpy as np

from pliant.tools.schedule.policies.ones.genome import Floats, Ints


class Sizes:
    """Tables by [job, GPUs], for many genomes at once.

    :param utilization: GPU-seconds for a sample, c / X; 0 for no GPUs, infinite where a size is not allowed.
    """

    def __init__(self, utilization: Floats) -> None:
        jobs, width = utilization.shape
        feasible = np.isfinite(utilization)
        self.utilization = utilization
        self._allowed = np.maximum.accumulate(np.where(feasible, np.arange(width), 0), axis=1)
        self.most = self._allowed[:, -1]
        """The largest size of each job."""
        self.largest = utilization[np.arange(jobs), self.most]
        """GPU-seconds for a sample at the largest size of each job."""
        above = np.where(feasible, np.arange(width), np.iinfo(np.int32).max)
        above = np.minimum.accumulate(above[:, ::-1], axis=1)[:, ::-1]
        self._next = np.concatenate([above[:, 1:], np.full((jobs, 1), np.iinfo(np.int32).max)], axis=1)
        self.least = self._next[:, 0]
        """The smallest size of each job; beyond any cluster for one that has none."""
        self._offsets = np.arange(jobs) * width

    def fitted(self, counts: Ints) -> Ints:
        """The largest allowed sizes up to these, by [genome, job]."""
        return np.asarray(self._allowed.ravel()[np.minimum(counts, self._last) + self._offsets])

    def step_up(self, counts: Ints) -> Ints:
        """GPUs to the next allowed size, beyond any cluster where there is none; sizes must be allowed."""
        return np.asarray(self._next.ravel()[counts + self._offsets]) - counts

    def of(self, counts: Ints) -> Floats:
        """GPU-seconds for a sample by [genome, job]; sizes must be allowed."""
        return np.asarray(self.utilization.ravel()[counts + self._offsets])

    @property
    def _last(self) -> int:
        return int(self.utilization.shape[1]) - 1
