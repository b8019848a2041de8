from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.checks import oversized
from pliant.schemas.cluster import OTHERS, Cluster, Owner, Shares
from pliant.tools.schedule.entitlements import Claim, Entitlement, TeamUsage, WaitingJob, claims_of, entitle
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.registry import make_policy
from tests.builders import TimedSteps, cluster, job, mixed_cluster, opened
from tests.effort import examples
from tests.tools.schedule.session.shared_world import THREE, comes, elastic, rigid, shares, world

HOUR_S = 3600.0


def divided(rules: Shares, jobs: list[Any], gpus: int) -> dict[str, int]:
    """Entitlements by team on idle nodes of four GPUs."""
    nodes = cluster(*(4,) * (gpus // 4), gpus % 4)
    held = opened(make_policy("fifo"), nodes, *jobs)
    claims = claims_of(held.jobs.values(), rules, held.cluster.speeds, {"gpu": gpus}, resizes=True)
    found = entitle(rules, claims, {}, {"gpu": gpus})
    return {owner.team: each.now["gpu"] for owner, each in found.items()}


BOTH = {"a": 16, "b": 16}
NOT_LENT: Final = {"guaranteed": {"gpu": 6}, "lends": False}


@pytest.mark.parametrize(
    ("rules", "most", "gpus", "expected"),
    [
        pytest.param(shares(a={"weight": 3.0}, b={}), BOTH, 16, {"a": 12, "b": 4}, id="by weight"),
        pytest.param(  # 14 as 2 to 1, to the nearest: 9.33 and 4.67
            *(shares(a={"weight": 5.0}, b={"weight": 2.0}, c={}), {"a": 2, "b": 16, "c": 16}, 16),
            {"a": 2, "b": 9, "c": 5},
            id="what a team cannot use goes to others by weight",
        ),
        pytest.param(shares(a={"guaranteed": {"gpu": 8}}, b={}), BOTH, 16, {"a": 12, "b": 4}, id="own first"),
        pytest.param(
            *(shares(a={"guaranteed": {"gpu": 24}}, b={"guaranteed": {"gpu": 8}}), BOTH, 16),
            {"a": 12, "b": 4},
            id="guarantees beyond all there is are cut in proportion",
        ),
        pytest.param(shares(a={"max": {"*": 3}}, b={}), BOTH, 16, {"a": 3, "b": 13}, id="up to a maximum"),
        pytest.param(shares(a={"borrows": False}, b={}), {"a": 16}, 16, {"a": 8, "b": 0}, id="borrows not"),
        pytest.param(shares(a=NOT_LENT, b={}), {"b": 16}, 16, {"a": 0, "b": 10}, id="lends not"),
        pytest.param(
            *(shares(a=NOT_LENT | {"guaranteed": {"*": 16}}, b={"guaranteed": {"*": 8}}), {"b": 8}, 8),
            {"a": 0, "b": 2},
            id="lends all but the own part",
        ),
        pytest.param(shares(a={}), {"a": 16, "z": 16}, 16, {"a": 8, OTHERS: 8}, id="strangers are a team"),
    ],
)
def test_entitlements(rules: Shares, most: dict[str, int], gpus: int, expected: dict[str, int]):
    jobs = [job(user, gpus=count, low=1, high=count, user=user) for user, count in most.items()]
    assert divided(rules, jobs, gpus) == expected


def test_usage_halves_with_the_half_life() -> None:
    usage, other, owner = (TeamUsage.under(shares(1.0, a={})), TeamUsage.under(shares(1.0, a={})), Owner("a"))
    usage.hold(owner, 4, 0.0)
    usage.hold(owner, -4, HOUR_S)
    full = usage.until(HOUR_S)[owner]
    assert usage.until(2 * HOUR_S)[owner] == pytest.approx(full / 2)
    assert 4 * HOUR_S / 2 < full < 4 * HOUR_S
    no_memory = TeamUsage.under(shares(0.0, a={}))
    no_memory.hold(owner, 4, 0.0)
    assert no_memory.until(HOUR_S) == {}
    # Changes at one time count in net, to the last digit.
    usage = TeamUsage.under(shares(1.0, a={}))
    for each in (usage, other):
        each.hold(owner, 3, 0.1)
    for time_s in (700.1, 1234.5, 2345.6):
        for more in (2, -2):
            usage.hold(owner, more, time_s)
        for later_s in (1.1, 11.3, 333.3):
            assert usage.until(time_s + later_s) == other.until(time_s + later_s)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Shares, list[Any], int]:
    names = draw(st.lists(st.sampled_from("abcde"), min_size=1, max_size=5, unique=True))
    rules = {
        name: {
            "weight": draw(st.sampled_from((0.5, 1.0, 3.0))),
            "guaranteed": {"gpu": draw(st.integers(0, 6))},
            "lends": draw(st.booleans()),
            "borrows": draw(st.booleans()),
        }
        for name in names
    }
    jobs = []
    for number in range(draw(st.integers(0, 8))):
        user, gpus = draw(st.sampled_from("abcdef")), draw(st.integers(1, 12))
        limits: dict[str, int] = {} if draw(st.booleans()) else {"low": 1, "high": gpus}
        jobs.append(job(f"j{number}", at=float(number), gpus=gpus, user=user, **limits))
    return shares(**rules), jobs, draw(st.integers(1, 24))


@given(cases())
@settings(max_examples=examples(150), deadline=None)
def test_no_gpu_is_given_twice_and_none_left_that_job_could_use(case: tuple[Shares, list[Any], int]):
    rules, jobs, gpus = case
    given_gpus = divided(rules, jobs, gpus)
    assert sum(given_gpus.values()) <= gpus
    for team, of_team in given_gpus.items():
        assert 0 <= of_team <= sum(each.gpus.requested for each in jobs if rules.team_of(each) == team)
    lent = {"lends": True, "borrows": True}
    teams = {name: team.model_copy(update=lent) for name, team in rules.teams.items()}
    open_gpus = divided(Shares(teams=teams, half_life_hours=0.0), jobs, gpus)
    left = gpus - sum(open_gpus.values())
    for each in jobs:
        if each.elastic == "none" and each.gpus.requested <= left:
            assert open_gpus[rules.team_of(each)] >= each.gpus.requested


def test_a_team_comes_from_job_user_groups_or_label() -> None:
    nodes = cluster(4, 4).model_copy(update={"shares": shares(a={"max": {"*": 3}})})
    found = oversized([rigid("x", 4, "a"), rigid("y", 3, "a"), rigid("z", 4, "b")], nodes)
    assert found == {"x": 'needs 4 GPUs, team "a" may hold 3'}
    rules = shares(a={}, b={"users": ("ann", "bob")}, c={"groups": ("staff",)}).model_copy(
        update={"label": "vc"}
    )
    assert rules.team_of(job("x", user="ann", team="a")) == "a"
    assert rules.team_of(job("x", user="ann", labels={"vc": "d"})) == "b"
    assert rules.team_of(job("x", user="eve", labels={"vc": "d"})) == "d"
    assert rules.team_of(rules.joined(job("x", user="eve"), ["staff"])) == "c"
    assert rules.why_not(job("x", user="eve", team="c"), ["staff"]) is None
    assert rules.why_not(job("x", user="eve", team="b"), []) == 'names team "b", which user eve is not in'
    assert rules.why_not(job("x", team="e"), []) == 'names team "e", expected one of a, b, c'
    # Slurms accounts count after groups and only where they decide.
    rules = shares(a={"accounts": ("physics",)}, b={"users": ("ann",), "groups": ("staff",)})
    assert rules.joined(job("x", user="eve"), [], ["bio", "physics"]).team == "a"
    assert rules.joined(job("x", user="eve"), ["staff"], ["physics"]).team == "b"
    assert rules.why_not(job("x", user="eve", team="a"), [], ["physics"]) is None
    assert rules.why_not(job("x", user="eve", team="a"), []) == 'names team "a", which user eve is not in'
    for named, groups, hangs in (
        ({"user": "eve"}, [], True),
        ({"user": "eve", "team": "a"}, ["staff"], True),
        ({"user": "eve"}, ["staff"], False),
        ({"user": "ann"}, [], False),
        ({"user": "eve", "team": "b"}, [], False),
    ):
        assert rules.hangs_on_accounts(job("x", **named), groups) is hangs
    assert not shares(b={"groups": ("staff",)}).hangs_on_accounts(job("x", user="eve"), [])


def test_guarantees_lent_and_freed_gpus_come_back() -> None:
    # x and y borrow two GPUs each with rigid jobs of six; z, whose own are four, gets them for good.
    held = world(cluster(12), THREE)
    comes(held, rigid("x", 6), rigid("y", 6), at=0.0)
    seen = [comes(held, rigid(f"z{minute}", 4), at=60.0 * minute) for minute in range(1, 5)]
    assert seen == [{"x": "preempt", "z1": "start"}, {}, {}, {}]
    assert held.jobs["x"].preemptions == 1

    # x always has jobs of one GPU; y is entitled to six of eight, which come free one by one.
    held = world(cluster(8), shares(24.0, x={}, y={}))
    comes(held, *(rigid(f"x{number:02}", 1) for number in range(40)), at=0.0)
    held.submit(rigid("y", 5, at=100.0), 100.0)
    for turn in range(1, 20):
        time_s = 100.0 + 100.0 * turn
        held.end(next(name for name, each in held.jobs.items() if name != "y" and each.gpus), time_s)
        comes(held, at=time_s)
        if held.jobs["y"].gpus:
            break
    assert held.jobs["y"].gpus == 5
    # Guaranteed are twelve; its two jobs run on the eight x alone, so four of y stay idle.
    rules = shares(a={"guaranteed": {"*": 12}, "lends": False}, b={})
    jobs = claim("a", wait(8, x=8), wait(8, x=8)), claim("b", *[wait(1, x=8, y=8)] * 2)
    assert typed(rules, {"x": 8, "y": 8}, *jobs) == {"a": {"x": 8}, "b": {"y": 4}}
    # Six each; a's four are no room for its second job of four beside the first.
    jobs = claim("a", wait(4), held={"x": 4}), claim("b", wait(1, x=12))
    assert typed(A_AND_B, {"x": 12}, *jobs) == {"a": {"x": 4}, "b": {"x": 8}}


# The division as such: each case is a rule of docs/teams.md that another one could hide.

ANY: Final = {"x": 4, "y": 4}


def wait(least: int, **most: int) -> tuple[int, dict[str, int]]:
    """A job that needs that many GPUs at least, and can use that many of each type."""
    return least, most or {"x": least}


def claim(
    team: str, *waits: tuple[int, dict[str, int]], at: float = 0.0, user: str = "", **counts: Any
) -> Claim:
    """What an owner holds, has declined, could use with running jobs (``demanded``); and jobs that wait."""
    waiting = [
        WaitingJob(JobState(job(f"{team}{user}{number}", at=at + number), 1, None), *each)
        for number, each in enumerate(waits)
    ]
    return Claim(Owner(team, user), **{"demanded": counts.get("held", {}), **counts}, waiting=waiting)


def whole(rules: Shares, total: dict[str, int], *claims: Claim, **used: float) -> dict[str, Entitlement]:
    """Entitlements by user where users are weighed, else by team."""
    owners = {each.owner.user or each.owner.team: each.owner for each in claims}
    used_gpu_s = {owners.get(name, Owner(name)): gpu_s for name, gpu_s in used.items()}
    found = entitle(rules, {each.owner: each for each in claims}, used_gpu_s, total)
    return {owner.user or owner.team: each for owner, each in found.items()}


def typed(rules: Shares, total: dict[str, int], *claims: Claim, **used: float) -> dict[str, dict[str, int]]:
    """GPUs that can be used at once, without zeros."""
    found = whole(rules, total, *claims, **used)
    return {
        name: {kind: gpus for kind, gpus in each.now.items() if gpus}
        for name, each in found.items()
        if any(each.now.values())
    }


def own(rules: Shares, total: dict[str, int], *claims: Claim) -> dict[str, float]:
    return {name: each.own for name, each in whole(rules, total, *claims).items()}


A_AND_B = shares(a={}, b={})


def test_a_waiting_job_gets_a_whole_gpu_for_its_team_s_fraction() -> None:
    """Of four GPUs 0.8 are a's. It has no other way to start; b would take none back, as none of it waits."""
    rules, total = shares(a={}, b={"weight": 4.0}), {"x": 4}
    waits, shrinks = claim("a", wait(1)), {"held": {"x": 4}, "shrinks": True}
    assert typed(rules, total, waits, claim("b", **shrinks)) == {"a": {"x": 1}, "b": {"x": 3}}
    assert typed(rules, total, waits, claim("b", held={"x": 4})) == {"b": {"x": 4}}
    assert typed(rules, total, waits, claim("b", wait(1), **shrinks)) == {"b": {"x": 4}}
    assert typed(rules, total, claim("a", wait(2)), claim("b", **shrinks)) == {"b": {"x": 4}}
    held = world(cluster(4), shares(x={}, y={"weight": 4.0}), policy="fair-share")
    comes(held, elastic("y", 4, high=4), at=0.0)
    seen = [comes(held, rigid("x", 1), at=60.0), *(comes(held, at=60.0 * minute) for minute in (2, 3))]
    assert seen == [{"y": "shrink", "x": "start"}, {}, {}]
    held = world(cluster(4), shares(x={}, y={"weight": 4.0}), policy="fair-share")
    comes(held, elastic("y", 4, high=4), at=0.0)
    comes(held, rigid("x", 1), at=60.0)
    assert held.explain(60.0)["y"].reason.endswith("; 1 GPU of it went to team x")


def test_what_is_left_goes_to_whose_turn_it_is_as_far_as_of_use() -> None:
    """Of twelve b can use five; c came before d, whatever the order of the file."""
    sizes = {"a": 8, "b": 5, "c": 5, "d": 5}
    jobs = [claim(name, wait(gpus), at=float(at)) for at, (name, gpus) in enumerate(sizes.items())]
    for rules in (shares(d={}, c={}, b={}, a={}), shares(a={}, b={}, c={}, d={})):
        assert typed(rules, {"x": 12}, *jobs) == {"b": {"x": 5}, "c": {"x": 5}}
    # Two of y idle: b's first job could use four of them, and its second one runs on x alone.
    rules = shares(a={}, b={"guaranteed": {"y": 2}}, c={"guaranteed": {"x": 1}})
    first = claim("a", wait(4, x=3, y=6), wait(3, x=3), at=5.0)
    second = claim("b", wait(4, x=5, y=4), wait(1, x=3), at=5.0)
    assert typed(rules, {"x": 8, "y": 6}, first, second) == {"a": {"x": 6}, "b": {"x": 2, "y": 4}}


def test_who_gets_which_type():
    either = claim("a", wait(4, **ANY)), claim("b", wait(4, **ANY))
    guaranteed = shares(a={"guaranteed": {"y": 4}}, b={})
    assert typed(guaranteed, ANY, *either) == {"a": {"y": 4}, "b": {"x": 4}}
    holds = claim("a", wait(4, **ANY)), claim("b", held={"x": 4})
    assert typed(A_AND_B, ANY, *holds) == {"a": {"y": 4}, "b": {"x": 4}}
    # Who gets more chooses first, and the type with most GPUs.
    jobs = claim("a", wait(4, x=6, y=4)), claim("b", wait(6, x=6, y=4))
    chosen = typed(shares(a={"max": {"*": 4}}, b={}), {"y": 4, "x": 6}, *jobs)
    assert chosen == {"a": {"y": 4}, "b": {"x": 6}}
    assert typed(shares(a={}), {"x": 2, "y": 8}, claim("a", wait(1, x=2, y=4))) == {"a": {"y": 4}}
    # One whole type each rather than some of both.
    both = claim("a", wait(1, x=8, y=8)), claim("b", wait(1, x=8, y=8))
    assert typed(A_AND_B, {"x": 8, "y": 8}, *both) == {"a": {"x": 8}, "b": {"y": 8}}


def test_a_max_of_a_type_and_what_is_guaranteed() -> None:
    rules, jobs = shares(a={"max": {"x": 2}}, b={}), claim("a", wait(1, **ANY), wait(1, **ANY))
    assert typed(rules, ANY, jobs) == {"a": {"x": 2, "y": 4}}
    assert own(rules, ANY, jobs) == {"a": 4.0, "b": 4.0}
    assert own(rules, {"x": 8}, claim("a", wait(1, x=8))) == {"a": 2.0, "b": 6.0}
    # What it holds on drained nodes counts for it, too.
    for most, left in ((5, 2), (2, 0)):
        found = entitle(shares(a={"max": {"x": most}}), {jobs.owner: jobs}, {}, ANY, {"a": {"x": 3}})
        assert found[jobs.owner].now == {"x": left, "y": 4}
    # A job counts once and for the types that it runs on.
    jobs = claim("a", wait(1, **ANY)), claim("b", wait(1, **ANY), wait(1, **ANY))
    assert typed(shares(a={"weight": 3.0}, b={}), ANY, *jobs) == {"a": {"x": 4}, "b": {"y": 4}}
    other = claim("a", wait(4, x=4), wait(1, y=1)), claim("b", wait(1, x=4))
    assert typed(A_AND_B, {"x": 4, "y": 1}, *other) == {"a": {"y": 1}, "b": {"x": 4}}
    # What is guaranteed.
    # A guarantee of any type includes those of types; the rest of sixteen is halved.
    for guaranteed, owned in (({"x": 4, "*": 6}, 11.0), ({"x": 4, "y": 4}, 12.0), ({"x": 4, "*": 2}, 10.0)):
        rules = shares(a={"guaranteed": guaranteed}, b={})
        assert own(rules, {"x": 8, "y": 8})["a"] == owned
    # No more than the maximum.
    rules = shares(a={"guaranteed": {"x": 4, "y": 4}, "max": {"*": 6}}, b={"guaranteed": {"*": 6}})
    assert own(rules, ANY) == {"a": 4.0, "b": 4.0}
    rules = shares(a={"guaranteed": {"*": 4}, "max": {"*": 6}}, b={})
    assert own(rules, {"x": 10}) == {"a": 6.0, "b": 4.0}
    # What no job needs is divided by weight.
    jobs = claim("a", wait(2)), claim("b", wait(1, x=16)), claim("c", wait(1, x=16))
    rules = shares(a={"guaranteed": {"*": 8}}, b={}, c={})
    assert typed(rules, {"x": 16}, *jobs) == {"a": {"x": 2}, "b": {"x": 7}, "c": {"x": 7}}


@pytest.mark.parametrize(
    ("weights", "held", "expected"),
    [
        ((1.0, 1.0), (0, 2), (1, 2)),  # one and a half each: who holds two keeps them
        ((1.0, 1.0), (2, 0), (2, 1)),
        ((3.0, 2.0), (2, 2), (2, 1)),  # 1.8 and 1.2 of three, one of four having vanished
        ((2.0, 3.0), (2, 2), (1, 2)),
        ((2.0, 3.0), (0, 0), (1, 2)),
    ],
)
def test_fractions_stay_where_they_are_held(weights, held, expected):
    rules = shares(**{name: {"weight": weight} for name, weight in zip("ab", weights, strict=True)})
    jobs = [claim(name, wait(1, x=3), held={"x": gpus}) for name, gpus in zip("ab", held, strict=True)]
    assert tuple(each.now["x"] for each in whole(rules, {"x": 3}, *jobs).values()) == expected


@pytest.mark.parametrize(
    ("teams", "used", "expected"),
    [
        ({}, {"a": 3600.0}, {"a": 4, "b": 16}),  # all of the usage at half of the weights: 2^-2 to 1
        ({}, {"a": 3600.0, "b": 3600.0}, {"a": 10, "b": 10}),
        ({"c": {"weight": 2.0}}, {"a": 3600.0}, {"a": 4, "b": 16}),  # c has neither jobs nor usage
        ({"c": {}}, {"a": 3600.0, "c": 3600.0}, {"a": 5, "b": 15}),  # half of it at a third: 2^-1.5 to 1
        ({"a": {"weight": 1e-4}, "b": {"weight": 1e4}}, {"a": 1e6}, {"a": 20}),  # b has no jobs
    ],
)
def test_usage_lowers_a_weight(teams, used, expected):
    jobs = [claim(name, wait(1, x=20)) for name in expected]
    found = typed(shares(1.0, **{"a": {}, "b": {}, **teams}), {"x": 20}, *jobs, **used)
    assert found == {name: {"x": gpus} for name, gpus in expected.items()}


def test_usage_and_shares_of_the_users_of_a_team() -> None:
    # By what the team has used, whatever others have.
    rules = shares(1.0, t={"users": {"c": 1.0, "d": 1.0}}, b={})
    jobs = [claim("t", wait(1, x=20), user=user) for user in "cd"]
    all_used = typed(rules, {"x": 20}, *jobs, claim("b", wait(1, x=20)), c=1800.0, d=1800.0, b=3600.0)
    assert all_used == {"c": {"x": 5}, "d": {"x": 5}, "b": {"x": 10}}
    assert typed(rules, {"x": 20}, *jobs, c=3600.0, b=7200.0) == {"c": {"x": 4}, "d": {"x": 16}}
    # Users of team divide what it owns and what others leave.
    rules = shares(t={"users": {"c": 2.0, "d": 1.0}, "guaranteed": {"*": 3}}, b={"weight": 1.0})
    alone = claim("t", wait(1, x=9), user="d")
    assert own(rules, {"x": 9}, alone) == {"c": 4.0, "d": 2.0, "b": 3.0}
    assert typed(rules, {"x": 9}, alone) == {"d": {"x": 9}}, "it may borrow all"
    both = [claim("t", wait(1, x=9), user=user) for user in "cd"]
    assert typed(rules, {"x": 9}, *both) == {"c": {"x": 6}, "d": {"x": 3}}
    # Half of ten is not enough for eight: one of the two teams gives way, and is due its five.
    rules = shares(t={"users": {"c": 1.0, "d": 1.0}}, b={})
    first = claim("t", wait(8), user="c"), claim("b", wait(8), at=1.0)
    assert typed(rules, {"x": 10}, *first) == {"c": {"x": 8}}
    late = claim("t", wait(8), user="c", at=1.0), claim("b", wait(8))
    assert typed(rules, {"x": 10}, *late) == {"b": {"x": 8}}
    assert whole(rules, {"x": 10}, *late)["c"].due == {"x": 5}


@pytest.mark.parametrize(
    ("weight", "first", "second", "used"),
    [
        # Who has used most for its weight gives way, not who has used most, or who came last.
        (3.0, claim("a", wait(12), at=5.0), claim("b", wait(12)), {"a": 30.0, "b": 20.0}),
        # Of equal ones the one that came last, whatever the names; the first job of each counts.
        (1.0, claim("b", wait(12)), claim("a", wait(12), at=1.0), {}),
        (1.0, claim("b", *[wait(12)] * 9), claim("a", wait(12), at=5.0), {}),
    ],
)
def test_who_gives_way_to_whom(weight: float, first: Claim, second: Claim, used: dict[str, float]):
    rules = shares(1.0, a={"weight": weight}, b={})
    assert typed(rules, {"x": 12}, first, second, **used) == {first.owner.team: {"x": 12}}


def test_claims_by_type_and_gpus_that_a_policy_left() -> None:
    def found(declined: int) -> dict[str, dict[str, int]]:
        grows = claim("a", held={"x": 2}, demanded={"x": 6}, declined={"x": declined})
        return typed(A_AND_B, {"x": 12}, grows, claim("b", wait(1, x=12)))

    assert found(3) == {"a": {"x": 6}, "b": {"x": 6}}
    assert found(4) == {"a": {"x": 2}, "b": {"x": 10}}
    waits = claim("a", wait(2), declined={"x": 4})
    assert (waits.can_start("x", 4), waits.can_start("x", 5)) == (False, True)

    # On y nothing runs, and more than two GPUs make a job slower.
    seconds = {1: 8.0, 2: 4.0, 3: 6.0, 4: 6.0}
    speeds = TimedSteps(lambda model, kind, place, batch: None if kind == "y" else seconds[sum(place)])
    elastic, rigid = job("e", gpus=3, low=1, high=4, user="a"), job("r", gpus=3, user="a")
    more = {"nodes": mixed_cluster(x=(4,), y=(4,)), "throughput": speeds}
    assert claims(elastic, rigid, **more) == [(1, {"x": 2}), (3, {"x": 3})]
    assert claims(elastic, resizes=False, **more) == [(3, {"x": 3})]


def claims(*jobs: Any, nodes: Cluster, resizes: bool = True, throughput: Any = None) -> list[object]:
    """The least and most of jobs of one team that wait on an idle cluster."""
    held = opened(make_policy("fifo"), nodes, *jobs, throughput=throughput)
    found = claims_of(
        held.jobs.values(), shares(a={}), held.cluster.speeds, {"x": 4, "y": 4}, resizes=resizes
    )
    return [(each.least, dict(each.most)) for each in found[Owner("a")].waiting]
