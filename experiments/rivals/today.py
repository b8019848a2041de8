"""What a cluster has today: what was recorded and Slurm beside our best, on jobs of whole clusters.

Two of the workloads are published in forms small enough to be at hand; the traces that recorded when jobs
began are larger and are replayed where their files lie in the folder of the data.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from experiments.harness.data import data_folder
from experiments.harness.pieces import Tasks
from pliant.schemas.cluster import Cluster
from pliant.schemas.io import read_jobs
from pliant.tools.replay.describe import cluster_for, describe
from pliant.tools.replay.engine.costs import FREE
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.importers.run import ALL, Selection, import_trace
from pliant.tools.replay.inputs import Inputs, inputs
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.output import write
from pliant.tools.replay.recorded import NODE_GPUS, is_recorded, own_cluster, runs_of
from pliant.tools.replay.run import Run, replay
from pliant.tools.report.metrics import mean, percentile
from pliant.tools.report.read_run import read_run

LOAD: Final = 0.8
"""Of a cluster whose size is not recorded."""
RECORDED: Final = "recorded"


@dataclass(frozen=True, slots=True)
class Today:
    """Jobs of one cluster."""

    title: str
    importer: str
    file: str
    """Below the folder of the published data."""
    mapping: str | None = None
    selection: Selection = ALL
    has_starts: bool = True
    """Whether the format records when jobs began."""

    leaves_out: tuple[str, ...] = ()
    """Choices that are not replayed there: they take long."""

    @property
    def path(self) -> Path:
        return data_folder() / self.file

    def inputs(self, jobs_limit: int | None = None) -> Inputs:
        """The jobs on nodes of eight GPUs: as many as were ever held at a time, else for a load of 0.8.

        :raises PliantError: the file is not there, or not readable.
        """
        with tempfile.TemporaryDirectory() as name:
            jobs_file = str(Path(name) / "jobs.jsonl")
            import_trace(
                *(self.importer, [str(self.path)], jobs_file),
                lenient=True,
                mapping=self.mapping,
                selection=self.selection,
            )
            jobs = list(read_jobs(jobs_file))[:jobs_limit]
        if is_recorded(jobs):
            return inputs(jobs, own_cluster(jobs), source=self.file)
        gpus = cluster_for(describe(jobs), LOAD)
        node = {"name": "n{}", "gpus": NODE_GPUS, "count": -(-gpus // NODE_GPUS)}
        return inputs(jobs, Cluster.model_validate({"nodes": (node,)}), source=self.file)


@dataclass(frozen=True, slots=True)
class Choice:
    """A policy, and what it knows of how long jobs run."""

    policy: str
    knows: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    conditions: Conditions = field(default_factory=Conditions)
    shown: str = ""
    """What the page calls it, where that is not the name of the policy."""


DAYS: Final = {
    "philly": Today(
        title="Philly's largest cluster, 2 to 9 October 2017",
        importer="philly",
        file="pollux/traces/philly.csv",
        selection=Selection(groups=("6214e9",), begin="2017-10-02", end="2017-10-09"),
        has_starts=False,
        leaves_out=("shadow-price-predicted",),
    ),
    "itp": Today(
        title="ITP, cluster 1 as ElasticFlow published it",
        importer="csv",
        file="elasticflow/cluster01.csv",
        mapping="id=job_id,submit=submission_time,gpus=num_gpu,duration=duration",
        has_starts=False,
        leaves_out=("shadow-price-predicted",),
    ),
    "philly-full": Today("Philly with its attempts", "philly", "philly/cluster_job_log"),
    "helios": Today("Helios, Saturn", "helios", "helios/Saturn/cluster_log.csv"),
    "acme": Today("Acme, Seren", "acme", "acme/trace_seren.csv"),
}
CHOICES: Final = {
    RECORDED: Choice("recorded", "what happened"),
    "fifo": Choice("fifo", "nothing"),
    "slurm": Choice("slurm", "limits up to twice the time"),
    "slurm-exact": Choice("slurm", "limits that are exact", {"overestimate": 0.0}),
    "slurm-tenfold": Choice("slurm", "limits up to ten times", {"overestimate": 9.0}),
    "tiresias": Choice("tiresias", "nothing"),
    "ares": Choice("ares", "nothing"),
    "srtf": Choice("srtf", "the time"),
    "shadow-price": Choice("shadow-price", "the time"),
    "shadow-price-unbounded": Choice(
        "shadow-price", "the time", {"grace": None}, shown="shadow-price, grace=none"
    ),
    "shadow-price-predicted": Choice(
        "shadow-price", "predictions", conditions=Conditions(demand="predicted")
    ),
}


def tasks(jobs_limit: int | None = None) -> Tasks:
    """By name, the replays of all traces that are at hand."""
    return {
        _name(trace, choice): partial(outcome, trace, choice, jobs_limit)
        for trace, day in DAYS.items()
        if day.path.is_file()
        for choice in CHOICES
        if (day.has_starts or choice != RECORDED) and choice not in day.leaves_out
    }


def outcome(trace: str, choice: str, jobs_limit: int | None = None) -> Mapping[str, Any]:
    """Figures of one replay. A first start costs nothing, as the recorded times hold it already."""
    day, chosen = DAYS[trace], CHOICES[choice]
    found = day.inputs(jobs_limit)
    world = SimulatedCluster(start_cost=FREE)
    run = Run(chosen.policy, chosen.parameters, conditions=chosen.conditions, simulated=world)
    done = replay(found, run)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "events.parquet"
        write(done.log, done.summary, str(path))
        ended = read_run(path).with_outcome("finished")
    jcts_s = [job.end_s - job.submit_s for job in ended if job.end_s is not None]
    return {
        "jobs": len(found.jobs),
        "gpus": found.cluster.total_gpus,
        "recorded": all(runs_of(job) for job in found.jobs),
        "finished": len(jcts_s),
        "mean_jct_s": mean(jcts_s),
        "median_jct_s": percentile(jcts_s, 0.5),
        "p99_jct_s": percentile(jcts_s, 0.99),
    }


def gathered(done: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the page is made of: by trace the outcomes of the choices, or nothing where no file is at hand."""
    return {
        trace: {
            "title": day.title,
            "file": day.file,
            "has_starts": day.has_starts,
            "replays": {
                choice: {"policy": chosen.shown or chosen.policy, "knows": chosen.knows, **done[name]}
                for choice, chosen in CHOICES.items()
                if (name := _name(trace, choice)) in done
            },
        }
        for trace, day in DAYS.items()
    }


def _name(trace: str, choice: str) -> str:
    return f"today-{trace}-{choice}"
