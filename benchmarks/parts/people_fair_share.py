"""What a decision of fair-share costs on a large cluster."""

from __future__ import annotations

import statistics
import time
from typing import Final

from benchmarks.parts.figure import Figure
from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.session import Session

NODES: Final = 10_000
JOBS: Final = 1_000
DECISIONS: Final = 20
LIMIT_MS: Final = 5.0


def figures(nodes: int = NODES, jobs: int = JOBS, decisions: int = DECISIONS) -> list[Figure]:
    """The median of decisions before each of which a job has ended and another one has come."""
    cluster = Cluster.model_validate({"nodes": ({"name": "n{}", "gpus": 8, "count": nodes},)})
    session = Session(make_policy("fair-share"), cluster, CurveThroughput())
    for number in range(jobs):
        session.submit(_job(number), float(number))
    session.decide(float(jobs))
    running = [job.id for job in session.jobs.values() if job.gpus]
    taken_s = []
    for number, job_id in zip(range(jobs, jobs + decisions), running, strict=False):
        time_s = jobs + 1.0 + number
        session.end(job_id, time_s)
        session.submit(_job(number), time_s)
        began_s = time.process_time()
        session.decide(time_s)
        taken_s.append(time.process_time() - began_s)
    return [Figure("fair_share_10k_nodes_ms", round(1e3 * statistics.median(taken_s), 2), "ms", LIMIT_MS)]


def _job(number: int) -> Job:
    limits = {"requested": 8, "min": 1, "max": 16} if number % 2 else {"requested": 4}
    own = {"id": f"j{number}", "submit_time": float(number), "model": "m", "gpus": limits}
    return Job.model_validate(
        {**own, "elastic": "size" if number % 2 else "none", "work": {"gpu_seconds": 1e6}}
    )
