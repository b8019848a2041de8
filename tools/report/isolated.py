"""The jobs of the references with their work and speeds; and isolated fair sharing, each job alone on its
average share of the cluster, as the Sia artifact has it.

v is the cluster's GPUs over the time-average of the active jobs in this run while the job lived. Where the
policy sizes jobs, the reference JCT is that of the job alone on v GPUs: linear in v between the JCTs on the
two whole numbers around it, below one GPU that on one GPU divided by v. Where it does not, and for a job
that is not elastic, it is the JCT alone at the requested size, times requested / v where v is less.

Departures: alone, a job runs at the best of its measured sizes up to v, whatever the policy would choose,
and it starts at once, so that no wait for the first round has to be taken off again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from pliant.schemas.job import Job
from pliant.tools.report.job_arrays import BLOCK, Floats, Integers, Jobs, ascending, distinct, reached
from pliant.tools.report.job_record import Curve
from pliant.tools.report.records import RunRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray

Point = tuple[float, float]
N = TypeVar("N", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceJobs:
    """The jobs of a reference in order of arrival; arrays of shape (jobs,)."""

    job: Integers
    """Row among the jobs of the run."""
    arrival_s: Floats
    samples: Floats
    curves: Sequence[tuple[Point, ...]]
    """None of them falls, and each is flat from its best size on."""
    curve: Integers
    """Place in these."""
    demand_gpu_s: Floats

    def __len__(self) -> int:
        return len(self.job)

    @property
    def alone_s(self) -> Floats:
        """Time that each takes alone on its best size."""
        return self.samples / np.array([curve[-1][1] for curve in self.curves], np.float64)[self.curve]

    def have_load_of(self, other: ReferenceJobs) -> bool:
        """Whether both arrive at the same times with the same work at the same speeds."""
        return (
            np.array_equal(self.arrival_s, other.arrival_s)
            and np.array_equal(self.samples, other.samples)
            and np.array_equal(self.demand_gpu_s, other.demand_gpu_s)
            and self.has_curves_of(other)
        )

    def has_curves_of(self, other: ReferenceJobs) -> bool:
        """Whether each job has the same curve in both."""
        pairs, _ = distinct_pairs(self.curve, other.curve)
        return all(self.curves[mine] == other.curves[its] for mine, its in pairs)


def reference_jobs(run: RunRecord, as_if: Callable[[Job], Job] = lambda job: job) -> ReferenceJobs:
    """The jobs that can take part, in order of arrival.

    A job takes part with the work it stated; if it stated none, failed or was cancelled, with the samples it
    did. Unfinished and rejected jobs count too: all policies are held against one reference. Left out are
    jobs whose work or speed is unknown, or that no policy can run on this cluster.

    :param as_if: gives a job other limits.
    """
    jobs, cluster_gpus = run.jobs, run.total_gpus
    samples = _work(jobs)
    least = jobs.counts(lambda job: as_if(job).min_gpus)
    has_curve = np.array([bool(curve) for curve in jobs.curves], bool)[jobs.curve]
    at = np.flatnonzero((samples > 0) & has_curve & (least <= run.largest_gang))
    samples = _some(samples, at)
    most = _some(jobs.counts(lambda job: as_if(job).max_gpus(cluster_gpus)), at)
    pairs, place = distinct_pairs(_some(jobs.curve, at), most)
    usable = {pair: usable_curve(jobs.curves[curve], size) for pair, (curve, size) in enumerate(pairs)}
    curves = [*dict.fromkeys(usable.values())]
    number = {curve: number for number, curve in enumerate(curves)}
    curve = np.array([number[usable[pair]] for pair in range(len(pairs))], np.int32)[place]
    demand_gpu_s = _demand_gpu_s(jobs, at, samples)
    return ReferenceJobs(at.astype(np.int32), _some(jobs.submit_s, at), samples, curves, curve, demand_gpu_s)


def _some(values: NDArray[N], at: Integers) -> NDArray[N]:
    """Those at some places, ascending; without a copy if they are all."""
    return values if len(at) == len(values) else values[at]


def distinct_pairs(first: Integers, second: Integers) -> tuple[list[tuple[int, int]], Integers]:
    """Each pair of whole numbers once, and the place of each pair among these."""
    width = int(second.max()) + 1 if len(second) else 1
    keys, place = distinct(first.astype(np.int64) * width + second)
    return [divmod(key, width) for key in keys.tolist()], place


def _demand_gpu_s(jobs: Jobs, at: Integers, samples: Floats) -> Floats:
    """As the log states for this part of the work, else from the curve."""
    requested = jobs.counts(lambda job: job.gpus.requested)[at]
    is_rigid = jobs.counts(lambda job: job.elastic == "none")[at]
    pairs, place = distinct_pairs(jobs.curve[at], 2 * requested.astype(np.int64) + is_rigid)

    def speed(curve: Curve, size: int, *, rigid: bool) -> float:
        return rate_at(curve if rigid else usable_curve(curve, size), size)

    stated, all_samples = _some(jobs.demand_gpu_s, at), _some(jobs.samples, at)
    demands = stated * samples / all_samples
    unknown = np.isnan(demands)
    if unknown.any():
        speeds = [
            speed(jobs.curves[curve], size, rigid=bool(rigid))
            for curve, (size, rigid) in ((curve, divmod(key, 2)) for curve, key in pairs)
        ]
        by_curve = requested * samples / np.array(speeds)[place]
        demands = np.where(unknown, by_curve, demands)
    return demands


def _work(jobs: Jobs) -> Floats:
    """NaN: unknown."""
    stopped = jobs.have_outcome("failed") | jobs.have_outcome("cancelled")
    unstated = np.isnan(jobs.samples) & jobs.have_outcome("finished")
    return np.where(stopped | unstated, jobs.samples_done, jobs.samples)


def usable_curve(curve: Curve, max_gpus: int) -> tuple[Point, ...]:
    """The best rate at any size up to a share of GPUs.

    The curve is cut at the job's largest and at its best size, and flat over dips before.
    """
    points: list[Point] = [(size, rate) for size, rate in curve if size <= max_gpus]
    if not points or points[-1][0] < max_gpus:
        points.append((max_gpus, rate_at(curve, max_gpus)))
    corners = points[:1]
    for (left, left_rate), (size, rate) in pairwise(points):
        best = corners[-1][1]
        if rate > best:
            if left > corners[-1][0]:  # out of a dip: where the curve comes back to its best
                corners.append((left + (size - left) * (best - left_rate) / (rate - left_rate), best))
            corners.append((size, rate))
    return tuple(corners)


def at_most_linear(curve: tuple[Point, ...], per_gpu: float) -> tuple[Point, ...]:
    """The smaller of a usable curve and ``per_gpu`` times the GPUs, at every number of GPUs."""
    corners: list[Point] = []
    left, left_rate = 0.0, 0.0
    for size, rate in (*curve, (inf, curve[-1][1])):
        above, then = left_rate - per_gpu * left, rate - per_gpu * size
        if above * then < 0:  # they cross; beyond the last size the curve is flat
            part = 0.0 if size == inf else above / (above - then)
            crossing = rate / per_gpu if size == inf else left + part * (size - left)
            corners.append((crossing, per_gpu * crossing))
        if size < inf:
            corners.append((size, min(rate, per_gpu * size)))
        left, left_rate = size, rate
    return tuple(corners)


def rate_at(curve: tuple[Point, ...] | Curve, gpus: float) -> float:
    """Samples per second. Linear between sizes, in proportion below the smallest, flat above the largest."""
    left, left_rate = 0.0, 0.0
    for size, rate in curve:
        if gpus <= size:
            return left_rate + (rate - left_rate) * (gpus - left) / (size - left)
        left, left_rate = size, rate
    return left_rate


Boundary = tuple[float, range, int, float]


def boundaries(jobs: ReferenceJobs, capacity: Sequence[tuple[float, int]]) -> Iterator[Boundary]:
    """Arrivals and capacity changes: (time, jobs that arrive, GPUs from then on, next such time), in order.

    The first entry of ``capacity`` holds from the start.
    """
    changes = dict(capacity[1:])
    times_s = ascending(np.concatenate([jobs.arrival_s, np.fromiter(changes, np.float64, len(changes))]))
    ends = np.searchsorted(jobs.arrival_s, times_s, side="right")
    gpus, first = capacity[0][1], 0
    for begin in range(0, len(times_s), BLOCK):
        block = times_s[begin : begin + BLOCK + 1].tolist()
        following = (*block[1:], inf) if begin + BLOCK >= len(times_s) else block[1:]
        for time_s, end, until_s in zip(block, ends[begin : begin + BLOCK].tolist(), following, strict=False):
            gpus = changes.get(time_s, gpus)
            yield time_s, range(first, end), gpus, until_s
            first = end


def isolated_finishes(run: RunRecord, jobs: ReferenceJobs) -> Floats:
    """Arrival plus isolated JCT of each of the jobs, seconds; NaN of those that did not finish.

    O(jobs · log jobs).
    """
    finishes = np.full(len(jobs), np.nan)
    every, steps = run.jobs, run.jobs.steps
    shares, asked = _Shares(run), every.counts(lambda job: job.gpus.requested)
    is_sized = every.counts(lambda job: job.elastic != "none").astype(bool)
    if not ((steps.gpus > 0) & (steps.gpus != asked[steps.job])).any():
        is_sized[:] = False
    ended = every.have_outcome("finished") & (every.end_s > every.submit_s)
    for first in range(0, len(jobs), BLOCK):
        at = first + np.flatnonzero(ended[jobs.job[first : first + BLOCK]])
        row = jobs.job[at]
        share, sized = shares.means(row), is_sized[row]
        kept = at[~sized], asked[row][~sized], share[~sized]
        finishes[at[~sized]] = jobs.arrival_s[at[~sized]] + _as_requested_s(every, jobs, *kept)
        finishes[at[sized]] = jobs.arrival_s[at[sized]] + _on_share_s(jobs, at[sized], share[sized])
    return finishes


def _as_requested_s(
    every: Jobs, jobs: ReferenceJobs, at: Integers, requested: Integers, share: Floats
) -> Floats:
    """JCT of some jobs alone on the GPUs that they request, or in proportion on a smaller share."""
    speeds = _rates(every.curves, every.curve[jobs.job[at]], requested, rate_at)
    return jobs.samples[at] / speeds * np.maximum(1.0, requested / share)


def _on_share_s(jobs: ReferenceJobs, at: Integers, share: Floats) -> Floats:
    """JCT of some jobs alone on the best size within their share."""
    low, high = np.floor(share), np.ceil(share)
    low_s, high_s = (
        jobs.samples[at] / _rates(jobs.curves, jobs.curve[at], np.maximum(1, n).astype(np.int64), _best_rate)
        for n in (low, high)
    )
    return np.where(share < 1, low_s / share, low_s + (share - low) * (high_s - low_s))


def _rates(
    curves: Sequence[tuple[Point, ...]] | Sequence[Curve],
    curve: Integers,
    gpus: Integers,
    of: Callable[..., float],
) -> Floats:
    """Samples per second of curves at numbers of GPUs; many jobs have the same of both."""
    pairs, place = distinct_pairs(curve, gpus)
    return np.array([of(curves[number], size) for number, size in pairs], np.float64)[place]


class _Shares:
    """The integral of the number of active jobs over time, by the times at which it changes."""

    def __init__(self, run: RunRecord) -> None:
        self._submit_s = run.jobs.submit_s
        self._end_s = np.where(np.isnan(run.jobs.end_s), run.last_event_s, run.jobs.end_s)
        self._gpus = run.total_gpus
        self._times_s = ascending(np.concatenate([self._submit_s, self._end_s]))
        active = reached(np.sort(self._submit_s), self._times_s)
        active -= reached(np.sort(self._end_s), self._times_s)
        self._area = np.zeros(max(1, len(self._times_s)))
        np.multiply(np.diff(self._times_s), active[:-1], out=self._area[1:])
        np.cumsum(self._area, out=self._area)

    def means(self, rows: Integers) -> Floats:
        """Cluster GPUs over the mean number of jobs that were active while each of some jobs was."""
        start_s, end_s = self._submit_s[rows], self._end_s[rows]
        before, until = (self._area[np.searchsorted(self._times_s, each)] for each in (start_s, end_s))
        gpus: Floats = self._gpus * (end_s - start_s) / (until - before)
        return gpus


def _best_rate(curve: tuple[Point, ...], gpus: int) -> float:
    return max(rate_at(curve, gpus), *(rate for size, rate in curve if size <= gpus), 0.0)
