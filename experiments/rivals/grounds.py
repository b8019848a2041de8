"""Home grounds: jobs, speeds and cluster that a system was published with, and replays of policies there."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from experiments.harness.data import data_folder, imported
from experiments.harness.pieces import Tasks, in_pieces
from experiments.harness.spec import Findings, Tell
from experiments.rivals import today
from pliant.schemas.cluster import Cluster
from pliant.tools.replay.engine.costs import FREE, Cost
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import Inputs
from pliant.tools.replay.output import write
from pliant.tools.replay.run import Run, replay
from pliant.tools.report.isolated import reference_jobs
from pliant.tools.report.metrics import run_metrics
from pliant.tools.report.read_run import read_run
from pliant.tools.report.records import RunRecord

Kind = tuple[str, int, int]
"""GPU type, GPUs of a node, nodes."""


@dataclass(frozen=True, slots=True)
class Ground:
    """Where one system was at home, and what was published of it there."""

    title: str
    importer: str
    folder: str
    """Of the published data."""
    workload: str
    nodes: tuple[Kind, ...]
    home: str
    """The policy whose authors chose this ground."""
    policies: tuple[str, ...]
    published: Mapping[str, float]
    """By policy: the share of deadlines met, or the mean JCT in seconds."""
    by_deadline: bool = False
    beside: str | None = "ares"
    """A strong policy whose replays are quick, for those under other assumptions; None: there are none, as
    they would take hours.
    """

    @property
    def varied(self) -> tuple[str, ...]:
        """Policies that are replayed under other assumptions, too."""
        return () if self.beside is None else (self.home, self.beside, OURS)

    def inputs(self, jobs_limit: int | None = None) -> Inputs:
        """:raises PliantError: the published data are not there, or not readable."""
        source = data_folder() / self.folder
        return imported(self.importer, source, source / self.workload, self.cluster(), jobs_limit)

    def cluster(self) -> Cluster:
        nodes = tuple(
            {"name": f"{kind}-{{}}", "gpus": gpus, "gpu_type": kind, "count": count}
            for kind, gpus, count in self.nodes
        )
        return Cluster.model_validate({"nodes": nodes})


ELASTICFLOW: Final = (
    *("edf", "edf-elastic", "elasticflow", "tiresias", "themis", "fair-share", "srtf", "pollux", "ares"),
    "shadow-price",
)
MANY_NODES: Final = 64
"""From this number on pollux is not replayed: over a thousand jobs its search would take hours."""
SIA: Final = ("sia", "pollux", "gavel", "tiresias", "fair-share", "ares", "shadow-price")
SHOCKWAVE: Final = (
    *("shockwave", "allox", "gavel-ftf", "gavel", "gavel-makespan", "themis", "tiresias", "srtf", "ares"),
    "shadow-price",
)
VARIED: Final = {
    "costs nothing": SimulatedCluster(start_cost=FREE, rescale_cost=FREE, resume_cost=FREE),
    "costs three times as much": SimulatedCluster(start_cost=Cost(90.0), rescale_cost=Cost(90.0)),
    "costs a second in place": SimulatedCluster(
        start_cost=Cost(30.0), rescale_cost=Cost(1.0), resume_cost=Cost(30.0)
    ),
}
"""Other assumptions of what a change of a job's GPUs costs, 30 s by default."""
OURS: Final = "shadow-price"
TYPES_OF_SIA: Final[tuple[Kind, ...]] = (("aws", 4, 6), ("rtx", 8, 3), ("dgx-ext", 8, 2))
NAMES_OF_SHOCKWAVE: Final = {
    "allox": "allox",
    "finish_time_fairness": "gavel-ftf",
    "max_min_fairness": "gavel",
    "min_total_duration": "gavel-makespan",
    "shockwave": "shockwave",
}
"""Our name of a policy by that in the published results; max_sum_throughput_perf has none."""


def grounds() -> dict[str, Ground]:
    """All of them by name.

    :raises OSError: the published data are not there.
    """
    found = {
        name: Ground(
            title=f"ElasticFlow's {words}",
            importer="elasticflow",
            folder="elasticflow",
            workload=f"{name}.csv",
            nodes=(("a100", 8, nodes),),
            home="elasticflow",
            policies=tuple(each for each in ELASTICFLOW if nodes < MANY_NODES or each != "pollux"),
            published={row["policy"]: float(row["value"]) for row in _deadlines() if row["x"] == name},
            by_deadline=True,
            beside="fair-share" if name == "195job" else None,
        )
        for name, words, nodes in (
            ("195job", "testbed, 128 A100", 16),
            ("cluster01", "cluster 1, 512 A100", 64),
            ("cluster10", "cluster 10, 256 A100", 32),
        )
    }
    for name in ("philly", "saturn"):
        jcts = [float(row["jct_s"]) for row in _rows("sia", "simulated", f"{name}-1.csv")]
        found[f"sia-{name}"] = Ground(
            title=f"Sia's {name} on its mixed cluster of 64 GPUs",
            importer="sia",
            folder="sia",
            workload=f"workloads/{name}/workload-1.csv",
            nodes=TYPES_OF_SIA,
            home="sia",
            policies=SIA,
            published={"sia": sum(jcts) / len(jcts)},
            beside="pollux",
        )
    physical = [row for row in _rows("shockwave", "results.csv") if row["kind"] == "physical"]
    found["shockwave"] = Ground(
        title="Shockwave's 120 jobs that change their batch, 32 GPUs",
        importer="shockwave",
        folder="shockwave",
        workload="120-jobs-dynamic.trace",
        nodes=(("v100", 4, 8),),
        home="shockwave",
        policies=SHOCKWAVE,
        published={
            NAMES_OF_SHOCKWAVE[row["policy"]]: float(row["mean_jct_s"])
            for row in physical
            if row["policy"] in NAMES_OF_SHOCKWAVE
        },
    )
    return found


def measured(folder: Path, workers: int, tell: Tell, jobs_limit: int | None = None) -> Findings:
    """Every policy of every ground, and what clusters have today."""
    found = grounds()
    tasks = {
        f"{name}-{policy}": partial(outcome, ground, policy, jobs_limit)
        for name, ground in found.items()
        for policy in ground.policies
    }
    tasks |= {**varied_tasks(found, jobs_limit), **today.tasks(jobs_limit)}
    ours_last = dict(sorted(tasks.items(), key=lambda item: OURS in item[0]))
    done = in_pieces(ours_last, folder, workers, tell)
    return {
        "grounds": {
            name: {
                "title": ground.title,
                "home": ground.home,
                "by_deadline": ground.by_deadline,
                "published": dict(ground.published),
                "replays": {policy: done[f"{name}-{policy}"] for policy in ground.policies},
                "varied": {
                    assumption: {policy: done[f"{name}-{policy}-{assumption}"] for policy in ground.varied}
                    for assumption in (VARIED if ground.varied else ())
                },
            }
            for name, ground in found.items()
        },
        "today": today.gathered(done),
    }


def varied_tasks(found: Mapping[str, Ground], jobs_limit: int | None = None) -> Tasks:
    """The policies that matter most of every ground, under each other assumption."""
    return {
        f"{name}-{policy}-{assumption}": partial(outcome, ground, policy, jobs_limit, assumption)
        for name, ground in found.items()
        for policy in ground.varied
        for assumption in VARIED
    }


def outcome(
    ground: Ground, policy: str, jobs_limit: int | None = None, assumption: str | None = None
) -> Mapping[str, Any]:
    """Main figures of one replay.

    :param assumption: one of :data:`VARIED`; None: what pliant assumes unless told otherwise.
    """
    found = ground.inputs(jobs_limit)
    done = replay(found, Run(policy) if assumption is None else Run(policy, simulated=VARIED[assumption]))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "events.parquet"
        write(done.log, done.summary, str(path))
        run = read_run(path)
    metrics = run_metrics(run)
    by_deadline: dict[str, float] = {}
    if ground.by_deadline:
        best, requested = ceilings(run)
        met = (metrics.total_utility or 0.0) / len(found.jobs)
        by_deadline = {"met": met, "ceiling": best, "ceiling_requested": requested}
    return {
        **by_deadline,
        "jobs": len(found.jobs),
        "mean_jct_s": metrics.mean_jct_s,
        "p99_jct_s": metrics.p99_jct_s,
        "makespan_s": metrics.makespan_s,
        "finished": metrics.jobs_finished,
    }


def ceilings(run: RunRecord) -> tuple[float, float]:
    """Shares of the jobs that would meet their deadline with the cluster for themselves: at their best size,
    and at the requested one.
    """
    alone = reference_jobs(run)
    limit_s = run.jobs.target_s[alone.job]
    asked = run.jobs.counts(lambda job: job.gpus.requested)[alone.job]
    best, requested = alone.alone_s <= limit_s, alone.demand_gpu_s / asked <= limit_s
    return int(best.sum()) / len(run.jobs), int(requested.sum()) / len(run.jobs)


def _deadlines() -> Sequence[Mapping[str, str]]:
    return _rows("elasticflow", "published.csv")


def _rows(*path: str) -> list[dict[str, str]]:
    with data_folder().joinpath(*path).open(newline="") as file:
        return list(csv.DictReader(file))
