"""Fluid fair sharing along measured curves: the fair-sharing JCT of Ares (ACM TACO 2025), section 5."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Final

from pliant.tools.report.references.jobs import Point, ReferenceJob, boundaries

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
            speeds = groups.speeds(gpus / groups.active)
            seconds, group = groups.next_end(speeds)
            if time + seconds > until:
                break
            time += seconds
            finishes[groups.end(group, speeds, seconds)] = time
        if groups.active and until < inf:
            groups.advance(groups.speeds(gpus / groups.active), until - time)
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
        self._curves = _Curves(curves)
        self._gaps = np.empty(len(curves))
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

    def next_end(self, speeds: NDArray[np.float64]) -> tuple[float, int]:
        """Seconds until the next job ends at these speeds, and its group."""
        gaps = self._gaps
        gaps[:] = self._next
        gaps -= self._clock
        gaps /= speeds
        group = int(gaps.argmin())
        return max(0.0, gaps.item(group)), group

    def end(self, group: int, speeds: NDArray[np.float64], seconds: float) -> str:
        """Let ``seconds`` pass and the next job of the group go; returns its id."""
        self.advance(speeds, seconds)
        heap = self._heaps[group]
        self._clock[group], job_id = heappop(heap)
        self._next[group] = heap[0][0] if heap else inf
        self.active -= 1
        return job_id

    def advance(self, speeds: NDArray[np.float64], seconds: float) -> None:
        """Let ``seconds`` pass."""
        self._clock += speeds * seconds

    def speeds(self, share: float) -> NDArray[np.float64]:
        """Samples per second of every group when each job holds ``share`` GPUs."""
        found = self._by_share.get(share)
        if found is None:
            if len(self._by_share) * len(self._clock) > _CACHED_RATES:
                self._by_share.clear()
            found = self._by_share[share] = self._curves.at(share)
        return found


class _Curves:
    """Curves from (0, 0) to their last rate, a row each, as segments that are padded without end."""

    def __init__(self, curves: Sequence[tuple[Point, ...]]) -> None:
        import numpy as np

        width = 1 + max((len(curve) for curve in curves), default=0)
        self._sizes = np.full((len(curves), width), inf)
        self._rates = np.zeros((len(curves), width))
        for row, curve in enumerate(curves):
            self._sizes[row, : len(curve) + 1] = [0.0, *(size for size, _ in curve)]
            self._rates[row, : len(curve) + 1] = [0.0, *(rate for _, rate in curve)]
            self._rates[row, len(curve) + 1 :] = curve[-1][1]
        with np.errstate(invalid="ignore"):  # between two paddings, where no share falls
            self._lengths = np.diff(self._sizes, append=inf)
        self._rises = np.diff(self._rates, append=self._rates[:, -1:])
        self._before = np.arange(len(curves)) * width - 1

    def at(self, share: float) -> NDArray[np.float64]:
        """Samples per second of every curve at a number of GPUs."""
        segment = (self._sizes <= share).sum(axis=1) + self._before
        part = (share - self._sizes.take(segment)) / self._lengths.take(segment)
        found: NDArray[np.float64] = self._rates.take(segment) + part * self._rises.take(segment)
        return found
