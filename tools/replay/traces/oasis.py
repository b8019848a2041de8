"""Jobs as in the evaluation of OASiS: workers, parameter servers, and what finishing in time is worth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from pliant.schemas.job import Gpus, GpuTimeWork, Job, ResourceDemand, Utility
from pliant.tools.replay.traces.recipe_oasis import Bounds, OasisRanges

if TYPE_CHECKING:
    import numpy as np

_COUNTED: Final = frozenset({"gpu", "cpu"})
_MEGABITS: Final = 8.0 / 1000.0
"""Seconds that a megabyte takes at one Gbps."""


def oasis_jobs(ranges: OasisRanges, submit_s: Iterable[float], rng: np.random.Generator) -> tuple[Job, ...]:
    """One job for each time of submission; all else is drawn independently.

    One of pliant's GPUs stands for one worker. Work is ``ceil(E·N·M·(τ + 2e/b))`` worker-slots; its factors
    are in the labels, for the policies that compute with them.
    """
    times_s = [round(float(time_s), 3) for time_s in submit_s]
    width = len(str(max(1, len(times_s) - 1)))
    return tuple(_job(f"job-{number:0{width}}", time_s, ranges, rng) for number, time_s in enumerate(times_s))


def _job(job_id: str, submit_s: float, ranges: OasisRanges, rng: np.random.Generator) -> Job:
    worker, ps = _demand(ranges.worker, rng), _demand(ranges.ps, rng)
    epochs, chunks, minibatches = (
        _whole(bounds, rng) for bounds in (ranges.epochs, ranges.chunks, ranges.minibatches)
    )
    train_slots = _even(ranges.minibatch_slots, rng)
    gradient_mb = _even(ranges.gradient_mb, rng)
    sync_s = 2 * gradient_mb * _MEGABITS / worker["bandwidth"] if worker.get("bandwidth") else 0.0
    slots = math.ceil(epochs * chunks * minibatches * (train_slots + sync_s / ranges.slot_s))
    return Job(
        id=job_id,
        submit_time=submit_s,
        model="parameter-server",
        gpus=Gpus(requested=min(chunks, _whole(ranges.workers, rng)), min=1, max=chunks),
        elastic="size",
        work=GpuTimeWork(gpu_seconds=slots * ranges.slot_s),
        utility=_utility(ranges, rng),
        resources=ResourceDemand(worker=worker, ps=ps),
        labels={
            "epochs": str(epochs),
            "chunks": str(chunks),
            "minibatches": str(minibatches),
            "minibatch_slots": str(train_slots),
            "gradient_mb": str(gradient_mb),
            "slot_s": f"{ranges.slot_s:g}",
        },
    )


def _utility(ranges: OasisRanges, rng: np.random.Generator) -> Utility:
    kind = rng.random()
    if kind < ranges.sensitive_share:
        decay = _even(ranges.sensitive, rng)
    elif kind < ranges.sensitive_share + ranges.critical_share:
        decay = _even(ranges.critical, rng)
    else:
        decay = 0.0
    return Utility(
        shape="sigmoid",
        value=_even(ranges.value, rng),
        decay=decay / ranges.slot_s,
        target=_even(ranges.target_slots, rng) * ranges.slot_s,
    )


def _demand(bounds: Mapping[str, Bounds], rng: np.random.Generator) -> dict[str, float]:
    """Resources of one worker or parameter server; GPUs and CPUs are whole."""
    return {
        name: float(_whole(one, rng)) if name in _COUNTED else _even(one, rng) for name, one in bounds.items()
    }


def _even(bounds: Bounds, rng: np.random.Generator) -> float:
    return round(float(rng.uniform(*bounds)), 6)


def _whole(bounds: Bounds, rng: np.random.Generator) -> int:
    return int(rng.integers(int(bounds[0]), int(bounds[1]) + 1))
