"""Virtual clusters of the Philly trace as teams, and the four ways to share their GPUs."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from experiments.harness.data import data_folder
from pliant.schemas.cluster import Cluster, Node, Shares, Team
from pliant.schemas.io import read_jobs
from pliant.schemas.job import Gpus, GpuTimeWork, Job
from pliant.tools.replay.importers.run import import_trace

LABEL: Final = "cluster"
"""The label in which the imported trace names the virtual cluster of a job."""
NODE_GPUS: Final = 8
EVERY: Final = 4
FIRST_WEEK: Final = 8
"""Of the trace, which begins with few jobs."""
WEEKS: Final = 2
LOAD: Final = 1.5
"""GPU time of the jobs over that of all GPUs from the first submission to the last."""
WEEK_S: Final = 7 * 86_400.0
WAYS: Final[Mapping[str, str]] = {
    "static": "fixed partitions",
    "preempt": "lent, jobs stopped when the owner wants the GPUs back",
    "shrink": "lent, elastic jobs shrink when the owner wants the GPUs back",
    "pool-rigid": "one pool, jobs of fixed size",
    "pool": "one pool, elastic jobs",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in order of submission, and the GPUs of each team's partition."""

    jobs: tuple[Job, ...]
    partitions: Mapping[str, int]

    @property
    def gpus(self) -> int:
        return sum(self.partitions.values())


def philly(every: int = EVERY) -> Workload:
    """Two ordinary weeks of the trace, thinned to each ``every``-th job."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "jobs.jsonl"
        import_trace("philly", [str(data_folder() / "pollux" / "traces" / "philly.csv")], str(path))
        jobs = sorted(read_jobs(path), key=lambda job: (job.submit_time, job.id))
    jobs = [job for job in jobs if job.labels.get(LABEL)]
    first_s = jobs[0].submit_time + FIRST_WEEK * WEEK_S
    span = [job for job in jobs if first_s <= job.submit_time < first_s + WEEKS * WEEK_S]
    return workload(span[::every])


def workload(jobs: Sequence[Job]) -> Workload:
    """Partitions in proportion to the GPU time of each virtual cluster, none smaller than its largest job."""
    first_s = jobs[0].submit_time
    span_s = jobs[-1].submit_time - first_s
    moved = [job.model_copy(update={"submit_time": job.submit_time - first_s}) for job in jobs]
    demand: dict[str, float] = {}
    largest: dict[str, int] = {}
    for job in moved:
        team = job.labels[LABEL]
        demand[team] = demand.get(team, 0.0) + gpu_seconds(job)
        largest[team] = max(largest.get(team, 0), job.gpus.requested)
    sizes = {team: max(largest[team], math.ceil(demand[team] / (LOAD * span_s))) for team in sorted(demand)}
    return Workload(tuple(moved), sizes)


def gpu_seconds(job: Job) -> float:
    assert isinstance(job.work, GpuTimeWork)  # noqa: S101
    return job.work.gpu_seconds


def cluster(load: Workload, way: str) -> Cluster:
    """Whole nodes and one of what is left over, shared in one of :data:`WAYS`."""
    whole, rest = divmod(load.gpus, NODE_GPUS)
    nodes = [Node(name="n{}", gpus=NODE_GPUS, count=whole)] if whole else []
    nodes += [Node(name="last", gpus=rest)] if rest else []
    return Cluster(nodes=tuple(nodes), shares=None if way.startswith("pool") else shares(load, way))


def shares(load: Workload, way: str) -> Shares:
    fixed = way == "static"
    teams = {
        team: Team(weight=float(gpus), guaranteed={"*": gpus}, lends=not fixed, borrows=not fixed)
        for team, gpus in load.partitions.items()
    }
    return Shares(teams=teams, label=LABEL, half_life_hours=0.0)


def jobs_of(load: Workload, way: str) -> tuple[Job, ...]:
    """The jobs; elastic ones may shrink to a quarter, never grow, and each GPU is as fast at any size."""
    if way not in ("shrink", "pool"):
        return load.jobs
    return tuple(elastic(job) for job in load.jobs)


def elastic(job: Job) -> Job:
    most = job.gpus.requested
    sizes = Gpus(requested=most, min=max(1, most // 4), max=most)
    return job.model_copy(update={"gpus": sizes, "elastic": "size"})
