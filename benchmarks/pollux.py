"""Decision time of Pollux on a snapshot of 160 jobs and 16 nodes of 4 GPUs, in calibration units.

A unit is the CPU time of a fixed loop run beside it, so that machines can be compared. Jobs let their batch
move and have measured themselves in several configurations; measured are the first decision, which fits all
of them, and rounds a minute apart after it.
"""

from __future__ import annotations

import statistics
import time
from typing import Final

import numpy as np

from benchmarks.parts.figure import Figure
from benchmarks.replay_speed import calibration_s
from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.jobs import JobState, Observation
from pliant.tools.schedule.policies.pollux.goodput import Fit
from pliant.tools.schedule.policies.pollux.policy import Pollux
from pliant.tools.schedule.session.session import Session

MEASURES: Final = ("tools/schedule/policies/pollux",)

SEED: Final = 20210714
JOBS: Final = 160
NODES: Final = 16
ROUNDS: Final = 10

_PLACES: Final = ((1,), (2,), (4,), (4, 2), (4, 4))


def figures(jobs: int = JOBS, nodes: int = NODES, rounds: int = ROUNDS) -> list[Figure]:
    """Calibration units of the first decision and of the median round, and the milliseconds of that."""
    unit_s = calibration_s()
    taken_s = decisions_s(jobs, nodes, rounds)
    median_s = statistics.median(taken_s[1:])
    return [
        Figure("pollux_first_decision_units", taken_s[0] / unit_s, "units"),
        Figure("pollux_decision_median_units", median_s / unit_s, "units"),
        Figure("pollux_decision_median_ms", 1000 * median_s, "ms"),
    ]


def smallest() -> list[Figure]:
    """All of it, small."""
    return figures(jobs=4, nodes=2, rounds=2)


def decisions_s(jobs: int, nodes: int, rounds: int, seed: int = SEED) -> list[float]:
    """CPU seconds of each decision; before every round after the first a tenth of the jobs has new noise."""
    rng = np.random.default_rng(seed)
    shape = {"nodes": ({"name": "n{}", "gpus": 4, "count": nodes},)}
    held = Session(Pollux(knowledge="measured"), Cluster.model_validate(shape), CurveThroughput(), seed=seed)
    for number in range(jobs):
        _learn(held.submit(_job(number), 0.0), rng)
    taken = []
    for minute in range(rounds + 1):
        started = time.process_time()
        held.decide(60.0 * minute)
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
            "gpus": {"requested": 1},
            "elastic": "size+batch",
            "batch": {"size": 128, "min": 128, "max": 4096, "per_gpu_max": 512},
            "work": {"samples": 1e9},
        }
    )


def _learn(job: JobState, rng: np.random.Generator) -> None:
    """Let the job have measured itself: its own parameters, with a few percent of noise."""
    low, high = [0.01, 1e-4, 0.02, 1e-3, 0.01, 5e-4, 1.0], [0.1, 1e-3, 0.2, 1e-2, 0.05, 5e-3, 3.0]
    true = Fit._make(rng.uniform(low, high).tolist())
    for place in _PLACES:
        for local in (64, 128, 256):
            args = np.array(len(place) > 1), np.array(sum(place)), np.array(local), np.array(1)
            step_s = float(true.step_seconds(*args)) * rng.uniform(0.97, 1.03)
            sync_s = max(0.0, step_s - float(true.compute_seconds(np.array(local))))
            job.observe(Observation(place, local, 1, step_s, sync_s))
    job.noise_scale = float(rng.uniform(100, 10_000))
