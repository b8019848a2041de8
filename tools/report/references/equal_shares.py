"""References in which jobs share the cluster equally: fluid along measured curves, and in GPS.

Fluid fair sharing is the fair-sharing JCT of Ares (ACM TACO 2025), section 5; generalized processor sharing
with linear scaling is section 3.2 there. :mod:`.equal_deals` has equal shares in whole GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any, Final

from pliant.tools.report.references.isolated import Point, ReferenceJob, at_most_linear, boundaries

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_CACHED_RATES: Final = 2_000_000
"""Most rates kept in memory."""
_DIGITS: Final = 12
"""Significant digits of a rate by GPU: jobs that differ by less share one curve."""
_FEW: Final = 8
"""Up to as many groups plain numbers are faster than vectors."""


def fluid_finishes(jobs: Sequence[ReferenceJob], capacity: Sequence[tuple[float, int]]) -> dict[str, float]:
    """Finish time of each job under fluid fair sharing, seconds; a job that never finishes is left out.

    With N(t) active jobs and M(t) GPUs each job holds M/N GPUs, also fractions, and runs at the speed of its
    own curve, without rescale cost. Jobs with equal curves advance together: each such group has one clock of
    samples per job and one heap of the readings at which its members end, so that an event costs one vector
    operation over the groups.
    """
    curves = sorted({job.curve for job in jobs})
    groups = _FewGroups(curves) if len(curves) <= _FEW else _Groups(curves)
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
    """Jobs by curve. ``clock[g]``: samples that a member of group g trained since it was last empty."""

    def __init__(self, curves: Sequence[tuple[Point, ...]]) -> None:
        import numpy as np

        self.active = 0
        self._index = {curve: index for index, curve in enumerate(curves)}
        self._heaps: list[list[tuple[float, str]]] = [[] for _ in curves]
        self._clock: Any = np.zeros(len(curves))
        self._next: Any = np.full(len(curves), inf)
        self._curves = _Curves(curves)
        self._gaps = np.empty(len(curves))
        self._by_share: dict[float, Any] = {}

    def add(self, job: ReferenceJob) -> None:
        group = self._index[job.curve]
        heap = self._heaps[group]
        if not heap:
            self._clock[group] = 0.0
        heappush(heap, (float(self._clock[group]) + job.samples, job.id))
        self._next[group] = heap[0][0]
        self.active += 1

    def next_end(self, speeds: Any) -> tuple[float, int]:
        """Seconds until the next job ends at these speeds, and its group."""
        gaps = self._gaps
        gaps[:] = self._next
        gaps -= self._clock
        gaps /= speeds
        group = int(gaps.argmin())
        return max(0.0, gaps.item(group)), group

    def end(self, group: int, speeds: Any, seconds: float) -> str:
        """Let ``seconds`` pass and remove the next job of the group; returns its id."""
        self.advance(speeds, seconds)
        heap = self._heaps[group]
        self._clock[group], job_id = heappop(heap)
        self._next[group] = heap[0][0] if heap else inf
        self.active -= 1
        return job_id

    def advance(self, speeds: Any, seconds: float) -> None:
        self._clock += speeds * seconds

    def speeds(self, share: float) -> Any:
        """Samples per second of every group when each job holds ``share`` GPUs."""
        found = self._by_share.get(share)
        if found is None:
            if len(self._by_share) * len(self._clock) > _CACHED_RATES:
                self._by_share.clear()
            found = self._by_share[share] = self._curves.at(share)
        return found


class _FewGroups(_Groups):
    """The same with lists in the place of vectors."""

    def __init__(self, curves: Sequence[tuple[Point, ...]]) -> None:
        super().__init__(curves)
        self._clock, self._next = [0.0] * len(curves), [inf] * len(curves)

    def next_end(self, speeds: Any) -> tuple[float, int]:
        gaps = [(end - now) / speed for end, now, speed in zip(self._next, self._clock, speeds, strict=True)]
        least = min(gaps)
        return max(0.0, least), gaps.index(least)

    def advance(self, speeds: Any, seconds: float) -> None:
        self._clock = [now + speed * seconds for now, speed in zip(self._clock, speeds, strict=True)]

    def speeds(self, share: float) -> Any:
        found = self._by_share.get(share)
        if found is None:
            found = self._by_share[share] = super().speeds(share).tolist()
        return found


class _Curves:
    """Curves from (0, 0) to their last rate, a row each, padded with segments of infinite length."""

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
        segment = (self._sizes <= share).sum(axis=1) + self._before
        part = (share - self._sizes.take(segment)) / self._lengths.take(segment)
        found: NDArray[np.float64] = self._rates.take(segment) + part * self._rises.take(segment)
        return found


def gps_jobs(jobs: Sequence[ReferenceJob]) -> tuple[ReferenceJob, ...]:
    """The jobs with curves that are at most linear, so that fluid fair sharing is GPS.

    With N(t) active jobs and M(t) GPUs each job receives M/N GPU-seconds per second until it has received its
    demand. Departure from the paper: it receives no more than it can use, the best of its speeds at up to M/N
    GPUs over its speed for each GPU that it requests.
    """
    linear = cache(at_most_linear)
    rounded = cache(lambda per_gpu: float(f"{per_gpu:.{_DIGITS}g}"))

    def in_gps(job: ReferenceJob) -> ReferenceJob:
        curve = linear(job.curve, rounded(job.samples / job.demand_gpu_s))
        return job if curve == job.curve else replace(job, curve=curve)

    return tuple(map(in_gps, jobs))
