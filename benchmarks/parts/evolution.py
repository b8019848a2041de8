"""What a generation of ones takes, and how close its best genome comes to the best of all.

Times are CPU seconds of this process, the median of several: refresh, crossover, mutation, reorder and
selection of 64 genomes for 50 jobs, half of which do not state their work. Small instances have random jobs,
limits and throughputs; the best genome after convergence is compared with every allocation, each with every
batch that its limits allow. Of two allocations the one that leaves fewer GPUs idle is better, then the one
of less score. An instance counts where the genome leaves no more GPUs idle and its score is within 1 %.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np

from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput, Placement
from pliant.tools.schedule.jobs import JobState, node_states
from pliant.tools.schedule.policies.ones.limits import (
    BatchLimit,
    Ints,
    SizeRow,
    Sizes,
    SizeTables,
    sizes_of,
)
from pliant.tools.schedule.policies.ones.search import SharingProblem, beginning, counts_of, evolve
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.remaining_work import RemainingWork, known_work

SEED: Final = 20211114
POPULATION: Final = 64
JOBS: Final = 50
THETA: Final = 0.3
CONVERGED: Final = 30
"""Generations after which a search of a small instance counts as converged."""


def generation_s(gpus: int, rng: np.random.Generator, repeats: int) -> float:
    """Median CPU seconds of one generation, after one that warms up."""
    problem = crowded(gpus, JOBS, rng)
    genomes = beginning(problem, rng, POPULATION)
    taken = []
    for _ in range(repeats + 1):
        started = time.process_time()
        genomes = evolve(problem, genomes, rng, POPULATION, THETA)
        taken.append(time.process_time() - started)
    return statistics.median(taken[1:])


def crowded(gpus: int, jobs: int, rng: np.random.Generator) -> SharingProblem:
    """Jobs that may together use several times the GPUs there are, three of them new."""
    most = rng.integers(1, max(2, gpus // 4) + 1, jobs)
    sizes = np.arange(int(most.max()) + 1)
    loss = rng.uniform(0.02, 0.2, (jobs, 1))
    utilization = (1 + loss * (sizes - 1)) / rng.uniform(50, 500, (jobs, 1))
    utilization[:, 0] = 0.0
    utilization[sizes > most[:, None]] = np.inf
    stated = rng.uniform(1e4, 1e6, jobs)
    stated[::2] = np.nan
    shape = (rng.uniform(1, 20, jobs), rng.uniform(1, 20, jobs))
    work = RemainingWork(stated, rng.uniform(1e4, 1e5, jobs), np.zeros(jobs), *shape)
    return SharingProblem(gpus, Sizes(utilization), work, np.arange(3), rng.permutation(jobs))


class FixedAndPerSample(CurveThroughput):
    """Step times by local batch and GPUs: fixed, by sample, and by the logarithm of the GPUs."""

    def __init__(self, parts: dict[str, tuple[float, float, float]]) -> None:
        super().__init__()
        self._parts = parts

    def step_seconds(
        self, model: str, gpu_type: str, placement: Placement, global_batch: int, per_gpu_max: int | None
    ) -> float:
        """Of one step; a share that does not fit takes several micro-steps."""
        fixed, sample, sync = self._parts[model]
        gpus = sum(placement)
        share = -(-global_batch // gpus)
        steps = -(-share // (per_gpu_max or share))
        return steps * fixed + share * sample + sync * math.log2(gpus)


@dataclass(frozen=True)
class Instance:
    """A few jobs, few GPUs."""

    gpus: int
    jobs: Sequence[JobState]
    limits: Sequence[BatchLimit]
    remaining: Sequence[float]
    speeds: Speeds


def small_instance(rng: np.random.Generator) -> Instance:
    """Two to five jobs on two to eight GPUs, with limits as they are after some epochs."""
    gpus, count = int(rng.integers(2, 9)), int(rng.integers(2, 6))
    names = [f"j{number}" for number in range(count)]
    parts = {name: tuple(rng.uniform((0.005, 0.0005, 0.0), (0.05, 0.01, 0.05)).tolist()) for name in names}
    nodes = Cluster.model_validate({"nodes": ({"name": "n{}", "gpus": gpus},)})
    jobs = [JobState(_job(name, gpus, rng), 32, None) for name in names]
    limits = [BatchLimit(int(32 * 2 ** rng.integers(0, 4)), float(rng.choice([16, 32]))) for _ in names]
    remaining = rng.uniform(1e3, 1e6, count).tolist()
    return Instance(gpus, jobs, limits, remaining, Speeds(FixedAndPerSample(parts), node_states(nodes)))


def _job(name: str, gpus: int, rng: np.random.Generator) -> Job:
    low = int(rng.integers(1, 3))
    record: dict[str, Any] = {"id": name, "submit_time": 0.0, "model": name}
    record["gpus"] = {"requested": low, "min": low, "max": int(rng.integers(low, max(low, gpus) + 1))}
    record |= {"elastic": "size+batch", "batch": {"size": 32, "min": 16, "max": 256, "per_gpu_max": 64}}
    return Job.model_validate(record)


def comes_close(instance: Instance, rng: np.random.Generator) -> bool:
    """Whether the converged search leaves as few GPUs idle as can be, at a score within 1 % of the least."""
    idle, score = searched(instance, rng)
    least_idle, least_score = best_of_all(instance)
    return idle == least_idle and score <= 1.01 * least_score


def searched(instance: Instance, rng: np.random.Generator) -> tuple[int, float]:
    """GPUs idle and score of the best genome."""
    tables = SizeTables(instance.speeds)
    given = zip(instance.jobs, instance.limits, strict=True)
    rows = [tables.row(job, "gpu", instance.gpus, limit) for job, limit in given]
    everyone = np.arange(len(rows))
    problem = SharingProblem(
        instance.gpus, sizes_of(rows), known_work(instance.remaining), everyone[:0], everyone
    )
    genomes = beginning(problem, rng, POPULATION // 4)
    for _ in range(CONVERGED):
        genomes = evolve(problem, genomes, rng, POPULATION // 4, THETA)
    counts: Ints = counts_of(genomes[:1], len(rows))[0]
    return int(instance.gpus - counts.sum()), sum(_scores(instance, rows, counts.tolist()))


def _scores(instance: Instance, rows: Sequence[SizeRow], counts: Sequence[int]) -> Iterator[float]:
    """Remaining time times GPUs of each job that runs, at the batch of its row."""
    for job, row, left, gpus in zip(instance.jobs, rows, instance.remaining, counts, strict=True):
        if gpus:
            yield left * gpus / instance.speeds.rate(job, gpus, "gpu", global_batch=row.batches[gpus])


def best_of_all(instance: Instance) -> tuple[int, float]:
    """The same of the best allocation, by trying every number of GPUs and every batch of every job."""
    choices = [
        list(_choices(instance, job, limit, left))
        for job, limit, left in zip(instance.jobs, instance.limits, instance.remaining, strict=True)
    ]
    every = (
        (instance.gpus - sum(gpus for gpus, _ in each), sum(score for _, score in each))
        for each in product(*choices)
    )
    return min(found for found in every if found[0] >= 0)


def _choices(
    instance: Instance, job: JobState, limit: BatchLimit, left: float
) -> Iterator[tuple[int, float]]:
    """(GPUs, least score over all batches) of one job up to its fastest size; no GPUs among them."""
    yield 0, 0.0
    rates: dict[int, float] = {}
    most = max(job.spec.min_gpus, math.floor(limit.samples / limit.local))
    for gpus in range(job.spec.min_gpus, min(most, job.spec.max_gpus(instance.gpus)) + 1):
        rate = instance.speeds.rate
        batches = range(16, max(16, min(limit.samples, 256, 64 * gpus)) + 1)
        rates[gpus] = max(rate(job, gpus, "gpu", global_batch=batch) for batch in batches)
    fastest = max(rates, key=lambda gpus: rates[gpus], default=0)
    yield from ((gpus, left * gpus / best) for gpus, best in rates.items() if best > 0 and gpus <= fastest)
