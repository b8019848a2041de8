"""How far off the predicted starts of waiting jobs are, against their starts in a replay.

The trace is the Philly workload of the Sia artifact, 160 jobs on 16 nodes of 4 GPUs. Each job that has to
wait when it arrives is predicted once, at that moment, from the events until then, as ``pliant schedule
--explain`` and ``pliant status`` do it. Jobs that arrive later are unknown to a prediction. With ``_rough``
so are the true speeds: each model is profiled too fast or too slow by a factor that is drawn once, lognormal
with a sigma of 0.2, and nothing that was measured since corrects it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.parts.figure import Figure, need_data
from experiments.harness.data import data_folder
from pliant.schemas.cluster import Cluster
from pliant.schemas.event import Event
from pliant.schemas.io import (
    read_cluster,
    read_events,
    read_jobs,
    read_profile,
    write_cluster,
    write_jobs,
)
from pliant.schemas.profile import Profile, ProfileRow
from pliant.schemas.schedule import Schedule
from pliant.tools.replay.batch import Task, replay_all
from pliant.tools.replay.engine.costs import FREE
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.importers.run import JOBS, PROFILE, import_trace
from pliant.tools.replay.inputs import Sources
from pliant.tools.replay.run import Run
from pliant.tools.schedule.decide import LogHistory, Question, decide_from_history

MEASURES: Final = ("tools/schedule", "tools/replay")

SEED: Final = 20170825
SIGMA: Final = 0.2
POLICIES: Final = ("fifo", "ares", "las")
_BEFORE_A_DECISION: Final = frozenset({"submit", "finish", "node_up", "node_down", "decision"})
"""Events of one moment that come before the policy is asked."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One job that waited; times in seconds from its arrival."""

    job: str
    actual_s: float
    predicted_s: float | None
    """None: the prediction did not reach so far."""


def figures(jobs_limit: int | None = None, policies: Sequence[str] = POLICIES) -> list[Figure]:
    """Median and 90th percentile of the error for each policy."""
    need_data("sia")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        import_philly(folder)
        if jobs_limit is not None:
            write_jobs(read_jobs(folder / JOBS)[:jobs_limit], folder / JOBS)
        return [figure for policy in policies for figure in _of_policy(folder, policy)]


def smallest() -> list[Figure]:
    """All of it, small."""
    return figures(jobs_limit=30, policies=("fifo",))


def import_philly(folder: Path) -> None:
    """Write trace, profile and cluster of the workload into a folder."""
    source = data_folder() / "sia"
    (workload,) = sorted((source / "workloads" / "philly").glob("*.csv"))
    import_trace("sia", [str(source)], str(folder), workload=str(workload))
    nodes = ({"name": "n{}", "gpus": 4, "count": 16, "gpu_type": "aws"},)
    write_cluster(Cluster.model_validate({"nodes": nodes}), folder / "cluster.json")


def waits(folder: Path, policy: str, sigma: float = 0.0) -> list[Wait]:
    """Every job that had to wait, in order of arrival, under one policy.

    :param sigma: how far off the profile is that predictions are made with.
    """
    log = folder / f"{policy}.parquet"
    sources = Sources(str(folder / "jobs.jsonl"), str(folder / "cluster.json"), str(folder / PROFILE))
    replay_all(
        sources, [Task(Run(policy, simulated=SimulatedCluster(start_cost=FREE, rescale_cost=FREE)), str(log))]
    )
    events = read_events(log)
    cluster, profile = read_cluster(folder / "cluster.json"), read_profile(folder / PROFILE)
    profile = misjudged(profile, sigma) if sigma else profile
    started_s = {event.job: event.time for event in reversed(events) if event.event == "start"}
    return list(_waits(events, started_s, policy, cluster, profile))


def _waits(
    events: Sequence[Event], started_s: dict[str, float], policy: str, cluster: Cluster, profile: Profile
) -> Iterator[Wait]:
    for event in events:
        if event.event == "submit" and started_s[event.job] > event.time:
            known = [
                each
                for each in events
                if each.time < event.time or (each.time == event.time and each.event in _BEFORE_A_DECISION)
            ]
            found = decide_from_history(
                LogHistory(None, 0.0, lambda _, known=known: (None, known)),
                Question(policy, explain=True),
                now_s=event.time,
                cluster=cluster,
                profile=profile,
            )
            yield Wait(event.job, started_s[event.job] - event.time, _predicted_s(found, event.job))


def _predicted_s(found: Schedule, job_id: str) -> float | None:
    """How long a job waits, as a schedule says; one that gets GPUs waited for the next round alone."""
    if any(given.job == job_id for given in found.allocations):
        return 0.0
    (verdict,) = [each for each in found.waiting if each.job == job_id]
    return None if verdict.predicted_start is None else verdict.predicted_start - found.time


def misjudged(profile: Profile, sigma: float, seed: int = SEED) -> Profile:
    """The profile with all times of a model off by one factor, lognormal around 1."""
    rng = np.random.default_rng(seed)
    factors = {model: rng.lognormal(0.0, sigma) for model in sorted({row.model for row in profile.rows})}
    return Profile(tuple(_slower(row, factors[row.model]) for row in profile.rows))


def _slower(row: ProfileRow, factor: float) -> ProfileRow:
    seconds = {name: getattr(row, name) for name in ("step_seconds", "compute_seconds", "sync_seconds")}
    changed = {name: value * factor for name, value in seconds.items() if value is not None}
    rate = row.samples_per_second
    return replace(row, **changed, samples_per_second=None if rate is None else rate / factor)


def _of_policy(folder: Path, policy: str) -> list[Figure]:
    exact, rough = waits(folder, policy), waits(folder, policy, SIGMA)
    wait_s = float(np.median([wait.actual_s for wait in exact]))
    return [
        *_figures(policy, exact),
        *_figures(f"{policy}_rough", rough),
        Figure(f"predicted_start_wait_median_{policy}", round(wait_s, 1), "s"),
    ]


def _figures(what: str, found: Sequence[Wait]) -> list[Figure]:
    """Median and 90th percentile of the error; a start that is not predicted counts as a whole wait off."""
    errors_s = [
        wait.actual_s if wait.predicted_s is None else abs(wait.predicted_s - wait.actual_s) for wait in found
    ]
    median_s, p90_s = np.percentile(errors_s, [50, 90])
    return [
        Figure(f"predicted_start_error_median_{what}", round(float(median_s), 1), "s"),
        Figure(f"predicted_start_error_p90_{what}", round(float(p90_s), 1), "s"),
    ]


if __name__ == "__main__":
    for figure in figures():
        print(figure)
