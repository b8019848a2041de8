"""The paper's trace, and traces drawn like it, with work that the paper does not state."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from experiments.harness.data import data_folder
from experiments.ones.model import (
    BY_NAME,
    GPU_TYPE,
    GPUS_PER_NODE,
    KINDS,
    START_S,
    Kind,
    World,
    profile_of,
)
from experiments.ones.scenes import HISTORY, NARROW, SCENES, TAUGHT, write_sweeps
from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.io import (
    write_cluster,
    write_convergence,
    write_jobs,
    write_predictor,
    write_profile,
)
from pliant.schemas.job import Batch, EpochWork, Gpus, Job
from pliant.schemas.predictor import Predictor
from pliant.schemas.profile import ConvergenceRow
from pliant.tools.profile.throughput_model import ThroughputBySize
from pliant.tools.replay.importers.conversion import Conversion, ImportSummary
from pliant.tools.replay.importers.formats.ones import read, read_workload

DATA: Final = data_folder()
SIZES: Final = (16, 32, 48, 64)
"""GPUs of the clusters, figure 17."""
_SMALLER, _FEW_JOBS = 4, 12
"""Smoke runs: how much smaller their clusters are, and how many jobs they have."""
SPREAD: Final = 0.2
"""σ of the factor that each job draws for its work."""
SHORTER: Final = 0.81
"""Factor of the execution times of the artifact's 50 jobs: their average is then that of the paper's 400."""
ARRIVALS_S: Final = 30.0
"""Mean time between arrivals."""
_DATASETS: Final = {
    "imagenet": range(10_000, 20_001, 2000),
    "cifar": range(20_000, 40_001, 5000),
    "cola": range(5000, 8001, 1000),
    "mrpc": (3600,),
    "sst2": range(10_000, 20_001, 2000),
}
"""Table 2 of the paper."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One row of a trace: what is published of a job."""

    name: str
    time_s: float
    kind: Kind
    samples: int
    """Of its dataset."""


def published(path: Path | None = None) -> tuple[Arrival, ...]:
    """The 400 jobs of the published trace.

    :raises BadInputError: it is not there, or of other kinds of jobs.
    """
    path = path or DATA / "ones" / "trace_1.csv"
    if not path.is_file():
        raise BadInputError.one(str(path), "is not there; PLIANT_DATA names the folder of published data")
    return tuple(_arrival(job) for job in read_workload(path, Conversion(ImportSummary("ones"))))


def _arrival(job: Job) -> Arrival:
    name = f"{job.model}-{job.labels['task']}"
    if name not in BY_NAME:
        raise BadInputError(f'job "{job.id}": no speed is published of {name}')
    return Arrival(job.id, job.submit_time, BY_NAME[name], int(job.labels["epoch_size"]))


def drawn(count: int, seed: int, arrivals_s: float = ARRIVALS_S) -> tuple[Arrival, ...]:
    """A trace like the published one: kinds and datasets in equal parts, Poisson arrivals."""
    rng = np.random.default_rng([seed, count])
    times = np.cumsum(rng.exponential(arrivals_s, count))
    return tuple(_drawn(number, float(time_s), rng) for number, time_s in enumerate(times))


def _drawn(number: int, time_s: float, rng: np.random.Generator) -> Arrival:
    kind = KINDS[int(rng.integers(len(KINDS)))]
    return Arrival(f"drawn-{number}", round(time_s, 3), kind, int(rng.choice(_DATASETS[kind.task])))


def jobs_of(
    arrivals: Iterable[Arrival],
    seed: int,
    *,
    world: World | None = None,
    spread: float = SPREAD,
    batch_of: int | None = None,
    shorter: float | None = SHORTER,
    most_requested: int = GPUS_PER_NODE,
) -> Iterator[Job]:
    """The jobs, with work drawn by ``seed``.

    :param world: gives the speeds that turn execution times into work.
    :param spread: σ of the factor of the work.
    :param batch_of: jobs are submitted with the batch of at most this many GPUs; None: of those requested.
    :param shorter: a factor of all published execution times; None: jobs take the recorded epochs instead.
    :param most_requested: GPUs; a job that states more requests this many.
    """
    rng = np.random.default_rng([seed, 20211114])
    speeds = ThroughputBySize(profile_of(world))
    for each in arrivals:
        kind = each.kind
        requested = min(kind.requested, most_requested)
        size = min(kind.batch * min(kind.requested, batch_of or requested), kind.most)
        epochs = kind.epochs_of(each.samples)
        if shorter is not None:
            trained_s = shorter * (kind.execution_s(each.samples) - START_S)
            epochs = trained_s * _rate(speeds, kind, requested, size) / each.samples
        epochs *= float(np.exp(spread * rng.standard_normal()))
        yield Job(
            id=each.name,
            submit_time=each.time_s,
            model=kind.name,
            gpus=Gpus(requested=requested, min=1),
            batch=Batch(size=size, min=kind.batch, max=kind.most),
            elastic="size+batch",
            work=EpochWork(epochs=max(1.0, round(epochs)), dataset_size=each.samples),
            convergence=_history_of(kind, each.samples),
            labels={"trace": "ones"},
        )


def _rate(speeds: ThroughputBySize, kind: Kind, gpus: int, batch: int) -> float:
    """Samples per second of a job as it is submitted."""
    nodes, rest = divmod(gpus, GPUS_PER_NODE)
    place = (GPUS_PER_NODE,) * nodes + (rest,) * (rest > 0)
    seconds = speeds.step_seconds(kind.name, GPU_TYPE, place, batch, None)
    assert seconds is not None, "every size has a speed"  # noqa: S101
    return batch / seconds


def cluster_of(gpus: int) -> Cluster:
    """Nodes of four V100s."""
    node = {"name": "n{}", "gpus": GPUS_PER_NODE, "gpu_type": GPU_TYPE, "count": gpus // GPUS_PER_NODE}
    return Cluster.model_validate({"nodes": (node,)})


def recorded(path: Path | None = None) -> tuple[ConvergenceRow, ...]:
    """Losses and accuracies of the recorded jobs by epoch; tables are named by kind and size of the dataset.

    :raises BadInputError: they are not there.
    """
    path = path or DATA / "ones"
    if not (path / "job_history.csv").is_file():
        raise BadInputError.one(str(path), "has no job_history.csv; PLIANT_DATA names the folder of data")
    return tuple(read(path, None, Conversion(ImportSummary("ones"))).convergence)


def drawn_histories() -> tuple[ConvergenceRow, ...]:
    """Like the recorded ones, without data: a loss that halves every epoch, and 1 - that as accuracy."""
    lefts = [0.5 ** (epoch + 1) for epoch in range(4)]
    return tuple(
        ConvergenceRow(
            _history_of(kind, size),
            kind.batch,
            epoch,
            epoch + 1,
            epoch + 1,
            1 - left,
            loss=left,
            initial_loss=1.0,
        )
        for kind in KINDS
        for size in kind.epochs
        for epoch, left in enumerate(lefts)
    )


def _history_of(kind: Kind, samples: int) -> str:
    """The recorded job of that kind whose dataset has about that size."""
    return f"{kind.name}-{min(kind.epochs, key=lambda size: (abs(size - samples), size))}"


def prepare(folder: Path, smoke: bool) -> None:
    """Write profiles, clusters, traces and sweeps into ``folder``; small ones that need no data to test."""
    write_sweeps(folder)
    for gpus in SIZES:
        write_cluster(cluster_of(gpus // _SMALLER if smoke else gpus), folder / f"cluster-{gpus}.json")
    shutil.copy(TAUGHT, folder)
    write_convergence(drawn_histories() if smoke else recorded(), folder / HISTORY)
    write_predictor(Predictor(widened=False), folder / NARROW)
    arrivals = drawn(_FEW_JOBS, 0) if smoke else published()
    for scene in SCENES:
        write_profile(profile_of(scene.world), folder / f"{scene.name}.parquet")
        closer = [replace(each, time_s=scene.arrivals * each.time_s) for each in arrivals]
        for seed in scene.seeds:
            jobs = list(jobs_of(closer, seed, world=scene.world, **scene.jobs))
            write_jobs(jobs, folder / f"{scene.name}-{seed}.jsonl")
