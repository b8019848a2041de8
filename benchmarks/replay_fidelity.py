"""Average JCTs of the published Pollux simulator, found again on its own data with ``--compat pollux``.

16 nodes of 4 GPUs. Tiresias and Optimus are deterministic; Pollux searches with random numbers, so its figure
is the median of five seeds, with the least and the most beside it. Published for workload-6: 3469.69375,
5301.875 and 2446.13 s. Without the data (its folder is ``$PLIANT_DATA``) every value is null.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.parts.figure import Figure
from pliant.schemas.cluster import Cluster
from pliant.schemas.io import write_cluster
from pliant.tools.replay.importers.run import CONVERGENCE, JOBS, PROFILE, import_trace
from pliant.tools.replay.inputs import Inputs, Sources
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.run import Run, replay

WORKLOADS: Final = (6, 1)
SEEDS: Final = 5
_CLUSTER: Final = {"nodes": ({"name": "n{}", "gpus": 4, "count": 16, "gpu_type": "t4"},)}
_DATA: Final = Path(__file__).parents[1].parent / "shared" / "data"


def figures(
    workloads: Sequence[int] = WORKLOADS, seeds: int = SEEDS, jobs_limit: int | None = None
) -> list[Figure]:
    """Five figures for each workload, in seconds."""
    data = Path(os.environ.get("PLIANT_DATA", _DATA)) / "pollux"
    found = []
    for workload in workloads:
        trace = inputs(data, workload, jobs_limit) if data.is_dir() else None
        found += _figures(f"pollux_w{workload}", trace, seeds)
    return found


def _figures(prefix: str, trace: Inputs | None, seeds: int) -> list[Figure]:
    fixed = {name: average_jct_s(trace, name) for name in ("tiresias", "optimus") if trace}
    drawn = [average_jct_s(trace, "pollux", seed) for seed in range(seeds)] if trace else []
    values = {
        "tiresias_s": fixed.get("tiresias"),
        "optimus_s": fixed.get("optimus"),
        "pollux_s": statistics.median(drawn) if drawn else None,
        "pollux_min_s": min(drawn, default=None),
        "pollux_max_s": max(drawn, default=None),
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
