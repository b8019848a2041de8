"""The worlds of the paper's simulation and testbed: clusters, and jobs from the recipe ``workload.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from experiments.oasis.simulate import Entry, World
from pliant.schemas.job import Job
from pliant.tools.replay.synthetic import synthesize
from pliant.tools.replay.synthetic_recipe import read_recipe
from pliant.tools.schedule.policies.multi_resource.fleet import Bid, Floats, Servers, sigmoid_worth

RECIPE: Final = Path(__file__).with_name("workload.toml")
RESOURCES: Final = ("gpu", "cpu", "memory", "disk", "bandwidth")
UNITS: Final = {"gpu": 1.0, "cpu": 1.0, "memory": 1e9, "disk": 1e9, "bandwidth": 1e9 / 8}
"""GB and Gbps in the units of job files; prices add amounts of different resources, so units matter."""
SLOT_S: Final = 1200.0
PAST_JOBS: Final = 400
"""Of the same recipe, before the first of a world: the experience that price bounds come from."""
PAST_SEED: Final = 10_000
_DISK_GB: Final = 500.0
_GPU_SERVERS: Final = ((1, 4, 61), (8, 32, 488), (16, 64, 732), (1, 16, 122), (2, 32, 244), (4, 64, 488))
"""GPUs, vCPUs and GB of Amazon's P2 (three sizes) and G3 (three)."""
_CPU_SERVERS: Final = ((0, 2, 3.75), (0, 4, 7.5), (0, 8, 15), (0, 16, 30), (0, 36, 60))
"""Those of C4."""
TESTBED: Final[Mapping[str, Any]] = {
    "epochs": [4, 30],
    "chunks": [7, 10],
    "minibatch_slots": [0.1, 0.25],
    "workers": [1, 10],
    "worker": {"gpu": [0, 1], "cpu": [1, 5], "memory": [2, 10], "bandwidth": [1, 3]},
    "ps": {"cpu": [1, 5], "memory": [2, 10], "bandwidth": [1, 3]},
}
"""Of the testbed's jobs: 200 images in chunks of 20 or 30; one with all its workers takes 2 hours or less."""


def cluster(rng: np.random.Generator, workers: int, ps: int) -> Servers:
    """Servers of random kinds, with 20 to 50 Gbps each."""
    sides = (
        np.column_stack(
            [
                np.array(kinds, dtype=float)[rng.integers(len(kinds), size=count)],
                np.full(count, _DISK_GB),
                rng.uniform(20, 50, count),
            ]
        )
        for kinds, count in ((_GPU_SERVERS, workers), (_CPU_SERVERS, ps))
    )
    return Servers(RESOURCES, *sides)


def testbed() -> Servers:
    """Seven servers of 32 cores, four of them with a GPU, and two of 8 cores, with 11 Gbps each."""
    workers = np.array([[gpu, 32.0, 80.0, 600.0, 11.0] for gpu in (1, 1, 1, 1, 0, 0, 0)], dtype=float)
    return Servers(RESOURCES, workers, np.tile([0.0, 8.0, 32.0, 1500.0, 11.0], (2, 1)))


def world(
    seed: int, jobs: int, slots: int, servers: Servers | None = None, last: int | None = None, **ranges: Any
) -> World:
    """One world of the recipe; ``ranges`` replace some of it, and jobs arrive before slot ``last``."""
    rng = np.random.default_rng([2018, seed])
    hours = (last or slots) * SLOT_S / 3600

    def entries(jobs: int, seed: int) -> tuple[Entry, ...]:
        changes = {"jobs": jobs, "hours": hours, "seed": seed, "oasis": {"minibatches": [1, 1], **ranges}}
        return tuple(_entry(job, slots) for job in synthesize(read_recipe(str(RECIPE), changes)))

    past = tuple(entry.bid for entry in entries(PAST_JOBS, PAST_SEED + seed))
    return World(servers if servers is not None else cluster(rng, 50, 50), entries(jobs, seed), slots, past)


def _entry(job: Job, slots: int) -> Entry:
    assert job.work is not None  # noqa: S101
    arrival = min(int(job.submit_time // SLOT_S), slots - 1)
    decay, target = job.utility.decay * SLOT_S, (job.utility.target or 0.0) / SLOT_S
    worker, ps = _amounts(job.resources.worker), _amounts(job.resources.ps)
    bid = Bid(
        id=job.id,
        arrival=arrival,
        work=round(job.work.model_dump()["gpu_seconds"] / SLOT_S),
        most_workers=job.gpus.max or job.gpus.requested,
        worker=worker,
        ps=ps,
        worth=sigmoid_worth(job.utility.value, decay, target, arrival, slots),
        worker_bandwidth=float(worker[-1]),
        ps_bandwidth=float(ps[-1]),
    )
    return Entry(bid, job.gpus.requested, target, decay)


def _amounts(stated: Mapping[str, float]) -> Floats:
    return np.array([stated.get(name, 0.0) / UNITS[name] for name in RESOURCES])
