"""The promise of shadow-price on random instances, held against a reference written from its page alone.

Each instance is a small cluster under load, with all that the promise covers: minima, rigid jobs, replicas,
demands for CPUs and memory, limits of users, weights, and curves that are concave, dip or fall; in one of
five the policy does not know the work of jobs. Changes and
decisions take exactly the time that deals allow for. ``promise_broken``: instances with a job that ends later
than the reference of equal deals says. ``promise_false_alarms``: those where the report counts a job as late
that is not. ``promise_disagreements``: those where policy, report and page name different latest ends.
``promise_tightest``: the largest part that a job took of its time.
``python -m benchmarks.parts.promise`` renews these rows of the benchmark shadow_price alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from unittest.mock import patch

import numpy as np

from benchmarks.parts import figure
from benchmarks.parts.equal_deals import Curves, came_in, latest_ends
from benchmarks.parts.figure import Figure
from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.schemas.runinfo import EqualDeals
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import Inputs
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.run import Run, replay
from pliant.tools.report.fairness import allowed_ends_s
from pliant.tools.report.job_arrays import optional
from pliant.tools.report.metrics import run_metrics
from pliant.tools.report.read_run import fold
from pliant.tools.schedule import registry
from pliant.tools.schedule.policies.shadow_price.policy import ShadowPrice
from pliant.tools.schedule.snapshot import Snapshot

SEED: Final = 20261127
INSTANCES: Final = 1000
_NAME: Final = "shadow-price-watched"
_EQUAL: Final = 1e-9
"""Relative: times are sums of many."""
_MODELS: Final = 4
_LONGEST_S: Final = 1e6


@dataclass(frozen=True)
class Instance:
    """One cluster, its jobs and the terms on which it is shared."""

    cluster: Cluster
    jobs: tuple[Job, ...]
    curves: Curves
    terms: EqualDeals
    cost_s: float
    interval_s: float
    hides_work: bool
    """Whether the policy does not know the work of the jobs."""


@dataclass(frozen=True)
class Verdict:
    """What came of one instance."""

    late: tuple[str, ...]
    """By the page."""
    alarms: tuple[str, ...]
    """Late by the report and not by the page."""
    differing: tuple[str, ...]
    """Jobs of which two of the three name different latest ends."""
    used: float
    """The largest part that a job took of its time."""


def figures(instances: int = INSTANCES) -> list[Figure]:
    """Counts over random instances."""
    return counts([verdict_of(number) for number in range(instances)])


def verdict_of(number: int) -> Verdict:
    """That of one instance by its number."""
    return verdict(instance(number))


def counts(found: Sequence[Verdict]) -> list[Figure]:
    """The rows of these verdicts."""
    return [
        Figure("promise_false_alarms", sum(bool(each.alarms) for each in found), "instances", 0),
        Figure("promise_broken", sum(bool(each.late) for each in found), "instances", 0),
        Figure("promise_disagreements", sum(bool(each.differing) for each in found), "instances", 0),
        Figure("promise_tightest", max(each.used for each in found), "ratio"),
        Figure("promise_instances", len(found), "instances"),
    ]


def verdict(one: Instance) -> Verdict:
    """Replay one instance and hold it against the page, the report and the policy's own reference."""
    trace = Inputs(one.jobs, one.cluster, None, CurveThroughput(one.curves))
    cost = Cost(one.cost_s)
    world = SimulatedCluster(start_cost=cost, rescale_cost=cost)
    parameters = {**one.terms.model_dump(), "rescale_s": one.cost_s}
    conditions = Conditions(interval=one.interval_s, demand="predicted" if one.hides_work else "stated")
    with watched() as name:
        done = replay(trace, Run(name, parameters, conditions=conditions, simulated=world))
    run = fold(done.log.events(), "run")
    first_s = min(job.submit_time for job in one.jobs)
    ends_s = {job.id: job.end_s + first_s for job in run.jobs if job.end_s is not None}
    came_s = came_in(one.jobs, one.cluster, ends_s)
    page = latest_ends(one.jobs, one.cluster, one.curves, one.terms, came_s, hides_work=one.hides_work)
    allowed_s = allowed_ends_s(run)
    rows = () if allowed_s is None else zip(run.jobs.ids(), optional(allowed_s), strict=True)
    report = {job_id: end_s + first_s for job_id, end_s in rows if end_s is not None}
    policy = Watched.at_work.latest_s(done.session.snapshot(done.session.changes.now_s))
    late = tuple(job for job, end_s in page.items() if _later(ends_s.get(job, math.inf), end_s))
    metrics = run_metrics(run)
    past = metrics.jobs_past_gps_bound or 0
    differing = [
        f"{job} of {whose}"
        for whose, named in (("the policy", policy), ("the report", report))
        for job, end_s in page.items()
        if not _same(end_s, named.get(job))
    ]
    alarms = [
        job for job, end_s in report.items() if _later(ends_s.get(job, math.inf), end_s) and job not in late
    ]
    came = {job.id: job.submit_time for job in one.jobs}
    used = max((ends_s.get(job, math.inf) - came[job]) / (end_s - came[job]) for job, end_s in page.items())
    return Verdict(late, tuple(alarms) or ("?",) * max(0, past - len(late)), tuple(differing), used)


def _same(one_s: float, other_s: float | None) -> bool:
    return other_s is not None and abs(one_s - other_s) <= _EQUAL * max(1.0, abs(one_s))


def _later(end_s: float, latest_s: float) -> bool:
    return end_s > latest_s + _EQUAL * max(1.0, abs(latest_s))


class Watched(ShadowPrice):
    """shadow-price of which one can ask when jobs left its reference."""

    name: ClassVar[str] = _NAME
    at_work: ClassVar[Watched]

    def __init__(
        self,
        *,
        grace: float,
        grace_s: float,
        unstated_grace_s: float,
        deal_s: float,
        lost_s: float,
        rescale_s: float,
    ) -> None:
        super().__init__(
            sweeps=0,  # any order of the jobs is as good for the bound, and decisions take half the time
            grace=grace,
            grace_s=grace_s,
            unstated_grace_s=unstated_grace_s,
            deal_s=deal_s,
            lost_s=lost_s,
            rescale_s=rescale_s,
        )
        self._latest_s: dict[str, float] = {}
        Watched.at_work = self
        assert self._bound is not None
        own = self._bound._reference
        close = own.close

        def noting(time_s: float) -> list[tuple[float, str]]:
            left = close(time_s)
            self._latest_s |= {job_id: at_s for at_s, job_id in left}
            return left

        own.close = noting  # type: ignore[method-assign]

    def latest_s(self, last: Snapshot) -> dict[str, float]:
        """When each job left the reference, which goes on until all that have ended have left it."""
        assert self._bound is not None
        reference, time_s = self._bound._reference, last.time_s
        self._bound.follow(last, self._known)
        while reference._sharers and time_s < _LONGEST_S:
            time_s += self.deal_s
            self._bound.follow(last._replace(time_s=time_s, changes=()), self._known)
        return self._latest_s


@contextmanager
def watched() -> Iterator[str]:
    """The name by which replays find it meanwhile."""
    with patch.dict(registry.BUILT_IN, {_NAME: f"{__name__}:Watched"}):
        yield _NAME


def instance(number: int, seed: int = SEED) -> Instance:
    """Drawn so that many jobs would end later than promised if nothing held the policy to it."""
    rng = np.random.default_rng((seed, number))
    demanding, limited, replicas = (bool(rng.random() < part) for part in (0.5, 0.4, 0.25))
    node_gpus = int(rng.choice([2, 4, 8]))
    nodes = int(rng.integers(1, 5 if node_gpus < 8 else 3))
    total = node_gpus * nodes
    node: dict[str, Any] = {"gpus": node_gpus, "cpus": 2 * node_gpus, "memory": 64 * node_gpus}
    shape: dict[str, Any] = {"nodes": tuple({"name": f"n{at}", **node} for at in range(nodes))}
    if limited:
        limit = {"jobs": int(rng.integers(1, 4))} if rng.random() < 0.5 else {"gpus": total}
        shape["user_limits"] = {"ann": limit}
    cost_s = float(rng.choice([0.0, 7.3, 30.0, 61.7]))
    interval_s = float(rng.choice([29.7, 45.3, 60.0]))
    deal_s = float(rng.choice([300.0, 433.3, 600.0]))
    terms = EqualDeals(
        grace=float(rng.choice([0.0, 0.5, 2.0])),
        grace_s=float(rng.choice([0.0, 100.1, 600.0])),
        deal_s=deal_s,
        lost_s=cost_s + interval_s,
    )
    curves = {f"m{model}": _curve(rng, total) for model in range(_MODELS)}
    jobs = [
        _job(rng, f"j{at:02}", total, node_gpus, curves, demanding=demanding, replicas=replicas)
        for at in range(int(rng.integers(3, 16)))
    ]
    every_s, samples = float(rng.integers(80, 400)), float(rng.integers(300, 2500))
    stream = [
        Job.model_validate(
            {
                "id": f"s{at:02}",
                "submit_time": round(every_s * at, 2),
                "model": "m0",
                "gpus": {"requested": 1, "min": 1, "max": total},
                "elastic": "size",
                "batch": {"size": 960},
                "work": {"samples": samples},
            }
        )
        for at in range(int(rng.integers(0, 16)))
    ]
    if rng.random() < 0.3:  # submitted as deals begin, so that jobs enter to the second
        begin_s = jobs[0].submit_time
        at = [begin_s + deal_s * int(rng.integers(0, 5)) for _ in jobs]
        jobs = [job.model_copy(update={"submit_time": time_s}) for job, time_s in zip(jobs, at, strict=True)]
        jobs[0], stream = jobs[0].model_copy(update={"submit_time": begin_s}), []
        terms = terms.model_copy(update={"grace": 0.0})
    ordered = sorted([*jobs, *stream], key=lambda job: (job.submit_time, job.id))
    hides_work = bool(rng.random() < 0.2)
    terms = terms.model_copy(update={"unstated_grace_s": float(rng.choice([0.0, 50.2, 700.0]))})
    return Instance(
        Cluster.model_validate(shape), tuple(ordered), curves, terms, cost_s, interval_s, hides_work
    )


def _curve(rng: np.random.Generator, total: int) -> dict[int, float]:
    """Concave, with dips, or falling from some size on."""
    kind = rng.choice(["concave", "dips", "falls"])
    sizes = np.arange(1, total + 1)
    rates = sizes ** rng.uniform(0.3, 1.0)
    if kind == "dips":
        rates = rates * rng.uniform(0.4, 1.0, size=total)
    elif kind == "falls":
        rates = rates / (1.0 + (sizes / rng.uniform(2, 2 * total)) ** 3)
    return {int(size): float(rate) for size, rate in zip(sizes, rates, strict=True)}


def _job(
    rng: np.random.Generator,
    name: str,
    total: int,
    node_gpus: int,
    curves: Mapping[str, Mapping[int, float]],
    *,
    demanding: bool,
    replicas: bool,
) -> Job:
    replica = 2 if replicas and rng.random() < 0.5 else 1
    rigid = bool(rng.random() < 0.3)
    worker: dict[str, float] = {}
    if demanding and rng.random() < 0.7:
        worker = {"cpu": int(rng.integers(1, min(5, 2 * node_gpus // replica + 1)))}
        if rng.random() < 0.3:
            worker["memory"] = int(rng.integers(16, 129))
    each = min(
        [
            node_gpus,
            *(int({"cpu": 2, "memory": 64}[key] * node_gpus // amount) for key, amount in worker.items()),
        ]
    )
    room = (each - each % replica) * (total // node_gpus)
    if room < replica:
        worker, room = {}, total
    units = room // replica
    low, high = sorted(int(each) * replica for each in rng.integers(1, units + 1, size=2))
    requested = int(rng.integers(low // replica, high // replica + 1)) * replica
    gpus: dict[str, Any] = {"requested": requested, "per_replica": replica}
    if not rigid:
        gpus |= {"min": low if rng.random() < 0.5 else min(low, 2 * replica), "max": high}
    model = str(rng.choice(sorted(curves)))
    alone_s = float(np.exp(rng.uniform(np.log(100), np.log(4000))))
    record = {
        "id": name,
        "submit_time": round(float(rng.uniform(0, 2500)), 2),
        "model": model,
        "gpus": gpus,
        "elastic": "none" if rigid else "size",
        "batch": {"size": 960},
        "work": {"samples": curves[model][requested] / replica * alone_s},
        "user": str(rng.choice(["ann", "bob"])),
        "resources": {"worker": worker},
        "weight": float(rng.choice([0.1, 1.0, 10.0])),
        "priority": float(rng.choice([0.0, 0.0, 1.0])),
    }
    return Job.model_validate(record)


if __name__ == "__main__":
    with ProcessPoolExecutor() as pool:
        rows = counts([*pool.map(verdict_of, range(INSTANCES), chunksize=5)])
    figure.renew("shadow_price", rows)
    for row in rows:
        print(f"{row.name:45s} {row.value:.6g}")
