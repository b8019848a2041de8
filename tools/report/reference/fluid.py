"""Fluid fair sharing along measured curves: the fair-sharing JCT of Ares (ACM TACO 2025), section 5."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any, Final

from pliant.tools.report.reference.boundaries import boundaries
from pliant.tools.report.reference.jobs import Point, ReferenceJob

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CACHED_RATES: Final = 2_000_000
"""Most numbers kept in memory for shares that come up again."""


def fluid_finishes(jobs: Sequence[ReferenceJob], capacity: Sequence[tuple[float, int]]) -> dict[str, float]:
    """Finish time of each job under fluid fair sharing, seconds.

    With N(t) active jobs and M(t) GPUs each job holds M/N GPUs, a fraction too, and runs at the speed of
    its own curve there, without rescale cost. Jobs with equal curves advance together, so
    each such group has one clock of samples per job and one heap of the clock's readings at which its
    members end; an event costs one vector operation over the groups. A job that never finishes is left out.
    """
    groups = _Groups(jobs)
    finishes: dict[str, float] = {}
    for now, arrivals, gpus, until in boundaries(jobs, capacity):
        for job in arrivals:
            groups.add(job)
        time = now
        while groups.active and gpus:
            share = gpus / groups.active
            seconds, group = groups.next_end(share)
            if time + seconds > until:
                break
            time += seconds
            finishes[groups.end(group, share, seconds)] = time
        if groups.active and until < inf:
            groups.advance(gpus / groups.active, until - time)
    return finishes


class _Groups:
    """Jobs by curve; ``clock[g]`` is the samples that a member of group g trained since it was last empty."""

    def __init__(self, jobs: Sequence[ReferenceJob]) -> None:
        import numpy as np

        curves = sorted({job.curve for job in jobs})
        self.active = 0
        self._index = {curve: index for index, curve in enumerate(curves)}
        self._heaps: list[list[tuple[float, str]]] = [[] for _ in curves]
        self._clock = np.zeros(len(curves))
        self._next = np.full(len(curves), inf)
        self._sizes, self._rates = _matrices(curves)
        self._by_share: dict[float, NDArray[np.float64]] = {}

    def add(self, job: ReferenceJob) -> None:
        """A job arrives."""
        group = self._index[job.curve]
        heap = self._heaps[group]
        if not heap:
            self._clock[group] = 0.0
        heappush(heap, (float(self._clock[group]) + job.samples, job.id))
        self._next[group] = heap[0][0]
        self.active += 1

    def next_end(self, share: float) -> tuple[float, int]:
        """Seconds until the next job ends at this share, and its group."""
        gaps = (self._next - self._clock) / self._speeds(share)
        group = int(gaps.argmin())
        return max(0.0, float(gaps[group])), group

    def end(self, group: int, share: float, seconds: float) -> str:
        """Let ``seconds`` pass and the next job of the group go; returns its id."""
        self.advance(share, seconds)
        heap = self._heaps[group]
        self._clock[group], job_id = heappop(heap)
        self._next[group] = heap[0][0] if heap else inf
        self.active -= 1
        return job_id

    def advance(self, share: float, seconds: float) -> None:
        """Let ``seconds`` pass."""
        self._clock += self._speeds(share) * seconds

    def _speeds(self, share: float) -> NDArray[np.float64]:
        """Samples per second of every group when each job holds ``share`` GPUs."""
        found = self._by_share.get(share)
        if found is None:
            if len(self._by_share) * len(self._clock) > _CACHED_RATES:
                self._by_share.clear()
            found = self._by_share[share] = _interpolate(self._sizes, self._rates, share)
        return found


def _matrices(curves: Sequence[tuple[Point, ...]]) -> tuple[Any, Any]:
    """Sizes and rates, a curve in each row: from (0, 0), padded with infinite sizes at the last rate."""
    import numpy as np

    width = 2 + max((len(curve) for curve in curves), default=0)
    sizes = np.full((len(curves), width), inf)
    rates = np.zeros((len(curves), width))
    for row, curve in enumerate(curves):
        sizes[row, : len(curve) + 1] = [0.0, *(size for size, _ in curve)]
        rates[row, : len(curve) + 1] = [0.0, *(rate for _, rate in curve)]
        rates[row, len(curve) + 1 :] = curve[-1][1]
    return sizes, rates


def _interpolate(sizes: Any, rates: Any, share: float) -> NDArray[np.float64]:
    import numpy as np

    rows = np.arange(len(sizes))
    right = np.minimum((sizes <= share).sum(axis=1), sizes.shape[1] - 1)
    left = right - 1
    part = (share - sizes[rows, left]) / (sizes[rows, right] - sizes[rows, left])
    found: NDArray[np.float64] = rates[rows, left] + part * (rates[rows, right] - rates[rows, left])
    return found
