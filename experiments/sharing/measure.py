"""Replays of the ways to share a cluster, and what each team had of them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from experiments.harness.pieces import in_pieces
from experiments.harness.spec import Findings, Tell
from experiments.sharing.workload import LOAD, WAYS, Workload, cluster, jobs_of, philly
from pliant.schemas.event import PLACED
from pliant.schemas.io import read_events
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.output import write
from pliant.tools.replay.run import Run, replay
from pliant.tools.report.read_run import read_run
from pliant.tools.report.report import make_report

POLICIES: Final = ("ares", "srtf")
START_S: Final = 30.0
"""A start and a resume: processes begin, and read a checkpoint."""
RESCALE_S: Final = 1.0
"""A change of workers in place."""
HOUR_S: Final = 3600.0


def measured(load: Workload, folder: Path, workers: int, tell: Tell) -> Findings:
    """Every way under every policy."""
    tasks = {f"{policy}-{way}": partial(outcome, load, policy, way) for policy in POLICIES for way in WAYS}
    found = in_pieces(tasks, folder, workers, tell)
    return {
        "jobs": len(load.jobs),
        "gpus": load.gpus,
        "load": LOAD,
        "partitions": dict(load.partitions),
        "replays": found,
    }


def of_philly(folder: Path, workers: int, tell: Tell) -> Findings:
    return measured(philly(), folder, workers, tell)


def outcome(load: Workload, policy: str, way: str) -> Mapping[str, Any]:
    """Main figures of one replay."""
    world = SimulatedCluster(
        start_cost=Cost(START_S), rescale_cost=Cost(RESCALE_S), resume_cost=Cost(START_S)
    )
    done = replay(inputs(jobs_of(load, way), cluster(load, way)), Run(policy, simulated=world))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "events.parquet"
        write(done.log, done.summary, str(path))
        run = read_run(path)
        events = read_events(path)
    reported = make_report([run]).runs[0]
    metrics, teams = reported.metrics, reported.teams
    lost_gpu_s = sum(
        (event.overhead_seconds or 0.0) * (event.gpus or 0) for event in events if event.event in PLACED
    )
    return {
        "mean_jct_s": metrics.mean_jct_s,
        "p99_jct_s": metrics.p99_jct_s,
        "makespan_s": metrics.makespan_s,
        "utilization": metrics.utilization,
        "preemptions_per_job": metrics.preemptions_per_job,
        "lost_gpu_hours": lost_gpu_s / HOUR_S,
        "deficit_gpu_hours": sum(each.deficit_gpu_hours or 0.0 for each in teams if not each.user),
        "finished": metrics.jobs_finished,
        "teams": {each.team: each.model_dump(mode="json") for each in teams if not each.user},
    }
