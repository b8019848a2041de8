"""The parts of a shared cluster: which GPUs they get, what their policies see, and what answers lead to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from pliant.schemas.cluster import Cluster, Sharing
from pliant.schemas.job import Job
from pliant.schemas.schedule import PolicyState
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policy import Decision, PolicyError, Target
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.holdings import Holding
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Snapshot
from tests.builders import TimedSteps, cluster, mixed_cluster, sizes
from tests.tools.schedule.session.shared_world import (
    TWO,
    Owned,
    Seen,
    decided,
    elastic,
    last,
    opened,
    owned,
    rigid,
    running,
    takes,
)
from tests.tools.schedule.test_shares import shares, under

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


def test_a_team_gets_the_largest_whole_nodes_first():
    held = opened(cluster(4, 8), TWO, rigid("x", 8), policy=owned(idle))
    assert free_of(held, "x", 0.0) == {"n1": 8}


def test_where_several_nodes_are_needed_a_team_gets_the_emptiest_first():
    held = opened(cluster(8, 8, 8), TWO, policy=owned(idle))
    running(held, (rigid("y0", 6), {"n0": 6}), (rigid("y1", 5), {"n1": 5}), (rigid("y2", 4), {"n2": 4}))
    held.submit(rigid("x", 8), 3.0)
    assert free_of(held, "x", 3.0) == {"n0": 1, "n1": 3, "n2": 4}


def test_of_two_teams_that_could_use_the_free_gpus_the_one_that_lacks_more_gets_them():
    """More than their own, two each: x lacks three, y four, and z's jobs hold what is missing."""
    idle_teams = {name: {} for name in "uvw"}
    held = under("fifo", cluster(12), shares(x={}, y={}, z={}, **idle_teams))
    running(held, (rigid("z", 8), {"n0": 8}))
    held.submit(rigid("x", 3, at=10.0), 10.0)
    held.submit(rigid("y", 4, at=10.0), 10.0)
    assert decided(held, 10.0) == {"y": "start"}


def test_a_part_that_no_job_fits_is_offered_to_others_and_what_they_leave_is_shown_to_its_team():
    """Of ten GPUs five are due to each; x came first and gets eight, y is shown the two that are left."""
    held = opened(cluster(10), TWO, rigid("x", 8), rigid("y", 8, at=1.0))
    assert decided(held, 1.0) == {"x": "start"}
    assert (last(held, "x").total, last(held, "y").total) == (8, 2)


def of_types(policy: str, nodes: Cluster, rules: Any) -> Session:
    """Jobs of a model run on the type of its last letter alone."""

    def step_s(model: str, kind: str, place: tuple[int, ...], _: object) -> float | None:
        return 1 / sum(place) if model[-1] == kind else None

    return Session(make_policy(policy), nodes.model_copy(update={"shares": rules}), TimedSteps(step_s))


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("policy", ["fifo", "ares"])
def test_what_a_job_can_start_on_comes_before_what_none_can_use_as_yet(policy: str, order: str):
    """x may hold eight. Its replicas of four do not fit what is free of a; its other job has all of b."""
    gpus = {"a": (4, 4, 4, 4), "b": (4, 4)}
    nodes = mixed_cluster(**{kind: gpus[kind] for kind in order})
    held = of_types(policy, nodes, shares(x={"max": {"*": 8}}, y={}))
    running(held, (rigid("y", 8, model="on-a"), {f"a-{node}": 2 for node in range(4)}))
    held.submit(rigid("x-a", 8, at=1.0, model="on-a", each=4), 1.0)
    held.submit(rigid("x-b", 8, at=2.0, model="on-b"), 2.0)
    assert decided(held, 2.0) == {"x-b": "start"}


def test_what_a_limit_keeps_from_a_team_goes_to_others():
    """x is guaranteed two of q, and holds three of p: the two would be one too many."""
    rules = shares(x={"guaranteed": {"q": 2}, "max": {"*": 4}}, y={})
    held = of_types("fifo", mixed_cluster(p=(4,), q=(4,)), rules)
    running(held, (rigid("x", 3, model="on-p"), {"p-0": 3}))
    held.submit(rigid("x-more", 2, at=1.0, model="on-q"), 1.0)
    held.submit(rigid("y", 4, at=2.0, model="on-q"), 2.0)
    assert decided(held, 2.0) == {"y": "start"}


def test_nodes_without_gpus_serve_all_teams():
    held = opened(cluster(4, 0), TWO, rigid("x", 2), rigid("y", 2))
    held.decide(0.0)
    assert last(held, "x").nodes["n1"] == last(held, "y").nodes["n1"] == (0, 0)
    held.node_down("n1", 1.0)
    held.submit(rigid("x-more", 1, at=1.0), 1.0)
    held.decide(1.0)
    assert "n1" not in last(held, "x").nodes


def test_under_a_policy_that_resizes_nothing_an_elastic_job_counts_as_what_it_requests():
    """y's eight of at least one do not fit five, so y gives way, and x's two are all that x can use."""
    held = under("fifo", cluster(10), TWO)
    held.submit(rigid("x", 8), 0.0)
    held.submit(elastic("y", 8, at=1.0), 1.0)
    assert decided(held, 1.0) == {"x": "start"}
    small = under("fifo", cluster(8), TWO)
    small.submit(elastic("x", 2), 0.0)
    small.decide(0.0)
    assert small.standings(0.0)[0].entitled == 2


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


def test_policies_of_teams_that_come_later_decide_with_less_effort_in_a_prediction():
    class Quick(Owned):
        seen: ClassVar[dict[str, list[Seen]]] = {}
        answer = staticmethod(takes)
        quick: ClassVar[int] = 0

        def look_ahead(self):
            type(self).quick += 1

    held = opened(cluster(8), TWO, rigid("x", 1), policy=Quick)
    held.decide(0.0)
    held.look_ahead()
    held.submit(rigid("y", 1, at=1.0), 1.0)
    held.decide(1.0)
    assert Quick.quick == 2


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


def says(**answer: Any) -> Callable[[Snapshot], Decision]:
    """The policy of x says this, that of y takes what it can."""

    def decide(snapshot: Snapshot) -> Decision:
        return Decision(**answer) if "x" in snapshot.jobs else takes(snapshot)

    return decide


def test_a_policy_may_not_take_gpus_of_another_team():
    """Four of eight are not its own, though free."""
    policy = owned(says(targets={"x": Target(6)}))
    held = opened(cluster(8), TWO, rigid("x", 6), elastic("y", 4, low=4, at=1.0), policy=policy)
    with pytest.raises(PolicyError, match='gives "x" 6 GPUs'):
        held.decide(1.0)


def test_what_is_no_decision_is_the_fault_of_the_policy():
    held = opened(cluster(8), TWO, rigid("x", 6), policy=owned(lambda snapshot: None))
    with pytest.raises(PolicyError):
        held.decide(0.0)


def test_jobs_are_rejected_and_admitted_by_the_policies_of_their_teams():
    policy = owned(says(rejected={"x": "no"}, admissions={"x": {"admitted": False}}))
    held = opened(cluster(8), TWO, rigid("x", 6), rigid("y", 1), policy=policy)
    assert decided(held, 0.0) == {"x": "reject", "y": "start"}
    assert held.admissions == {"x": {"admitted": False}}


def test_what_was_said_before_others_were_offered_the_rest_counts():
    """x declines; when y is offered what is left, x's policy is asked again, and says nothing new."""

    first = [Decision(ask_again_s=50.0, admissions={"x": {"admitted": True}})]

    def answer(snapshot: Snapshot) -> Decision:
        if "x" not in snapshot.jobs:
            return takes(snapshot)
        return first.pop() if first else Decision()

    held = opened(cluster(8), TWO, rigid("x", 4), rigid("y", 8, at=1.0), policy=owned(answer))
    assert decided(held, 1.0) == {"y": "start"}
    assert (held.ask_again_s, held.admissions) == (50.0, {"x": {"admitted": True}})


# GPU types that policies leave open.


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


def test_jobs_whose_type_is_left_open_share_the_types_of_their_team():
    """The first gets the fast type, others what is left of it."""
    for named, expected in (
        ({"x1": Target(4), "x2": Target(4)}, {"x1": "b", "x2": "a"}),
        ({"x1": Target(4, "b"), "x2": Target(4)}, {"x1": "b", "x2": "a"}),
        ({"x1": Target(4, placement=(("a-0", 4),)), "x2": Target(4)}, {"x1": "a", "x2": "b"}),
    ):
        nodes = mixed_cluster(a=(4,), b=(4,)).model_copy(update={"shares": TWO})
        held = Session(owned(says(targets=named))(), nodes, Fast())
        for name in ("x", *named):
            held.submit(rigid(name, 4), 0.0)
        decided(held, 0.0)
        assert types(held) == expected


def test_a_job_whose_type_is_left_open_stays_on_its_own_and_goes_where_it_runs():
    nodes = mixed_cluster(a=(4,), b=(4,)).model_copy(update={"shares": TWO})
    held = opened(nodes, TWO, policy=owned(says(targets={"x": Target(4)})))
    running(held, (elastic("x", 2), {"b-0": 2}))
    held.submit(rigid("x-too", 4), 1.0)
    assert decided(held, 1.0) == {"x": "grow"}
    assert types(held) == {"x": "b"}
    speeds = TimedSteps(lambda model, kind, place, batch: None if kind == "a" else 1.0)
    other = Session(owned(says(targets={"x": Target(4)}))(), nodes, speeds)
    other.submit(rigid("x", 4), 0.0)
    other.submit(rigid("x-too", 4), 0.0)
    decided(other, 0.0)
    assert types(other) == {"x": "b"}


def test_gpus_that_one_of_a_pair_leaves_are_no_room_for_a_job_whose_type_is_left_open():
    nodes = mixed_cluster(a=(4,), b=(4,)).model_copy(
        update={"shares": TWO, "sharing": Sharing(unmeasured="together")}
    )
    answer = says(targets={"x": Target(0), "x-new": Target(4)})
    held = Session(owned(answer)(), nodes, CurveThroughput({}, {"a": 2.0}))
    running(held, (rigid("x-too", 4), {"a-0": 4}))
    held.submit(rigid("x", 4), 1.0)
    held.adopt([Holding("x", (("a-0", 4),), beside="x-too")], 1.0)
    held.submit(rigid("x-new", 4), 2.0)
    decided(held, 2.0)
    assert types(held) == {"x-too": "a", "x-new": "b"}


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


def test_a_policy_that_took_all_there_was_gets_the_rest_as_it_comes():
    """Five of nine are x's, but the job of y is rigid; the next one of y leaves x the fifth, and not z."""
    rules = shares(x={"guaranteed": {"*": 5}}, y={"guaranteed": {"*": 3}}, z={"guaranteed": {"*": 1}})
    held = under("fair-share", cluster(9), rules)
    running(held, (elastic("x", 4), {"n0": 4}), (rigid("y", 4), {"n0": 4}), (elastic("z", 1), {"n0": 1}))
    assert decided(held, 3.0) == {}
    held.end("y", 4.0)
    held.submit(rigid("y-next", 3, at=4.0), 4.0)
    assert decided(held, 4.0) == {"x": "grow", "y-next": "start"}


@pytest.mark.parametrize("again_s", [None, 1.0])
def test_a_policy_that_leaves_gpus_free_is_not_asked_over_and_over(again_s: float | None):
    policy = owned(says(ask_again_s=again_s))
    held = opened(cluster(8), TWO, rigid("x", 4), rigid("y", 8, at=1.0), policy=policy)
    held.decide(1.0)
    assert sizes(held) == {"y": 8}
    assert len(policy.seen["x"]) == 2


@pytest.mark.parametrize(
    ("before", "ends", "arrives", "gpus"),
    [
        (("x1",), "x1", "x2", 4),  # another job in place of the one that waits
        (("x1", "x2"), "x1", None, 4),  # one job fewer
        (("x-runs", "x2"), "x-runs", None, 2),  # as many wait, but none holds GPUs
    ],
)
def test_a_policy_is_offered_what_it_left_once_its_jobs_have_changed(
    before: tuple[str, ...], ends: str, arrives: str | None, gpus: int
):
    """The policy of x starts nothing but x2, and that when it is alone."""

    def answer(snapshot: Snapshot) -> Decision:
        mine = [name for name in snapshot.jobs if name.startswith("x")]
        return Decision() if mine and mine != ["x2"] else takes(snapshot)

    held = opened(cluster(8), TWO, policy=owned(answer))
    for name in before:
        held.submit(rigid(name, gpus), 0.0)
        if name == "x-runs":
            held.adopt([Holding(name, (("n0", gpus),))], 0.0)
    for number in range(4):
        held.submit(rigid(f"y{number}", 2, at=1.0), 1.0)
    held.decide(1.0)
    held.end(ends, 2.0, "cancelled")
    if arrives is not None:
        held.submit(rigid(arrives, gpus, at=2.0), 2.0)
    decided(held, 2.0)
    assert held.jobs["x2"].gpus == gpus


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("until_s", [60.0, None])
def test_another_process_knows_what_policies_left_free_and_until_when(keeps: bool, until_s: float | None):
    """The policy of x keeps no state, that of y may: it is given back with y's jobs alone."""

    def answer(snapshot: Snapshot) -> Decision:
        leaves = "x" in snapshot.jobs and snapshot.time_s < 60.0
        return Decision(ask_again_s=until_s) if leaves else takes(snapshot)

    loaded = []

    def load(self: Owned, state: Any, jobs: Mapping[str, JobState]) -> None:
        loaded.append((state, sorted(jobs)))

    def dump(self: Owned) -> Any:
        return "kept" if keeps and self.user == "y" else None

    policy = owned(answer, dump_state=dump, load_state=load)
    jobs = [rigid("x", 4), *(rigid(f"y{number}", 2) for number in range(4))]
    held = opened(cluster(8), TWO, *jobs, policy=policy)
    held.decide(0.0)
    again = opened(cluster(8), TWO, *jobs, policy=policy)
    again.adopt([Holding.of(each) for each in held.jobs.values() if each.gpus], 0.0)
    again.carry(PolicyState.model_validate_json(held.policy_state().model_dump_json()))
    assert loaded == [("kept", ["y0", "y1", "y2", "y3"])] * keeps
    offered = {"y0": "preempt", "y1": "preempt", "x": "start"}
    assert decided(again, 60.0) == ({} if until_s is None else offered)


# What is said of teams.


def test_an_explanation_says_how_the_team_of_a_job_that_waits_stands():
    held = under("fifo", cluster(10), TWO)
    for each in (rigid("x", 8), rigid("x-more", 8), rigid("y", 8, at=1.0)):
        held.submit(each, 1.0)
    held.decide(1.0)
    found = {name: why.reason for name, why in held.explain(1.0).items()}
    assert found["x-more"].endswith("; team x holds 8 of 5 GPUs")
    assert found["y"].endswith("; team y holds 0 of 5 GPUs")
    trains = under("fair-share", cluster(10), TWO)
    trains.submit(elastic("x", 2), 0.0)
    trains.decide(0.0)
    assert "team" not in trains.explain(0.0)["x"].reason


def test_standings_say_what_each_team_owns_holds_lends_and_waits_for():
    rules = shares(1.0, x={}, y={}, z={}, u={"lends": False})
    held = under("fifo", cluster(12), rules)
    held.submit(rigid("x", 5), 0.0)
    held.decide(0.0)
    held.submit(rigid("y", 8, at=3600.0), 3600.0)
    held.submit(rigid("y-too", 2, at=3600.0), 3600.0)
    found = {each.team: each for each in held.standings(3600.0)}
    assert {team: (each.own, each.held, each.borrowed) for team, each in found.items()} == {
        "x": (3.0, 5, 2),
        "y": (3.0, 0, 0),
        "z": (3.0, 0, 0),
        "u": (3.0, 0, 0),
    }
    assert {team: each.lent for team, each in found.items()} == {"x": 0.0, "y": 1.0, "z": 1.0, "u": 0.0}
    assert (found["y"].waiting_jobs, found["y"].waiting_gpus) == (2, 10)
    assert found["x"].usage_gpu_hours == pytest.approx(5 / math.log(2) / 2, abs=1e-3)


def test_a_team_lends_no_more_than_it_has_left():
    """u does not lend what is guaranteed to it, which is nothing: x has eight of others, y has lent four."""
    held = under("fifo", cluster(12), shares(x={}, y={}, u={"lends": False}))
    held.submit(rigid("x", 12), 0.0)
    held.decide(0.0)
    assert {each.team: each.lent for each in held.standings(0.0)} == {"x": 0.0, "y": 4.0, "u": 0.0}


def test_standings_show_a_team_that_is_due_more_than_its_jobs_can_use_and_strangers_that_were_there():
    held = under("fifo", cluster(10), shares(1.0, x={}, y={}))
    held.submit(rigid("x", 8), 0.0)
    held.submit(rigid("y", 8, at=1.0), 1.0)
    held.submit(rigid("e", 1, at=1.0), 1.0)
    assert {each.team for each in held.standings(1.0)} == {"x", "y", "*"}
    held.decide(1.0)
    assert {each.team: each.entitled for each in held.standings(1.0)} == {"x": 5, "y": 4, "*": 1}
    held.end("e", 3601.0)
    held.decide(3601.0)
    held.decide(3602.0)
    assert {each.team for each in held.standings(3602.0)} == {"x", "y", "*"}
