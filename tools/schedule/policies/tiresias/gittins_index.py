"""What jobs that finished say of one that has had some service: the Gittins index."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Services:
    """The service of finished jobs, GPU-seconds each; their order is no matter."""

    def __init__(self, known: Iterable[float] = ()) -> None:
        self._sorted: Floats = np.array(sorted(known), dtype=np.float64)
        self._sums = _sums(self._sorted)

    def add(self, services: Iterable[float]) -> None:
        """More jobs have finished. O(jobs known)."""
        more = np.array(sorted(services), dtype=np.float64)
        if more.size:
            self._sorted = np.insert(self._sorted, np.searchsorted(self._sorted, more), more)
            self._sums = _sums(self._sorted)

    def indices(self, attained: Floats, quantum: float) -> Floats:
        """Gittins index of jobs that attained so much, for a quantum of service; 1 / GPU-seconds.

        The probability that a job finishes within the next quantum, over the service that it is expected to
        take of that quantum: P(S - a <= q | S > a) / E[min(S - a, q) | S > a], S as the finished jobs had
        it. 0 where none of them took more than ``attained``.
        """
        first = np.searchsorted(self._sorted, attained, side="right")
        last = np.searchsorted(self._sorted, attained + quantum, side="right")
        ending, beyond = last - first, len(self._sorted) - last
        taken = self._sums[last] - self._sums[first] - ending * attained + beyond * quantum
        found: Floats = np.divide(ending, taken, out=np.zeros(len(attained)), where=ending > 0)
        return found


def _sums(values: Floats) -> Floats:
    """Sums of the first 0, 1, 2, … values."""
    return np.concatenate(([0.0], np.cumsum(values)))
