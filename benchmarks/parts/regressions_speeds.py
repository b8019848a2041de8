"""Jobs left behind and sizes that are too large, over random instances, under every policy.

:func:`jobs_left_behind`: mixed nodes with few and many CPUs, and jobs that demand different parts of them.
A job counts that fits the cluster while it is empty, and that a policy neither finishes nor rejects.

:func:`slower_sizes_given`: speeds that have dips, fall or stand still with more GPUs. Each time that a policy
which sizes jobs gives an elastic job GPUs or another batch, the profile says how fast the job is there, at
the batch that it was given, and how fast on each smaller number of these GPUs that the job allows, taken from
the nodes with most of them. The allocation counts where one of these is faster, by more than rounding. Rigid
jobs, and policies that size no jobs, keep to the stated size and do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from pliant.schemas.checks import Capacities
from pliant.schemas.cluster import Cluster
from pliant.schemas.event import ALLOCATION_EVENTS
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput, Placement
from pliant.tools.replay.inputs import Inputs
from pliant.tools.replay.run import Replayed, Run, replay
from pliant.tools.schedule.jobs import JobState, node_states
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.registry import policy_class, policy_names

SEED: Final = 20261123
GB: Final = 10**9
TYPES: Final = ("a100", "t4", "v100")
PARAMETERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "pollux": {"population": 10, "generations": 4},
    "ones": {"population": 8, "generations": 2},
}
"""Searches that are small enough for hundreds of replays."""
SHAPES: Final = ((1, 1, 4), (1, 1, 4), (2, 2, 2), (4, 2, 8), (8, 1, 64))
"""Requested, smallest and largest sizes of jobs: few, so that some jobs differ by their demands alone."""
_ROUNDING: Final = 1e-9


def jobs_left_behind(instances: int, *, first: int = 0) -> int:
    """Jobs that a policy neither finishes nor rejects, of all policies on that many instances."""
    found = (left for n in range(first, first + instances) for left in left_behind(mixed_demands(n)))
    return sum(1 for _ in found)


def slower_sizes_given(instances: int, *, first: int = 0) -> int:
    """Allocations slower than a smaller one of the same job, of all policies on that many instances."""
    found = (each for n in range(first, first + instances) for each in slower_sizes(falling_speeds(n)))
    return sum(1 for _ in found)


def left_behind(inputs: Inputs) -> Iterator[tuple[str, str, str]]:
    """(policy, job, why it is left) of jobs that fit the empty cluster."""
    capacities = Capacities(inputs.cluster.expanded())
    fitting = {job.id for job in inputs.jobs if capacities.why_too_large(job) is None}
    for name in policy_names():
        for job in replayed(inputs, name).summary.unfinished:
            if job.job in fitting:
                yield name, job.job, job.reason


def slower_sizes(inputs: Inputs) -> Iterator[tuple[str, str, str]]:
    """(policy, job, what is faster) of allocations that are slower than a smaller one."""
    speeds = Speeds(inputs.throughput, node_states(inputs.cluster))
    elastic = {job.id: job for job in inputs.jobs if job.elastic != "none"}
    for name in policy_names():
        if policy_class(name).traits.elasticity == "none":
            continue
        for event in replayed(inputs, name).log.events():
            if event.event in ALLOCATION_EVENTS and event.job in elastic and event.gpus and event.placement:
                job = elastic[event.job]
                place = event.placement
                faster = faster_and_smaller(job, place, event.global_batch or 0, speeds)
                if faster:
                    yield name, job.id, f"{event.event} on {place}: {faster} is faster"


def faster_and_smaller(
    job: Job, place: tuple[tuple[str, int], ...], batch: int, speeds: Speeds
) -> Placement | None:
    """GPUs by node of a smaller size of the job that is faster; None: there is none."""
    state = JobState(job, batch, None)
    kind = speeds.gpu_type_of(place)
    held = tuple(sorted((count for _, count in place), reverse=True))

    def rate(shape: Placement) -> float:
        return speeds.rate(state, sum(shape), kind, global_batch=batch, placement=shape)

    own = rate(held)
    for gpus in range(job.min_gpus, sum(held)):
        if rate(part_of(held, gpus)) > own * (1 + _ROUNDING):
            return part_of(held, gpus)
    return None


def part_of(shape: Placement, gpus: int) -> Placement:
    """That many GPUs of a placement, on as few of its nodes as can be."""
    found = []
    for count in shape:
        if gpus:
            found.append(min(count, gpus))
            gpus -= found[-1]
    return tuple(sorted(found, reverse=True))


def replayed(inputs: Inputs, policy: str) -> Replayed:
    """One replay."""
    return replay(inputs, Run(policy, PARAMETERS.get(policy, {})))


def mixed_demands(number: int) -> Inputs:
    """Two or three GPU types, nodes of different CPUs and memory, and jobs of few models that demand some."""
    rng = np.random.default_rng((SEED, number))
    nodes = [
        {
            "name": f"{kind}-{index}",
            "gpus": int(rng.choice([1, 2, 4, 8])),
            "gpu_type": kind,
            "cpus": _maybe(rng, [4, 8, 16, 128]),
            "memory": _maybe(rng, [16 * GB, 64 * GB, 512 * GB]),
        }
        for kind in TYPES[: int(rng.integers(2, 4))]
        for index in range(int(rng.integers(1, 4)))
    ]
    cluster = Cluster.model_validate({"nodes": tuple(nodes)})
    capacities = Capacities(cluster.expanded())
    most = max(Speeds(CurveThroughput(), node_states(cluster)).gpu_types.values())
    jobs = []
    while len(jobs) < 6:
        job = _job(rng, f"j{len(jobs)}", most, rng.choice(["m", "m", "n"]))
        if capacities.why_too_large(job) is None:
            jobs.append(job)
    throughput = CurveThroughput(
        {"m": {1: 10.0, 2: 19.0, 4: 34.0, 8: 55.0}, "n": {1: 4.0, 8: 30.0}}, {"a100": 2.0, "v100": 1.25}
    )
    return _inputs(jobs, cluster, throughput)


def falling_speeds(number: int) -> Inputs:
    """Curves of any shape on one or two GPU types, across nodes slower or much slower; jobs of all kinds."""
    rng = np.random.default_rng((SEED, 1, number))
    kinds = TYPES[: int(rng.integers(1, 3))]
    nodes = [
        {"name": f"{kind}-{index}", "gpus": int(rng.choice([2, 4, 8])), "gpu_type": kind}
        for kind in kinds
        for index in range(int(rng.integers(1, 4)))
    ]
    cluster = Cluster.model_validate({"nodes": tuple(nodes)})
    most = max(Speeds(CurveThroughput(), node_states(cluster)).gpu_types.values())
    jobs = [_job(rng, f"j{n}", most, f"m{rng.integers(0, 3)}", demands=False) for n in range(6)]
    curves = {f"m{n}": _curve(rng, most) for n in range(3)}
    return _inputs(jobs, cluster, Scattered(curves, float(rng.choice([0.0, 0.1, 1.0]))))


class Scattered(CurveThroughput):
    """Curves; each node more takes a part of the time on one node more, at a larger batch less of it."""

    def __init__(self, curves: Mapping[str, Mapping[int, float]], per_node: float) -> None:
        super().__init__(curves, {"a100": 2.0})
        self._per_node = per_node

    def step_seconds(
        self, model: str, gpu_type: str, placement: Placement, global_batch: int, per_gpu_max: int | None
    ) -> float | None:
        """Seconds of one step."""
        seconds = super().step_seconds(model, gpu_type, placement, global_batch, per_gpu_max)
        more = self._per_node * (len(placement) - 1) * 64 / global_batch
        return None if seconds is None else seconds * (1 + more)


def _curve(rng: np.random.Generator, most: int) -> dict[int, float]:
    """Rises up to some size, then falls or stands still, with dips anywhere."""
    best = int(rng.integers(1, most + 1))
    slope, fall, dips = rng.uniform(0.3, 1.0), rng.choice([0.0, 0.3, 1.5]), rng.choice([0.0, 0.3])
    rates = {}
    for gpus in range(1, most + 1):
        rate = 10.0 * min(gpus, best) ** slope * (max(1.0, gpus / best) ** -fall)
        rates[gpus] = float(rate * (1 - rng.uniform(0.1, 0.9) if rng.random() < dips else rate and 1.0))
        if rates[gpus] <= 1.0:
            rates[gpus] = float(rate)
    return rates


def _job(rng: np.random.Generator, name: str, most: int, model: str, *, demands: bool = True) -> Job:
    requested, low, high = SHAPES[int(rng.integers(0, len(SHAPES)))]
    elastic = "none" if low == high else str(rng.choice(["size", "size", "size+batch"]))
    worker = {"cpu": _maybe(rng, [1, 2, 4, 8]), "memory": _maybe(rng, [4 * GB, 16 * GB])} if demands else {}
    return Job.model_validate(
        {
            "id": name,
            "submit_time": float(rng.integers(0, 4) * 600),
            "model": model,
            "gpus": {"requested": min(requested, most), "min": min(low, most), "max": min(high, most)},
            "elastic": elastic,
            "work": {"samples": float(rng.uniform(1e3, 1e5))},
            "batch": {"size": 64, "min": 32, "max": 256} if elastic == "size+batch" else {"size": 64},
            "resources": {"worker": {key: each for key, each in worker.items() if each is not None}},
        }
    )


def _maybe(rng: np.random.Generator, values: list[int]) -> int | None:
    return [None, *values][int(rng.integers(0, len(values) + 1))]


def _inputs(jobs: list[Job], cluster: Cluster, throughput: CurveThroughput) -> Inputs:
    ordered = sorted(jobs, key=lambda job: (job.submit_time, job.id))
    return Inputs(tuple(ordered), cluster, None, throughput)
