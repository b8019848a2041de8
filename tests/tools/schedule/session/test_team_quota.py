import math
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from pliant.schemas.schedule import PolicyState
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policy import Decision, PolicyError, Target
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Snapshot
from pliant.tools.schedule.testing.harness import as_held
from tests.builders import TimedSteps, cluster, job, mixed_cluster, sizes
from tests.schemas.test_resources import cluster_of
from tests.tools.schedule.session.shared_world import (
    TWO,
    Owned,
    Seen,
    comes,
    elastic,
    last,
    owned,
    pairs_up,
    rigid,
    rigids,
    shares,
    takes,
    together,
    world,
)


@pytest.mark.parametrize(
    ("nodes", "held", "wanted", "free"),
    [
        pytest.param(
            *((4, 8, 8), {"y": {"n0": 2}, "x-old": {"n1": 1, "n2": 2}}, 2, {"n2": 2}),
            id="free GPUs of its own nodes first, where it holds most",
        ),
        pytest.param(*((8, 4), {"y": {"n0": 2}}, 6, {"n1": 4, "n0": 2}), id="whole nodes before parts"),
        pytest.param(
            *((8, 8, 8), {"y0": {"n0": 2}, "y1": {"n1": 4}, "y2": {"n2": 3}}, 4, {"n1": 4}),
            id="of several nodes that fit the fullest",
        ),
        pytest.param(
            *((8, 8, 8), {"y0": {"n0": 5}, "y1": {"n1": 6}, "y2": {"n2": 5}}, 5, {"n0": 3, "n1": 2}),
            id="where none fits the emptiest first",
        ),
        pytest.param((4, 8), {}, 8, {"n1": 8}, id="the largest whole nodes first"),
        pytest.param(
            *((8, 8, 8), {"y0": {"n0": 6}, "y1": {"n1": 5}, "y2": {"n2": 4}}),
            *(8, {"n0": 1, "n1": 3, "n2": 4}),
            id="where several are needed the emptiest first",
        ),
    ],
)
def test_which_free_gpus_a_team_gets(nodes, held, wanted, free):
    jobs = [(rigid(name, sum(place.values())), place) for name, place in held.items()]
    shared = world(cluster(*nodes), TWO, *jobs, policy=owned(lambda _: Decision()))
    comes(shared, rigid("x", wanted))
    assert {name: gpus for name, (_, gpus) in last(shared, "x").nodes.items() if gpus} == free


def test_free_gpus_go_to_who_lacks_more_or_can_use_them() -> None:
    # More than their own, two each: x lacks three, y four, and z's jobs hold what is missing.
    held = world(cluster(12), shares(x={}, y={}, z={}, u={}, v={}, w={}), rigid("z", 8))
    assert comes(held, rigid("x", 3), rigid("y", 4)) == {"y": "start"}

    # Of ten GPUs five are due to each; x came first and gets eight, y is shown the two that are left.
    held = world(cluster(10), TWO, policy=owned())
    held.submit(rigid("x", 8), 0.0)
    assert comes(held, rigid("y", 8)) == {"x": "start"}
    assert (last(held, "x").total, last(held, "y").total) == (8, 2)


def by_letter(model: str, kind: str, place: tuple[int, ...], _: object) -> float | None:
    """Jobs of a model run on the type of its last letter alone."""
    return 1 / sum(place) if model[-1] == kind else None


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("policy", ["fifo", "ares"])
def test_what_a_job_can_start_on_comes_before_what_none_can_use(policy: str, order: str):
    """x may hold eight. Its replicas of four do not fit what is free of a; its other job has all of b."""
    gpus = {"a": (4, 4, 4, 4), "b": (4, 4)}
    rules, speeds = shares(x={"max": {"*": 8}}, y={}), TimedSteps(by_letter)
    nodes = mixed_cluster(**{kind: gpus[kind] for kind in order})
    y = rigid("y", 8, model="on-a"), {f"a-{node}": 2 for node in range(4)}
    held = world(nodes, rules, y, policy=policy, throughput=speeds)
    held.submit(rigid("x-a", 8, at=1.0, model="on-a", each=4), 1.0)
    assert comes(held, rigid("x-b", 8, model="on-b")) == {"x-b": "start"}


def test_limits_nodes_without_gpus_and_requested_sizes() -> None:
    # x is guaranteed two of q, and holds three of p: the two would be one too many.
    rules = shares(x={"guaranteed": {"q": 2}, "max": {"*": 4}}, y={})
    x = rigid("x", 3, model="on-p"), {"p-0": 3}
    held = world(mixed_cluster(p=(4,), q=(4,)), rules, x, throughput=TimedSteps(by_letter))
    held.submit(rigid("x-more", 2, at=1.0, model="on-q"), 1.0)
    assert comes(held, rigid("y", 4, model="on-q")) == {"y": "start"}
    # Nodes without GPUs serve all teams.
    held = world(cluster(4, 0), TWO, policy=owned())
    comes(held, rigid("x", 2), rigid("y", 2))
    assert last(held, "x").nodes["n1"] == last(held, "y").nodes["n1"] == (0, 0)
    held.maintenance.node_down("n1", 11.0)
    comes(held, rigid("x-more", 1), at=11.0)
    assert "n1" not in last(held, "x").nodes

    # Two cores are those of a job that needs no GPU: what y borrows with four others makes room for x.
    held = world(cluster_of({"gpus": 4, "cpus": 8.0}, {"gpus": 0, "cpus": 2.0}), TWO, rigid("y", 2))
    cores = {count: {"worker": {"cpu": float(count)}} for count in (2, 4)}
    comes(held, *(job(f"c{at}", gpus=0, resources=cores[2]) for at in range(2)), at=1.0)
    comes(held, rigid("y-more", 1, resources=cores[4]), at=2.0)
    assert comes(held, rigid("x", 1, resources=cores[4])) == {"y-more": "preempt", "x": "start"}
    held.maintenance.drain("n1", 11.0, now=False)
    held.decide(11.0)
    assert held.hidden.bound == {"c0": "n1"}
    assert held.quota
    assert not held.quota.reclaim.bound

    # y's eight of at least one do not fit five, so y gives way, and x's two are all that x can use.
    held = world(cluster(10), TWO)
    held.submit(rigid("x", 8), 0.0)
    assert comes(held, elastic("y", 8)) == {"x": "start"}
    small = world(cluster(8), TWO)
    comes(small, elastic("x", 2))
    assert small.policy_host.standings(10.0)[0].entitled == 2


# What policies see.


def test_what_a_policy_is_shown_of_its_team() -> None:
    held = world(cluster(4, 4), TWO, policy=owned())
    for at, (name, gpus) in enumerate({"x": 4, "x-more": 2, "x-most": 2}.items()):
        comes(held, elastic(name, gpus, high=gpus), at=float(at))
    held.maintenance.node_down("n1", 3.0)
    comes(held, at=3.0)
    assert isinstance(held.policy, Owned)
    assert [each.changes for each in held.policy.seen["x"]] == [
        [("arrived", "x", 0)],
        [("arrived", "x-more", 0), ("node_up", "n1", 2)],
        [("arrived", "x-most", 0), ("capacity", "n1", 2)],
        [("lost", "x-more", 0), ("lost", "x-most", 0), ("node_down", "n1", -4)],
    ]
    # A policy is shown end of its last job and then no more.
    held = world(cluster(4), TWO, policy=owned())
    comes(held, rigid("x", 2), rigid("y", 2), at=0.0)
    held.end("x", 1.0)
    comes(held, at=1.0)
    assert last(held, "x").changes[0] == ("finished", "x", 0)
    comes(held, at=2.0)
    assert (last(held, "x").time_s, last(held, "y").time_s) == (1.0, 2.0)
    # A policy all of whose jobs have left has no GPUs.
    held = world(cluster(4), TWO, policy=owned())
    held.submit(rigid("x", 2), 0.0)
    held.end("x", 1.0, "cancelled")
    comes(held, rigid("y", 2))
    assert (last(held, "x").nodes, last(held, "x").total, last(held, "x").free) == ({}, 0, {"gpu": 0})
    # A policy knows the future of its own team alone.
    trace = [rigid("x", 1), rigid("x-next", 1, at=5.0), rigid("y", 1), rigid("y-next", 1, at=5.0)]
    held = world(cluster(4), TWO, policy=owned(), trace=trace)
    comes(held, *trace[::2], at=0.0)
    assert (last(held, "x").future, last(held, "y").future) == (["x-next"], ["y-next"])


def test_policies_in_other_processes_and_of_later_teams() -> None:
    def story(*, reopens: bool) -> list[tuple[str, str, int]]:
        held = world(cluster(4, 4), TWO, policy=owned())
        comes(held, rigid("x", 4), at=0.0)
        if reopens:
            state = held.policy_host.policy_state()
            held = world(cluster(4, 4), TWO, rigid("x", 4), policy=owned())
            held.restore_state(PolicyState.model_validate_json(state.model_dump_json()))
        comes(held, rigid("x-more", 2), at=1.0)
        return last(held, "x").changes

    assert story(reopens=True) == story(reopens=False) == [("arrived", "x-more", 0), ("node_up", "n1", 2)]

    # Policies of later teams predict with less effort.
    class Quick(Owned):
        seen: ClassVar[dict[str, list[Seen]]] = {}
        answer = staticmethod(takes)
        quick: ClassVar[int] = 0

        def look_ahead(self):
            type(self).quick += 1

    held = world(cluster(8), TWO, policy=Quick)
    comes(held, rigid("x", 1), at=0.0)
    held.policy_host.look_ahead()
    comes(held, rigid("y", 1), at=1.0)
    assert Quick.quick == 2


# The answers of several policies are put together.


def asks(**later: tuple[float | None, float | None]) -> type[Owned]:
    """Each user's policy starts its jobs, and says when to ask it again and until when it is quiet."""

    def answer(snapshot: Snapshot) -> Decision:
        decision = takes(snapshot)
        user = min(each.spec.user for each in snapshot.jobs.values())
        decision.ask_again_s, decision.quiet_until_s = later[user]
        return decision

    return owned(answer)


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ((30.0, 100.0), (20.0, 90.0), (20.0, 90.0)),
        ((20.0, 90.0), (30.0, 100.0), (20.0, 90.0)),
        ((None, 100.0), (20.0, None), (20.0, float("-inf"))),
        ((None, 50.0), (None, 60.0), (None, 50.0)),
    ],
)
def test_the_first_to_be_asked_again_is_and_all_must_be_quiet(x: Any, y: Any, expected: object):
    held = world(cluster(4), TWO, policy=asks(x=x, y=y))
    comes(held, rigid("x", 2), rigid("y", 2), at=0.0)
    assert (held.decided.due_s, held.decided.quiet_until_s) == expected


def test_when_policies_are_asked_and_what_they_may_take() -> None:
    held = world(cluster(4), shares(32.0, x={}, y={}), policy=asks(x=(None, 1e6), y=(None, 1e6)))
    comes(held, rigid("x", 2), at=0.0)
    assert (held.decided.due_s, held.decided.quiet_until_s) == (None, 1e6)
    comes(held, rigid("y", 2), at=10.0)
    assert (held.decided.due_s, held.decided.quiet_until_s) == (3610.0, 3610.0)

    # Four of eight are not its own, though free.
    held = world(cluster(8), TWO, policy=says(targets={"x": Target(6)}))
    with pytest.raises(PolicyError, match='gives "x" 6 GPUs'):
        comes(held, rigid("x", 6), elastic("y", 4, low=4))
    with pytest.raises(PolicyError):
        comes(world(cluster(8), TWO, policy=owned(lambda _: None)), rigid("x", 6))
    # Jobs are rejected and admitted by policies teams.
    policy = says(rejected={"x": "no"}, admissions={"x": {"admitted": False}})
    held = world(cluster(8), TWO, policy=policy)
    assert comes(held, rigid("x", 6), rigid("y", 1)) == {"x": "reject", "y": "start"}
    assert held.decided.admissions == {"x": {"admitted": False}}
    # When y is offered what x has declined, x's policy is asked again, and says nothing new.
    first = [Decision(ask_again_s=50.0, admissions={"x": {"admitted": True}})]

    def answer(snapshot: Snapshot) -> Decision:
        if "x" not in snapshot.jobs:
            return takes(snapshot)
        return first.pop() if first else Decision()

    held = world(cluster(8), TWO, policy=owned(answer))
    assert comes(held, rigid("x", 4), rigid("y", 8), at=1.0) == {"y": "start"}
    assert (held.decided.due_s, held.decided.admissions) == (50.0, {"x": {"admitted": True}})


def says(**answer: Any) -> type[Owned]:
    """The policy of x says this, that of y takes what it can."""

    def decide(snapshot: Snapshot) -> Decision:
        return Decision(**answer) if "x" in snapshot.jobs else takes(snapshot)

    return owned(decide)


# GPU types that policies leave open.

FAST = CurveThroughput({}, {"b": 2.0})
"""Type b is twice as fast."""
TYPES = mixed_cluster(a=(4,), b=(4,))
OWN_TYPES = shares(x={"guaranteed": {"a": 4}}, y={"guaranteed": {"b": 4}})


def untyped(**sizes: int) -> type[Owned]:
    """Names the sizes of jobs that are to change, and leaves the GPU type open."""

    def answer(snapshot: Snapshot) -> Decision:
        jobs = snapshot.jobs
        return Decision({k: Target(n) for k, n in sizes.items() if k in jobs and jobs[k].gpus != n})

    return owned(answer)


def types(held: Session) -> dict[str, str | None]:
    return {name: each.gpu_type for name, each in held.jobs.items() if each.gpus}


def test_a_job_whose_type_is_left_open_gets_one_of_its_team() -> None:
    """x owns four GPUs of type a, and y four of b, which all jobs would rather have."""
    held = world(TYPES, OWN_TYPES, policy=untyped(x=4, y=4), throughput=FAST)
    comes(held, rigid("x", 4), rigid("y", 4))
    assert types(held) == {"x": "a", "y": "b"}
    # A job whose type is left open gets GPUs that its team leaves.
    policy = untyped(x=0, **{"x-next": 4})
    held = world(TYPES, OWN_TYPES, (rigid("x", 4), {"a-0": 4}), policy=policy, throughput=FAST)
    held.submit(rigid("y", 4, at=2.0), 2.0)
    assert comes(held, rigid("x-next", 4)) == {"x": "preempt", "x-next": "start"}
    assert types(held) == {"x-next": "a"}


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (Target(4), {"x1": "b", "x2": "a"}),
        (Target(4, "b"), {"x1": "b", "x2": "a"}),
        (Target(4, placement=(("a-0", 4),)), {"x1": "a", "x2": "b"}),
    ],
)
def test_jobs_whose_type_is_left_open_share_types_of_their_team(first: Target, expected: dict[str, str]):
    held = world(TYPES, TWO, policy=says(targets={"x1": first, "x2": Target(4)}), throughput=FAST)
    comes(held, *(rigid(name, 4) for name in ("x", "x1", "x2")), at=0.0)
    assert types(held) == expected


def test_a_job_of_an_open_type_stays_and_goes_where_it_runs():
    policy = says(targets={"x": Target(4)})
    held = world(TYPES, TWO, (elastic("x", 2), {"b-0": 2}), policy=policy)
    assert comes(held, rigid("x-too", 4)) == {"x": "grow"}
    assert types(held) == {"x": "b"}
    speeds = TimedSteps(lambda model, kind, place, batch: None if kind == "a" else 1.0)
    other = world(TYPES, TWO, policy=policy, throughput=speeds)
    comes(other, rigid("x", 4), rigid("x-too", 4))
    assert types(other) == {"x": "b"}
    # GPUs that one of a pair leaves are no room for it.
    nodes = together().model_copy(update={"nodes": TYPES.nodes})
    policy = says(targets={"x": Target(0), "x-new": Target(4)})
    speeds = CurveThroughput({}, {"a": 2.0})
    held = world(nodes, TWO, (rigid("x-too", 4), {"a-0": 4}), policy=policy, throughput=speeds)
    pairs_up(held, rigid("x", 4), {"a-0": 4}, "x-too")
    comes(held, rigid("x-new", 4))
    assert types(held) == {"x-too": "a", "x-new": "b"}


# What a policy leaves free.

FOUR = rigids("y", 4, 2)
TAKEN_BACK = {"y0": "preempt", "y1": "preempt", "x": "start"}


def test_what_a_policy_leaves_goes_to_others_and_comes_back() -> None:
    # The policy of x starts nothing while it has fewer than two jobs; that of y takes all it can.
    def answer(snapshot: Snapshot) -> Decision:
        mine = [each for each in snapshot.jobs.values() if each.spec.user == "x"]
        return Decision() if len(mine) == 1 else takes(snapshot)

    held = world(cluster(8), TWO, policy=owned(answer))
    comes(held, rigid("x", 4), *FOUR, at=1.0)
    assert sizes(held) == {f"y{number}": 2 for number in range(4)}
    assert comes(held, at=2.0) == {}, "x declined: none stops for it"
    assert comes(held, rigid("x-more", 2), at=3.0) == TAKEN_BACK

    # The policy of x waits for four GPUs, and y's end lets it have them.
    def answer(snapshot: Snapshot) -> Decision:
        mine = "x" in snapshot.jobs
        return Decision() if mine and snapshot.free_gpus["gpu"] < 6 else takes(snapshot)

    held = world(cluster(8), TWO, policy=owned(answer))
    assert comes(held, elastic("x", 6), rigid("y", 4), at=0.0) == {"y": "start"}
    held.end("y", 1.0)
    assert comes(held, at=1.0) == {"x": "start"}
    # What is due and taken comes back as it ends.
    # x may grow to six and leaves the four free ones; the fifth that it may have, a job of y holds.
    rules = shares(x={"guaranteed": {"*": 7}}, y={"guaranteed": {"*": 2}}, z={"guaranteed": {"*": 3}})
    jobs = rigid("y3", 3), rigid("y4", 4), elastic("x", 1, high=6)
    assert comes(world(cluster(12), rules, *jobs, policy=owned()), rigid("y", 3)) == {"y": "start"}

    # Five of nine are x's, but the job of y is rigid; the next one of y leaves x the fifth, and not z.
    rules = shares(x={"guaranteed": {"*": 5}}, y={"guaranteed": {"*": 3}}, z={"guaranteed": {"*": 1}})
    jobs = elastic("x", 4), rigid("y", 4), elastic("z", 1)
    held = world(cluster(9), rules, *jobs, policy="fair-share")
    assert comes(held, at=3.0) == {}
    held.end("y", 4.0)
    assert comes(held, rigid("y-next", 3), at=4.0) == {"x": "grow", "y-next": "start"}


@pytest.mark.parametrize("again_s", [None, 1.0])
def test_policy_that_leaves_gpus_free_is_not_asked_over_and_over(again_s: float | None):
    policy = says(ask_again_s=again_s)
    held = world(cluster(8), TWO, policy=policy)
    comes(held, rigid("x", 4), rigid("y", 8), at=1.0)
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
def test_policy_is_offered_what_it_left_once_jobs_have_changed(before, ends, arrives, gpus):
    """The policy of x starts nothing but x2, and that when it is alone."""

    def answer(snapshot: Snapshot) -> Decision:
        mine = [name for name in snapshot.jobs if name.startswith("x")]
        return Decision() if mine and mine != ["x2"] else takes(snapshot)

    runs = [rigid(name, gpus) for name in before if name == "x-runs"]
    held = world(cluster(8), TWO, *runs, policy=owned(answer))
    comes(held, *(rigid(name, gpus) for name in before if name != "x-runs"), *FOUR, at=1.0)
    held.end(ends, 2.0, "cancelled")
    comes(held, *(rigid(name, gpus) for name in [arrives] if name), at=2.0)
    assert held.jobs["x2"].gpus == gpus


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("until_s", [60.0, None])
def test_what_a_policy_leaves_is_offered_again_when_it_asks(keeps: bool, until_s: float | None):

    def answer(snapshot: Snapshot) -> Decision:
        leaves = "x" in snapshot.jobs and snapshot.time_s < 60.0
        return Decision(ask_again_s=until_s) if leaves else takes(snapshot)

    loaded = []

    def load(self: Owned, state: Any, jobs: Mapping[str, JobState]) -> None:
        loaded.append((state, sorted(jobs)))

    def dump(self: Owned) -> Any:
        return "kept" if keeps and self.user == "y" else None

    policy = owned(answer, dump_state=dump, load_state=load)
    held, again = (world(cluster(8), TWO, policy=policy) for _ in range(2))
    for each in (rigid("x", 4), *FOUR):
        held.submit(each, 0.0)
        again.submit(each, 0.0)
    comes(held, at=0.0)
    again.set_allocations([as_held(each, 0.0) for each in held.jobs.values() if each.gpus], 0.0)
    again.restore_state(PolicyState.model_validate_json(held.policy_host.policy_state().model_dump_json()))
    assert loaded == [("kept", ["y0", "y1", "y2", "y3"])] * keeps
    for each in (held, again):
        assert comes(each, at=59.0) == {}
        assert comes(each, at=60.0) == ({} if until_s is None else TAKEN_BACK)


# What is said of teams.


def test_an_explanation_says_how_team_of_a_job_that_waits_stands():
    held = world(cluster(10), TWO)
    comes(held, rigid("x", 8), rigid("x-more", 8), at=0.0)
    comes(held, rigid("y", 8), at=1.0)
    reasons = {name: why.reason for name, why in held.explain(1.0).items()}
    assert reasons["x-more"].endswith("; team x holds 8 of 5 GPUs")
    assert reasons["y"].endswith("; team y holds 0 of 5 GPUs")
    trains = world(cluster(10), TWO, policy="fair-share")
    comes(trains, elastic("x", 2), at=0.0)
    assert "team" not in trains.explain(0.0)["x"].reason


def test_standings_show_what_each_team_owns_lends_and_waits_for() -> None:
    held = world(cluster(12), shares(1.0, x={}, y={}, z={}, u={"lends": False}))
    comes(held, rigid("x", 5), at=0.0)
    for each in (rigid("y", 8, at=3600.0), rigid("y-too", 2, at=3600.0)):
        held.submit(each, 3600.0)
    teams = {each.team: each for each in held.policy_host.standings(3600.0)}
    own = {team: (each.own, each.held, each.borrowed, each.lent) for team, each in teams.items()}
    assert own == {"x": (3, 5, 2, 0), "y": (3, 0, 0, 1), "z": (3, 0, 0, 1), "u": (3, 0, 0, 0)}
    assert (teams["y"].waiting_jobs, teams["y"].waiting_gpus) == (2, 10)
    assert teams["x"].usage_gpu_hours == pytest.approx(5 / math.log(2) / 2, abs=1e-3)
    # u does not lend what is guaranteed to it, which is nothing: x has eight of others, y has lent four.
    held = world(cluster(12), shares(x={}, y={}, u={"lends": False}))
    comes(held, rigid("x", 12), at=0.0)
    assert {each.team: each.lent for each in held.policy_host.standings(0.0)} == {
        "x": 0.0,
        "y": 4.0,
        "u": 0.0,
    }
    # What teams are due, and strangers that have used GPUs.
    held = world(cluster(10), shares(1.0, x={}, y={}))
    held.submit(rigid("x", 8), 0.0)
    for name, gpus in (("y", 8), ("e", 1)):
        held.submit(rigid(name, gpus, at=1.0), 1.0)
    assert {each.team for each in held.policy_host.standings(1.0)} == {"x", "y", "*"}
    comes(held, at=1.0)
    assert {each.team: each.entitled for each in held.policy_host.standings(1.0)} == {"x": 5, "y": 4, "*": 1}
    held.end("e", 3601.0)
    for at in (3601.0, 3602.0):
        comes(held, at=at)
    assert {each.team for each in held.policy_host.standings(3602.0)} == {"x", "y", "*"}
