"""shadow-price over what nothing can beat, over the best makespan, and over ``ones`` on the trace of ONES.

Bounds and what other policies come to are those of the experiments' results; ours is replayed. On the trace
of ONES both change a job in place and decide whenever something changes. ``changes_free``: nothing that a
policy decides costs a job time; ``each_15_s``: and it decides four times a minute.
``python -m benchmarks.parts.shadow_price_ratios`` renews these rows of the benchmark shadow_price alone.
"""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.parts import figure
from benchmarks.parts.figure import Figure, need_data
from benchmarks.parts.pollux_workloads import WORKLOADS, fixed, inputs, outcome
from experiments.shadow_price.elsewhere import elsewhere, theirs
from experiments.shadow_price.measure import RESULTS
from experiments.shadow_price.rows import Rows
from experiments.shadow_price.runs import OURS
from pliant.tools.replay.engine.costs import FREE
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster

BATCHES: Final = {"free": "policies", "fixed": "fixed"}
"""The group of the experiment's rows by what jobs may do with their batch."""
OVER_BOUND: Final = {"free": 1.35, "fixed": 1.25}
OVER_MAKESPAN: Final = 1.03
_NO_COSTS: Final = SimulatedCluster(start_cost=FREE, rescale_cost=FREE)


def figures(
    workloads: Sequence[str] = tuple(WORKLOADS), jobs_limit: int | None = None, *, smoke: bool = False
) -> list[Figure]:
    """The worst of the workloads, and each."""
    return [
        *workload_figures(workloads, jobs_limit),
        *without_costs(workloads, jobs_limit),
        ones_figure(smoke=smoke),
    ]


def workload_figures(workloads: Sequence[str], jobs_limit: int | None = None) -> list[Figure]:
    need_data("pollux", "sia")
    rows = Rows(json.loads(RESULTS.read_bytes()))
    found, makespans = [], []
    for batch, group in BATCHES.items():
        over = []
        for name in workloads:
            trace = inputs(name, jobs_limit)
            ours = outcome(trace if batch == "free" else fixed(trace), OURS).metrics
            bound_s = rows.bound_s(name, batch) or float("nan")
            best_s = min(row["makespan_s"] for row in rows.of(group, trace=name) if row["policy"] != OURS)
            over.append(Figure(f"sp_over_lower_bound_{batch}_{name}", ours["mean_jct_s"] / bound_s, "ratio"))
            makespans.append(
                Figure(f"sp_makespan_over_best_{batch}_{name}", ours["makespan_s"] / best_s, "ratio")
            )
        found += [_worst(f"sp_over_lower_bound_{batch}", over, OVER_BOUND[batch]), *over]
    return [*found, _worst("sp_makespan_over_best", makespans, OVER_MAKESPAN), *makespans]


def without_costs(workloads: Sequence[str], jobs_limit: int | None = None) -> list[Figure]:
    """Over the bound where changes are free, and where decisions come each 15 s, too."""
    rows, found = Rows(json.loads(RESULTS.read_bytes())), []
    for name, batch in itertools.product(workloads, BATCHES):
        trace, bound_s = inputs(name, jobs_limit), rows.bound_s(name, batch) or float("nan")
        for kind, interval_s in (("changes_free", None), ("changes_free_each_15_s", 15.0)):
            some = trace if batch == "free" else fixed(trace)
            ours = outcome(some, OURS, {"rescale_s": 0.0}, _NO_COSTS, interval_s=interval_s)
            over = ours.metrics["mean_jct_s"] / bound_s
            found.append(Figure(f"sp_over_lower_bound_{batch}_{name}_{kind}", over, "ratio"))
    return found


def _worst(name: str, each: Sequence[Figure], limit: float) -> Figure:
    return Figure(name, max(one.value or 0.0 for one in each), "ratio", limit)


def ones_figure(*, smoke: bool = False) -> Figure:
    """Mean JCT over that of ``ones``, means over the seeds."""
    need_data("ones")
    known = {name: row["mean_jct_s"] for name, row in theirs("ones").items()}
    with tempfile.TemporaryDirectory() as folder:
        make = dict(elsewhere("ones", Path(folder), smoke=smoke))["ones/at-change"]
        ours = {row["trace"]: row["mean_jct_s"] for row in make().values()}
    ones = statistics.fmean(known[f"{trace}-ones"] for trace in ours)
    return Figure("sp_ones_trace_over_ones", statistics.fmean(ours.values()) / ones, "ratio", 1.0)


if __name__ == "__main__":
    rows = figures()
    figure.renew("shadow_price", rows)
    for row in rows:
        print(f"{row.name:45s} {row.value:.4g}")
