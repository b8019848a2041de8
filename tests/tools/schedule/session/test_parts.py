"""The parts of a shared cluster: what is taken back and from whom, who gets it, and what policies see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import pytest

from pliant.schemas.cluster import Cluster, Owner, Sharing
from pliant.schemas.job import Job
from pliant.schemas.schedule import PolicyState
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.policy import Decision, Policy, Target
from pliant.tools.schedule.session.holdings import Holding
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Snapshot
from tests.builders import cluster, job, mixed_cluster, sizes
from tests.tools.schedule.test_shares import shares, under

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


# Who gives GPUs back, and in which order.


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


def test_no_job_shrinks_where_that_helps_nobody():
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


# What a team never exceeds, whoever of it holds the GPUs.


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


# Which free GPUs a team gets.


def free_of(held: Session, user: str, time_s: float) -> dict[str, int]:
    """Free GPUs by node that the policy of a user's team was shown last."""
    held.decide(time_s)
    return {name: free for name, (_, free) in last(held, user).nodes.items() if free}


def idle(snapshot: Snapshot) -> Decision:
    return Decision()


def test_a_team_gets_free_gpus_of_its_own_nodes_first_where_it_holds_most():
    """Two of its nodes have room, and one of another team's, which two GPUs would fit best."""
    held = opened(cluster(4, 8, 8), TWO, policy=owned(idle))
    running(held, (rigid("y", 2), {"n0": 2}), (rigid("x", 3), {"n1": 1, "n2": 2}))
    held.submit(rigid("x-more", 2), 2.0)
    assert free_of(held, "x", 2.0) == {"n2": 2}


def test_a_team_gets_whole_nodes_before_parts_of_others():
    """The node of eight fits six GPUs, and would be broken into; the whole one of four comes first."""
    held = opened(cluster(8, 4), TWO, policy=owned(idle))
    running(held, (rigid("y", 2), {"n0": 2}))
    held.submit(rigid("x", 6), 1.0)
    assert free_of(held, "x", 1.0) == {"n1": 4, "n0": 2}


def test_of_several_nodes_that_fit_a_team_gets_the_fullest():
    held = opened(cluster(8, 8, 8), shares(x={}, y={}), policy=owned(idle))
    running(held, (rigid("y-one", 2), {"n0": 2}), (rigid("y-two", 4), {"n1": 4}), (rigid("y3", 3), {"n2": 3}))
    held.submit(rigid("x", 4), 3.0)
    assert free_of(held, "x", 3.0) == {"n1": 4}


def test_where_none_fits_a_team_gets_the_emptiest_node_first():
    held = opened(cluster(8, 8, 8), TWO, policy=owned(idle))
    running(held, (rigid("y-one", 5), {"n0": 5}), (rigid("y-two", 6), {"n1": 6}), (rigid("y3", 5), {"n2": 5}))
    held.submit(rigid("x", 5), 3.0)
    assert free_of(held, "x", 3.0) == {"n0": 3, "n1": 2}


def test_a_part_that_no_job_fits_is_offered_to_others_and_what_they_leave_is_shown_to_its_team():
    """Of ten GPUs five are due to each; x came first and gets eight, y is shown the two that are left."""
    held = opened(cluster(10), TWO, rigid("x", 8), rigid("y", 8, at=1.0))
    assert decided(held, 1.0) == {"x": "start"}
    assert (last(held, "x").total, last(held, "y").total) == (8, 2)


def test_nodes_without_gpus_serve_all_teams():
    held = opened(cluster(4, 0), TWO, rigid("x", 2), rigid("y", 2))
    held.decide(0.0)
    assert last(held, "x").nodes["n1"] == last(held, "y").nodes["n1"] == (0, 0)
    held.node_down("n1", 1.0)
    held.submit(rigid("x-more", 1, at=1.0), 1.0)
    held.decide(1.0)
    assert "n1" not in last(held, "x").nodes


# What policies see and hear.


def test_a_policy_hears_of_nodes_whose_gpus_it_gets_or_loses():
    held = opened(cluster(4, 4), TWO, elastic("x", 4, high=4), policy=owned(takes))
    held.decide(0.0)
    held.submit(elastic("x-more", 2, high=2, at=1.0), 1.0)
    held.decide(1.0)
    held.submit(elastic("x-most", 2, high=2, at=2.0), 2.0)
    held.decide(2.0)
    held.node_down("n1", 3.0)
    held.decide(3.0)
    assert isinstance(held.policy, Owned)
    assert [each.changes for each in held.policy.seen["x"]] == [
        [("arrived", "x", 0)],
        [("arrived", "x-more", 0), ("node_up", "n1", 2)],
        [("arrived", "x-most", 0), ("capacity", "n1", 2)],
        [("lost", "x-more", 0), ("lost", "x-most", 0), ("node_down", "n1", -4)],
    ]


def test_a_policy_hears_of_the_end_of_its_last_job_and_then_no_more():
    held = opened(cluster(4), TWO, rigid("x", 2), rigid("y", 2))
    held.decide(0.0)
    held.end("x", 1.0)
    held.decide(1.0)
    assert last(held, "x").changes[0] == ("finished", "x", 0)
    held.decide(2.0)
    assert (last(held, "x").time_s, last(held, "y").time_s) == (1.0, 2.0)


def test_a_policy_that_hears_only_of_jobs_that_have_left_has_no_gpus():
    held = opened(cluster(4), TWO, rigid("x", 2), rigid("y", 2))
    held.end("x", 1.0, "cancelled")
    held.decide(1.0)
    assert (last(held, "x").nodes, last(held, "x").total, last(held, "x").free) == ({}, 0, {"gpu": 0})


def test_a_policy_knows_the_future_of_its_own_team_alone():
    trace = [rigid("x", 1), rigid("x-next", 1, at=5.0), rigid("y", 1), rigid("y-next", 1, at=5.0)]
    held = opened(cluster(4), TWO, trace=trace)
    for each in trace[::2]:
        held.submit(each, 0.0)
    held.decide(0.0)
    assert (last(held, "x").future, last(held, "y").future) == (["x-next"], ["y-next"])


def test_a_policy_taken_up_by_another_process_hears_only_what_is_new():
    def story(*, reopens: bool) -> list[tuple[str, str, int]]:
        held = opened(cluster(4, 4), TWO, rigid("x", 4))
        held.decide(0.0)
        if reopens:
            state = held.policy_state()
            held = opened(cluster(4, 4), TWO, rigid("x", 4))
            held.adopt([Holding("x", (("n0", 4),))], 0.0)
            held.carry(PolicyState.model_validate_json(state.model_dump_json()))
        held.submit(rigid("x-more", 2, at=1.0), 1.0)
        held.decide(1.0)
        return last(held, "x").changes

    assert story(reopens=True) == story(reopens=False) == [("arrived", "x-more", 0), ("node_up", "n1", 2)]


# The answers of several policies are put together.


def asks(**later: tuple[float | None, float | None]) -> Callable[[Snapshot], Decision]:
    """Each user's policy starts its jobs, and says when to ask it again and until when it is quiet."""

    def answer(snapshot: Snapshot) -> Decision:
        user = min(each.spec.user for each in snapshot.jobs.values())
        again_s, quiet_s = later[user]
        said = takes(snapshot)
        said.ask_again_s, said.quiet_until_s = again_s, quiet_s
        return said

    return answer


@pytest.mark.parametrize(
    ("x", "y", "again_s", "quiet_s"),
    [
        ((30.0, 100.0), (20.0, 90.0), 20.0, 90.0),
        ((20.0, 90.0), (30.0, 100.0), 20.0, 90.0),
        ((None, 100.0), (20.0, None), 20.0, float("-inf")),
        ((None, 50.0), (None, 60.0), None, 50.0),
    ],
)
def test_the_first_that_wants_to_be_asked_again_is_and_all_must_be_quiet(
    x: tuple[float | None, float | None],
    y: tuple[float | None, float | None],
    again_s: float | None,
    quiet_s: float,
):
    held = opened(cluster(4), TWO, rigid("x", 2), rigid("y", 2), policy=owned(asks(x=x, y=y)))
    held.decide(0.0)
    assert (held.ask_again_s, held.quiet_until_s) == (again_s, quiet_s)


def test_rounds_without_a_change_are_asked_for_where_usage_changes_what_teams_get():
    rules = shares(32.0, x={}, y={})
    policy = owned(asks(x=(None, 1e6), y=(None, 1e6)))
    held = opened(cluster(4), rules, rigid("x", 2), policy=policy)
    held.decide(0.0)
    assert (held.ask_again_s, held.quiet_until_s) == (None, 1e6)
    held.submit(rigid("y", 2, at=10.0), 10.0)
    held.decide(10.0)
    assert (held.ask_again_s, held.quiet_until_s) == (3610.0, 3610.0)


def untyped(**sizes: int) -> Callable[[Snapshot], Decision]:
    """Names the sizes of jobs that are to change, and leaves the GPU type open."""

    def answer(snapshot: Snapshot) -> Decision:
        jobs = snapshot.jobs
        return Decision(
            {name: Target(n) for name, n in sizes.items() if name in jobs and jobs[name].gpus != n}
        )

    return answer


class Fast(CurveThroughput):
    """Type b is twice as fast."""

    def __init__(self) -> None:
        super().__init__({}, {"b": 2.0})


def on_two_types(answer: Callable[[Snapshot], Decision], *jobs: Job) -> Session:
    """x owns four GPUs of type a, and y four of b, which all jobs would rather have."""
    rules = shares(x={"guaranteed": {"a": 4}}, y={"guaranteed": {"b": 4}})
    nodes = mixed_cluster(a=(4,), b=(4,)).model_copy(update={"shares": rules})
    held = Session(owned(answer)(), nodes, Fast())
    for each in jobs:
        held.submit(each, each.submit_time)
    return held


def types(held: Session) -> dict[str, str | None]:
    return {name: each.gpu_type for name, each in held.jobs.items() if each.gpus}


def test_a_job_whose_type_is_left_open_gets_one_of_its_teams():
    held = on_two_types(untyped(x=4, y=4), rigid("x", 4), rigid("y", 4))
    held.decide(0.0)
    assert types(held) == {"x": "a", "y": "b"}


def test_a_job_whose_type_is_left_open_gets_gpus_that_another_one_of_its_team_leaves():
    held = on_two_types(untyped(x=0, **{"x-next": 4}), rigid("y", 4, at=2.0))
    running(held, (rigid("x", 4), {"a-0": 4}))
    held.submit(rigid("x-next", 4, at=2.0), 2.0)
    assert decided(held, 2.0) == {"x": "preempt", "x-next": "start"}
    assert types(held) == {"x-next": "a"}


# What a policy leaves free.


def declines(snapshot: Snapshot) -> Decision:
    """The policy of x starts nothing while it has fewer than two jobs; that of y takes all it can."""
    mine = [each for each in snapshot.jobs.values() if each.spec.user == "x"]
    return Decision() if len(mine) == 1 else takes(snapshot)


def test_what_a_policy_leaves_free_goes_to_others_until_its_jobs_change():
    held = opened(cluster(8), TWO, rigid("x", 4), policy=owned(declines))
    for number in range(4):
        held.submit(rigid(f"y{number}", 2, at=1.0), 1.0)
    decided(held, 1.0)
    assert sizes(held) == {f"y{number}": 2 for number in range(4)}
    decided(held, 2.0)
    assert sizes(held) == {f"y{number}": 2 for number in range(4)}, "x declined: none stops for it"
    held.submit(rigid("x-more", 2, at=3.0), 3.0)
    assert decided(held, 3.0) == {"y0": "preempt", "y1": "preempt", "x": "start"}


def test_what_a_policy_leaves_free_is_offered_to_it_again_when_it_wants_to_be_asked():
    def answer(snapshot: Snapshot) -> Decision:
        said = takes(snapshot)
        if "x" in snapshot.jobs and snapshot.time_s < 60.0:
            said = Decision(ask_again_s=60.0)
        return said

    held = opened(cluster(8), TWO, rigid("x", 4), policy=owned(answer))
    for number in range(4):
        held.submit(rigid(f"y{number}", 2, at=1.0), 1.0)
    decided(held, 1.0)
    assert decided(held, 59.0) == {}
    assert decided(held, 60.0) == {"y0": "preempt", "y1": "preempt", "x": "start"}


def test_a_team_is_offered_more_although_its_policy_left_fewer():
    """The policy of x waits for four GPUs, and y's end lets it have them."""

    def answer(snapshot: Snapshot) -> Decision:
        mine = "x" in snapshot.jobs
        return Decision() if mine and snapshot.free_gpus["gpu"] < 6 else takes(snapshot)

    held = opened(cluster(8), TWO, elastic("x", 6), rigid("y", 4), policy=owned(answer))
    assert decided(held, 0.0) == {"y": "start"}
    held.end("y", 1.0)
    assert decided(held, 1.0) == {"x": "start"}


def test_what_a_policy_leaves_free_goes_to_others_although_it_is_entitled_to_more_than_was_free():
    """x may grow to six and leaves the four free ones; the fifth that it may have, a job of y holds."""
    rules = shares(x={"guaranteed": {"*": 7}}, y={"guaranteed": {"*": 2}}, z={"guaranteed": {"*": 3}})
    held = opened(cluster(12), rules)
    running(
        held, (rigid("y3", 3), {"n0": 3}), (rigid("y4", 4), {"n0": 4}), (elastic("x", 1, high=6), {"n0": 1})
    )
    held.submit(rigid("y", 3, at=10.0), 10.0)
    assert decided(held, 10.0) == {"y": "start"}
