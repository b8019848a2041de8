"""Generalized processor sharing with linear scaling: Ares (ACM TACO 2025), section 3.2."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

from pliant.tools.report.references.jobs import ReferenceJob, boundaries


def gps_finishes(jobs: Sequence[ReferenceJob], capacity: Sequence[tuple[float, int]]) -> dict[str, float]:
    """Finish time of each job in GPS, seconds.

    With N(t) active jobs and M(t) GPUs each job receives M/N GPU-seconds per second, also beyond its own
    largest size. Virtual time V grows by that rate, so a job that arrives at a leaves when
    V reaches V(a) + its demand: one heap, O(log N) an event. A job that never finishes is left out.
    """
    finishes: dict[str, float] = {}
    leaving: list[tuple[float, str]] = []
    virtual = 0.0
    boundary = boundaries(jobs, capacity)
    for now, arrivals, gpus, until in boundary:
        for job in arrivals:
            heappush(leaving, (virtual + job.demand_gpu_s, job.id))
        time = now
        while leaving and gpus:
            finish = time + max(0.0, leaving[0][0] - virtual) * len(leaving) / gpus
            if finish > until:
                break
            virtual, job_id = heappop(leaving)
            finishes[job_id] = time = finish
        if leaving and until < inf:
            virtual += (until - time) * gpus / len(leaving)
    return finishes
