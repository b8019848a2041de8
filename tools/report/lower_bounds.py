"""Lower bounds: no schedule of the jobs that finished could have a smaller mean JCT or makespan.

Two relaxations, each of which forgets one half of the problem. *Alone*: every job has its best size from its
submission on, as if the cluster were its own. *Pooled*: every job needs only the GPU-time of its cheapest
size, and the whole cluster works on one job at a time, the one with the least left, which is optimal there
(shortest remaining processing time with release times, preemptive).

They hold at the batch for which the log has scaling curves, the requested one. A job whose work or
speed is unknown counts with no time at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from pliant.tools.report.records import RunRecord
from pliant.tools.report.references.jobs import ReferenceJob, reference_jobs


@dataclass(frozen=True, slots=True)
class LowerBounds:
    """Bounds of one run, called as in the metrics; times are seconds."""

    bound_jct_alone_s: float
    """Mean JCT with every job alone."""
    bound_jct_pooled_s: float
    """Mean JCT of the pooled cluster."""
    cheapest_gpu_s: float
    """GPU-seconds of all jobs at their cheapest sizes."""
    bound_makespan_s: float
    """From the first submission on: the larger of the last end alone and the last end pooled."""

    @property
    def bound_jct_s(self) -> float:
        """The larger of the two bounds on the mean JCT."""
        return max(self.bound_jct_alone_s, self.bound_jct_pooled_s)


def lower_bounds(run: RunRecord) -> LowerBounds | None:
    """Bounds for the jobs that finished; None if none did. O(jobs · log jobs).

    None, too, of a run that measured speeds itself: jobs may be faster at sizes that they never held.
    """
    known = {job.id: job for job in reference_jobs(run)}
    finished = run.with_outcome("finished")
    if not finished or run.is_measured:
        return None
    jobs = [known[job.id] for job in finished if job.id in known]
    alone = {job.id: job.samples / job.curve[-1][1] for job in jobs}
    least = {job.id: job.job.min_gpus for job in finished}
    work = {job.id: _cheapest_gpu_s(job, least[job.id]) for job in jobs}
    pooled = least_left_first((job.arrival_s, work[job.id] / run.total_gpus, job.id) for job in jobs)
    return LowerBounds(
        sum(alone.values()) / len(finished),
        sum(pooled[job.id] - job.arrival_s for job in jobs) / len(finished),
        sum(work.values()),
        max((max(job.arrival_s + alone[job.id], pooled[job.id]) for job in jobs), default=0.0),
    )


def _cheapest_gpu_s(job: ReferenceJob, min_gpus: int) -> float:
    """GPU-seconds at the size that needs the fewest; the curve is linear in between, so one of its own."""
    sizes = [point for point in job.curve if point[0] >= min_gpus] or job.curve[-1:]
    return job.samples * min(size / rate for size, rate in sizes)


def least_left_first(jobs: Iterable[tuple[float, float, str]]) -> dict[str, float]:
    """End of each job (arrival, seconds of the whole machine, id) on one machine, least left first."""
    arrivals = sorted(jobs)
    ends: dict[str, float] = {}
    waiting: list[tuple[float, str]] = []
    time = 0.0
    for index, (arrival, seconds, job_id) in enumerate(arrivals):
        time = max(time, arrival)
        heappush(waiting, (seconds, job_id))
        until = arrivals[index + 1][0] if index + 1 < len(arrivals) else inf
        while waiting and time < until:
            left, first = heappop(waiting)
            if time + left <= until:
                time += left
                ends[first] = time
            else:
                heappush(waiting, (left - (until - time), first))
                time = until
    return ends
