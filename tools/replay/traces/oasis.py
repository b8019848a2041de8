"""Jobs as in OASiS (INFOCOM 2018), section V: workers, parameter servers, what finishing in time is worth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Final, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from pliant.schemas.file_io.record import Record
from pliant.schemas.job import Gpus, GpuTimeWork, Job, ResourceDemand, Utility

if TYPE_CHECKING:
    import numpy as np

_COUNTED: Final = frozenset({"gpu", "cpu"})
_UNITS: Final = {"memory": 1e9, "disk": 1e9, "bandwidth": 1e9 / 8}
"""What the units of the ranges (GB, Gbps) are in those of a job file (bytes, bytes per second)."""


def _refuse_backwards(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        text = f"{bounds[1]:g} is below {bounds[0]:g}, expected [from, to]"
        raise PydanticCustomError("recipe", "{problem}", {"problem": text})
    return bounds


_Amount = Annotated[float, Field(ge=0, le=1e9)]
Bounds = Annotated[tuple[_Amount, _Amount], AfterValidator(_refuse_backwards)]
"""From, to; drawn evenly between them."""


class OasisRanges(Record):
    """Jobs with workers, parameter servers and a utility; the defaults are the paper's simulation."""

    slot_s: Annotated[float, Field(ge=1e-3, le=1e9)] = 1200.0
    """Seconds of one time slot."""
    epochs: Bounds = (50, 200)
    chunks: Bounds = (5, 100)
    """Data chunks, each trained by one worker at a time: the most workers that a job can use."""
    minibatches: Bounds = (10, 100)
    """In one chunk."""
    minibatch_slots: Bounds = (0.001, 0.1)
    """Time of one mini-batch, slots."""
    gradient_mb: Bounds = (30, 575)
    workers: Bounds = (1, 30)
    """Requested by a job for the policies that do not choose; never more than its chunks."""
    worker: dict[str, Bounds] = Field(
        default={"gpu": (0, 4), "cpu": (1, 10), "memory": (2, 32), "disk": (5, 10), "bandwidth": (0.1, 5)}
    )
    """Resources of one worker: gpu and cpu in numbers, memory and disk in GB, bandwidth in Gbps."""
    ps: dict[str, Bounds] = Field(
        default={"cpu": (1, 10), "memory": (2, 32), "disk": (5, 10), "bandwidth": (5, 20)}
    )
    """Resources of one parameter server."""
    value: Bounds = (1, 100)
    """Utility of a job that ends early enough."""
    target_slots: Bounds = (1, 15)
    """Time after its submission at which a job should end."""
    sensitive: Bounds = (0.01, 1)
    """Decay, per slot, of jobs that are sensitive to time."""
    critical: Bounds = (4, 6)
    """Decay, per slot, of jobs that are time-critical."""
    sensitive_share: Annotated[float, Field(ge=0, le=1)] = 0.55
    critical_share: Annotated[float, Field(ge=0, le=1)] = 0.35
    """The rest is insensitive: its decay is 0."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.sensitive_share + self.critical_share > 1:
            text = "sensitive_share and critical_share are more than 1 together"
            raise PydanticCustomError("recipe", "{problem}", {"problem": text})
        return self


def oasis_jobs(ranges: OasisRanges, submit_s: Iterable[float], rng: np.random.Generator) -> tuple[Job, ...]:
    """One job for each submission time, all else drawn independently. A GPU stands for one worker.

    Work is ``ceil(E·N·M·(τ + 2e/b))`` worker-slots; its factors are in the labels.
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
    sync_s = 2 * gradient_mb * 1e6 / worker["bandwidth"] if worker.get("bandwidth") else 0.0
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
    """Resources of one worker or parameter server, in the units of a job file; GPUs and CPUs are whole."""
    return {
        name: float(_whole(one, rng)) if name in _COUNTED else _even(one, rng) * _UNITS.get(name, 1.0)
        for name, one in bounds.items()
    }


def _even(bounds: Bounds, rng: np.random.Generator) -> float:
    return round(float(rng.uniform(*bounds)), 6)


def _whole(bounds: Bounds, rng: np.random.Generator) -> int:
    return int(rng.integers(int(bounds[0]), int(bounds[1]) + 1))
