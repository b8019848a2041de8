"""Replays of small worlds, so that tests name only what they are about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Elasticity, Job
from pliant.tools.profile.throughput import CurveThroughput, Throughput
from pliant.tools.replay.engine.engine import Engine
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import Inputs
from pliant.tools.replay.run import Replayed, Submissions
from pliant.tools.schedule.jobs import JobState, NodeGpus
from pliant.tools.schedule.policy import Decision, Policy, Target
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np


class Told(Policy):
    """Does what it is told: ``orders[time]`` are sizes by job. Notes when it was asked and whom it saw.

    :param look: something more about all that it saw, noted in ``seen``.
    """

    name: ClassVar[str] = "told"
    elasticity: ClassVar[Elasticity] = "size"

    def __init__(
        self,
        orders: Mapping[float, Mapping[str, Any]],
        again_s: Sequence[float] = (),
        look: Callable[[Snapshot], Any] = lambda _: None,
    ) -> None:
        self.orders, self.look, self.seen = orders, look, list[Any]()
        self.again_s = sorted(again_s)
        self.asked: list[tuple[float, tuple[str, ...]]] = []

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        self.asked.append((snapshot.time_s, tuple(snapshot.jobs)))
        self.seen.append(self.look(snapshot))
        orders = self.orders.get(snapshot.time_s, {})
        again_s = next((time_s for time_s in self.again_s if time_s > snapshot.time_s), None)
        targets = {job_id: self.target(order, snapshot.jobs[job_id]) for job_id, order in orders.items()}
        return Decision(targets, ask_again_s=again_s)

    def target(self, order: Any, job: JobState) -> Target:
        return Target(order)


class Seats(Told):
    """Puts jobs where it is told: ``orders[time]`` are placements by job."""

    name: ClassVar[str] = "seats"

    def target(self, order: NodeGpus, job: JobState) -> Target:
        return Target(sum(gpus for _, gpus in order), placement=order)


class Pairs(Told):
    """Puts jobs beside others: ``orders[time]`` are the GPUs of a job, or the job that it shares those of."""

    name: ClassVar[str] = "pairs"
    elasticity: ClassVar[Elasticity] = "none"
    packs: ClassVar[bool] = True

    def target(self, order: int | str, job: JobState) -> Target:
        return Target(job.spec.gpus.requested, beside=order) if isinstance(order, str) else Target(order)


class Restless(Policy):
    """Deals all GPUs out at random at every call and moves jobs for no reason."""

    name: ClassVar[str] = "restless"
    elasticity: ClassVar[Elasticity] = "size"

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        left, targets = snapshot.total_gpus, {}
        order = snapshot.arrivals()
        for index in rng.permutation(len(order)):
            job = order[index]
            high = min(left, job.max_gpus(snapshot.total_gpus))
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
    session = Session(policy, nodes, throughput or CurveThroughput(), seed=seed)
    describe = Submissions(session.cluster.speeds, {}, policy).describe
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


def ends(engine: Engine | Replayed) -> dict[str, float]:
    finished = [event for event in engine.log.events() if event.event == "finish"]
    assert max(Counter(event.job for event in finished).values(), default=1) == 1
    return {event.job or "": event.time for event in finished}
