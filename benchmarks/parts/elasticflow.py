"""Jobs with deadlines of ElasticFlow, and the speeds of A100 that its authors measured, as inputs.

The files are in ``$PLIANT_DATA/elasticflow``: a trace states each job's iterations, global batch, requested
GPUs and deadline; a table by model and global batch has iterations per second by GPUs, on nodes of eight;
``published.csv`` has the shares of met deadlines that the authors published (figures 6b and 8b).

Their EDF gives each job the largest number of GPUs that its model was measured on, 64 for most, even where
that is slower than fewer, and fewer to none. This is the one reading that fits all three of its figures; at
the requested sizes, or each at its fastest, the shares are far from them. So ``edf`` is held against them on
jobs that request the largest size; the other policies are replayed as they are.

All are replayed in the world of the authors' scheduler (:data:`WORLD`), as its published code has it: it
decides at most once a minute, and a decision that changes the GPUs of any job restarts all that run, for
which it charges each at most 20 s. ElasticFlow's plans there do not count that time, and it admits no job
while one that it admitted can no longer end in time. None of these numbers was fitted. By pliant's defaults
elasticflow meets far more: 0.913 on the testbed.

``python -m benchmarks.parts.elasticflow NODES POLICY...`` says how many of the 195 jobs of the testbed end by
their deadlines, where a start and a change cost what they do by default.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.parts.figure import Figure, NotMeasurableError
from experiments.harness.data import data_folder, imported
from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Gpus
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.simulated_cluster import Quirks, SimulatedCluster
from pliant.tools.replay.inputs import Inputs, inputs
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.output import write
from pliant.tools.replay.run import Run, replay
from pliant.tools.report.metrics import run_metrics
from pliant.tools.report.read_run import read_run

DATA: Final = data_folder() / "elasticflow"
PUBLISHED: Final = ("edf", "tiresias", "themis", "elasticflow")
"""Policies that pliant has, too."""
LIMIT: Final = 0.08
NODE_GPUS: Final = 8
GPU_TYPE: Final = "a100"
WORLD: Final = SimulatedCluster(
    start_cost=Cost(20.0), rescale_cost=Cost(20.0), quirks=Quirks(stop_all_s=20.0)
)
SLOT_S: Final = 60.0
"""Between decisions."""
AS_THERE: Final[Mapping[str, Mapping[str, Any]]] = {"elasticflow": {"late_blocks": True, "rescale_s": 0.0}}
"""Parameters of policies."""
NODES: Final = {"195job": 16, "cluster01": 64, "cluster10": 32}
"""Of the authors' cluster, by trace."""


def trace(name: str = "195job", folder: Path = DATA, nodes: int | None = None) -> Inputs:
    """A trace on the cluster of its authors; every job may have as many GPUs as its model was measured on.

    A job is worth 1 if it ends by its deadline, else nothing.

    :param nodes: of eight GPUs each; None: as many as the authors had.
    """
    count = NODES[name] if nodes is None else nodes
    cluster = {"nodes": ({"name": "n{}", "gpus": NODE_GPUS, "count": count, "gpu_type": GPU_TYPE},)}
    measured = folder / "throughputs_A100"
    return imported("elasticflow", measured, folder / f"{name}.csv", Cluster.model_validate(cluster))


def _lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def at_the_largest_size(found: Inputs) -> Inputs:
    """The same jobs, each with the largest size that it may have, or nothing."""
    jobs = [
        job.model_copy(update={"gpus": Gpus(requested=job.gpus.max), "elastic": "none"}) for job in found.jobs
    ]
    return inputs(jobs, found.cluster, found.profile)


def published(name: str, folder: Path = DATA) -> dict[str, float]:
    """The share of jobs that met their deadline on a trace, by policy."""
    rows = _lines(folder / "published.csv")
    return {row["policy"]: float(row["value"]) for row in rows if row["x"] == name}


def share_met(found: Inputs, policy: str) -> float:
    """Jobs that met their deadline over all jobs, under a policy as its authors' figures have it."""
    jobs = at_the_largest_size(found) if policy == "edf" else found
    run = Run(policy, AS_THERE.get(policy, {}), conditions=Conditions(interval=SLOT_S), simulated=WORLD)
    return deadlines_met(jobs, run) / len(jobs.jobs)


def figures(traces: Iterable[str] = ("195job", "cluster10")) -> list[Figure]:
    """Shares of met deadlines on the testbed and beyond, and how far they are from the published ones.

    :raises NotMeasurableError: the data are not there.
    """
    if not DATA.is_dir():
        raise NotMeasurableError(f"{DATA} is not there")
    rows = []
    for name in traces:
        found, known = trace(name), published(name)
        shares = {policy: share_met(found, policy) for policy in PUBLISHED}
        worst = max(abs(share - known[policy]) for policy, share in shares.items())
        where = "testbed" if name == "195job" else name
        limit = LIMIT if name == "195job" else None
        rows.append(Figure(f"elasticflow_{where}_error", worst, "share of jobs", limit))
        rows += [
            Figure(f"elasticflow_{where}_{policy}_less_published", share - known[policy], "share of jobs")
            for policy, share in shares.items()
        ]
    return rows


def deadlines_met(found: Inputs, run: Run) -> int:
    """Jobs that end by their deadlines."""
    done = replay(found, run)
    with tempfile.TemporaryDirectory() as name:
        path = str(Path(name) / "events.parquet")
        write(done.log, done.summary, path)
        worth = run_metrics(read_run(path)).total_utility
    return round(worth or 0.0)


if __name__ == "__main__":
    of_testbed = trace(nodes=int(sys.argv[1]))
    for each in sys.argv[2:]:
        print(each, deadlines_met(of_testbed, Run(each)), "of", len(of_testbed.jobs))
