"""Replays of the Pollux and Sia workloads under the physics of the Pollux simulator, and their figures.

Jobs of every workload are those applications that the Pollux artifact measured, on 16 nodes of 4 T4. The
measurements and traces are published data.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from experiments.harness.data import data_folder, imported
from experiments.harness.replays import Outcome, outcome_of
from pliant.schemas.cluster import Cluster
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import Inputs
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.output import write
from pliant.tools.replay.run import Run, replay

DATA: Final = data_folder()
WORKLOADS: Final = {
    "w6": "pollux/workloads/workload-6.csv",
    "w1": "pollux/workloads/workload-1.csv",
    "philly1": "sia/workloads/philly/workload-1.csv",
    "saturn1": "sia/workloads/saturn/workload-1.csv",
}
LONG: Final = {"newtrace1": "sia/workloads/newtrace/workload-1.csv"}
"""960 jobs over 48 hours."""
IN_PLACE: Final = SimulatedCluster(start_cost=Cost(30.0), rescale_cost=Cost(1.0))
"""A change of size that keeps its processes."""
_CLUSTER: Final = {"nodes": ({"name": "n{}", "gpus": 4, "count": 16, "gpu_type": "t4"},)}


def inputs(workload: str, jobs_limit: int | None = None) -> Inputs:
    """A workload, read."""
    cluster = Cluster.model_validate(_CLUSTER)
    rows = DATA / (WORKLOADS | LONG)[workload]
    return imported("pollux", DATA / "pollux", rows, cluster, jobs_limit, converges=True)


def fixed(trace: Inputs) -> Inputs:
    """The same jobs, none of which lets its batch move."""
    return replace(trace, jobs=tuple(job.model_copy(update={"elastic": "size"}) for job in trace.jobs))


def unknown(trace: Inputs) -> Inputs:
    """The same jobs, none of which states its work."""
    return replace(trace, jobs=tuple(job.model_copy(update={"work": None}) for job in trace.jobs))


def outcome(
    trace: Inputs,
    policy: str,
    parameters: Mapping[str, Any] | None = None,
    simulated: SimulatedCluster | None = None,
    *,
    interval_s: float | None = None,
) -> Outcome:
    """One replay, seed 0.

    :param interval_s: between decisions; 0: whenever something changes; None: as in Pollux's simulator.
    """
    run = Run(
        policy,
        parameters or {},
        conditions=Conditions(compat="pollux", interval=interval_s),
        simulated=simulated or SimulatedCluster(),
    )
    done = replay(trace, run)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "events.parquet"
        write(done.log, done.summary, str(path))
        return outcome_of(policy, path)
