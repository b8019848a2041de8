"""Random stories of shared clusters, held against the rules of docs/teams.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Final, NamedTuple

import pytest

from pliant.schemas.cluster import Cluster, Owner, Shares
from pliant.schemas.job import Job
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policy import Decision, Target
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Snapshot
from tests.builders import cluster, job
from tests.effort import examples
from tests.tools.schedule.session.shared_world import Owned, comes, last, owned, takes, world

EVENTS: Final = 30
SEEDS: Final = range(examples(40))
PLAIN: Final = ("rigid", "rigid", "elastic")
OF_NODES: Final = ("node_up", "node_down", "capacity")


class Moment(NamedTuple):
    """A decision, and what was before it."""

    held: Session
    before: dict[str, int]
    """GPUs of jobs, once nodes and jobs had left."""
    steps: dict[str, str]

    @property
    def waiting(self) -> list[JobState]:
        return [each for each in self.held.in_play.values() if not each.gpus]

    def gpus(self, held: Mapping[str, int] | None = None) -> Counter[Owner]:
        """GPUs by owner, now or as in ``held``."""
        found, rules = Counter[Owner](), self.rules
        for each in self.held.jobs.values():
            found[rules.owner_of(each.spec)] += each.gpus if held is None else held.get(each.id, 0)
        return found

    def owner(self, job_id: str) -> Owner:
        return self.rules.owner_of(self.held.jobs[job_id].spec)

    @property
    def rules(self) -> Shares:
        assert self.held.cluster.shares is not None
        return self.held.cluster.shares


def drawn_job(rng: Random, name: str, at: float, users: str, shapes: tuple[str, ...]) -> Job:
    gpus, user = rng.randint(1, 6), rng.choice(users)
    limits: dict[str, Any] = {}
    match rng.choice(shapes):
        case "elastic":
            limits = {"low": rng.randint(1, gpus), "high": rng.randint(gpus, 6)}
        case "replicas" if gpus % 2 == 0:
            limits = {"low": 2, "high": gpus, "each": 2}
    return job(name, at=at, gpus=gpus, user=user, gpu_seconds=1e6, **limits)


def story(
    seed: int,
    nodes: Cluster,
    *,
    users: str,
    kinds: tuple[str, ...],
    shapes: tuple[str, ...],
    policy: type[Owned],
    first: Job | None = None,
) -> Iterator[Moment]:
    """Something happens, and the policies decide, repeatedly.

    :param first: a job that comes first and never ends.
    """
    rng, time_s = Random(seed), 0.0
    held = world(nodes, nodes.shares, policy=policy)
    comes(held, *([] if first is None else [first]), at=0.0)
    names = [each.name for each in held.nodes]
    for number in range(EVENTS):
        time_s += rng.choice((1.0, 30.0, 600.0))
        event = rng.choice(kinds)
        happen(held, event, rng, drawn_job(rng, f"j{number}", time_s, users, shapes), names, time_s)
        before = {each.id: each.gpus for each in held.jobs.values()}
        steps = {each.job.id: each.step for each in held.decide(time_s)}
        yield Moment(held, before, steps)


def happen(held: Session, event: str, rng: Random, new: Job, names: list[str], time_s: float) -> None:
    name = rng.choice(names)
    match event:
        case "arrive":
            held.submit(new, time_s)
        case "end" if jobs := sorted(held.jobs.keys() - {"always"}):
            held.end(rng.choice(jobs), time_s)
        case "withdraw" if held.free.free_on(name):
            held.withdraw(f"{name}/0", time_s, time_s + 100.0)
        case "down":
            held.node_down(name, time_s)
        case "up":
            held.node_up(name, time_s)
        case "drain":
            held.drain(name, time_s, now=rng.random() < 0.5)
        case "resume":
            held.resume(name, time_s)


def with_rules(nodes: Cluster, half_life_hours: float = 0.0, **teams: dict[str, Any]) -> Cluster:
    """Teams whose users are named in the rules, or have the team's name."""
    listed = {name: {"users": tuple(name), **rules} for name, rules in teams.items()}
    rules = Shares.model_validate({"teams": listed, "half_life_hours": half_life_hours})
    return nodes.model_copy(update={"shares": rules})


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


def all_guaranteed(seed: int) -> Iterator[Moment]:
    """Three teams to whom all twelve GPUs are guaranteed, so that what each owns is plain.

    Nodes stay up, and no job needs GPUs that are on one node.
    """
    rng = Random(-seed)
    cuts = sorted(rng.sample(range(1, 12), 2))
    firm = {"a": cuts[0], "b": cuts[1] - cuts[0], "c": 12 - cuts[1]}
    teams = {name: {"guaranteed": {"*": gpus}} for name, gpus in firm.items()}
    nodes = with_rules(cluster(4, 4, 4), rng.choice((0.0, 1.0)), **teams)
    kinds = ("arrive", "arrive", "end", "wait")
    return story(seed, nodes, users="abc", kinds=kinds, shapes=PLAIN, policy=owned(grows))


@pytest.mark.parametrize("seed", SEEDS)
def test_where_all_gpus_are_guaranteed(seed: int):
    for moment in all_guaranteed(seed):
        a_guarantee_is_met_at_the_next_decision(moment)
        gpus_idle_only_where_no_job_fits_them(moment)
        only_borrowed_gpus_are_taken_and_only_for_another_team(moment)


def a_guarantee_is_met_at_the_next_decision(moment: Moment) -> None:
    """No job waits that fits what its team is guaranteed beside what the team holds."""
    held = moment.gpus()
    for each in moment.waiting:
        owner = moment.rules.owner_of(each.spec)
        firm = moment.rules.team(owner.team).guaranteed["*"]
        assert held[owner] + each.spec.min_gpus > firm


def gpus_idle_only_where_no_job_fits_them(moment: Moment) -> None:
    """With one team that has jobs that wait, nothing is kept for others."""
    if len({moment.owner(each.id) for each in moment.waiting}) == 1:
        free = sum(moment.held.free.by_type.values())
        assert all(each.spec.min_gpus > free for each in moment.waiting)


def only_borrowed_gpus_are_taken_and_only_for_another_team(moment: Moment) -> None:
    jobs = moment.held.jobs
    lost = {name: gpus - jobs[name].gpus for name, gpus in moment.before.items() if jobs[name].gpus < gpus}
    before, now = moment.gpus(moment.before), moment.gpus()
    for owner in {moment.owner(name) for name in lost}:
        taken = [gpus for name, gpus in lost.items() if moment.owner(name) == owner]
        firm = moment.rules.team(owner.team).guaranteed["*"]
        assert before[owner] - sum(taken) + max(taken) > firm
        assert any(now[other] > before[other] for other in now if other != owner)


@pytest.mark.parametrize("drains", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_one_team_that_can_use_all_decides_as_without_teams(seed: int, drains: bool):
    """There is always a job that could use all GPUs, and may finish on a drained node."""
    nodes = cluster(8, 2) if seed % 2 else cluster(4, 4, 2)
    always = job("always", low=1, high=10, user="a", gpu_seconds=1e9)
    kinds = ("arrive", "arrive", "end", "down", "up", "withdraw", *(("drain", "resume") if drains else ()))
    shapes = PLAIN if seed % 3 else ("replicas", *PLAIN)
    stories = [
        story(seed, each, users="ab", kinds=kinds, shapes=shapes, policy=owned(), first=always)
        for each in (nodes, with_rules(nodes, a={"users": ("a", "b")}))
    ]
    for alone, shared in zip(*stories, strict=True):
        assert (alone.steps, places(alone.held)) == (shared.steps, places(shared.held))
        if not drains and shapes == PLAIN:
            one, other = last(alone.held, "a"), last(shared.held, "a")
            assert in_net(one.changes) == in_net(other.changes)
            assert one._replace(changes=[]) == other._replace(changes=[])


def in_net(changes: list[tuple[str, str, int]]) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Jobs with what happened to them, and nodes with the GPUs that they got or lost."""
    nodes = Counter[str]()
    for kind, name, gpus in changes:
        nodes[name] += gpus if kind in OF_NODES else 0
    jobs = sorted((kind, name) for kind, name, _ in changes if kind not in OF_NODES)
    return jobs, {name: gpus for name, gpus in nodes.items() if gpus}


def places(held: Session) -> dict[str, Any]:
    return {name: each.placement for name, each in held.jobs.items()}
