"""How much of what unknown work costs shadow-price is won back by what finished jobs have shown.

(today - new) / (today - known) of mean JCT: ``known`` of jobs that state their work, ``new`` of the same that
do not. ``today`` are :data:`BY_SERVICE_S`, when such jobs went by the service that they had received and by
the mean of their model. ``without_bound``: with no bound on delays. On the recorded history of ONES less than
1 % was lost, so its row is the mean JCT of unknown over known work.
``python -m benchmarks.parts.unknown_work`` renews these rows of the benchmark shadow_price alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.parts import figure
from benchmarks.parts.figure import Figure, need_data
from benchmarks.parts.pollux_workloads import IN_PLACE, WORKLOADS, inputs, outcome, unknown
from experiments.ones.model import profile_of
from experiments.ones.scenes import GPUS
from experiments.ones.workloads import cluster_of, jobs_of, published, recorded
from pliant.tools.replay.inputs import Inputs
from pliant.tools.replay.inputs import inputs as inputs_of
from pliant.tools.replay.options import Conditions, DemandName
from pliant.tools.replay.progress import validations
from pliant.tools.replay.run import Run, replay

BY_SERVICE_S: Final = {"philly1": 2445.4, "saturn1": 2701.1, "w6": 2089.9, "w1": 1836.7}
REGAINED: Final = 0.5
OURS: Final = "shadow-price"


def figures(workloads: Sequence[str] = tuple(WORKLOADS), jobs_limit: int | None = None) -> list[Figure]:
    """The worst of the workloads, and each; ONES."""
    need_data("pollux", "sia", "ones")
    found: list[Figure] = []
    worst = []
    for name in workloads:
        stated = inputs(name, jobs_limit)
        silent = unknown(stated)
        for words, parameters in (("", {}), ("_without_bound", {"grace": None})):
            known_s, new_s = (_jct_s(trace, parameters) for trace in (stated, silent))
            lost_s = BY_SERVICE_S[name] - known_s
            regained = (BY_SERVICE_S[name] - new_s) / lost_s
            found.append(Figure(f"sp_unknown_regained_{name}{words}", regained, "ratio"))
            worst += [] if words else [regained]
    first = Figure("sp_unknown_regained", min(worst), "ratio", REGAINED, at_least=True)
    return [first, *found, Figure("sp_unknown_over_known_ones", ones_ratio(jobs_limit), "ratio")]


def ones_ratio(jobs_limit: int | None = None) -> float:
    """Mean JCT of predicted over stated work on the trace of ONES, where jobs take the recorded epochs."""
    jobs = list(jobs_of(published(), 0, shorter=None))[:jobs_limit]
    trace = inputs_of(jobs, cluster_of(GPUS), profile_of(None), tables=validations(recorded()))
    demands: tuple[DemandName, ...] = ("predicted", "stated")
    predicted, stated = (_ones_jct_s(trace, demand) for demand in demands)
    return predicted / stated


def _ones_jct_s(trace: Inputs, demand: DemandName) -> float:
    conditions = Conditions(demand=demand, progress="samples")
    done = replay(trace, Run(OURS, conditions=conditions, simulated=IN_PLACE))
    submitted_s = {job.id: job.submit_time for job in trace.jobs}
    return statistics.fmean(
        event.time - submitted_s[event.job] for event in done.log.events() if event.event == "finish"
    )


def _jct_s(trace: Inputs, parameters: dict[str, Any]) -> float:
    return outcome(trace, OURS, parameters).metrics["mean_jct_s"]


if __name__ == "__main__":
    rows = figures()
    figure.renew("shadow_price", rows)
    for row in rows:
        print(f"{row.name:45s} {row.value:.4g}")
