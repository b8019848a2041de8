"""What it costs to divide a cluster among teams, and how exactly they hold what they are entitled to."""

from __future__ import annotations

import statistics
import time
from typing import Final

import numpy as np

from benchmarks.parts.figure import Figure
from pliant.schemas.cluster import USER, Cluster, Node, Shares
from pliant.schemas.job import Gpus, GpuTimeWork, Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.run import Replayed, Run, replay
from pliant.tools.report.metrics import percentile
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.session import Session

SEED: Final = 20261123
POLICIES: Final = ("ares", "shadow-price")
TEAMS: Final = 4
NODES: Final = 8
NODE_GPUS: Final = 8
JOBS: Final = 60
"""Of each team."""
START_S: Final = 30.0
RESCALE_S: Final = 1.0
TEAMS_SHARE: Final = Shares(label=USER, half_life_hours=0.0)
_SIZES: Final = (1, 2, 4, 8, 16)


def figures(jobs: int = JOBS, rounds: int = 40) -> list[Figure]:
    """Largest over the policies: 64 GPUs for four teams, and 2,048 GPUs for twenty."""
    shared = {policy: _replayed(policy, jobs, TEAMS_SHARE) for policy in POLICIES}
    errors = [share_error_p95(done) for done in shared.values()]
    costs = [
        _mean_jct_s(done) / _mean_jct_s(_replayed(policy, jobs, None)) for policy, done in shared.items()
    ]
    return [
        Figure("share_error_p95", max(errors), "ratio", 0.05),
        Figure("jct_cost_of_parts", max(costs), "ratio", 1.05),
        Figure(
            "decision_ms_20_teams_2048_gpus", 1000 * max(decision_s(each, rounds) for each in POLICIES), "ms"
        ),
    ]


def share_error_p95(done: Replayed) -> float:
    """95th percentile over time and teams of |held - entitled| / entitled, where there is a claim."""
    changes = [
        (event.time, event.detail["teams"])
        for event in done.log.events()
        if event.event == "decision" and event.detail is not None and "teams" in event.detail
    ]
    ends = [time_s for time_s, _ in changes[1:]]
    weighed = [
        (abs(each.get("held", 0) - each["entitled"]) / each["entitled"], until_s - since_s)
        for (since_s, teams), until_s in zip(changes[:-1], ends, strict=True)
        for each in teams
        if each.get("entitled") and until_s > since_s
    ]
    seconds = [round(span_s) for _, span_s in weighed]
    values = [value for (value, _), count in zip(weighed, seconds, strict=True) for _ in range(count)]
    return percentile(values, 0.95) or 0.0


def _replayed(policy: str, jobs: int, shares: Shares | None) -> Replayed:
    nodes = (Node(name="n{}", gpus=NODE_GPUS, count=NODES),)
    world = SimulatedCluster(
        start_cost=Cost(START_S), rescale_cost=Cost(RESCALE_S), resume_cost=Cost(START_S)
    )
    return replay(inputs(_jobs(jobs), Cluster(nodes=nodes, shares=shares)), Run(policy, simulated=world))


def _jobs(count: int) -> list[Job]:
    """For each team the same jobs, which come a minute after those of the team before."""
    rng = np.random.default_rng(SEED)
    at_s = np.cumsum(rng.exponential(500.0, count))
    sizes, work = rng.choice(_SIZES, count), rng.lognormal(9.5, 1.0, count)
    return [
        _job(
            f"{user}{number}",
            user,
            float(at_s[number]) + 60.0 * team,
            int(sizes[number]),
            float(work[number]),
        )
        for team, user in enumerate("abcdefgh"[:TEAMS])
        for number in range(count)
    ]


def _job(name: str, user: str, at_s: float, gpus: int, gpu_seconds: float) -> Job:
    return Job(
        id=name,
        user=user,
        submit_time=at_s,
        model="linear",
        gpus=Gpus(requested=gpus, min=1, max=2 * gpus),
        elastic="size",
        work=GpuTimeWork(gpu_seconds=gpu_seconds),
    )


def _mean_jct_s(done: Replayed) -> float:
    ends = {event.job: event.time for event in done.log.events() if event.event == "finish"}
    begins = {event.job: event.time for event in done.log.events() if event.event == "submit"}
    return statistics.fmean(ends[job] - begins[job] for job in ends)


def decision_s(policy: str, rounds: int, teams: int = 20, nodes: int = 256) -> float:
    """Median CPU seconds of a decision after a job has come or gone, 600 jobs on full GPUs."""
    rng = np.random.default_rng(SEED)
    machines = Cluster(nodes=(Node(name="n{}", gpus=NODE_GPUS, count=nodes),), shares=TEAMS_SHARE)
    session = Session(make_policy(policy), machines, CurveThroughput())
    taken, number = [], 0
    for turn in range(rounds + 1):
        time_s = 30.0 * turn
        if turn % 2:
            running = sorted(job.id for job in session.jobs.values() if job.gpus)
            session.end(running[int(rng.integers(len(running)))], time_s)
        for _ in range(0 if turn % 2 else 1 if turn else 600):
            number += 1
            size, user = int(rng.choice(_SIZES)), f"u{rng.integers(teams)}"
            session.submit(_job(f"j{number}", user, time_s, size, float(rng.uniform(1e4, 1e6))), time_s)
        started = time.process_time()
        session.decide(time_s)
        taken.append(time.process_time() - started)
    return statistics.median(taken[1:])
