"""References in which jobs share the cluster equally: fluid along measured curves, in GPS, and in whole
GPUs.

Fluid fair sharing is the fair-sharing JCT of Ares (ACM TACO 2025), section 5; generalized processor sharing
with linear scaling is section 3.2 there. A policy may promise not to fall behind equal shares in whole GPUs.

A deal of whole GPUs holds for ``deal_s`` seconds, or until the GPUs change; every job trains for ``lost_s``
seconds less. Every job gets the same number of GPUs within its limits. Jobs with the fewest GPU-seconds come
first: they get the surplus, and if not all minima fit the others sit out a deal. A job enters at the first
deal after its submission and grace, and leaves with the deal in which it completes its work.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from heapq import heappop, heappush
from math import floor, inf
from typing import TYPE_CHECKING, Any, Final

from pliant.schemas.runinfo import EqualDeals
from pliant.tools.report.references.isolated import Point, ReferenceJob, at_most_linear, boundaries, rate_at

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_CACHED_RATES: Final = 2_000_000
"""Most rates kept in memory."""
_DIGITS: Final = 12
"""Significant digits of a rate by GPU: jobs that differ by less share one curve."""
_FEW: Final = 8
"""Up to as many groups plain numbers are faster than vectors."""
_ROUNDING: Final = 1e-9
_MOST_DEALS: Final = 1_000_000
"""19 years of ten minutes each; a job that takes longer never ends."""


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


@dataclass(slots=True)
class _Sharer:
    job: ReferenceJob
    enters_s: float
    done: float = 0.0
    service_gpu_s: float = 0.0
    gpus: int = 0
    rate: float = 0.0


def equal_deal_finishes(
    jobs: Sequence[ReferenceJob],
    capacity: Sequence[tuple[float, int]],
    terms: EqualDeals,
    left_s: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Ends of the deals in which the jobs end, seconds; a job that never ends is left out.

    :param left_s: when jobs were stopped, by id; they take no share of later deals.
    """
    entering = (_Sharer(job, job.arrival_s + terms.grace_s + terms.grace * job.alone_s) for job in jobs)
    coming = sorted(entering, key=lambda each: each.enters_s, reverse=True)
    changes = [(time_s, gpus) for time_s, gpus in capacity[1:]]
    gone = left_s or {}
    there: list[_Sharer] = []
    finishes: dict[str, float] = {}
    now, gpus = 0.0, capacity[0][1]
    for _ in range(_MOST_DEALS):
        if not coming and not there:
            break
        if not there:
            now = max(now, coming[-1].enters_s)
        while coming and coming[-1].enters_s <= now:
            there.append(coming.pop())
        while changes and changes[0][0] <= now:
            gpus = changes.pop(0)[1]
        until = min(now + terms.deal_s, changes[0][0] if changes else inf)
        there = [each for each in there if gone.get(each.job.id, inf) > now]
        trains = terms.lost_s < terms.deal_s and any(each.job.least_gpus <= gpus for each in there)
        if not changes and not coming and not trains:
            break
        _deal(there, gpus)
        for each in there:
            each.done += each.rate * max(0.0, until - now - terms.lost_s)
            each.service_gpu_s += each.gpus * (until - now)
        over = {each.job.id for each in there if each.done >= each.job.samples * (1 - _ROUNDING)}
        finishes |= dict.fromkeys(over, until)
        there, now = [each for each in there if each.job.id not in over], until
    return finishes


def _deal(there: Sequence[_Sharer], gpus: int) -> None:
    admitted, limits, left = [], [], gpus
    for each in there:
        each.gpus, each.rate = 0, 0.0
    for each in sorted(there, key=lambda each: (each.service_gpu_s, each.enters_s, each.job.id)):
        most = max(each.job.least_gpus, floor(each.job.curve[-1][0]))
        if each.job.least_gpus <= left:
            left -= each.job.least_gpus
            admitted.append(each)
            limits.append((each.job.least_gpus, most))
    for each, part in zip(admitted, _parts(gpus, limits), strict=True):
        each.gpus = each.job.sizes.whole(part)
        each.rate = rate_at(each.job.curve, each.gpus)


def _parts(gpus: int, limits: Sequence[tuple[int, int]]) -> list[int]:
    """Whole GPUs, equal within the limits; the surplus goes to the first.

    Reports do not use the code of policies (``equal_shares``) that they check; a test compares the two.
    """

    def at(level: int) -> list[int]:
        return [min(max(level, low), high) for low, high in limits]

    level = bisect_right(range(gpus + 1), gpus, key=lambda level: sum(at(level))) - 1
    parts = at(level)
    over = gpus - sum(parts)
    for index, (least, most) in enumerate(limits):
        if over and least <= level < most:
            parts[index], over = parts[index] + 1, over - 1
    return parts
