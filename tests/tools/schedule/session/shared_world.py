"""A shared cluster to try rules of teams on: owners whose policies do what a test says, and their jobs."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from pliant.schemas.cluster import Cluster, Owner, Shares, Sharing
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput, Throughput
from pliant.tools.schedule.policy import Decision, Policy, Target
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Snapshot
from tests.builders import allocated, cluster, job


def shares(half_life_hours: float = 0.0, **teams: dict[str, Any]) -> Shares:
    """Teams whose one user has the team's name, unless they say otherwise."""
    listed = {name: {"users": (name,), **rules} for name, rules in teams.items()}
    return Shares.model_validate({"teams": listed, "half_life_hours": half_life_hours})


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
        seen = Seen(
            snapshot.time_s,
            {each.name: (each.gpus, snapshot.free.free_on(each.name)) for each in snapshot.nodes if each.up},
            sorted(snapshot.jobs),
            [
                (each.kind, each.job.id if each.job else each.node.name, each.gpus)
                for each in snapshot.changes
            ],
            snapshot.total_gpus,
            dict(snapshot.free_gpus),
            [each.id for each in snapshot.future],
        )
        self.seen.setdefault(self.user, []).append(seen)
        return type(self).answer(snapshot)

    def dump_state(self):
        return {"user": self.user}

    def load_state(self, state, jobs):
        self.user = state["user"]


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


def world(
    nodes: Cluster,
    rules: Shares | None,
    *jobs: Job | tuple[Job, dict[str, int]],
    policy: str | type[Owned] = "fifo",
    throughput: Throughput | None = None,
    trace: Sequence[Job] = (),
    **used: float,
) -> Session:
    """A shared cluster on which jobs hold GPUs, of n0 unless stated, each a second longer than the next.

    :param used: what teams have used, in GPU-seconds.
    """
    made = make_policy(policy) if isinstance(policy, str) else policy()
    shared = nodes.model_copy(update={"shares": rules})
    held = Session(made, shared, throughput or CurveThroughput(), trace=trace)
    for at, each in enumerate(jobs):
        spec, place = each if isinstance(each, tuple) else (each, {"n0": each.gpus.requested})
        held.submit(spec, float(at))
        held.set_allocations([allocated(spec.id, tuple(place.items()))], float(at))
    for team, gpu_s in used.items():
        assert held.usage is not None
        held.usage.gpu_s[Owner(team)] = gpu_s
    return held


def rigid(name: str, gpus: int, user: str = "", **more: Any) -> Job:
    return job(name, gpus=gpus, user=user or name[0], gpu_seconds=1e6, **more)


def elastic(name: str, gpus: int, low: int = 1, high: int = 8, **more: Any) -> Job:
    return rigid(name, gpus, low=low, high=high, **more)


def rigids(team: str, count: int, gpus: int) -> list[Job]:
    return [rigid(f"{team}{number}", gpus) for number in range(count)]


def comes(held: Session, *jobs: Job, at: float = 10.0) -> dict[str, str]:
    """The steps of a decision once these jobs have come."""
    for each in jobs:
        held.submit(each.model_copy(update={"submit_time": at}), at)
    return {each.job.id: each.step for each in held.decide(at)}


def together(*node_gpus: int) -> Cluster:
    """A cluster on which any two jobs may share GPUs."""
    return cluster(*node_gpus).model_copy(update={"sharing": Sharing(unmeasured="together")})


def pairs_up(held: Session, new: Job, place: dict[str, int], beside: str, at: float = 5.0) -> None:
    held.submit(new, at)
    held.set_allocations([allocated(new.id, tuple(place.items()), beside=beside)], at)


def last(held: Session, user: str) -> Seen:
    assert isinstance(held.policy, Owned)
    return held.policy.seen[user][-1]
