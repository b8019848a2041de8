"""What comes back to its owners: who gives, in which order, how much, and never more than a team may hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pliant.schemas.cluster import Cluster, Owner, Sharing
from pliant.schemas.job import Gpus, Job
from pliant.tools.schedule.session.holdings import Holding
from pliant.tools.schedule.session.session import Session
from tests.builders import TimedSteps, cluster, mixed_cluster, sizes
from tests.tools.schedule.session.shared_world import (
    THREE,
    TWO,
    decided,
    elastic,
    opened,
    owned,
    rigid,
    running,
)
from tests.tools.schedule.test_shares import shares, under


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken back must do in the first round."""
    monkeypatch.setattr("pliant.tools.schedule.session.session.MOST_ROUNDS", 0)


def borrowed_by_x(*jobs: Job) -> Session:
    """Of eight GPUs x holds all, with these jobs, the oldest first; half of them are y's."""
    held = under("fifo", cluster(8), TWO)
    return running(held, *((each, {"n0": each.gpus.requested}) for each in jobs))


@pytest.mark.parametrize(
    ("jobs", "wanted", "stops"),
    [
        ((rigid("x-old", 4), rigid("x-young", 4)), 4, "x-young"),
        ((elastic("x-old", 4), elastic("x-young", 4)), 4, "x-young"),
        ((elastic("x-elastic", 4), rigid("x-young", 4)), 4, "x-elastic"),
        ((rigid("x-old", 3), elastic("x-on-its-own-too", 5)), 3, "x-old"),
        ((rigid("x-old", 3), rigid("x-on-its-own-too", 5)), 3, "x-old"),
        ((elastic("x-on-its-own-too", 5), rigid("x-young", 3)), 3, "x-young"),
    ],
)
def test_who_stops_first(jobs: tuple[Job, ...], wanted: int, stops: str):
    """On borrowed GPUs alone, then elastic, then young. The policy resizes nothing, so none shrinks."""
    held = borrowed_by_x(*jobs)
    held.submit(rigid("y", wanted, at=10.0), 10.0)
    assert decided(held, 10.0) == {stops: "preempt", "y": "start"}


def test_the_borrower_with_most_to_spare_shrinks_and_only_as_far_as_it_helps():
    held = opened(cluster(8), TWO)
    running(held, (elastic("x-small", 2), {"n0": 2}), (elastic("x-large", 6), {"n0": 6}))
    held.submit(rigid("y", 3, at=10.0), 10.0)
    assert decided(held, 10.0) == {"x-large": "shrink", "y": "start"}
    assert sizes(held) == {"x-large": 3, "x-small": 2, "y": 3}


def test_a_borrower_shrinks_to_a_size_that_it_may_have():
    held = opened(cluster(8), TWO)
    running(held, (elastic("x", 8, low=2, high=8, each=2), {"n0": 8}))
    held.submit(rigid("y", 3, at=10.0), 10.0)
    decided(held, 10.0)
    assert sizes(held) == {"x": 4, "y": 3}


def test_where_shrinking_is_not_enough_elastic_borrowers_stop_before_rigid_ones():
    held = opened(cluster(8), TWO)
    running(held, (elastic("x-elastic", 4, low=2), {"n0": 4}), (rigid("x-rigid", 4), {"n0": 4}))
    held.submit(rigid("y", 4, at=10.0), 10.0)
    assert decided(held, 10.0) == {"x-elastic": "preempt", "y": "start"}


def test_no_job_shrinks_where_that_helps_no_other_team():
    """By usage y may have six, but x can give five, and stopping is for what is y's own: four."""
    held = opened(cluster(8), shares(24.0, x={}, y={}))
    running(held, (elastic("x", 8, low=3), {"n0": 8}))
    held.usage.gpu_s[Owner("x")] = 1e7
    held.submit(rigid("y", 6, at=10.0), 10.0)
    assert decided(held, 10.0) == {}
    assert sizes(held) == {"x": 8}


def test_no_job_is_stopped_for_one_that_needs_more_than_its_teams_own():
    held = under("fifo", cluster(8), shares(24.0, x={}, y={}))
    running(held, (rigid("x-old", 4), {"n0": 4}), (rigid("x-young", 4), {"n0": 4}))
    held.usage.gpu_s[Owner("x")] = 1e7
    held.submit(rigid("y", 6, at=10.0), 10.0)
    assert decided(held, 10.0) == {}
    held.end("y", 11.0, "cancelled")
    held.submit(rigid("y-small", 4, at=11.0), 11.0)
    assert decided(held, 11.0) == {"x-young": "preempt", "y-small": "start"}


def test_what_a_team_holds_of_its_own_is_never_taken():
    """Each of the two owns one and a half GPUs, in whole ones two; usage entitles x to one at this time."""
    held = under("fifo", cluster(3), shares(24.0, x={}, y={}))
    running(held, (rigid("x", 2), {"n0": 2}))
    held.usage.gpu_s[Owner("x")] = 1e7
    held.submit(rigid("y", 2, at=10.0), 10.0)
    assert decided(held, 10.0) == {}


def test_each_borrower_stops_only_as_far_as_it_borrows():
    """Each owns 3.67 of eleven, so four at most: z borrows two, and x one. That does not make four for y."""
    held = under("fifo", cluster(11), THREE)
    jobs = [rigid("x-old", 4), rigid("x-young", 1), *(rigid(f"z{number}", 2) for number in range(3))]
    running(held, *((each, {"n0": each.gpus.requested}) for each in jobs))
    held.submit(rigid("y", 4, at=10.0), 10.0)
    assert decided(held, 10.0) == {}
    held.end("y", 11.0, "cancelled")
    held.submit(rigid("y-less", 3, at=11.0), 11.0)
    assert decided(held, 11.0) == {"z2": "preempt", "x-young": "preempt", "y-less": "start"}


def test_no_more_jobs_stop_than_are_needed():
    held = under("fifo", cluster(12), THREE)
    running(held, *((rigid(f"x{number}", 2), {"n0": 2}) for number in range(6)))
    held.submit(rigid("y", 3, at=10.0), 10.0)
    assert decided(held, 10.0) == {"x4": "preempt", "x5": "preempt", "y": "start"}


def test_gpus_taken_back_go_to_the_team_for_which_they_were_taken():
    """y lacks six GPUs by usage, more than its own, and z four, its own: z gets what is taken from x."""
    held = under("fifo", cluster(12), shares(24.0, x={}, y={}, z={}))
    running(held, *((rigid(f"x{number}", 3), {"n0": 3}) for number in range(4)))
    held.usage.gpu_s[Owner("x")] = 1e7
    held.submit(rigid("y", 6, at=10.0), 10.0)
    held.submit(rigid("z", 4, at=11.0), 11.0)
    assert decided(held, 11.0) == {"x3": "preempt", "x2": "preempt", "z": "start"}


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize(
    ("old", "youngest", "steps"),
    [
        ({"n0": 3}, "n1", {}),  # a GPU of each of two nodes is no place for a replica of two
        ({"n0": 2, "n1": 1}, "n0", {"x-young": "preempt", "x-youngest": "preempt", "y": "start"}),
    ],
)
def test_no_job_stops_for_replicas_that_do_not_fit_what_it_leaves(
    old: dict[str, int], youngest: str, steps: dict[str, str]
):
    held = under("fair-share", cluster(4, 4), shares(x={"guaranteed": {"*": 6}}, y={"guaranteed": {"*": 2}}))
    running(
        held,
        (rigid("x-oldest", 3), old),
        (rigid("x-old", 3), {"n1": 3}),
        (rigid("x-young", 1), {"n0": 1}),
        (rigid("x-youngest", 1), {youngest: 1}),
    )
    held.submit(elastic("y", 2, low=2, each=2, at=10.0), 10.0)
    held.submit(rigid("y-large", 6, at=10.0), 10.0)
    assert decided(held, 10.0) == steps


@pytest.mark.usefixtures("once")
def test_no_job_stops_for_replicas_because_one_waits_for_another_type():
    """One job of y runs on q alone, which x holds; the other one needs two GPUs of one node of p."""

    def speed(model: str, kind: str, *_: Any) -> float | None:
        return None if model == "saturating" and kind == "p" else 1.0

    rules = shares(x={"guaranteed": {"p": 6, "q": 1}}, y={"guaranteed": {"p": 2}})
    nodes = mixed_cluster(p=(4, 4), q=(1,)).model_copy(update={"shares": rules})
    held = Session(owned()(), nodes, TimedSteps(speed))
    places = {"x0": {"p-0": 3}, "x1": {"p-1": 3}, "x2": {"q-0": 1}, "x3": {"p-0": 1}, "x4": {"p-1": 1}}
    running(held, *((rigid(name, sum(place.values())), place) for name, place in places.items()))
    held.submit(elastic("y", 2, low=2, each=2, at=10.0), 10.0)
    held.submit(rigid("y-q", 1, model="saturating", at=10.0), 10.0)
    assert decided(held, 10.0) == {}


@pytest.mark.usefixtures("once")
def test_replicas_larger_than_any_node_need_no_place_on_one():
    held = under("fair-share", cluster(2, 2, 2, 2), TWO)
    running(held, *((rigid(f"x{number}", 2), {f"n{number}": 2}) for number in range(4)))
    held.submit(elastic("y", 4, low=4, each=4, at=10.0), 10.0)
    assert decided(held, 10.0) == {"x2": "preempt", "x3": "preempt", "y": "start"}


def test_of_two_teams_that_lack_their_own_the_one_that_lacks_more_comes_first():
    held = under("fifo", cluster(12), shares(x={}, y={"guaranteed": {"*": 4}}, z={"guaranteed": {"*": 5}}))
    running(held, *((rigid(f"x{number}", 3), {"n0": 3}) for number in range(4)))
    held.submit(rigid("y", 4, at=10.0), 10.0)
    held.submit(rigid("z", 5, at=11.0), 11.0)
    steps = list(held.decide(11.0))
    assert {each.job.id for each in steps if each.step == "start"} == {"y", "z"}
    assert sizes(held) == {"x0": 3, "y": 4, "z": 5}


def test_a_pair_that_shares_borrowed_gpus_stops_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pliant.tools.schedule.session.session.MOST_ROUNDS", 0)
    nodes = cluster(4, 4).model_copy(update={"sharing": Sharing(unmeasured="together")})
    held = opened(nodes, TWO)
    running(held, (rigid("x-old", 4), {"n0": 4}), (rigid("x-one", 4), {"n1": 4}))
    held.submit(rigid("x-two", 4), 5.0)
    held.adopt([Holding("x-two", (("n1", 4),), beside="x-one")], 5.0)
    held.submit(rigid("y", 4, at=10.0), 10.0)
    assert decided(held, 10.0) == {"x-one": "preempt", "x-two": "preempt", "y": "start"}


@pytest.mark.usefixtures("once")
def test_no_job_stops_where_that_is_not_enough_for_the_one_that_waits():
    held = under("fifo", cluster(11), THREE)
    jobs = [rigid("x-old", 4), rigid("x-young", 1), *(rigid(f"z{number}", 2) for number in range(3))]
    running(held, *((each, {"n0": each.gpus.requested}) for each in jobs))
    held.submit(rigid("y", 4, at=10.0), 10.0)
    assert decided(held, 10.0) == {}


@pytest.mark.usefixtures("once")
def test_gpus_taken_back_for_one_team_are_not_counted_for_the_next():
    held = under("fifo", cluster(12), shares(x={}, y={"guaranteed": {"*": 4}}, z={"guaranteed": {"*": 5}}))
    running(held, *((rigid(f"x{number}", 3), {"n0": 3}) for number in range(4)))
    held.submit(rigid("y", 4, at=10.0), 10.0)
    held.submit(rigid("z", 5, at=10.0), 10.0)
    decided(held, 10.0)
    assert sizes(held) == {"x0": 3, "y": 4, "z": 5}


@pytest.mark.usefixtures("once")
def test_a_pair_counts_once_where_gpus_are_taken_back():
    nodes = cluster(4, 4, 4).model_copy(update={"sharing": Sharing(unmeasured="together")})
    held = opened(nodes, shares(x={}, y={"guaranteed": {"*": 8}}), policy=owned(elasticity="none"))
    running(held, *((rigid(f"x{number}", 4), {f"n{number}": 4}) for number in range(3)))
    held.submit(rigid("x2-too", 4), 5.0)
    held.adopt([Holding("x2-too", (("n2", 4),), beside="x2")], 5.0)
    assert held.standings(5.0)[0].held == 12
    held.submit(rigid("y", 8, at=10.0), 10.0)
    assert decided(held, 10.0) == dict.fromkeys(("x2", "x2-too", "x1"), "preempt") | {"y": "start"}


@pytest.mark.usefixtures("once")
def test_a_pair_does_not_shrink():
    """It stops, and one of the two starts again on what y leaves."""
    nodes = cluster(4, 4).model_copy(update={"sharing": Sharing(unmeasured="together")})
    held = opened(nodes, TWO)
    running(held, (rigid("x", 4), {"n0": 4}), (elastic("x-one", 4), {"n1": 4}))
    held.submit(elastic("x-two", 4), 5.0)
    held.adopt([Holding("x-two", (("n1", 4),), beside="x-one")], 5.0)
    held.submit(rigid("y", 2, at=10.0), 10.0)
    assert decided(held, 10.0) == {"x-one": "shrink", "x-two": "preempt", "y": "start"}


@pytest.mark.usefixtures("once")
def test_what_a_borrower_holds_after_shrinking_is_what_stopping_it_frees():
    """x shrinks from six to two, for four of y's eight; then it gives two, and so does another."""
    held = opened(cluster(10), shares(x={"guaranteed": {"*": 2}}, y={"guaranteed": {"*": 8}}))
    running(
        held,
        *((rigid(f"x{number}", 2), {"n0": 2}) for number in range(2)),
        (elastic("x-el", 6, low=2), {"n0": 6}),
    )
    held.submit(rigid("y", 8, at=10.0), 10.0)
    assert decided(held, 10.0) == {"x-el": "preempt", "x1": "preempt", "y": "start"}


def test_who_shrinks_down_to_what_its_team_owns_is_not_stopped():
    """Each owns 3.67 of eleven, so four at most; x gives the fifth, which leaves y three."""
    held = opened(cluster(11), shares(y={}, x={}, z={}))
    running(held, (elastic("x", 5, low=4), {"n0": 5}), (rigid("z", 4), {"n0": 4}))
    held.submit(rigid("y", 4, at=10.0), 10.0)
    assert decided(held, 10.0) == {}


def test_free_gpus_count_before_any_job_stops():
    held = under("fifo", cluster(8), TWO)
    running(held, (rigid("x-old", 3), {"n0": 3}), (rigid("x-young", 3), {"n0": 3}))
    held.submit(rigid("y", 4, at=10.0), 10.0)
    assert decided(held, 10.0) == {"x-young": "preempt", "y": "start"}


def test_borrowers_shrink_for_running_jobs_that_can_grow():
    held = under("fair-share", cluster(8), TWO)
    running(held, (elastic("x", 7), {"n0": 7}), (elastic("y", 1), {"n0": 1}))
    decided(held, 10.0)
    assert sizes(held) == {"x": 4, "y": 4}
    held.end("x", 20.0)
    decided(held, 20.0)
    assert sizes(held) == {"y": 8}


def test_a_borrower_shrinks_to_a_size_on_which_it_trains():
    speeds = TimedSteps(lambda model, kind, place, batch: None if sum(place) == 3 else 8.0 / sum(place))
    held = Session(owned()(), cluster(8).model_copy(update={"shares": TWO}), speeds)
    running(held, (rigid("x-rigid", 4), {"n0": 4}), (elastic("x", 4), {"n0": 4}))
    held.submit(rigid("y", 1, at=10.0), 10.0)
    decided(held, 10.0)
    assert sizes(held) == {"x-rigid": 4, "x": 2, "y": 1}


@pytest.mark.parametrize(("make", "step"), [(elastic, "shrink"), (rigid, "preempt")])
def test_only_gpus_of_the_type_that_is_lacked_are_taken_back(make: Callable[..., Job], step: str):
    """x owns ten of sixteen, more than its eight of p; those it borrows all the same."""
    rules = shares(x={"guaranteed": {"q": 8}}, y={"guaranteed": {"p": 4}})
    held = opened(mixed_cluster(p=(8,), q=(8,)), rules)
    on_q = [(make(name, 4, low=2) if make is elastic else make(name, 4), {"q-0": 4}) for name in ("x1", "x2")]
    on_p = [(make(name, 4, low=2) if make is elastic else make(name, 4), {"p-0": 4}) for name in ("x3", "x4")]
    running(held, *on_p, *on_q)
    held.submit(rigid("y", 4, at=10.0), 10.0)
    done = decided(held, 10.0)
    assert done.pop("y") == "start"
    assert set(done) <= {"x3", "x4"}
    assert set(done.values()) == {step}
    assert held.jobs["y"].gpu_type == "p"


def test_parameter_servers_stay_where_they_are_when_gpus_are_taken_back():
    held = opened(cluster(8, 0), TWO)
    held.submit(elastic("x", 8), 0.0)
    held.adopt([Holding("x", (("n0", 8),), None, (("n1", 1),))], 0.0)
    held.submit(rigid("y", 4, at=10.0), 10.0)
    assert decided(held, 10.0) == {"x": "shrink", "y": "start"}
    assert held.jobs["x"].servers == (("n1", 1),)


# What a team never exceeds, whichever of its users hold the GPUs.


@pytest.mark.parametrize("limit", [{"max": {"*": 3}}, {"max": {"gpu": 3}}, {"borrows": False}])
def test_users_of_a_team_do_not_exceed_its_limit_together(limit: dict[str, Any]):
    """Two of three GPUs are c's, and d holds two: not one of the free GPUs goes to c before d's job stops."""
    rules = shares(
        t={"users": {"c": 2.0, "d": 1.0}, "guaranteed": {"*": 3}, **limit}, u={"guaranteed": {"*": 5}}
    )
    held = under("fifo", cluster(8), rules)
    running(held, (rigid("d", 2), {"n0": 2}))
    held.submit(rigid("c", 2, at=10.0), 10.0)
    assert decided(held, 10.0) == {"d": "preempt", "c": "start"}
    held.submit(rigid("c-more", 1, at=11.0), 11.0)
    held.end("d", 11.0, "cancelled")
    assert decided(held, 11.0) == {"c-more": "start"}


def test_a_team_does_not_exceed_its_max_by_a_guarantee_of_another_type():
    """What it holds of a is its own, so none of it stops; only two of the four guaranteed of b are left."""
    rules = shares(t={"guaranteed": {"b": 4}, "max": {"*": 8}, "users": ("t",)})
    held = under("fifo", mixed_cluster(a=(8,), b=(8,)), rules)
    running(held, (rigid("t-old", 6), {"a-0": 6}))
    held.submit(rigid("t-new", 4, at=10.0), 10.0)
    assert decided(held, 10.0) == {}
    held.submit(rigid("t-small", 2, at=11.0), 11.0)
    held.end("t-new", 11.0)
    assert decided(held, 11.0) == {"t-small": "start"}


def test_gpus_of_a_job_that_finishes_on_a_drained_node_count_for_the_max_of_its_team():
    held = under("fifo", cluster(4, 8), shares(x={"max": {"*": 5}}, y={}))
    running(held, (rigid("x", 4), {"n0": 4}))
    held.drain("n0", 1.0, now=False)
    held.submit(rigid("x-more", 2, at=2.0), 2.0)
    assert decided(held, 2.0) == {}
    held.submit(rigid("x-little", 1, at=3.0), 3.0)
    held.end("x-more", 3.0)
    assert decided(held, 3.0) == {"x-little": "start"}


@pytest.mark.usefixtures("once")
def test_where_a_team_is_at_its_limit_only_its_own_users_give_back_for_each_other():
    """v takes the two of w that it lacks; what c lacks, d holds, so w keeps its third."""
    rules = shares(
        t={"users": {"c": 2.0, "d": 1.0}, "guaranteed": {"*": 3}, "max": {"*": 3}},
        v={"guaranteed": {"*": 5}},
        w={},
    )
    held = under("fifo", cluster(8), rules)
    running(
        held, (rigid("d", 2), {"n0": 2}), (rigid("w-old", 1), {"n0": 1}), (rigid("w-young", 2), {"n0": 2})
    )
    held.submit(rigid("c", 2, at=10.0), 10.0)
    held.submit(rigid("v", 5, at=10.0), 10.0)
    done = decided(held, 10.0)
    assert done == {"w-young": "preempt", "d": "preempt", "v": "start", "c": "start"}


@pytest.mark.usefixtures("once")
def test_a_user_who_shrinks_makes_room_for_another_of_a_team_at_its_limit():
    rules = shares(t={"users": {"c": 2.0, "d": 1.0}, "guaranteed": {"*": 3}, "max": {"*": 3}}, u={})
    held = opened(cluster(8), rules)
    running(held, (elastic("d", 3), {"n0": 3}))
    held.submit(rigid("c", 2, at=10.0), 10.0)
    assert decided(held, 10.0) == {"d": "shrink", "c": "start"}
    assert held.jobs["d"].preemptions == 0


@pytest.mark.usefixtures("once")
def test_users_of_a_team_at_its_limit_do_not_count_on_the_same_room():
    rules = shares(t={"users": {"c": 2.0, "d": 2.0, "e": 1.0}, "guaranteed": {"*": 5}, "max": {"*": 5}}, u={})
    held = under("fifo", cluster(9), rules)
    running(held, (rigid("e", 3), {"n0": 3}))
    for user in "cd":
        held.submit(rigid(user, 2, at=10.0), 10.0)
    assert decided(held, 10.0) == {"e": "preempt", "c": "start", "d": "start"}


# Elastic jobs that finish on drained nodes.


def bound_to_n0(nodes: Cluster, rules: Any, *jobs: Job) -> Session:
    """Each job holds a GPU of n0, which is drained, and the rest of what it requested on another node."""
    held = under("fair-share", nodes, rules)
    for number, each in enumerate(jobs, start=1):
        held.submit(each, 0.0)
        held.adopt([Holding(each.id, (("n0", 1), (f"n{number}", each.gpus.requested - 1)))], 0.0)
    held.drain("n0", 1.0, now=False)
    return held


def test_a_job_that_finishes_on_a_drained_node_gives_nothing_to_its_own_team():
    held = bound_to_n0(cluster(1, 4), TWO, elastic("x", 5))
    held.submit(rigid("x-too", 1, at=2.0), 2.0)
    decided(held, 2.0)
    assert dict(held.jobs["x"].placement) == {"n0": 1, "n1": 4}
    held.submit(rigid("y", 1, at=3.0), 3.0)
    decided(held, 3.0)
    assert dict(held.jobs["x"].placement) == {"n0": 1}


def test_a_job_that_finishes_on_a_drained_node_keeps_what_is_its_teams_own():
    held = bound_to_n0(cluster(1, 3, 3), shares(x={"guaranteed": {"*": 5}}, y={}), elastic("x", 4))
    held.submit(rigid("y-one", 3, at=2.0), 2.0)
    held.submit(rigid("y-two", 3, at=2.0), 2.0)
    decided(held, 2.0)
    assert dict(held.jobs["x"].placement) == {"n0": 1, "n1": 3}


def test_a_job_that_finishes_on_a_drained_node_keeps_all_where_free_gpus_are_enough():
    held = bound_to_n0(cluster(1, 4, 4), TWO, elastic("x", 5))
    held.submit(rigid("y", 3, at=2.0), 2.0)
    assert decided(held, 2.0) == {"y": "start"}
    held.submit(rigid("y-too", 3, at=3.0), 3.0)
    assert decided(held, 3.0)["x"] == "shrink"


def test_no_more_jobs_on_a_drained_node_give_back_than_others_lack():
    rules = shares(x={"guaranteed": {"*": 3}}, y={"guaranteed": {"*": 3}})
    held = bound_to_n0(cluster(2, 3, 3), rules, elastic("x-one", 4), elastic("x-two", 4))
    held.submit(rigid("y", 3, at=2.0), 2.0)
    decided(held, 2.0)
    assert sizes(held) == {"x-one": 1, "x-two": 4, "y": 3}


def test_no_more_jobs_on_a_drained_node_give_back_than_borrow():
    rules = shares(x={"guaranteed": {"*": 5}}, y={"guaranteed": {"*": 1}})
    held = bound_to_n0(cluster(2, 3, 3), rules, elastic("x-one", 4), elastic("x-two", 4))
    for number in range(2):
        held.submit(rigid(f"y{number}", 3, at=2.0), 2.0)
    decided(held, 2.0)
    assert sizes(held) == {"x-one": 1, "x-two": 4, "y0": 3}


@pytest.mark.usefixtures("once")
def test_a_job_that_keeps_a_drained_node_alone_leaves_its_team_room():
    """x may hold four: its job gives one to y, and so does the next one of x get one."""
    rules = shares(x={"max": {"*": 4}, "guaranteed": {"*": 1}}, y={"guaranteed": {"*": 1}})
    held = bound_to_n0(cluster(1, 3), rules, elastic("x", 4))
    held.submit(rigid("x-more", 1, at=2.0), 2.0)
    held.submit(rigid("y", 1, at=2.0), 2.0)
    assert decided(held, 2.0) == {"x": "shrink", "x-more": "start", "y": "start"}


@pytest.mark.usefixtures("once")
def test_a_job_on_a_drained_node_and_another_users_job_count_for_the_limit_together():
    """Of five t holds four, two of them on the drained node; c's job needs what d has beyond its part."""
    rules = shares(t={"users": {"c": 4.0, "d": 1.0}, "guaranteed": {"*": 5}, "max": {"*": 5}}, u={})
    held = under("fifo", cluster(2, 8), rules)
    running(held, (rigid("c", 2), {"n0": 2}), (rigid("d", 2), {"n1": 2}))
    held.drain("n0", 5.0, now=False)
    held.submit(rigid("c-more", 2, at=10.0), 10.0)
    assert decided(held, 10.0) == {"d": "preempt", "c-more": "start"}


@pytest.mark.parametrize("limit", [{}, {"max": {"*": 8}}, {"max": {"*": 12}}, {"borrows": False}])
def test_a_limit_takes_nothing_of_its_own_from_a_team_with_a_job_on_a_drained_node(limit: dict[str, Any]):
    rules = shares(x={"guaranteed": {"*": 8}, **limit}, y={})
    held = under("ares", cluster(4, 4, 4, 4), rules)
    running(held, (elastic("x", 8, low=4), {"n0": 4, "n1": 4}), (rigid("y", 8), {"n2": 4, "n3": 4}))
    decided(held, 5.0)
    held.drain("n1", 6.0, now=False)
    held.submit(rigid("y-more", 4, at=7.0), 7.0)
    assert decided(held, 7.0) == {}
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
def test_gpus_on_a_drained_node_count_once_for_what_a_team_may_hold(limit: dict[str, Any]):
    held = under("fifo", cluster(4, 4, 4, 4), shares(x=limit, y={}))
    running(held, (rigid("x", 4), {"n0": 4}))
    held.drain("n0", 1.0, now=False)
    held.submit(rigid("x-more", 4, at=2.0), 2.0)
    held.submit(rigid("x-beyond", 4, at=3.0), 3.0)
    held.submit(rigid("y", 8, at=4.0), 4.0)
    assert decided(held, 4.0) == {"x-more": "start", "y": "start"}


def on_drained(one: Job, policy: str = "fair-share", **servers: Any) -> Session:
    """A job holds three GPUs of n0, which is drained, and all of n1; y waits for one."""
    more = one.gpus.requested - 3
    held = under(policy, cluster(3, more, 0), TWO)
    held.submit(one, 0.0)
    held.adopt([Holding(one.id, (("n0", 3), ("n1", more)), None, **servers)], 0.0)
    held.drain("n0", 1.0, now=False)
    held.submit(rigid("y", 1, at=2.0), 2.0)
    decided(held, 2.0)
    return held


@pytest.mark.parametrize(
    ("one", "policy", "gpus"),
    [
        (elastic("x", 4, low=3), "fair-share", 3),
        (elastic("x", 5, low=4), "fair-share", 5),
        (rigid("x", 4), "fair-share", 4),
        (elastic("x", 4), "fifo", 4),
        (
            elastic("x", 4).model_copy(update={"gpus": Gpus(requested=4, min=2, max=4, sizes=(2, 4))}),
            "fair-share",
            4,
        ),
    ],
)
def test_a_job_on_a_drained_node_gives_back_only_what_it_can_do_without(one: Job, policy: str, gpus: int):
    assert on_drained(one, policy).jobs["x"].gpus == gpus


def test_parameter_servers_stay_where_they_are_when_a_job_keeps_a_drained_node_alone():
    held = on_drained(elastic("x", 4), servers=(("n2", 1),))
    assert (held.jobs["x"].gpus, held.jobs["x"].servers) == (3, (("n2", 1),))


def test_jobs_on_a_drained_node_give_back_in_order_of_their_names():
    rules = shares(x={"guaranteed": {"*": 3}}, y={"guaranteed": {"*": 3}})
    held = bound_to_n0(cluster(2, 3, 3), rules, elastic("x-two", 4), elastic("x-one", 4))
    held.submit(rigid("y", 3, at=2.0), 2.0)
    decided(held, 2.0)
    assert sizes(held) == {"x-one": 1, "x-two": 4, "y": 3}


def drained_pair(rules: Any) -> Session:
    """Two jobs of x train on the same four GPUs, three of n0, which is drained, and one of n1."""
    nodes = cluster(3, 2).model_copy(update={"sharing": Sharing(unmeasured="together")})
    held = opened(nodes, rules)
    place = (("n0", 3), ("n1", 1))
    for name, beside in (("x-one", None), ("x-two", "x-one")):
        held.submit(elastic(name, 4), 0.0)
        held.adopt([Holding(name, place, beside=beside)], 0.0)
    held.drain("n0", 1.0, now=False)
    return held


def test_a_pair_that_finishes_on_a_drained_node_counts_once_for_the_max():
    held = drained_pair(shares(x={"max": {"*": 5}}, y={}))
    held.submit(rigid("x", 1, at=2.0), 2.0)
    assert decided(held, 2.0) == {"x": "start"}


def test_a_pair_that_finishes_on_a_drained_node_gives_nothing_back():
    held = drained_pair(TWO)
    held.submit(rigid("y", 2, at=2.0), 2.0)
    assert decided(held, 2.0) == {}
