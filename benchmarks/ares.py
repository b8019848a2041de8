"""Decision time of Ares in steady state, by cluster size, jobs in proportion.

One decision is all of ``Session.decide`` at one event: the policy, the checks of its answer, and placement.
The load is Poisson with 640 jobs an hour at 2048 GPUs; GPU-time follows the classes of the Philly trace (S
below 1 h, M 1-10 h, L 10-100 h), sizes are mostly small; the demand is 0.85 of the cluster, which elasticity
makes 90-100 % of it in use.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from time import perf_counter
from typing import Final

import numpy as np

from benchmarks.parts.figure import Figure
from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.policies.ares.policy import Ares
from pliant.tools.schedule.session.session import Session

MEASURES: Final = ("tools/schedule/policies/ares", "tools/schedule/session")

SEED: Final = 20250117
CLUSTERS: Final = (64, 512, 2048, 16384)
LIMITS_MS: Final[Mapping[int, float]] = {2048: 5.0}
EVENTS: Final = 4000
"""Events measured per cluster size."""

WARM_UP_S: Final = 8 * 3600
"""Arrivals of so long come before the events measured; at least as many events as those."""

_JOBS_PER_GPU_HOUR: Final = 640 / 2048
_LOAD: Final = 0.85
_EXPONENTS: Final = {"resnet50": 0.95, "bert": 0.9, "yolov3": 0.85, "deepspeech2": 0.8, "neumf": 0.6}
"""Models by how they scale: k GPUs are k**exponent times as fast as one."""
_GPU_HOURS: Final = ((0.72, 0.02, 1.0), (0.22, 1.0, 10.0), (0.06, 10.0, 100.0))
"""(share, least, most) of the classes S, M and L, log-uniform within."""
_SIZES: Final = ((1, 0.55), (2, 0.15), (4, 0.15), (8, 0.12), (16, 0.03))
"""(requested GPUs, share)."""


def figures(
    clusters: Sequence[int] = CLUSTERS, events: int = EVENTS, warm_up_s: float = WARM_UP_S
) -> list[Figure]:
    """Median and 99th percentile of one decision in milliseconds, and how the median grows."""
    taken_ms = {gpus: _decisions_ms(gpus, events, warm_up_s) for gpus in clusters}
    medians = {gpus: statistics.median(taken) for gpus, taken in taken_ms.items()}
    return [
        *(
            Figure(f"ares_decision_median_ms_{gpus}", ms, "ms", LIMITS_MS.get(gpus))
            for gpus, ms in medians.items()
        ),
        Figure("ares_decision_growth", medians[clusters[-1]] / medians[clusters[0]], "ratio"),
        *(
            Figure(f"ares_decision_p99_ms_{gpus}", statistics.quantiles(taken, n=100)[98], "ms")
            for gpus, taken in taken_ms.items()
        ),
    ]


def smallest() -> list[Figure]:
    """All of it, small."""
    return figures(clusters=(64, 128), events=10, warm_up_s=60)


def _decisions_ms(gpus: int, events: int, warm_up_s: float) -> list[float]:
    """Milliseconds of each decision after the warm-up, on nodes of 8 GPUs."""
    taken_s = [seconds for seconds, _ in decisions(gpus, events, SEED, warm_up_s)]
    return [1000 * seconds for seconds in taken_s[-events:]]


def decisions(
    gpus: int, events: int, seed: int, warm_up_s: float = WARM_UP_S
) -> Iterator[tuple[float, float]]:
    """(seconds of the decision, part of the GPUs in use after it), event by event, warm-up included."""
    held = Session(Ares(), _cluster(gpus), CurveThroughput(_curves()))
    rate = _JOBS_PER_GPU_HOUR * gpus / 3600
    total = events + max(events, int(2 * warm_up_s * rate))
    jobs = iter(_jobs(total, rate, gpus, np.random.default_rng(seed)))
    coming = next(jobs)
    ends: list[tuple[float, str]] = []
    for _ in range(total):
        while ends and not _is_current(held, *ends[0]):
            heappop(ends)
        if ends and ends[0][0] <= coming.submit_time:
            now_s, ended = heappop(ends)
            held.end(ended, now_s)
        else:
            now_s = coming.submit_time
            held.submit(coming, now_s)
            coming = next(jobs)
        started = perf_counter()
        transitions = held.decide(now_s)
        taken_s = perf_counter() - started
        for transition in transitions:
            end_s = transition.job.finish_time_s()
            if end_s is not None:
                heappush(ends, (end_s, transition.job.id))
        yield taken_s, 1 - sum(held.cluster.free.by_type.values()) / gpus


def _is_current(held: Session, end_s: float, job_id: str) -> bool:
    return job_id in held.jobs and held.jobs[job_id].finish_time_s() == end_s


def _cluster(gpus: int) -> Cluster:
    return Cluster.model_validate({"nodes": ({"name": "n{}", "gpus": 8, "count": gpus // 8},)})


def _curves() -> dict[str, dict[int, float]]:
    return {name: {2**i: 2 ** (i * power) for i in range(9)} for name, power in _EXPONENTS.items()}


def _jobs(count: int, rate: float, gpus: int, rng: np.random.Generator) -> list[Job]:
    """One job more than ``count``, so that there is always a next one."""
    times = np.cumsum(rng.exponential(1 / rate, count + 1))
    kinds = rng.choice(len(_GPU_HOURS), count + 1, p=[share for share, _, _ in _GPU_HOURS])
    low, high = (np.log([kind[i] for kind in _GPU_HOURS])[kinds] for i in (1, 2))
    hours = np.exp(rng.uniform(low, high))
    hours *= _LOAD / _JOBS_PER_GPU_HOUR / hours.mean()
    sizes = rng.choice([size for size, _ in _SIZES], count + 1, p=[share for _, share in _SIZES])
    models = rng.choice(list(_EXPONENTS), count + 1)
    return [
        Job.model_validate(
            {
                "id": f"j{i:06}",
                "submit_time": float(times[i]),
                "model": str(models[i]),
                "gpus": {"requested": min(int(sizes[i]), gpus)},
                "elastic": "size",
                "batch": {"size": 1024},
                "work": {"gpu_seconds": 3600 * float(hours[i])},
            }
        )
        for i in range(count + 1)
    ]
