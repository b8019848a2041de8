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
from itertools import accumulate, groupby, pairwise
from math import ceil, floor, inf

from pliant.tools.report.records import Curve, JobRecord, RunRecord

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ReferenceJob:
    """``curve`` never falls, and is flat from its best size on."""

    id: str
    arrival_s: float
    samples: float
    curve: tuple[Point, ...]
    demand_gpu_s: float


def reference_jobs(run: RunRecord) -> list[ReferenceJob]:
    """The jobs that can take part, in order of arrival.

    A job takes part with the work it stated; if it stated none, failed or was cancelled, with the samples it
    did. Unfinished and rejected jobs count too: all policies are held against one reference. Left out are
    jobs whose work or speed is unknown, or that no policy can run on this cluster.
    """
    largest, cluster_gpus = run.largest_gang, run.total_gpus
    usable: dict[tuple[int, int], tuple[Point, ...]] = {}
    """By curve and largest size: runs have few curves, each of which is one object, and hashing one costs."""
    found = []
    for record in run.jobs:
        samples, job = _work(record), record.job
        least = job.min_gpus
        if samples and record.curve and least <= largest:
            key = id(record.curve), job.max_gpus(cluster_gpus)
            curve = usable.get(key)
            if curve is None:
                curve = usable[key] = usable_curve(record.curve, key[1])
            demand = _demand_gpu_s(record, samples)
            found.append(ReferenceJob(record.id, record.submit_s, samples, curve, demand))
    return found


def _demand_gpu_s(record: JobRecord, samples: float) -> float:
    """As the log states for this part of the work, else from the curve."""
    if record.demand_gpu_s is not None and record.samples:
        return record.demand_gpu_s * samples / record.samples
    requested = record.job.gpus.requested
    curve = record.curve if record.job.elastic == "none" else usable_curve(record.curve, requested)
    return requested * samples / rate_at(curve, requested)


def _work(record: JobRecord) -> float | None:
    if record.outcome in ("failed", "cancelled"):
        return record.samples_done
    if record.samples is None:
        return record.samples_done if record.outcome == "finished" else None
    return record.samples


def usable_curve(curve: Curve, max_gpus: int) -> tuple[Point, ...]:
    """The best rate at any size up to a share of GPUs.

    The curve is cut at the job's largest and at its best size, and flat over dips before.
    """
    points: list[Point] = [(size, rate) for size, rate in curve if size <= max_gpus]
    if not points or points[-1][0] < max_gpus:
        points.append((max_gpus, rate_at(curve, max_gpus)))
    found = points[:1]
    for (left, left_rate), (size, rate) in pairwise(points):
        best = found[-1][1]
        if rate > best:
            if left > found[-1][0]:  # out of a dip: where the curve comes back to its best
                found.append((left + (size - left) * (best - left_rate) / (rate - left_rate), best))
            found.append((size, rate))
    return tuple(found)


def at_most_linear(curve: tuple[Point, ...], per_gpu: float) -> tuple[Point, ...]:
    """The smaller of a usable curve and ``per_gpu`` times the GPUs, at every number of GPUs."""
    found: list[Point] = []
    left, left_rate = 0.0, 0.0
    for size, rate in (*curve, (inf, curve[-1][1])):
        above, then = left_rate - per_gpu * left, rate - per_gpu * size
        if above * then < 0:  # they cross; beyond the last size the curve is flat
            part = 0.0 if size == inf else above / (above - then)
            crossing = rate / per_gpu if size == inf else left + part * (size - left)
            found.append((crossing, per_gpu * crossing))
        if size < inf:
            found.append((size, min(rate, per_gpu * size)))
        left, left_rate = size, rate
    return tuple(found)


def rate_at(curve: tuple[Point, ...] | Curve, gpus: float) -> float:
    """Samples per second. Linear between sizes, in proportion below the smallest, flat above the largest."""
    left, left_rate = 0.0, 0.0
    for size, rate in curve:
        if gpus <= size:
            return left_rate + (rate - left_rate) * (gpus - left) / (size - left)
        left, left_rate = size, rate
    return left_rate


Boundary = tuple[float, list[ReferenceJob], int, float]


def boundaries(jobs: Sequence[ReferenceJob], capacity: Sequence[tuple[float, int]]) -> Iterator[Boundary]:
    """Arrivals and capacity changes: (time, jobs that arrive, GPUs from then on, next such time), in order.

    ``jobs`` are in order of arrival; the first entry of ``capacity`` holds from the start.
    """
    arrivals = {time: list(group) for time, group in groupby(jobs, key=lambda job: job.arrival_s)}
    changes = dict(capacity[1:])
    times = sorted(arrivals.keys() | changes.keys())
    gpus = capacity[0][1]
    for index, time in enumerate(times):
        gpus = changes.get(time, gpus)
        yield time, arrivals.get(time, []), gpus, times[index + 1] if index + 1 < len(times) else inf


def isolated_finishes(run: RunRecord, jobs: Sequence[ReferenceJob]) -> dict[str, float]:
    """Arrival plus isolated JCT of each finished job, seconds; O(jobs · log jobs)."""
    share = _Shares(run)
    sizes_jobs = any(
        step.gpus and step.gpus != job.job.gpus.requested for job in run.jobs for step in job.steps
    )
    known = {job.id: job for job in jobs}
    finishes: dict[str, float] = {}
    rates: dict[tuple[int, float], float] = {}
    """By curve, which is one object for many jobs, and GPUs."""

    def rate(curve: tuple[Point, ...] | Curve, gpus: int, of: Callable[..., float]) -> float:
        key = id(curve), gpus
        found = rates.get(key)
        if found is None:
            found = rates[key] = of(curve, gpus)
        return found

    for record in run.with_outcome("finished"):
        asked = record.job
        job = known.get(asked.id)
        if job is None or record.end_s is None or record.end_s <= record.submit_s:
            continue
        gpus = share.mean(record.submit_s, record.end_s)
        requested = asked.gpus.requested
        if sizes_jobs and asked.elastic != "none":
            low_s, high_s = (
                job.samples / rate(job.curve, max(1, n), _best_rate) for n in (floor(gpus), ceil(gpus))
            )
            jct_s = low_s / gpus if gpus < 1 else low_s + (gpus - floor(gpus)) * (high_s - low_s)
        else:
            jct_s = job.samples / rate(record.curve, requested, rate_at) * max(1.0, requested / gpus)
        finishes[job.id] = job.arrival_s + jct_s
    return finishes


class _Shares:
    """The integral of the number of active jobs over time, by the times at which it changes."""

    def __init__(self, run: RunRecord) -> None:
        changes: dict[float, int] = {}
        for job in run.jobs:
            end = run.last_event_s if job.end_s is None else job.end_s
            changes[job.submit_s] = changes.get(job.submit_s, 0) + 1
            changes[end] = changes.get(end, 0) - 1
        self._gpus = run.total_gpus
        times = sorted(changes)
        active = list(accumulate(changes[time] for time in times))
        areas = ((right - left) * jobs for (left, right), jobs in zip(pairwise(times), active, strict=False))
        self._area = dict(zip(times, accumulate(areas, initial=0.0), strict=False))

    def mean(self, start_s: float, end_s: float) -> float:
        """Cluster GPUs over the mean number of active jobs; both times must be those of a job."""
        return self._gpus * (end_s - start_s) / (self._area[end_s] - self._area[start_s])


def _best_rate(curve: tuple[Point, ...], gpus: int) -> float:
    return max(rate_at(curve, gpus), *(rate for size, rate in curve if size <= gpus), 0.0)
