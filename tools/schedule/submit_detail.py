"""The detail of a ``submit`` event: the job, its scaling curve, its work; a report then needs no profile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pliant.schemas.file_io.jobs import job_fields
from pliant.tools.schedule.demand import demand_gpu_s
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.speeds import Speeds


def submit_detail(state: JobState, speeds: Speeds, measured_sizes: Iterable[int] = ()) -> dict[str, Any]:
    """What :class:`~pliant.schemas.runinfo.SubmitDetail` describes, as JSON values.

    The demand is the one that Ares takes; it is left out where it is unknown or no size runs. The curve is
    taken at the reference batch on consolidated placements, at the powers of two, the requested
    and the largest size, and those ``measured_sizes`` (GPUs) that the job can use; sizes it cannot run on
    are left out.
    """
    detail: dict[str, Any] = {"job": job_fields(state.spec)}
    curve = [[size, speeds.rate(state, size)] for size in _sizes(state, speeds, measured_sizes)]
    detail["curve"] = [point for point in curve if point[1] > 0]
    if state.total_samples:
        detail["samples"] = state.total_samples
    if demand := demand_gpu_s(state, speeds):
        detail["demand_gpu_s"] = demand
    return detail


def _sizes(state: JobState, speeds: Speeds, measured_sizes: Iterable[int]) -> list[int]:
    largest = state.spec.max_gpus(sum(speeds.gpu_types.values()))
    powers = (2**exponent for exponent in range(largest.bit_length()))
    wanted = {*powers, state.spec.gpus.requested, largest, *measured_sizes}
    return sorted(size for size in wanted if 1 <= size <= largest)
