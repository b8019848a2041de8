"""A shared cluster to try rules of teams on: owners whose policies do what a test says, and their jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.policy import Decision, Policy, Target
from pliant.tools.schedule.session.holdings import Holding
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Snapshot
from tests.builders import job
from tests.tools.schedule.test_shares import shares

THREE = shares(x={}, y={}, z={})
TWO = shares(x={}, y={})


class Seen(NamedTuple):
    """What a policy was shown, as it was then."""

    time_s: float
    nodes: dict[str, tuple[int, int]]
    """GPUs of nodes that are up, and how many of them are free."""
    jobs: list[str]
    changes: list[tuple[str, str, int]]
    total: int
    free: dict[str, int]
    future: list[str]


class Owned(Policy):
    """Asks the test what to do; each owner has one, so the users of its jobs say whose it is."""

    name = "owned"
    elasticity = "size"
    packs = True
    knows_future = True
    answer: ClassVar[Callable[[Snapshot], Decision]]
    seen: ClassVar[dict[str, list[Seen]]]

    def __init__(self) -> None:
        self.user = ""

    def decide(self, snapshot, rng):
        users = {each.spec.user for each in snapshot.jobs.values()}
        users |= {change.job.spec.user for change in snapshot.changes if change.job is not None}
        self.user = self.user or min(users, default="")
        self.seen.setdefault(self.user, []).append(shown(snapshot))
        return type(self).answer(snapshot)

    def dump_state(self):
        return {"user": self.user}

    def load_state(self, state, jobs):
        self.user = state["user"]


def shown(snapshot: Snapshot) -> Seen:
    return Seen(
        snapshot.time_s,
        {each.name: (each.gpus, snapshot.free.free_on(each.name)) for each in snapshot.nodes if each.up},
        sorted(snapshot.jobs),
        [
            (change.kind, change.node.name if change.job is None else change.job.id, change.gpus)
            for change in snapshot.changes
        ],
        snapshot.total_gpus,
        dict(snapshot.free_gpus),
        [each.id for each in snapshot.future],
    )


def takes(snapshot: Snapshot) -> Decision:
    """Each waiting job that fits starts, on what it requested if that is free; others keep their GPUs."""
    left, targets = dict(snapshot.free_gpus), {}
    for each in snapshot.arrivals():
        for kind in [] if each.gpus else list(left):
            gpus = each.spec.gpus.whole(min(each.spec.gpus.requested, left[kind]))
            if gpus >= each.spec.min_gpus and snapshot.speeds.rate(each, gpus, kind) > 0:
                targets[each.id] = Target(gpus, kind)
                left[kind] -= gpus
                break
    return Decision(targets)


def owned(answer: Callable[[Snapshot], Decision] = takes, **more: Any) -> type[Owned]:
    """A class of its own, so that what it sees is the test's alone."""
    return type("Owned", (Owned,), {"answer": staticmethod(answer), "seen": {}, **more})


def opened(
    nodes: Cluster, rules: Any, *jobs: Job, policy: type[Owned] | None = None, trace: Sequence[Job] = ()
) -> Session:
    made = (policy or owned())()
    held = Session(made, nodes.model_copy(update={"shares": rules}), CurveThroughput(), trace=trace)
    for each in jobs:
        held.submit(each, each.submit_time)
    return held


def rigid(name: str, gpus: int, user: str = "", at: float = 0.0, **more: Any) -> Job:
    return job(name, at=at, gpus=gpus, user=user or name[0], gpu_seconds=1e6, **more)


def elastic(name: str, gpus: int, low: int = 1, high: int = 8, **more: Any) -> Job:
    return rigid(name, gpus, low=low, high=high, **more)


def running(held: Session, *jobs: tuple[Job, dict[str, int]]) -> Session:
    """These jobs hold these GPUs, each of them a second longer than the next."""
    for at, (each, place) in enumerate(jobs):
        held.submit(each, float(at))
        held.adopt([Holding(each.id, tuple(place.items()))], float(at))
    return held


def decided(held: Session, time_s: float) -> dict[str, str]:
    return {each.job.id: each.step for each in held.decide(time_s)}


def last(held: Session, user: str) -> Seen:
    assert isinstance(held.policy, Owned)
    return held.policy.seen[user][-1]
