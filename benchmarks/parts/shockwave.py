"""Shockwave's experiment on 32 GPUs replayed: 120 jobs that change their batch, under six policies.

The artifact's authors ran the trace on real GPUs and in their simulator, whose quirks are those of ``--compat
shockwave``. ``python -m benchmarks.parts.shockwave`` prints what becomes of each policy beside both.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping
from typing import Final, NamedTuple

from benchmarks.parts.figure import Figure, need_data
from experiments.harness.data import data_folder, imported
from pliant.schemas.cluster import Cluster
from pliant.tools.replay.inputs import Inputs
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.run import Run, replay
from pliant.tools.schedule.demand import demand_gpu_s

FOLDER: Final = "shockwave"
TRACE: Final = "120-jobs-dynamic.trace"
GPUS: Final = 32
NODE_GPUS: Final = 4
POLICIES: Final = {
    "allox": "allox",
    "finish_time_fairness": "gavel-ftf",
    "max_min_fairness": "gavel",
    "max_sum_throughput_perf": "gavel-throughput",
    "min_total_duration": "gavel-makespan",
    "shockwave": "shockwave",
}
"""The artifact's name of each policy, and ours."""


class Outcome(NamedTuple):
    """What results.csv says of a policy, and what a replay gives."""

    mean_jct_s: float
    makespan_s: float
    worst_ftf_themis: float
    """JCT over that on 1/N of the cluster, with N the mean number of jobs while it was there."""
    worst_ftf_static: float
    """The same with N all jobs of the trace."""


def figures(jobs: int | None = None) -> list[Figure]:
    """The error of the mean JCT, over the policies; and each policy beside the published runs.

    :param jobs: at most this many, the first to arrive.
    """
    need_data(FOLDER)
    physical, simulated = published("physical"), published("simulation")
    given = trace(jobs)
    ours = {theirs: outcome(given, name) for theirs, name in POLICIES.items()}
    limit = statistics.median(errors(simulated, physical).values())
    error = statistics.median(errors(ours, physical).values())
    return [
        Figure("shockwave_physical_error", error, "ratio", limit),
        *(
            Figure(f"shockwave_{policy}_{measure}_{whose}", value, "s" if measure.endswith("_s") else "ratio")
            for policy in POLICIES
            for whose, all_of in (("ours", ours), ("physical", physical), ("simulated", simulated))
            for measure, value in all_of[policy]._asdict().items()
        ),
    ]


def errors(found: Mapping[str, Outcome], physical: Mapping[str, Outcome]) -> dict[str, float]:
    """By policy, how far the mean JCT is from that on real GPUs."""
    return {name: abs(each.mean_jct_s / physical[name].mean_jct_s - 1) for name, each in found.items()}


def published(kind: str) -> dict[str, Outcome]:
    """By the artifact's names of policies.

    :param kind: ``physical`` or ``simulation``.
    """
    with (data_folder() / FOLDER / "results.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["kind"] == kind]
    return {row["policy"]: Outcome(*(float(row[name]) for name in Outcome._fields)) for row in rows}


def trace(jobs: int | None = None) -> Inputs:
    """The trace on eight nodes of four GPUs, at the speeds of V100."""
    data = data_folder() / FOLDER
    node = {"name": "n{}", "gpus": NODE_GPUS, "count": GPUS // NODE_GPUS, "gpu_type": "v100"}
    return imported("shockwave", data, data / TRACE, Cluster.model_validate({"nodes": (node,)}), jobs)


def outcome(given: Inputs, policy: str) -> Outcome:
    """What a replay under a policy comes to."""
    done = replay(given, Run(policy, conditions=Conditions(compat="shockwave")))
    ended_s = {event.job: event.time for event in done.log.events() if event.event == "finish"}
    begun_s = {job.id: job.submit_time for job in given.jobs}
    jct_s = {job_id: ended_s[job_id] - begun_s[job_id] for job_id in begun_s}
    alone_s = {
        job_id: demand_gpu_s(state, done.session.cluster.speeds, of_simulation=True)
        / state.spec.gpus.requested
        for job_id, state in done.session.book.ended.items()
    }
    lives = [(begun_s[job_id], begun_s[job_id] + jct_s[job_id]) for job_id in begun_s]
    return Outcome(
        statistics.fmean(jct_s.values()),
        max(ended_s.values()) - min(begun_s.values()),
        max(
            jct_s[job_id] / alone_s[job_id] / max(1.0, _company(begun_s[job_id], jct_s[job_id], lives) / GPUS)
            for job_id in begun_s
        ),
        max(jct_s[job_id] / alone_s[job_id] / max(1.0, len(begun_s) / GPUS) for job_id in begun_s),
    )


def _company(from_s: float, seconds: float, lives: list[tuple[float, float]]) -> float:
    """Jobs that are there on average in that time."""
    until_s = from_s + seconds
    return sum(max(0.0, min(until_s, end) - max(from_s, begin)) for begin, end in lives) / seconds


if __name__ == "__main__":
    for row in figures():
        print(f"{row.name:62s} {row.value:.6g} {row.unit}")
