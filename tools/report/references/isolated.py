"""Isolated fair sharing: each job alone on its average share of the cluster, as the Sia artifact has it.

v is the cluster's GPUs over the time-average of the active jobs in this run while the job lived. Where the
policy sizes jobs, the reference JCT is that of the job alone on v GPUs: linear in v between the JCTs on the
two whole numbers around it, below one GPU that on one GPU divided by v. Where it does not, and for a
job that is not elastic, it is the JCT alone at the requested size, times requested / v where v is less.

Departures: alone, a job runs at the best of its measured sizes up to v, whatever the policy would choose, and
it starts at once, so that no wait for the first round has to be taken off again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from math import ceil, floor

from pliant.tools.report.records import RunRecord
from pliant.tools.report.references.jobs import Point, ReferenceJob, rate_at


def isolated_finishes(run: RunRecord, jobs: Sequence[ReferenceJob]) -> dict[str, float]:
    """Arrival plus isolated JCT of each finished job, seconds; O(jobs · log jobs).

    Unlike the other references it depends on what the policy did, through the jobs active at a time.
    """
    share = _Shares(run)
    sizes_jobs = any(step.gpus not in (0, job.job.gpus.requested) for job in run.jobs for step in job.steps)
    known = {job.id: job for job in jobs}
    finishes: dict[str, float] = {}
    rate = cache(_best_rate)
    for record in run.with_outcome("finished"):
        job = known.get(record.id)
        if job is None or record.end_s is None or record.end_s <= record.submit_s:
            continue
        gpus = share.mean(record.submit_s, record.end_s)
        requested = record.job.gpus.requested
        if sizes_jobs and record.job.elastic != "none":
            jct_s = _between(gpus, *(job.samples / rate(job.curve, n) for n in _around(gpus)))
        else:
            jct_s = job.samples / rate_at(record.curve, requested) * max(1.0, requested / gpus)
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
        """Cluster GPUs over the mean number of active jobs; both times are those of a job."""
        return self._gpus * (end_s - start_s) / (self._area[end_s] - self._area[start_s])


def _around(gpus: float) -> tuple[int, int]:
    """The whole numbers of GPUs at and above; one at least."""
    return max(1, floor(gpus)), max(1, ceil(gpus))


def _between(gpus: float, low_s: float, high_s: float) -> float:
    if gpus < 1:
        return low_s / gpus
    return low_s + (gpus - floor(gpus)) * (high_s - low_s)


def _best_rate(curve: tuple[Point, ...], gpus: int) -> float:
    """The largest rate at up to N GPUs."""
    return max(rate_at(curve, gpus), *(rate for size, rate in curve if size <= gpus), 0.0)
