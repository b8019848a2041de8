"""Replays of small worlds, so that tests name only what they are about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from pliant.schemas.cluster import Cluster
from pliant.schemas.event import Event
from pliant.schemas.job import Elasticity, Job
from pliant.tools.profile.throughput import CurveThroughput, Throughput
from pliant.tools.replay.engine.engine import Engine
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import Inputs
from pliant.tools.replay.run import Submissions
from pliant.tools.schedule.jobs import NodeGpus
from pliant.tools.schedule.policy import Decision, Policy, Target
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np


class Told(Policy):
    """Does what it is told: ``orders[time]`` are sizes by job. Notes when it was asked and whom it saw."""

    name: ClassVar[str] = "told"
    elasticity: ClassVar[Elasticity] = "size"

    def __init__(self, orders: dict[float, dict[str, int]], again_s: Sequence[float] = ()) -> None:
        self.orders = orders
        self.again_s = sorted(again_s)
        self.asked: list[tuple[float, tuple[str, ...]]] = []

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        self.asked.append((snapshot.time_s, tuple(snapshot.jobs)))
        orders = self.orders.get(snapshot.time_s, {})
        again_s = next((time_s for time_s in self.again_s if time_s > snapshot.time_s), None)
        return Decision({job: Target(gpus) for job, gpus in orders.items()}, ask_again_s=again_s)


class Seats(Policy):
    """Puts jobs where it is told: ``orders[time]`` are placements by job."""

    name: ClassVar[str] = "seats"
    elasticity: ClassVar[Elasticity] = "size"

    def __init__(self, orders: dict[float, dict[str, NodeGpus]], again_s: Sequence[float] = ()) -> None:
        self.orders = orders
        self.again_s = sorted(again_s)

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        orders = self.orders.get(snapshot.time_s, {})
        again_s = next((time_s for time_s in self.again_s if time_s > snapshot.time_s), None)
        targets = {
            job: Target(sum(gpus for _, gpus in place), placement=place) for job, place in orders.items()
        }
        return Decision(targets, ask_again_s=again_s)


class Pairs(Policy):
    """Puts jobs beside others: ``orders[time]`` are the GPUs of a job, or the job that it shares those of."""

    name: ClassVar[str] = "pairs"
    packs: ClassVar[bool] = True

    def __init__(self, orders: dict[float, dict[str, int | str]], again_s: Sequence[float] = ()) -> None:
        self.orders = orders
        self.again_s = sorted(again_s)

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        orders = self.orders.get(snapshot.time_s, {})
        again_s = next((time_s for time_s in self.again_s if time_s > snapshot.time_s), None)
        sizes = {job_id: snapshot.jobs[job_id].spec.gpus.requested for job_id in orders}
        targets = {
            job_id: Target(sizes[job_id], beside=order) if isinstance(order, str) else Target(order)
            for job_id, order in orders.items()
        }
        return Decision(targets, ask_again_s=again_s)


class Restless(Policy):
    """Deals all GPUs out anew at random at every call and moves jobs for no reason."""

    name: ClassVar[str] = "restless"
    elasticity: ClassVar[Elasticity] = "size"

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        left, targets = snapshot.total_gpus, {}
        order = snapshot.arrivals()
        for index in rng.permutation(len(order)):
            job = order[index]
            high = min(left, job.spec.max_gpus(snapshot.total_gpus))
            gpus = int(rng.integers(job.spec.min_gpus, high + 1)) if high >= job.spec.min_gpus else 0
            targets[job.id] = Target(gpus)
            left -= gpus
        return Decision(targets)


def play(
    policy: Policy,
    jobs: Iterable[Job],
    nodes: Cluster,
    throughput: Throughput | None = None,
    *,
    simulated: SimulatedCluster | None = None,
    interval_s: float | None = None,
    seed: int = 0,
) -> Engine:
    """The engine after a replay."""
    session = Session(policy, nodes, throughput or CurveThroughput(), seed=seed)
    describe = Submissions(session.speeds, {}).describe
    engine = Engine(session, tuple(jobs), simulated, interval_s=interval_s, describe=describe)
    engine.run()
    return engine


def given(jobs: Iterable[Job], nodes: Cluster, throughput: Throughput | None = None) -> Inputs:
    """Inputs of a replay, without a profile."""
    ordered = tuple(sorted(jobs, key=lambda job: (job.submit_time, job.id)))
    return Inputs(ordered, nodes, None, throughput or CurveThroughput())


def story(engine: Engine, *names: str) -> list[tuple[float, str, str, int]]:
    """(time, job, event, GPUs) of all events of jobs but submissions, or of those named."""
    return [
        (event.time, event.job or "", event.event, event.gpus or 0)
        for event in engine.log.events()
        if (event.event in names if names else event.event != "submit")
    ]


def ends(engine: Engine) -> dict[str, float]:
    """When each job finished."""
    finished = [event for event in engine.log.events() if event.event == "finish"]
    assert max(Counter(event.job for event in finished).values(), default=1) == 1
    return {event.job or "": event.time for event in finished}


def held_seconds(events: Iterable[Event], until_s: float) -> dict[str, list[tuple[float, float, Event]]]:
    """(from, to, event that began it) of every segment in which a job held GPUs."""
    open_: dict[str, tuple[float, Event]] = {}
    found: dict[str, list[tuple[float, float, Event]]] = {}
    for event in events:
        if event.job is None or event.gpus is None:
            continue
        if event.job in open_:
            since, began = open_.pop(event.job)
            found.setdefault(event.job, []).append((since, event.time, began))
        if event.gpus:
            open_[event.job] = (event.time, event)
    for job_id, (since, began) in open_.items():
        found.setdefault(job_id, []).append((since, until_s, began))
    return found
