"""Average JCTs of the published Pollux simulator, found again on its own data with ``--compat pollux``.

16 nodes of 4 GPUs. Tiresias and Optimus are deterministic; Pollux searches with random numbers, so its figure
is the median of five seeds, with the least and the most beside it. Published for workload-6: 3469.69375,
5301.875 and 2446.13 s.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.parts.figure import Figure, need_data
from experiments.harness.data import data_folder
from pliant.schemas.cluster import Cluster
from pliant.schemas.io import write_cluster
from pliant.tools.replay.importers.run import CONVERGENCE, JOBS, PROFILE, import_trace
from pliant.tools.replay.inputs import Inputs, Sources
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.run import Run, replay

MEASURES: Final = ("tools/replay", "tools/schedule/policies")

WORKLOADS: Final = (6, 1)
SEEDS: Final = 5
_CLUSTER: Final = {"nodes": ({"name": "n{}", "gpus": 4, "count": 16, "gpu_type": "t4"},)}


def figures(
    workloads: Sequence[int] = WORKLOADS, seeds: int = SEEDS, jobs_limit: int | None = None
) -> list[Figure]:
    """Five figures for each workload, in seconds."""
    need_data("pollux")
    data = data_folder() / "pollux"
    return [
        figure
        for workload in workloads
        for figure in _figures(f"pollux_w{workload}", inputs(data, workload, jobs_limit), seeds)
    ]


def smallest() -> list[Figure]:
    """All of it, small."""
    return figures(workloads=(6,), seeds=1, jobs_limit=3)


def _figures(prefix: str, trace: Inputs, seeds: int) -> list[Figure]:
    drawn = [average_jct_s(trace, "pollux", seed) for seed in range(seeds)]
    values = {
        "tiresias_s": average_jct_s(trace, "tiresias"),
        "optimus_s": average_jct_s(trace, "optimus"),
        "pollux_s": statistics.median(drawn),
        "pollux_min_s": min(drawn),
        "pollux_max_s": max(drawn),
    }
    return [Figure(f"{prefix}_{name}", value, "s") for name, value in values.items()]


def inputs(data: Path, workload: int, jobs_limit: int | None = None) -> Inputs:
    """The trace, measurements and cluster of one workload."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = data / "workloads" / f"workload-{workload}.csv"
        import_trace("pollux", [str(data)], str(folder), workload=str(rows))
        write_cluster(Cluster.model_validate(_CLUSTER), folder / "cluster.json")
        jobs, cluster, profile, tables = (
            str(folder / file) for file in (JOBS, "cluster.json", PROFILE, CONVERGENCE)
        )
        return Sources(jobs, cluster, profile, jobs_limit, tables).read()


def average_jct_s(trace: Inputs, policy: str, seed: int = 0) -> float:
    """Mean completion less submission over all jobs."""
    log = replay(trace, Run(policy, seed=seed, conditions=Conditions(compat="pollux"))).log
    submitted = {job.id: job.submit_time for job in trace.jobs}
    jcts = [event.time - submitted[event.job or ""] for event in log.events() if event.event == "finish"]
    return statistics.fmean(jcts)
