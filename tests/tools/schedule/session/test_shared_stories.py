"""Random stories of shared clusters, held against the rules of docs/teams.md."""

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final, NamedTuple

import pytest

from pliant.schemas.cluster import Cluster, Shares
from pliant.schemas.job import Job
from pliant.tools.schedule.policy import Decision, Target
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Snapshot
from tests.builders import cluster, job, sizes
from tests.effort import examples
from tests.tools.schedule.session.shared_world import Owned, Seen, comes, last, owned, shares, takes, world

EVENTS: Final = 30
SEEDS: Final = range(examples(40))
PLAIN: Final = ("rigid", "rigid", "elastic")
OF_NODES: Final = ("node_up", "node_down", "capacity")


class Moment(NamedTuple):
    held: Session
    before: dict[str, int]
    """GPUs of jobs, once nodes and jobs had left."""
    steps: dict[str, str]


def story(
    seed: int,
    nodes: Cluster,
    rules: Shares | None,
    *,
    users: str,
    kinds: tuple[str, ...],
    shapes: tuple[str, ...],
    policy: type[Owned],
    first: Sequence[Job] = (),
) -> Iterator[Moment]:
    """Something happens, and the policies decide, repeatedly.

    :param first: jobs that come first and never end.
    """
    rng, time_s = Random(seed), 0.0
    held = world(nodes, rules, policy=policy)
    comes(held, *first, at=0.0)
    for number in range(EVENTS):
        time_s += rng.choice((1.0, 30.0, 600.0))
        event, gpus, limits = rng.choice(kinds), rng.randint(1, 6), dict[str, Any]()
        match rng.choice(shapes):
            case "elastic":
                limits = {"low": rng.randint(1, gpus), "high": rng.randint(gpus, 6)}
            case "replicas" if gpus % 2 == 0:
                limits = {"low": 2, "high": gpus, "each": 2}
        new = job(f"j{number}", at=time_s, gpus=gpus, user=rng.choice(users), gpu_seconds=1e6, **limits)
        happen(held, event, rng, new, time_s)
        before = sizes(held)
        yield Moment(held, before, {each.job.id: each.step for each in held.decide(time_s)})


def happen(held: Session, event: str, rng: Random, new: Job, time_s: float) -> None:
    name = rng.choice(held.cluster.nodes).name
    match event:
        case "arrive":
            held.submit(new, time_s)
        case "end" if jobs := sorted(held.jobs.keys() - {"always"}):
            held.end(rng.choice(jobs), time_s)
        case "withdraw" if held.cluster.free.free_on(name):
            held.cluster.withdraw(f"{name}/0", time_s, time_s + 100.0)
        case "down":
            held.maintenance.node_down(name, time_s)
        case "up":
            held.maintenance.node_up(name, time_s)
        case "drain":
            held.maintenance.drain(name, time_s, now=rng.random() < 0.5)
        case "resume":
            held.maintenance.undrain(name, time_s)


def grows(snapshot: Snapshot) -> Decision:
    """As :func:`takes`, and what is left goes to running jobs that can use more."""
    decision = takes(snapshot)
    left = Counter(dict(snapshot.free_gpus))
    for target in decision.targets.values():
        left[target.gpu_type or ""] -= target.gpus
    for each in snapshot.arrivals():
        kind = each.gpu_type or ""
        if each.gpus and each.spec.elastic != "none":
            most = min(each.max_gpus(snapshot.total_gpus), each.gpus + left[kind])
            if (gpus := each.spec.gpus.whole(most)) > each.gpus:
                decision.targets[each.id] = Target(gpus, kind)
                left[kind] -= gpus - each.gpus
    return decision


@pytest.mark.parametrize("seed", SEEDS)
def test_where_all_gpus_are_guaranteed(seed: int):
    """To three teams, so that what each owns is plain; nodes stay up, and no job needs GPUs of one node."""
    rng = Random(-seed)
    cuts = sorted(rng.sample(range(1, 12), 2))
    firm = {"a": cuts[0], "b": cuts[1] - cuts[0], "c": 12 - cuts[1]}
    teams = {name: {"guaranteed": {"*": gpus}} for name, gpus in firm.items()}
    rules = shares(rng.choice((0.0, 1.0)), **teams)
    more = {"kinds": ("arrive", "arrive", "end", "wait"), "shapes": PLAIN, "policy": owned(grows)}
    for held, before, _ in story(seed, cluster(4, 4, 4), rules, users="abc", **more):
        user = {name: each.spec.user for name, each in held.jobs.items()}
        had, has = Counter[str](), Counter[str]()
        for name, each in held.jobs.items():
            had[user[name]] += before.get(name, 0)
            has[user[name]] += each.gpus
        # A guarantee is met at the next decision: no job waits that fits what is left of it.
        waiting = [each.spec for each in held.in_play.values() if not each.gpus]
        assert all(has[each.user] + each.min_gpus > firm[each.user] for each in waiting)
        # Where jobs of one team wait, nothing is kept for others.
        if len({each.user for each in waiting}) == 1:
            assert min(each.min_gpus for each in waiting) > sum(held.cluster.free.by_type.values())
        # Only borrowed GPUs are taken, and only for another team.
        lost = {name: gpus - held.jobs[name].gpus for name, gpus in before.items()}
        for team in {user[name] for name, gpus in lost.items() if gpus > 0}:
            taken = [gpus for name, gpus in lost.items() if gpus > 0 and user[name] == team]
            assert had[team] - sum(taken) + max(taken) > firm[team]
            assert any(has[other] > had[other] for other in has if other != team)


@pytest.mark.parametrize("drains", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_one_team_that_can_use_all_decides_as_without_teams(seed: int, drains: bool):
    """There is always a job that could use all GPUs, and may finish on a drained node."""
    nodes = cluster(8, 2) if seed % 2 else cluster(4, 4, 2)
    always = job("always", low=1, high=10, user="a", gpu_seconds=1e9)
    kinds = ("arrive", "arrive", "end", "down", "up", "withdraw", *(("drain", "resume") if drains else ()))
    more = {"kinds": kinds, "shapes": PLAIN if seed % 3 else ("replicas", *PLAIN), "first": [always]}
    stories = [
        story(seed, nodes, rules, users="ab", policy=owned(), **more)
        for rules in (None, shares(a={"users": ("a", "b")}))
    ]
    for alone, shared in zip(*stories, strict=True):
        placed = [{name: each.placement for name, each in one.held.jobs.items()} for one in (alone, shared)]
        assert (alone.steps, placed[0]) == (shared.steps, placed[1])
        if not drains and seed % 3:
            one, other = last(alone.held, "a"), last(shared.held, "a")
            assert in_net(one) == in_net(other)
            assert one._replace(changes=[]) == other._replace(changes=[])


def in_net(seen: Seen) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Jobs with what happened to them, and nodes with the GPUs that they got or lost."""
    nodes = Counter[str]()
    for kind, name, gpus in seen.changes:
        nodes[name] += gpus if kind in OF_NODES else 0
    jobs = sorted((kind, name) for kind, name, _ in seen.changes if kind not in OF_NODES)
    return jobs, {name: gpus for name, gpus in nodes.items() if gpus}
