"""Profile rows, made from the points of a launch."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from pliant.schemas.profile import ProfileRow
from pliant.tools.profile.measuring.request import Point


@dataclass(frozen=True, slots=True)
class Origin:
    """What all points of one launch have in common."""

    model: str
    gpu_type: str
    workers: int
    parameters: int | None
    measured_at: float
    start_s: float | None = None
    relaunch_s: float | None = None
    rescale_s: float | None = None


def train_row(point: Point, origin: Origin) -> ProfileRow:
    """The row of a training step."""
    row = _row(point, origin)
    if not point.feasible:
        return row
    step_s = statistics.fmean(point.step_s)
    compute_s = min(step_s, statistics.fmean(point.compute_s)) if point.compute_s else None
    alone = origin.workers == 1
    return replace(
        row,
        compute_seconds=step_s if alone else compute_s,
        sync_seconds=0.0 if alone else None if compute_s is None else step_s - compute_s,
        samples_per_second=origin.workers * point.local_batch * point.accum / step_s,
        start_seconds=origin.start_s,
        relaunch_seconds=origin.relaunch_s,
        rescale_seconds=origin.rescale_s,
    )


def allreduce_row(point: Point, origin: Origin) -> ProfileRow:
    """The row of an all-reduce."""
    return replace(_row(point, origin), kind="allreduce", parameters=point.weights)


def _row(point: Point, origin: Origin) -> ProfileRow:
    return ProfileRow(
        kind="train",
        model=origin.model,
        gpu_type=origin.gpu_type,
        nodes=1,
        gpus=origin.workers,
        placement=str(origin.workers),
        local_batch=point.local_batch,
        accum_steps=point.accum,
        step_seconds=statistics.fmean(point.step_s) if point.feasible else None,
        stdev_seconds=statistics.pstdev(point.step_s) if point.feasible else None,
        iterations=len(point.step_s),
        peak_memory=point.peak_memory if point.feasible else None,
        parameters=origin.parameters,
        feasible=point.feasible,
        measured_at=origin.measured_at,
    )
