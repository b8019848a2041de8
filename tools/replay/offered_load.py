"""Whether a workload is more than its cluster can do: then queues grow as long as jobs arrive."""

from __future__ import annotations

from statistics import median
from typing import Final

from pliant.schemas.job import EpochWork, GpuTimeWork, IterationWork, Job, SampleWork
from pliant.schemas.text import in_gpus, span_text
from pliant.tools.replay.inputs import Inputs
from pliant.tools.schedule.demand import demand_gpu_s, job_state
from pliant.tools.schedule.jobs import node_states
from pliant.tools.schedule.rates import Speeds

OVERLOAD: Final = 1.2
"""Work that arrives / work that the cluster can do meanwhile, from which on it is said."""
_FEWEST: Final = 20
"""Jobs from which on arrivals are a stream."""


def offered_load(inputs: Inputs) -> float | None:
    """GPU-time of the jobs at their requested sizes / GPU-time of the cluster from first to last submission.

    Jobs that are larger than the cluster, and those whose work only a validation run knows, do not count.
    Returns None if the jobs are no stream: there are few, or half of them take longer than they arrive.
    """
    speeds = Speeds(inputs.throughput, node_states(inputs.cluster))
    largest = max(speeds.gpu_types.values(), default=0)
    jobs = [job for job in inputs.jobs if _amount(job) and job.min_gpus <= largest]
    if len(jobs) < _FEWEST:
        return None
    arriving_s = inputs.jobs[-1].submit_time - inputs.jobs[0].submit_time
    gpu_seconds = _gpu_seconds(jobs, speeds)
    alone_s = median(each / job.gpus.requested for each, job in zip(gpu_seconds, jobs, strict=True))
    if arriving_s <= alone_s:
        return None
    return sum(gpu_seconds) / (inputs.cluster.total_gpus * arriving_s)


def overload(inputs: Inputs) -> str | None:
    """One line about a workload that is too much for the cluster. Returns None if it is not."""
    load = offered_load(inputs)
    if load is None or load < OVERLOAD:
        return None
    span = span_text(inputs.jobs[-1].submit_time - inputs.jobs[0].submit_time)
    gpus = in_gpus(inputs.cluster.total_gpus)
    work = f"{load:.3g} times the work that {gpus} can do in that time"
    return f"overload: jobs arrive for {span} and bring {work}: the queue grows to the last arrival"


def _gpu_seconds(jobs: list[Job], speeds: Speeds) -> list[float]:
    """Of each job; for jobs of one kind it is in proportion to their work."""
    per_unit: dict[object, float] = {}
    found = []
    for job in jobs:
        amount = _amount(job)
        limits = (job.gpus.requested, job.gpus.min, job.gpus.max, job.gpus.per_replica, job.elastic)
        kind = (type(job.work), job.model, job.batch.size, job.batch.per_gpu_max, limits)
        if kind not in per_unit:
            per_unit[kind] = demand_gpu_s(job_state(job, speeds), speeds) / amount
        found.append(amount * per_unit[kind])
    return found


def _amount(job: Job) -> float:
    match job.work:
        case EpochWork(epochs=epochs, dataset_size=size):
            return epochs * (size or 0)
        case SampleWork(samples=amount) | IterationWork(iterations=amount) | GpuTimeWork(gpu_seconds=amount):
            return amount
    return 0.0
