import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from pliant.schemas.cluster import Cluster, Node, Shares
from pliant.schemas.job import Gpus, Job
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.session import session
from pliant.tools.schedule.session.session import MOST_ROUNDS, Session
from tests.builders import TimedSteps, allocated, cluster, mixed_cluster, sizes
from tests.tools.schedule.session.shared_world import (
    THREE,
    TWO,
    comes,
    elastic,
    owned,
    pairs_up,
    rigid,
    rigids,
    shares,
    together,
    world,
)

OWNED = owned()


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken back must do in the first round."""
    monkeypatch.setattr(session, "MOST_ROUNDS", 0)


@pytest.mark.parametrize(
    ("jobs", "wanted", "stops"),
    [
        ((rigid("x-old", 4), rigid("x-young", 4)), 4, "x-young"),
        ((elastic("x-old", 4), elastic("x-young", 4)), 4, "x-young"),
        ((elastic("x-elastic", 4), rigid("x-young", 4)), 4, "x-elastic"),
        ((rigid("x-old", 3), elastic("x-on-its-own-too", 5)), 3, "x-old"),
        ((rigid("x-old", 3), rigid("x-on-its-own-too", 5)), 3, "x-old"),
        ((elastic("x-on-its-own-too", 5), rigid("x-young", 3)), 3, "x-young"),
        ((rigid("x-old", 3), rigid("x-young", 3)), 4, "x-young"),  # two are free
    ],
)
def test_who_stops_first(jobs: tuple[Job, ...], wanted: int, stops: str):
    """On borrowed GPUs alone, then elastic, then young. The policy resizes nothing, so none shrinks."""
    assert comes(world(cluster(8), TWO, *jobs), rigid("y", wanted)) == {stops: "preempt", "y": "start"}


@pytest.mark.parametrize(
    ("jobs", "wanted", "after"),
    [
        # The one with most to spare, and only as far as it helps.
        ((elastic("x-small", 2), elastic("x-large", 6)), 3, {"x-large": 3, "x-small": 2, "y": 3}),
        # To a size that it may have.
        ((elastic("x", 8, low=2, high=8, each=2),), 3, {"x": 4, "y": 3}),
    ],
)
def test_who_shrinks_and_how_far(jobs: tuple[Job, ...], wanted: int, after: dict[str, int]):
    held = world(cluster(8), TWO, *jobs, policy=OWNED)
    assert set(comes(held, rigid("y", wanted)).values()) == {"shrink", "start"}
    assert sizes(held) == after


def test_who_shrinks_or_stops_is_enough_and_never_in_vain() -> None:
    speeds = TimedSteps(lambda model, kind, place, batch: None if sum(place) == 3 else 8.0 / sum(place))
    held = world(cluster(8), TWO, rigid("x-rigid", 4), elastic("x", 4), policy=OWNED, throughput=speeds)
    comes(held, rigid("y", 1))
    assert sizes(held) == {"x-rigid": 4, "x": 2, "y": 1}
    # Where shrinking is not enough, elastic ones stop first.
    held = world(cluster(8), TWO, elastic("x-elastic", 4, low=2), rigid("x-rigid", 4), policy=OWNED)
    assert comes(held, rigid("y", 4)) == {"x-elastic": "preempt", "y": "start"}
    # Each owns 3.67 of eleven, so four at most; x would give the fifth, which leaves y three: none stops.
    held = world(cluster(11), shares(y={}, x={}, z={}), elastic("x", 5, low=4), rigid("z", 4), policy=OWNED)
    assert comes(held, rigid("y", 4)) == {}

    # By usage y may have six, but x can give five, and stopping is for what is y's own: four.
    held = world(cluster(8), shares(24.0, x={}, y={}), elastic("x", 8, low=3), policy=OWNED, x=1e7)
    assert comes(held, rigid("y", 6)) == {}
    assert sizes(held) == {"x": 8}
    # No job stops for one that needs more than its teams own.
    rules = shares(24.0, x={}, y={})
    held = world(cluster(8), rules, rigid("x-old", 4), rigid("x-young", 4), x=1e7)
    assert comes(held, rigid("y", 6)) == {}
    held.end("y", 11.0, "cancelled")
    assert comes(held, rigid("y-small", 4), at=11.0) == {"x-young": "preempt", "y-small": "start"}
    # Each of the two owns one and a half GPUs, in whole ones two; usage entitles x to one at this time.
    assert comes(world(cluster(3), shares(24.0, x={}, y={}), rigid("x", 2), x=1e7), rigid("y", 2)) == {}


@pytest.mark.parametrize("rounds", [0, MOST_ROUNDS])
def test_each_borrower_stops_only_as_far_as_it_borrows(rounds: int, monkeypatch: pytest.MonkeyPatch):
    """Each owns 3.67 of eleven, so four at most: z borrows two, and x one. That does not make four for y."""
    monkeypatch.setattr(session, "MOST_ROUNDS", rounds)
    held = world(cluster(11), THREE, rigid("x-old", 4), rigid("x-young", 1), *rigids("z", 3, 2))
    assert comes(held, rigid("y", 4)) == {}
    held.end("y", 11.0, "cancelled")
    taken = {"z2": "preempt", "x-young": "preempt", "y-less": "start"}
    assert comes(held, rigid("y-less", 3), at=11.0) == taken


def test_no_more_stop_than_needed_and_for_whom_they_do() -> None:
    steps = comes(world(cluster(12), THREE, *rigids("x", 6, 2)), rigid("y", 3))
    assert steps == {"x4": "preempt", "x5": "preempt", "y": "start"}

    # y lacks six GPUs by usage, more than its own, and z four, its own: z gets what is taken from x.
    held = world(cluster(12), shares(24.0, x={}, y={}, z={}), *rigids("x", 4, 3), x=1e7)
    held.submit(rigid("y", 6, at=10.0), 10.0)
    assert comes(held, rigid("z", 4), at=11.0) == {"x3": "preempt", "x2": "preempt", "z": "start"}


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize(
    ("old", "youngest", "steps"),
    [
        ({"n0": 3}, "n1", {}),  # a GPU of each of two nodes is no place for a replica of two
        ({"n0": 2, "n1": 1}, "n0", {"x-young": "preempt", "x-youngest": "preempt", "y": "start"}),
    ],
)
def test_no_job_stops_for_replicas_that_would_not_fit(old, youngest, steps):
    held = world(
        cluster(4, 4),
        shares(x={"guaranteed": {"*": 6}}, y={"guaranteed": {"*": 2}}),
        (rigid("x-oldest", 3), old),
        (rigid("x-old", 3), {"n1": 3}),
        (rigid("x-young", 1), {"n0": 1}),
        (rigid("x-youngest", 1), {youngest: 1}),
        policy="fair-share",
    )
    assert comes(held, elastic("y", 2, low=2, each=2), rigid("y-large", 6)) == steps


@pytest.mark.usefixtures("once")
def test_no_job_stops_for_replicas_as_one_waits_for_another_type():
    """One job of y runs on q alone, which x holds; the other one needs two GPUs of one node of p."""

    def speed(model: str, kind: str, *_: Any) -> float | None:
        return None if model == "saturating" and kind == "p" else 1.0

    rules = shares(x={"guaranteed": {"p": 6, "q": 1}}, y={"guaranteed": {"p": 2}})
    places = {"x0": {"p-0": 3}, "x1": {"p-1": 3}, "x2": {"q-0": 1}, "x3": {"p-0": 1}, "x4": {"p-1": 1}}
    jobs = [(rigid(name, sum(place.values())), place) for name, place in places.items()]
    nodes = mixed_cluster(p=(4, 4), q=(1,))
    held = world(nodes, rules, *jobs, policy=OWNED, throughput=TimedSteps(speed))
    assert comes(held, elastic("y", 2, low=2, each=2), rigid("y-q", 1, model="saturating")) == {}


@pytest.mark.usefixtures("once")
def test_replicas_larger_than_any_node_need_no_place_on_one():
    jobs = [(each, {f"n{number}": 2}) for number, each in enumerate(rigids("x", 4, 2))]
    held = world(cluster(2, 2, 2, 2), TWO, *jobs, policy="fair-share")
    taken = {"x2": "preempt", "x3": "preempt", "y": "start"}
    assert comes(held, elastic("y", 4, low=4, each=4)) == taken


@pytest.mark.usefixtures("once")
def test_gpus_taken_for_one_team_are_not_counted_again():
    rules = shares(x={}, y={"guaranteed": {"*": 4}}, z={"guaranteed": {"*": 5}})
    held = world(cluster(12), rules, *rigids("x", 4, 3))
    comes(held, rigid("y", 4), rigid("z", 5))
    assert sizes(held) == {"x0": 3, "y": 4, "z": 5}


@pytest.mark.usefixtures("once")
def test_a_pair_on_borrowed_gpus_counts_once_and_does_not_shrink() -> None:
    held = world(together(4, 4), TWO, rigid("x-old", 4), (rigid("x-one", 4), {"n1": 4}), policy=OWNED)
    pairs_up(held, rigid("x-two", 4), {"n1": 4}, "x-one")
    assert comes(held, rigid("y", 4)) == {"x-one": "preempt", "x-two": "preempt", "y": "start"}
    jobs = [(each, {f"n{number}": 4}) for number, each in enumerate(rigids("x", 3, 4))]
    rules = shares(x={}, y={"guaranteed": {"*": 8}})
    held = world(together(4, 4, 4), rules, *jobs, policy=owned(elasticity="none"))
    pairs_up(held, rigid("x2-too", 4), {"n2": 4}, "x2")
    assert held.policy_host.standings(5.0)[0].held == 12
    taken = dict.fromkeys(("x2", "x2-too", "x1"), "preempt") | {"y": "start"}
    assert comes(held, rigid("y", 8)) == taken
    # It stops, and one of the two starts again on what y leaves.
    held = world(together(4, 4), TWO, rigid("x", 4), (elastic("x-one", 4), {"n1": 4}), policy=OWNED)
    pairs_up(held, elastic("x-two", 4), {"n1": 4}, "x-one")
    assert comes(held, rigid("y", 2)) == {"x-one": "shrink", "x-two": "preempt", "y": "start"}


@pytest.mark.usefixtures("once")
def test_stopping_a_borrower_frees_what_it_holds_after_shrinking():
    """x shrinks from six to two, for four of y's eight; then it gives two, and so does another."""
    rules = shares(x={"guaranteed": {"*": 2}}, y={"guaranteed": {"*": 8}})
    held = world(cluster(10), rules, *rigids("x", 2, 2), elastic("x-el", 6, low=2), policy=OWNED)
    assert comes(held, rigid("y", 8)) == {"x-el": "preempt", "x1": "preempt", "y": "start"}


def test_borrowers_shrink_for_running_jobs_that_can_grow():
    held = world(cluster(8), TWO, elastic("x", 7), elastic("y", 1), policy="fair-share")
    comes(held)
    assert sizes(held) == {"x": 4, "y": 4}
    held.end("x", 20.0)
    comes(held, at=20.0)
    assert sizes(held) == {"y": 8}


@pytest.mark.parametrize(("limits", "step"), [({"low": 2, "high": 8}, "shrink"), ({}, "preempt")])
def test_only_gpus_of_the_type_that_is_lacked_are_taken_back(limits: dict[str, int], step: str):
    """x owns ten of sixteen, more than its eight of p; those it borrows all the same."""
    rules = shares(x={"guaranteed": {"q": 8}}, y={"guaranteed": {"p": 4}})
    nodes = {"x3": "p-0", "x4": "p-0", "x1": "q-0", "x2": "q-0"}
    jobs = [(rigid(name, 4, **limits), {node: 4}) for name, node in nodes.items()]
    held = world(mixed_cluster(p=(8,), q=(8,)), rules, *jobs, policy=OWNED)
    done = comes(held, rigid("y", 4))
    assert done.pop("y") == "start"
    assert set(done) <= {"x3", "x4"}
    assert set(done.values()) == {step}
    assert held.jobs["y"].gpu_type == "p"


def test_parameter_servers_stay_when_gpus_are_taken_back():
    held = world(cluster(8, 0), TWO, policy=OWNED)
    held.submit(elastic("x", 8), 0.0)
    held.set_allocations([allocated("x", (("n0", 8),), None, (("n1", 1),))], 0.0)
    assert comes(held, rigid("y", 4)) == {"x": "shrink", "y": "start"}
    assert held.jobs["x"].servers == (("n1", 1),)
    held = on_drained(elastic("x", 4), servers=(("n2", 1),))
    assert (held.jobs["x"].gpus, held.jobs["x"].servers) == (3, (("n2", 1),))


# What a team never exceeds, whichever of its users hold the GPUs.


@pytest.mark.parametrize("limit", [{"max": {"*": 3}}, {"max": {"gpu": 3}}, {"borrows": False}])
def test_users_of_a_team_do_not_exceed_its_limit_together(limit: dict[str, Any]):
    """Two of three GPUs are c's, and d holds two: not one of the free GPUs goes to c before d's job stops."""
    team = {"users": {"c": 2.0, "d": 1.0}, "guaranteed": {"*": 3}, **limit}
    held = world(cluster(8), shares(t=team, u={"guaranteed": {"*": 5}}), rigid("d", 2))
    assert comes(held, rigid("c", 2)) == {"d": "preempt", "c": "start"}
    held.end("d", 11.0, "cancelled")
    assert comes(held, rigid("c-more", 1), at=11.0) == {"c-more": "start"}


def test_no_team_exceeds_its_max_by_types_or_drained_nodes() -> None:
    # What it holds of a is its own, so none of it stops; only two of the four guaranteed of b are left.
    rules = shares(t={"guaranteed": {"b": 4}, "max": {"*": 8}, "users": ("t",)})
    held = world(mixed_cluster(a=(8,), b=(8,)), rules, (rigid("t-old", 6), {"a-0": 6}))
    assert comes(held, rigid("t-new", 4)) == {}
    held.end("t-new", 11.0)
    assert comes(held, rigid("t-small", 2), at=11.0) == {"t-small": "start"}
    # GPUs on a drained node count once a decision for the max.
    held = world(cluster(4, 8), shares(x={"max": {"*": 5}}, y={}), rigid("x", 4))
    held.maintenance.drain("n0", 1.0, now=False)
    assert comes(held, rigid("x-more", 2), at=2.0) == {}
    held.end("x-more", 3.0)
    assert comes(held, rigid("x-little", 1), at=3.0) == {"x-little": "start"}


def limited(gpus: int, **users: float) -> dict[str, Any]:
    """A team that can hold what it is guaranteed and no more, its users by weight."""
    return {"users": users, "guaranteed": {"*": gpus}, "max": {"*": gpus}}


@pytest.mark.usefixtures("once")
def test_users_of_a_team_at_its_limit_give_back_for_each_other() -> None:
    """v takes the two of w that it lacks; what c lacks, d holds, so w keeps its third."""
    rules = shares(t=limited(3, c=2.0, d=1.0), v={"guaranteed": {"*": 5}}, w={})
    held = world(cluster(8), rules, rigid("d", 2), rigid("w-old", 1), rigid("w-young", 2))
    done = comes(held, rigid("c", 2), rigid("v", 5))
    assert done == {"w-young": "preempt", "d": "preempt", "v": "start", "c": "start"}
    rules = shares(t=limited(3, c=2.0, d=1.0), u={})
    held = world(cluster(8), rules, elastic("d", 3), policy=OWNED)
    assert comes(held, rigid("c", 2)) == {"d": "shrink", "c": "start"}
    assert held.jobs["d"].preemptions == 0
    held = world(cluster(9), shares(t=limited(5, c=2.0, d=2.0, e=1.0), u={}), rigid("e", 3))
    assert comes(held, rigid("c", 2), rigid("d", 2)) == {"e": "preempt", "c": "start", "d": "start"}


# Elastic jobs that finish on drained nodes.


def bound_to_n0(nodes: Cluster, rules: Shares, *jobs: Job) -> Session:
    """Each job holds a GPU of n0, which is drained, and the rest of what it requested on another node."""
    places = [{"n0": 1, f"n{number}": each.gpus.requested - 1} for number, each in enumerate(jobs, start=1)]
    held = world(nodes, rules, *zip(jobs, places, strict=True), policy="fair-share")
    held.maintenance.drain("n0", 1.0, now=False)
    return held


def test_a_job_on_a_drained_node_gives_others_to_another_team() -> None:
    held = bound_to_n0(cluster(1, 4), TWO, elastic("x", 5))
    assert list(held.hidden.bound) == ["x"]
    comes(held, rigid("x-too", 1), at=2.0)
    assert dict(held.jobs["x"].placement) == {"n0": 1, "n1": 4}, "nothing to its own team"
    comes(held, rigid("y", 1), at=3.0)
    comes(held, at=4.0)
    assert dict(held.jobs["x"].placement) == {"n0": 1}
    # A job on a drained node keeps what is its teams own.
    held = bound_to_n0(cluster(1, 3, 3), shares(x={"guaranteed": {"*": 5}}, y={}), elastic("x", 4))
    comes(held, rigid("y-one", 3), rigid("y-two", 3), at=2.0)
    assert dict(held.jobs["x"].placement) == {"n0": 1, "n1": 3}
    # A job on a drained node keeps all where free GPUs are enough.
    held = bound_to_n0(cluster(1, 4, 4), TWO, elastic("x", 5))
    assert comes(held, rigid("y", 3), at=2.0) == {"y": "start"}
    assert comes(held, rigid("y-too", 3), at=3.0)["x"] == "shrink"


@pytest.mark.parametrize("names", [("x-one", "x-two"), ("x-two", "x-one")])
def test_no_more_jobs_on_drained_node_give_back_than_others_lack(names: tuple[str, str]):
    rules = shares(x={"guaranteed": {"*": 3}}, y={"guaranteed": {"*": 3}})
    held = bound_to_n0(cluster(2, 3, 3), rules, *(elastic(name, 4) for name in names))
    comes(held, rigid("y", 3), at=2.0)
    assert sizes(held) == {"x-one": 1, "x-two": 4, "y": 3}
    # Nor than borrow.
    rules = shares(x={"guaranteed": {"*": 5}}, y={"guaranteed": {"*": 1}})
    held = bound_to_n0(cluster(2, 3, 3), rules, *(elastic(name, 4) for name in names))
    comes(held, *rigids("y", 2, 3), at=2.0)
    assert sizes(held) == {"x-one": 1, "x-two": 4, "y0": 3}


@pytest.mark.usefixtures("once")
def test_job_that_keeps_drained_node_alone_leaves_its_team_room():
    """x may hold four: its job gives one to y, and so does the next one of x get one."""
    rules = shares(x={"max": {"*": 4}, "guaranteed": {"*": 1}}, y={"guaranteed": {"*": 1}})
    held = bound_to_n0(cluster(1, 3), rules, elastic("x", 4))
    done = comes(held, rigid("x-more", 1), rigid("y", 1), at=2.0)
    assert done == {"x": "shrink", "x-more": "start", "y": "start"}


@pytest.mark.usefixtures("once")
def test_a_drained_node_and_another_user_count_for_a_limit():
    """Of five t holds four, two of them on the drained node; c's job needs what d has beyond its part."""
    rules = shares(t=limited(5, c=4.0, d=1.0), u={})
    held = world(cluster(2, 8), rules, rigid("c", 2), (rigid("d", 2), {"n1": 2}))
    held.maintenance.drain("n0", 5.0, now=False)
    assert comes(held, rigid("c-more", 2)) == {"d": "preempt", "c-more": "start"}


@pytest.mark.parametrize("limit", [{}, {"max": {"*": 8}}, {"max": {"*": 12}}, {"borrows": False}])
def test_limit_takes_nothing_of_own_from_team_on_drained_node(limit: dict[str, Any]):
    jobs = (elastic("x", 8, low=4), {"n0": 4, "n1": 4}), (rigid("y", 8), {"n2": 4, "n3": 4})
    rules = shares(x={"guaranteed": {"*": 8}, **limit}, y={})
    held = world(cluster(4, 4, 4, 4), rules, *jobs, policy="ares")
    comes(held, at=5.0)
    held.maintenance.drain("n1", 6.0, now=False)
    assert comes(held, rigid("y-more", 4), at=7.0) == {}
    assert sizes(held) == {"x": 8, "y": 8}


@pytest.mark.parametrize(
    "limit",
    [
        {"guaranteed": {"*": 8}, "borrows": False},
        {"guaranteed": {"*": 8}, "max": {"*": 8}},
        {"guaranteed": {"*": 8}, "max": {"*": 8}, "borrows": False},
        {"guaranteed": {"gpu": 8}, "max": {"gpu": 8}, "borrows": False},
    ],
)
def test_gpus_on_drained_node_count_once_for_what_team_may_hold(limit: dict[str, Any]):
    held = world(cluster(4, 4, 4, 4), shares(x=limit, y={}), rigid("x", 4))
    held.maintenance.drain("n0", 1.0, now=False)
    for name, at in (("x-more", 2.0), ("x-beyond", 3.0)):
        held.submit(rigid(name, 4, at=at), at)
    assert comes(held, rigid("y", 8), at=4.0) == {"x-more": "start", "y": "start"}


def on_drained(one: Job, policy: str = "fair-share", **servers: Any) -> Session:
    """A job holds three GPUs of n0, which is drained, and all of n1; y waits for one."""
    more = one.gpus.requested - 3
    held = world(cluster(3, more, 0), TWO, policy=policy)
    held.submit(one, 0.0)
    held.set_allocations([allocated(one.id, (("n0", 3), ("n1", more)), None, **servers)], 0.0)
    held.maintenance.drain("n0", 1.0, now=False)
    comes(held, rigid("y", 1), at=2.0)
    return held


IN_TWOS = elastic("x", 4).model_copy(update={"gpus": Gpus(requested=4, min=2, max=4, sizes=(2, 4))})


@pytest.mark.parametrize(
    ("one", "policy", "gpus"),
    [
        (elastic("x", 4, low=3), "fair-share", 3),
        (elastic("x", 5, low=4), "fair-share", 5),
        (rigid("x", 4), "fair-share", 4),
        (elastic("x", 4), "fifo", 4),
        (IN_TWOS, "fair-share", 4),
    ],
)
def test_a_job_on_a_drained_node_gives_back_what_it_can(one: Job, policy: str, gpus: int):
    assert on_drained(one, policy).jobs["x"].gpus == gpus


@pytest.mark.parametrize(
    ("rules", "new", "steps"),
    [
        (shares(x={"max": {"*": 5}}, y={}), rigid("x", 1), {"x": "start"}),  # it counts once for the max
        (TWO, rigid("y", 2), {}),  # it gives nothing back
    ],
)
def test_a_pair_that_finishes_on_a_drained_node(rules: Shares, new: Job, steps: dict[str, str]):
    """Two jobs of x train on the same four GPUs, three of n0, which is drained, and one of n1."""
    place = {"n0": 3, "n1": 1}
    held = world(together(3, 2), rules, (elastic("x-one", 4), place), policy=OWNED)
    pairs_up(held, elastic("x-two", 4), place, "x-one", at=0.0)
    held.maintenance.drain("n0", 1.0, now=False)
    assert comes(held, new, at=2.0) == steps


def demanding(name: str, gpus: int, cpus: float, at: float = 0.0) -> Job:
    return rigid(name, gpus, at=at, resources={"worker": {"cpu": cpus}} if cpus else {})


@pytest.mark.parametrize("policy", ["fifo", "las", "fair-share"])
def test_cpus_beside_borrowed_gpus_come_back_too(policy: str) -> None:
    """x holds three of four GPUs, two of them its own, and all CPUs; y needs two for a GPU of its own."""
    node = Cluster(nodes=(Node(name="n0", gpus=4, cpus=8),))
    held = world(node, TWO, policy=policy)
    start = dict.fromkeys(("x-most", "x-one", "x-two"), "start")
    assert comes(held, demanding("x-most", 1, 6), demanding("x-one", 1, 1), demanding("x-two", 1, 1)) == start
    assert comes(held, demanding("y-large", 2, 4), at=11.0) == {}, "x's own part has two CPUs of these eight"
    held.end("y-large", 12.0, "cancelled")
    assert comes(held, demanding("y-small", 1, 2), at=12.0) == {"x-most": "preempt", "y-small": "start"}
    assert held.decide(13.0) == []
    # What is x's own stays.
    held = world(node, TWO, demanding("x-own", 2, 4), policy=policy)
    assert comes(held, demanding("y", 1, 2)) == {}
    # A policy that does not use the room is not made room for again, not by another process either.
    held = world(node, TWO, *(demanding(f"x{n}", 1, cpus) for n, cpus in enumerate((6, 1, 1))))
    assert held.quota is not None
    made = {"parts": [], "declined": [], "made_room": [["y", "", "gpu", (0, 1, "y")]]}
    held.quota.load_state(made, held.jobs)
    assert comes(held, demanding("y", 1, 2)) == {}
    assert held.quota.dump_state()["made_room"] == made["made_room"]


@pytest.mark.parametrize(
    ("policy", "seed"),
    [(policy, seed) for policy in ("fifo", "las", "fair-share") for seed in (0, 8, 12, 38)],
)
def test_no_entitled_job_waits_for_cpus_of_one_borrower(policy: str, seed: int) -> None:
    """Random worlds: the first job of a team that fits its own part waits only where no one job of
    another team that borrows leaves it enough room.
    """
    rng = np.random.default_rng(seed)
    nodes = [
        Node(name=f"n{i}", gpus=int(rng.choice([2, 4, 8])), cpus=int(rng.choice([4, 6, 8, 12])))
        for i in range(rng.integers(1, 5))
    ]
    held = world(Cluster(nodes=tuple(nodes)), TWO if seed % 2 else THREE, policy=policy)
    for step in range(1, 25):
        now_s, running = 10.0 * step, sorted(job.id for job in held.jobs.values() if job.gpus)
        if running and rng.random() < 0.3:
            held.end(str(rng.choice(running)), now_s)
        else:
            name = f"{'xyz'[rng.integers(2 + (seed + 1) % 2)]}{step:02}"
            size, cpus = int(rng.choice([1, 1, 2, 4])), float(rng.choice([0, 1, 2, 4, 6, 8]))
            held.submit(demanding(name, size, cpus, now_s), now_s)
        for wait_s in range(3):
            held.decide(now_s + wait_s)
        assert held.quota is not None
        own = {owner.team: given.own for owner, given in held.quota.reclaim.entitled.items()}
        holds = Counter(dict.fromkeys(own, 0))
        for each in held.jobs.values():
            holds[each.spec.user] += each.gpus
        first = {each.spec.user: each for each in reversed(held.jobs.values()) if not each.gpus}
        for team, waiting in first.items():
            if holds[team] + waiting.requested <= math.floor(own[team]):
                others = [each for each in held.jobs.values() if each.gpus and each.spec.user != team]
                borrow = [each for each in others if holds[each.spec.user] > math.ceil(own[each.spec.user])]
                assert not [each.id for each in borrow if fits_without(held, waiting, each)], waiting.id


def fits_without(held: Session, waiting: JobState, other: JobState) -> bool:
    """Whether a job has a place once another one has stopped."""
    free = {node.name: [node.gpus, node.capacities["cpu"]] for node in held.cluster.nodes}
    for each in held.jobs.values():
        for name, count in each.placement if each is not other else ():
            free[name][0] -= count
            free[name][1] -= count * each.spec.resources.worker.get("cpu", 0.0)
    need = waiting.spec.resources.worker.get("cpu", 0.0)
    room = sum(min(gpus, cpus // need if need else gpus) for gpus, cpus in free.values())
    return room >= waiting.requested
