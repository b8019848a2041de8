"""Sia against the simulator of its artifact, and what a decision costs on a large mixed cluster.

The artifact's completion times are those of the folder sia/simulated of the published data, with the cluster
that they were made on. Both sides decide every minute from what jobs have measured.
"""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.parts.figure import Figure, need_data
from experiments.harness.data import data_folder, imported
from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.replay.inputs import Inputs
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.run import Run, replay
from pliant.tools.schedule.jobs import JobState, Observation
from pliant.tools.schedule.policies.sia.policy import Sia
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.step_time_fit import Fit

TRACES: Final = ("philly", "saturn")
SEED: Final = 20231023
LIMIT: Final = 0.05
ACTIVE: Final = 512
SCALE: Final = 32
ROUNDS: Final = 10
_PLACES: Final = ((1,), (2,), (4,), (8,), (8, 8))


def figures(
    traces: Sequence[str] = TRACES, jobs_limit: int | None = None, active: int = ACTIVE, scale: int = SCALE
) -> list[Figure]:
    """How far the mean JCT is off, at worst and by trace, how far single jobs are, and a decision's time."""
    return [*artifact_figures(traces, jobs_limit), *decision_figures(active, scale)]


def artifact_figures(traces: Sequence[str], jobs_limit: int | None = None) -> list[Figure]:
    """Ratios are ours over the artifact's, of all jobs of a trace and of those of an application."""
    need_data("sia")
    errors: list[float] = []
    found: list[Figure] = []
    by_model: dict[str, list[tuple[float, float]]] = {}
    for name in traces:
        trace = inputs(data_folder() / "sia", name, jobs_limit)
        ours = replayed_jcts(trace)
        theirs = simulated_jcts(data_folder() / "sia" / "simulated" / f"{name}-1.csv")
        pairs = {job.id: (ours[job.id], theirs[job.id]) for job in trace.jobs}
        for job in trace.jobs:
            by_model.setdefault(job.model, []).append(pairs[job.id])
        found.append(_mean_ratio(name, pairs.values()))
        errors += [abs(our_s / their_s - 1) for our_s, their_s in pairs.values()]
    worst = max(abs((figure.value or 0.0) - 1) for figure in found)
    return [
        Figure("sia_mean_jct_error", worst, "ratio", LIMIT),
        *found,
        *(_mean_ratio(model, pairs) for model, pairs in sorted(by_model.items())),
        Figure("sia_job_jct_error_median", statistics.median(errors), "ratio"),
    ]


def _mean_ratio(name: str, pairs: Iterable[tuple[float, float]]) -> Figure:
    ours, theirs = zip(*pairs, strict=True)
    return Figure(f"sia_{name}_mean_jct_ratio", statistics.fmean(ours) / statistics.fmean(theirs), "ratio")


def nodes(scale: int = 1) -> Cluster:
    """The artifact's mixed cluster of 64 GPUs, ``scale`` times."""
    kinds = (("aws", 4, 6), ("dgx-ext", 8, 2), ("rtx", 8, 3))
    found = [
        {"name": f"{kind}-{{}}", "gpus": gpus, "gpu_type": kind, "count": count * scale}
        for kind, gpus, count in kinds
    ]
    return Cluster.model_validate({"nodes": tuple(found)})


def simulated_jcts(path: Path) -> dict[str, float]:
    """Seconds by job, from a file with the columns name and jct_s."""
    with path.open(newline="") as file:
        return {row["name"]: float(row["jct_s"]) for row in csv.DictReader(file)}


def inputs(data: Path, workload: str, jobs_limit: int | None = None) -> Inputs:
    rows = data / "workloads" / workload / "workload-1.csv"
    return imported("sia", data, rows, nodes(), jobs_limit, converges=True)


def replayed_jcts(trace: Inputs) -> dict[str, float]:
    log = replay(trace, Run("sia", conditions=Conditions(compat="sia"))).log
    submitted = {job.id: job.submit_time for job in trace.jobs}
    ends = ((event.job or "", event.time) for event in log.events() if event.event == "finish")
    return {job: end_s - submitted[job] for job, end_s in ends}


# What a decision costs.


def decision_figures(active: int, scale: int, rounds: int = ROUNDS) -> list[Figure]:
    taken_s = decisions_s(active, scale, rounds)
    return [
        Figure(f"sia_decision_ms_{64 * scale}_gpus", 1000 * statistics.median(taken_s[1:]), "ms"),
        Figure(f"sia_decision_max_ms_{64 * scale}_gpus", 1000 * max(taken_s[1:]), "ms"),
    ]


def decisions_s(active: int, scale: int, rounds: int) -> list[float]:
    """CPU seconds of each decision, the first with all fits; before each other a tenth has new noise.

    Jobs let their batch move, and have measured up to 16 GPUs of two types out of three.
    """
    rng = np.random.default_rng(SEED)
    cluster = nodes(scale)
    held = Session(Sia(knowledge="measured", retune="free"), cluster, CurveThroughput(), seed=SEED)
    types = [node.gpu_type for node in cluster.nodes]
    for number in range(active):
        _learn(held.submit(_job(number), 0.0), types[number % 3 :] + types[: number % 3], rng)
    taken = []
    for minute in range(rounds + 1):
        started = time.process_time()
        held.decide(3600.0 + 60.0 * minute)
        taken.append(time.process_time() - started)
        for job in list(held.jobs.values())[minute % 10 :: 10]:
            job.noise_scale = float(rng.uniform(100, 10_000))
    return taken


def _job(number: int) -> Job:
    return Job.model_validate(
        {
            "id": f"j{number:03}",
            "submit_time": 0.0,
            "model": "any",
            "gpus": {"requested": 1, "max": 64},
            "elastic": "size+batch",
            "batch": {"size": 128, "min": 128, "max": 4096, "per_gpu_max": 512},
            "work": {"samples": 1e9},
        }
    )


def _learn(job: JobState, types: Sequence[str], rng: np.random.Generator) -> None:
    """Let the job have measured itself: its own parameters on each type, with a few percent of noise."""
    low, high = [0.01, 1e-4, 0.02, 1e-3, 0.01, 5e-4, 1.0], [0.1, 1e-3, 0.2, 1e-2, 0.05, 5e-3, 3.0]
    for gpu_type in types[:2]:
        true = Fit._make(rng.uniform(low, high).tolist())
        for place in _PLACES:
            args = np.array(len(place) > 1), np.array(sum(place)), np.array(128), np.array(1)
            step_s = float(true.step_seconds(*args)) * rng.uniform(0.97, 1.03)
            sync_s = max(0.0, step_s - float(true.compute_seconds(np.array(128))))
            job.observe(Observation(place, 128, 1, step_s, sync_s, gpu_type))
    job.noise_scale = float(rng.uniform(100, 10_000))
