"""Generalized processor sharing with linear scaling: Ares (ACM TACO 2025), section 3.2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from pliant.tools.report.references.fluid import fluid_finishes
from pliant.tools.report.references.jobs import ReferenceJob, at_most_linear

_DIGITS: Final = 12
"""Significant digits of a rate by GPU: jobs that differ by less share one curve."""


def gps_finishes(jobs: Sequence[ReferenceJob], capacity: Sequence[tuple[float, int]]) -> dict[str, float]:
    """Finish time of each job in GPS, seconds.

    With N(t) active jobs and M(t) GPUs each job receives M/N GPU-seconds per second, and is done when it has
    received its demand. Departure from the paper: it receives no more than it can use, which is the best of
    its speeds at up to M/N GPUs over its speed for each GPU that it requests. There, GPUs beyond any size of
    the job count as well. A job that never finishes is left out.
    """
    linear = cache(at_most_linear)

    def in_gps(job: ReferenceJob) -> ReferenceJob:
        per_gpu = float(f"{job.samples / job.demand_gpu_s:.{_DIGITS}g}")
        return replace(job, curve=linear(job.curve, per_gpu))

    return fluid_finishes([in_gps(job) for job in jobs], capacity)
