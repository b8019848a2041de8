"""Entitlements by hand, and what holds of them in all cases."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.checks import oversized
from pliant.schemas.cluster import OTHERS, Cluster, Owner, Shares
from pliant.tools.schedule.jobs import JobState, node_states
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.holdings import Holding
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.shares import Claim, Entitlement, TeamUsage, WaitingJob, claims_of, entitle
from tests.builders import TimedSteps, cluster, curves, job, mixed_cluster, session
from tests.effort import examples

HOUR_S = 3600.0


def shares(half_life_hours: float = 0.0, **teams: dict[str, Any]) -> Shares:
    """Teams whose one user has the team's name, unless they say otherwise."""
    listed = {name: {"users": (name,), **rules} for name, rules in teams.items()}
    return Shares.model_validate({"teams": listed, "half_life_hours": half_life_hours})


def wants(user: str, gpus: int, at: float = 0.0, **more: Any) -> Any:
    return job(f"{user}-{gpus}-{at}", at=at, gpus=gpus, low=1, high=gpus, user=user, **more)


def divided(
    rules: Shares, jobs: list[Any], gpus: int, used: dict[str, float] | None = None
) -> dict[str, Entitlement]:
    """Entitlements by team on idle nodes of four GPUs."""
    nodes = cluster(*(4,) * (gpus // 4), gpus % 4)
    held = session(make_policy("fifo"), nodes)
    for each in jobs:
        held.submit(each, each.submit_time)
    used_gpu_s = {Owner(team): gpu_s for team, gpu_s in (used or {}).items()}
    speeds = Speeds(curves(), node_states(nodes))
    claims = claims_of(held.jobs.values(), rules, speeds, {"gpu": gpus}, resizes=True)
    return {owner.team: each for owner, each in entitle(rules, claims, used_gpu_s, {"gpu": gpus}).items()}


def now(found: dict[str, Entitlement]) -> dict[str, int]:
    return {team: each.now["gpu"] for team, each in found.items()}


def test_weights_divide_what_all_can_use():
    found = divided(shares(a={"weight": 3.0}, b={}), [wants("a", 16), wants("b", 16)], 16)
    assert now(found) == {"a": 12, "b": 4}


def test_what_a_team_cannot_use_goes_to_the_others_by_weight():
    jobs = [wants("a", 2), wants("b", 16), wants("c", 16)]
    found = divided(shares(a={"weight": 5.0}, b={"weight": 2.0}, c={}), jobs, 16)
    assert now(found) == {"a": 2, "b": 9, "c": 5}  # 14 as 2 to 1, to the nearest: 9.33 and 4.67
    assert found["a"].own == pytest.approx(10.0)


def test_guarantees_come_before_weights():
    jobs = [wants("a", 16), wants("b", 16)]
    assert now(divided(shares(a={"guaranteed": {"gpu": 8}}, b={}), jobs, 16)) == {"a": 12, "b": 4}


def test_guarantees_beyond_all_there_is_are_cut_in_proportion():
    rules = shares(a={"guaranteed": {"gpu": 24}}, b={"guaranteed": {"gpu": 8}})
    assert now(divided(rules, [wants("a", 16), wants("b", 16)], 16)) == {"a": 12, "b": 4}


def test_no_team_exceeds_its_max():
    found = divided(shares(a={"max": {"*": 3}}, b={}), [wants("a", 16), wants("b", 16)], 16)
    assert now(found) == {"a": 3, "b": 13}


def test_who_may_not_borrow_stays_within_the_own_share():
    found = divided(shares(a={"borrows": False}, b={}), [wants("a", 16)], 16)
    assert now(found) == {"a": 8, "b": 0}


def test_who_does_not_lend_keeps_what_is_guaranteed():
    rules = shares(a={"guaranteed": {"gpu": 6}, "lends": False}, b={})
    assert now(divided(rules, [wants("b", 16)], 16)) == {"a": 0, "b": 10}


def test_usage_lowers_a_weight():
    """All of the usage at half of the weights: 2^-2, beside 1."""
    jobs = [wants("a", 20), wants("b", 20)]
    found = divided(shares(1.0, a={}, b={}), jobs, 20, {"a": 3600.0})
    assert now(found) == {"a": 4, "b": 16}
    equal = divided(shares(1.0, a={}, b={}), jobs, 20, {"a": 3600.0, "b": 3600.0})
    assert now(equal) == {"a": 10, "b": 10}


def test_jobs_of_no_team_are_a_team():
    found = divided(shares(a={}), [wants("a", 16), wants("stranger", 16)], 16)
    assert now(found) == {"a": 8, OTHERS: 8}


def test_a_part_that_no_job_fits_goes_to_others():
    """Half of ten is not enough for eight; who came last gives way."""
    jobs = [job("x", gpus=8, user="a"), job("y", at=1.0, gpus=8, user="b")]
    assert now(divided(shares(a={}, b={}), jobs, 10)) == {"a": 8, "b": 0}


def test_usage_halves_with_the_half_life():
    usage, owner = TeamUsage.under(shares(1.0, a={})), Owner("a")
    usage.hold(owner, 4, 0.0)
    usage.hold(owner, -4, HOUR_S)
    full = usage.until(HOUR_S)[owner]
    assert usage.until(2 * HOUR_S)[owner] == pytest.approx(full / 2)
    assert 4 * HOUR_S / 2 < full < 4 * HOUR_S


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
        rigid = draw(st.booleans())
        limits: dict[str, int] = {} if rigid else {"low": 1, "high": gpus}
        jobs.append(job(f"j{number}", at=float(number), gpus=gpus, user=user, **limits))
    return shares(**rules), jobs, draw(st.integers(1, 24))


@given(cases())
@settings(max_examples=examples(150), deadline=None)
def test_no_gpu_is_given_twice_and_none_beyond_what_can_be_used(case: tuple[Shares, list[Any], int]):
    rules, jobs, gpus = case
    found = now(divided(rules, jobs, gpus))
    assert sum(found.values()) <= gpus
    for team, given_gpus in found.items():
        most = sum(each.gpus.requested for each in jobs if rules.team_of(each) == team)
        assert 0 <= given_gpus <= most


@given(cases())
@settings(max_examples=examples(100), deadline=None)
def test_gpus_are_left_only_where_no_job_could_use_them(case: tuple[Shares, list[Any], int]):
    rules, jobs, gpus = case
    open_rules = Shares(
        teams={
            name: team.model_copy(update={"lends": True, "borrows": True})
            for name, team in rules.teams.items()
        },
        half_life_hours=0.0,
    )
    found = divided(open_rules, jobs, gpus)
    left = gpus - sum(now(found).values())
    for each in jobs:
        if each.elastic == "none" and each.gpus.requested <= left:
            assert now(found)[rules.team_of(each)] >= each.gpus.requested


def three_teams(**rules: dict[str, Any]) -> Session:
    nodes = cluster(4, 4).model_copy(update={"shares": shares(**rules)})
    return session(make_policy("fair-share"), nodes)


def gpus_by_user(opened: Session) -> dict[str, int]:
    found: dict[str, int] = {}
    for state in opened.jobs.values():
        found[state.spec.user] = found.get(state.spec.user, 0) + state.gpus
    return found


def test_lent_gpus_come_back_by_shrinking_and_no_job_stops():
    opened = three_teams(a={}, b={})
    opened.submit(wants("a", 8), 0.0)
    opened.decide(0.0)
    assert gpus_by_user(opened) == {"a": 8}
    opened.submit(wants("b", 8, at=10.0), 10.0)
    done = {each.job.spec.user: each.step for each in opened.decide(10.0)}
    assert gpus_by_user(opened) == {"a": 4, "b": 4}
    assert done == {"a": "shrink", "b": "start"}


def test_rigid_borrowers_are_stopped_last_and_those_that_lose_least_first():
    opened = three_teams(a={}, b={})
    for number, at in enumerate((0.0, 5.0)):
        opened.submit(job(f"rigid-{number}", at=at, gpus=3, user="a"), at)
        opened.decide(at)
    opened.submit(wants("a", 2, at=6.0), 6.0)
    opened.decide(6.0)
    assert gpus_by_user(opened) == {"a": 8}
    opened.submit(job("mine", at=10.0, gpus=4, user="b"), 10.0)
    opened.decide(10.0)
    assert gpus_by_user(opened)["b"] == 4
    assert opened.jobs["rigid-0"].gpus == 3
    assert opened.jobs["rigid-1"].gpus == 0


def test_own_gpus_are_not_taken_for_another_team():
    """b may use all eight GPUs, but four are a's own, and a's job cannot shrink."""
    opened = three_teams(a={}, b={})
    opened.submit(job("mine", gpus=4, user="a"), 0.0)
    opened.decide(0.0)
    opened.submit(wants("b", 8, at=1.0), 1.0)
    opened.decide(1.0)
    assert gpus_by_user(opened) == {"a": 4, "b": 4}


def test_users_with_weights_divide_their_team():
    rules = {"t": {"users": {"ann": 3.0, "bob": 1.0}}}
    nodes = cluster(4, 4).model_copy(update={"shares": shares(**rules)})
    opened = session(make_policy("fair-share"), nodes)
    opened.submit(wants("ann", 8), 0.0)
    opened.submit(wants("bob", 8, at=1.0), 1.0)
    opened.decide(1.0)
    assert gpus_by_user(opened) == {"ann": 6, "bob": 2}


def test_standings_say_who_lends_to_whom():
    opened = three_teams(a={}, b={}, c={})
    opened.submit(wants("a", 8), 0.0)
    opened.decide(0.0)
    found = {each.team: each for each in opened.standings(0.0)}
    assert (found["a"].held, found["a"].borrowed) == (8, 5)  # its own are 2.67, so three whole ones
    assert found["b"].lent + found["c"].lent == pytest.approx(5.0, abs=0.4)


def test_a_job_that_its_team_can_never_hold_is_refused():
    nodes = cluster(4, 4).model_copy(update={"shares": shares(a={"max": {"*": 3}})})
    found = oversized(
        [job("x", gpus=4, user="a"), job("y", gpus=3, user="a"), job("z", gpus=4, user="b")], nodes
    )
    assert found == {"x": 'needs 4 GPUs, team "a" may hold 3'}


def test_a_team_is_named_by_the_job_its_user_its_groups_or_a_label():
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


def test_slurms_accounts_count_after_groups_and_are_asked_for_only_where_they_decide():
    rules = shares(a={"accounts": ("physics",)}, b={"users": ("ann",), "groups": ("staff",)})
    assert rules.joined(job("x", user="eve"), [], ["bio", "physics"]).team == "a"
    assert rules.joined(job("x", user="eve"), ["staff"], ["physics"]).team == "b"
    assert rules.why_not(job("x", user="eve", team="a"), [], ["physics"]) is None
    assert rules.why_not(job("x", user="eve", team="a"), []) == 'names team "a", which user eve is not in'
    asked = [
        rules.hangs_on_accounts(job("x", **named), groups)
        for named, groups in (
            ({"user": "eve"}, []),
            ({"user": "eve", "team": "a"}, ["staff"]),
            ({"user": "eve"}, ["staff"]),
            ({"user": "ann"}, []),
            ({"user": "eve", "team": "b"}, []),
        )
    ]
    assert asked == [True, True, False, False, False]
    assert not shares(b={"groups": ("staff",)}).hangs_on_accounts(job("x", user="eve"), [])


def under(policy: str, nodes: Cluster, rules: Shares) -> Session:
    return session(make_policy(policy), nodes.model_copy(update={"shares": rules}))


def test_a_guarantee_is_given_back_once_and_no_job_is_stopped_in_vain():
    """a and b borrow two GPUs each with rigid jobs of six; c, whose own are four, gets them for good."""
    opened = under("fifo", cluster(12), shares(a={}, b={}, c={}))
    for user in "ab":
        opened.submit(job(user, gpus=6, user=user), 0.0)
        opened.decide(0.0)
    seen = []
    for minute in range(1, 5):
        opened.submit(job(f"c{minute}", at=60.0 * minute, gpus=4, user="c"), 60.0 * minute)
        seen.append({each.job.id: each.step for each in opened.decide(60.0 * minute)})
    assert seen == [{"a": "preempt", "c1": "start"}, {}, {}, {}]
    assert opened.jobs["a"].preemptions == 1


def test_freed_gpus_are_kept_for_the_large_job_of_a_team_that_has_used_less():
    """a always has jobs of one GPU; b is entitled to six of eight, which come free one by one."""
    opened = under("fifo", cluster(8), shares(24.0, a={}, b={}))
    names = [f"a{number}" for number in range(40)]
    for name in names:
        opened.submit(job(name, gpus=1, user="a"), 0.0)
    opened.decide(0.0)
    opened.submit(job("b", at=100.0, gpus=5, user="b"), 100.0)
    for turn in range(1, 20):
        time_s = 100.0 + 100.0 * turn
        running = [name for name in names if name in opened.jobs and opened.jobs[name].gpus]
        opened.end(running[0], time_s)
        opened.decide(time_s)
        if opened.jobs["b"].gpus:
            break
    assert opened.jobs["b"].gpus == 5


def test_teams_get_few_types_rather_than_some_of_each():
    opened = under("fair-share", mixed_cluster(x=(8,), y=(8,)), shares(a={}, b={}))
    for user in "ab":
        opened.submit(wants(user, 8), 0.0)
    done = {each.job.spec.user: each.step for each in opened.decide(0.0)}
    assert done == {"a": "start", "b": "start"}
    assert gpus_by_user(opened) == {"a": 8, "b": 8}


def test_a_team_never_holds_more_than_its_max_over_all_types():
    opened = under("fifo", mixed_cluster(x=(8,), y=(8,)), shares(a={"max": {"*": 8}}))
    for number in range(2):
        opened.submit(job(f"j{number}", at=float(number), gpus=8, user="a"), float(number))
        opened.decide(float(number))
    assert gpus_by_user(opened) == {"a": 8}


def test_what_is_not_lent_is_no_more_than_the_own_part():
    rules = shares(x={"guaranteed": {"*": 16}, "lends": False}, y={"guaranteed": {"*": 8}})
    assert now(divided(rules, [wants("y", 8)], 8)) == {"x": 0, "y": 2}


def test_usage_alone_never_keeps_a_team_from_idle_gpus():
    found = divided(shares(24.0, a={"weight": 1e-4}, b={"weight": 1e4}), [wants("a", 8)], 8, {"a": 1e6})
    assert now(found)["a"] == 8


def test_entitlements_are_looked_at_again_where_only_usage_changes_them():
    opened = under("ares", cluster(8), shares(24.0, a={}, b={}))
    for user in "ab":
        opened.submit(wants(user, 8, gpu_seconds=1e6), 0.0)
    opened.decide(0.0)
    assert opened.ask_again_s == pytest.approx(24 * HOUR_S / 32)


@pytest.mark.parametrize(("waits", "held"), [(True, {"n0": 2}), (False, {"n0": 2, "n1": 2})])
def test_a_borrower_that_finishes_on_a_drained_node_gives_back_the_others(waits: bool, held: dict[str, int]):
    rules = shares(x={"users": ("x",)}, y={"users": ("y",)})
    opened = under("fair-share", cluster(2, 2), rules)
    opened.submit(job("a", gpus=4, low=1, high=4, gpu_seconds=1e6, user="x"), 0.0)
    opened.adopt([Holding("a", (("n0", 2), ("n1", 2)))], 0.0)
    opened.drain("n0", 1.0, now=False)
    assert "a" in opened.commands.bound
    if waits:
        opened.submit(job("b", gpus=2, gpu_seconds=1e6, user="y"), 2.0)
    opened.decide(2.0)
    assert dict(opened.jobs["a"].placement) == held
    assert not waits or dict(opened.jobs["b"].placement) == {"n1": 2}
    opened.decide(3.0)
    assert dict(opened.jobs["a"].placement) == held


# The division as such: each case is a rule of docs/teams.md that another one could hide.

ANY: Final = {"x": 4, "y": 4}


def wait(least: int, **most: int) -> tuple[int, dict[str, int]]:
    """A job that needs that many GPUs at least, and can use that many of each type."""
    return least, most or {"x": least}


def claim(
    team: str, *waits: tuple[int, dict[str, int]], at: float = 0.0, user: str = "", **counts: Any
) -> Claim:
    """What an owner holds, could use with running jobs (``wanted``), has declined; and its jobs that wait."""
    waiting = [
        WaitingJob(JobState(job(f"{team}{user}{number}", at=at + number), 1, None), *each)
        for number, each in enumerate(waits)
    ]
    return Claim(Owner(team, user), **{"wanted": counts.get("held", {}), **counts}, waiting=waiting)


def whole(rules: Shares, total: dict[str, int], *claims: Claim, **used: float) -> dict[str, Entitlement]:
    """Entitlements by user where users are weighed, else by team."""
    owners = {each.owner.user or each.owner.team: each.owner for each in claims}
    used_gpu_s = {owners.get(name, Owner(name)): gpu_s for name, gpu_s in used.items()}
    found = entitle(rules, {each.owner: each for each in claims}, used_gpu_s, total)
    return {owner.user or owner.team: each for owner, each in found.items()}


def typed(found: dict[str, Entitlement]) -> dict[str, dict[str, int]]:
    """GPUs that can be used at once, without zeros."""
    return {
        name: {kind: gpus for kind, gpus in each.now.items() if gpus}
        for name, each in found.items()
        if any(each.now.values())
    }


def test_a_team_that_does_not_lend_keeps_what_its_jobs_cannot_use_of_one_type():
    """Guaranteed are twelve; its two jobs run on the eight x alone, so four of y stay idle."""
    rules = shares(a={"guaranteed": {"*": 12}, "lends": False}, b={})
    jobs = claim("a", wait(8, x=8), wait(8, x=8)), claim("b", *[wait(1, x=8, y=8)] * 2)
    assert typed(whole(rules, {"x": 8, "y": 8}, *jobs)) == {"a": {"x": 8}, "b": {"y": 4}}


def test_who_has_no_use_for_more_keeps_what_it_holds():
    """Six each; a's four are no room for its second job of four beside the first."""
    jobs = claim("a", wait(4), held={"x": 4}), claim("b", wait(1, x=12))
    assert typed(whole(shares(a={}, b={}), {"x": 12}, *jobs)) == {"a": {"x": 4}, "b": {"x": 8}}


def test_what_is_left_goes_to_the_team_whose_turn_comes_first():
    """Of twelve b can use five; c came before d, whatever the order of the file."""
    sizes = {"a": 8, "b": 5, "c": 5, "d": 5}
    jobs = [claim(name, wait(gpus), at=float(at)) for at, (name, gpus) in enumerate(sizes.items())]
    for rules in (shares(d={}, c={}, b={}, a={}), shares(a={}, b={}, c={}, d={})):
        assert typed(whole(rules, {"x": 12}, *jobs)) == {"b": {"x": 5}, "c": {"x": 5}}


def test_a_team_gets_no_more_of_what_is_left_than_its_jobs_can_use_of_that_type():
    """Two of y idle: b's first job could use four of them, and its second one runs on x alone."""
    rules = shares(a={}, b={"guaranteed": {"y": 2}}, c={"guaranteed": {"x": 1}})
    first = claim("a", wait(4, x=3, y=6), wait(3, x=3), at=5.0)
    second = claim("b", wait(4, x=5, y=4), wait(1, x=3), at=5.0)
    assert typed(whole(rules, {"x": 8, "y": 6}, first, second)) == {"a": {"x": 6}, "b": {"x": 2, "y": 4}}


def test_guaranteed_types_come_first():
    rules = shares(a={"guaranteed": {"y": 4}}, b={})
    jobs = claim("a", wait(4, **ANY)), claim("b", wait(4, **ANY))
    assert typed(whole(rules, ANY, *jobs)) == {"a": {"y": 4}, "b": {"x": 4}}


def test_teams_keep_the_types_that_they_hold():
    jobs = claim("a", wait(4, **ANY)), claim("b", held={"x": 4})
    assert typed(whole(shares(a={}, b={}), ANY, *jobs)) == {"a": {"y": 4}, "b": {"x": 4}}


def test_who_gets_more_chooses_types_first_and_the_one_with_most_gpus():
    jobs = claim("a", wait(4, x=6, y=4)), claim("b", wait(6, x=6, y=4))
    found = whole(shares(a={"max": {"*": 4}}, b={}), {"y": 4, "x": 6}, *jobs)
    assert typed(found) == {"a": {"y": 4}, "b": {"x": 6}}
    alone = whole(shares(a={}), {"x": 2, "y": 8}, claim("a", wait(1, x=2, y=4)))
    assert typed(alone) == {"a": {"y": 4}}


def test_a_team_keeps_within_its_max_of_a_type():
    found = whole(shares(a={"max": {"x": 2}}, b={}), ANY, claim("a", wait(1, **ANY), wait(1, **ANY)))
    assert typed(found) == {"a": {"x": 2, "y": 4}}
    assert (found["a"].own, found["b"].own) == (4.0, 4.0)
    only = whole(shares(a={"max": {"x": 2}}, b={}), {"x": 8}, claim("a", wait(1, x=8)))
    assert (only["a"].own, only["b"].own) == (2.0, 6.0)


@pytest.mark.parametrize(("most", "bound", "left"), [(5, 3, 2), (2, 3, 0)])
def test_gpus_on_drained_nodes_count_for_the_max_of_their_type(most: int, bound: int, left: int):
    jobs = claim("a", wait(1, **ANY), wait(1, **ANY))
    rules = shares(a={"max": {"x": most}})
    found = entitle(rules, {jobs.owner: jobs}, {}, ANY, {"a": {"x": bound}})
    assert found[jobs.owner].now == {"x": left, "y": 4}


def test_a_job_that_could_run_on_either_type_counts_once():
    jobs = claim("a", wait(1, **ANY)), claim("b", wait(1, **ANY), wait(1, **ANY))
    assert typed(whole(shares(a={"weight": 3.0}, b={}), ANY, *jobs)) == {"a": {"x": 4}, "b": {"y": 4}}


def test_a_job_of_another_type_is_no_use_for_gpus():
    jobs = claim("a", wait(4, x=4), wait(1, y=1)), claim("b", wait(1, x=4))
    assert typed(whole(shares(a={}, b={}), {"x": 4, "y": 1}, *jobs)) == {"a": {"y": 1}, "b": {"x": 4}}


@pytest.mark.parametrize(
    ("guaranteed", "own"), [({"x": 4, "*": 6}, 11.0), ({"x": 4, "y": 4}, 12.0), ({"x": 4, "*": 2}, 10.0)]
)
def test_a_guarantee_of_any_type_includes_those_of_types(guaranteed: dict[str, int], own: float):
    """The rest of sixteen is halved."""
    assert whole(shares(a={"guaranteed": guaranteed}, b={}), {"x": 8, "y": 8})["a"].own == own


def test_no_more_is_guaranteed_than_the_max():
    rules = shares(a={"guaranteed": {"x": 4, "y": 4}, "max": {"*": 6}}, b={"guaranteed": {"*": 6}})
    found = whole(rules, ANY)
    assert (found["a"].own, found["b"].own) == (4.0, 4.0)
    reached = whole(shares(a={"guaranteed": {"*": 4}, "max": {"*": 6}}, b={}), {"x": 10})
    assert (reached["a"].own, reached["b"].own) == (6.0, 4.0)


def test_what_of_a_guarantee_no_job_needs_is_divided_by_weight():
    jobs = claim("a", wait(2)), claim("b", wait(1, x=16)), claim("c", wait(1, x=16))
    found = typed(whole(shares(a={"guaranteed": {"*": 8}}, b={}, c={}), {"x": 16}, *jobs))
    assert found == {"a": {"x": 2}, "b": {"x": 7}, "c": {"x": 7}}


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
def test_fractions_stay_where_they_are_held(
    weights: tuple[float, float], held: tuple[int, int], expected: tuple[int, int]
):
    rules = shares(**{name: {"weight": weight} for name, weight in zip("ab", weights, strict=True)})
    jobs = [claim(name, wait(1, x=3), held={"x": gpus}) for name, gpus in zip("ab", held, strict=True)]
    assert tuple(each.now["x"] for each in whole(rules, {"x": 3}, *jobs).values()) == expected


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6), st.integers(1, 40))
@settings(max_examples=examples(200))
def test_all_gpus_are_due_to_teams_that_could_use_all_and_each_gets_its_weight(
    weights: list[float], gpus: int
):
    rules = shares(**{f"t{number}": {"weight": weight} for number, weight in enumerate(weights)})
    found = whole(rules, {"x": gpus}, *(claim(name, wait(1, x=gpus)) for name in rules.teams))
    assert sum(each.due["x"] for each in found.values()) == gpus
    for weight, each in zip(weights, found.values(), strict=True):
        assert each.own == pytest.approx(gpus * weight / sum(weights))
        assert abs(each.due["x"] - each.own) < 1


@pytest.mark.parametrize("seed", range(examples(200)))
def test_neither_the_names_of_teams_nor_their_order_in_the_file_matter(seed: int):
    """Where no two are equal: weights, usage and arrivals differ, and all guarantees can be met."""
    rng, names = Random(seed), "abcd"
    gpus = rng.randint(12, 24)
    rules = {
        name: {
            "weight": rng.uniform(0.5, 3.0),
            "guaranteed": {"*": rng.randint(0, 3)},
            "lends": rng.random() < 0.7,
            "borrows": rng.random() < 0.7,
        }
        for name in names
    }
    used = {name: rng.uniform(0.0, 100.0) for name in names}
    jobs = {
        name: [
            wait(rng.randint(1, 9)) if rng.random() < 0.5 else wait(1, x=9) for _ in range(rng.randint(0, 2))
        ]
        for name in names
    }
    held = {name: {"x": rng.choice((0, 0, 1, 3))} for name in names}
    arrivals = dict(zip(names, rng.sample((0.0, 10.0, 20.0, 30.0), 4), strict=True))

    def given_by(order: Sequence[str], named: dict[str, str]) -> dict[str, dict[str, int]]:
        teams = shares(1.0, **{named[name]: {**rules[name], "users": ()} for name in order})
        claims = [claim(named[name], *jobs[name], at=arrivals[name], held=held[name]) for name in order]
        found = whole(teams, {"x": gpus}, *claims, **{named[name]: used[name] for name in order})
        return {name: found[named[name]].now for name in names}

    as_listed = given_by(names, {name: name for name in names})
    renamed = dict(zip(names, rng.sample(names, 4), strict=True))
    assert given_by(rng.sample(names, 4), renamed) == as_listed


def of_20(*claims: Claim, rules: Shares, **used: float) -> dict[str, int]:
    found = whole(rules, {"x": 20}, *claims, **used)
    return {name: each.now["x"] for name, each in found.items() if each.now["x"]}


def test_the_part_of_weights_is_among_teams_that_have_jobs_or_usage():
    jobs = claim("a", wait(1, x=20)), claim("b", wait(1, x=20))
    idle = {"weight": 2.0}
    assert of_20(*jobs, rules=shares(1.0, a={}, b={}, c=idle), a=3600.0) == {"a": 4, "b": 16}  # 2^-2 to 1
    used = of_20(*jobs, rules=shares(1.0, a={}, b={}, c={}), a=3600.0, c=3600.0)
    assert used == {"a": 5, "b": 15}  # half of the usage at a third of the weights: 2^-1.5 to 1


def test_usage_of_a_team_is_that_of_its_users_together():
    rules = shares(1.0, t={"users": {"c": 1.0, "d": 1.0}}, b={})
    jobs = [claim("t", wait(1, x=20), user=user) for user in "cd"]
    found = of_20(*jobs, claim("b", wait(1, x=20)), rules=rules, c=1800.0, d=1800.0, b=3600.0)
    assert found == {"c": 5, "d": 5, "b": 10}


def test_usage_lowers_the_weight_of_a_user_within_the_team():
    """By what the team has used, whatever others have."""
    rules = shares(1.0, t={"users": {"c": 1.0, "d": 1.0}}, b={})
    jobs = [claim("t", wait(1, x=20), user=user) for user in "cd"]
    assert of_20(*jobs, rules=rules, c=3600.0, b=7200.0) == {"c": 4, "d": 16}


def test_users_own_what_their_team_owns_by_weight_whether_they_have_jobs_or_not():
    rules = shares(t={"users": {"c": 2.0, "d": 1.0}, "guaranteed": {"*": 3}}, b={"weight": 1.0})
    found = whole(rules, {"x": 9}, claim("t", wait(1, x=9), user="d"))
    assert {name: each.own for name, each in found.items()} == {"c": 4.0, "d": 2.0, "b": 3.0}
    assert found["d"].now == {"x": 9}, "it may borrow all"
    both = [claim("t", wait(1, x=9), user=user) for user in "cd"]
    assert typed(whole(rules, {"x": 9}, *both)) == {"c": {"x": 6}, "d": {"x": 3}}


def test_users_divide_what_others_leave_to_their_team_and_are_due_what_their_team_is():
    """Half of ten is not enough for eight: one of the two teams gives way, and is due its five."""
    rules = shares(t={"users": {"c": 1.0, "d": 1.0}}, b={})
    first = whole(rules, {"x": 10}, claim("t", wait(8), user="c"), claim("b", wait(8), at=1.0))
    assert typed(first) == {"c": {"x": 8}}
    late = whole(rules, {"x": 10}, claim("t", wait(8), user="c", at=1.0), claim("b", wait(8)))
    assert typed(late) == {"b": {"x": 8}}
    assert late["c"].due == {"x": 5}


@pytest.mark.parametrize(
    ("rules", "first", "second", "used"),
    [
        # Who has used most for its weight gives way, not who has used most, or who came last.
        (
            shares(1.0, a={"weight": 3.0}, b={}),
            claim("a", wait(12), at=5.0),
            claim("b", wait(12)),
            (30.0, 20.0),
        ),
        # Of equal ones the one that came last, whatever the names; the first job of each counts.
        (shares(a={}, b={}), claim("b", wait(12)), claim("a", wait(12), at=1.0), (0, 0)),
        (shares(a={}, b={}), claim("b", *[wait(12)] * 9), claim("a", wait(12), at=5.0), (0, 0)),
    ],
)
def test_who_gives_way_to_whom(rules: Shares, first: Claim, second: Claim, used: tuple[float, float]):
    found = whole(rules, {"x": 12}, first, second, a=used[0], b=used[1])
    assert typed(found) == {first.owner.team: {"x": 12}}


def test_gpus_that_a_policy_has_left_are_no_use_to_its_team_unless_there_are_more():
    def found(declined: int) -> dict[str, dict[str, int]]:
        grows = claim("a", held={"x": 2}, wanted={"x": 6}, declined={"x": declined})
        return typed(whole(shares(a={}, b={}), {"x": 12}, grows, claim("b", wait(1, x=12))))

    assert found(3) == {"a": {"x": 6}, "b": {"x": 6}}
    assert found(4) == {"a": {"x": 2}, "b": {"x": 10}}
    waits = claim("a", wait(2), declined={"x": 4})
    assert (waits.can_start("x", 4), waits.can_start("x", 5)) == (False, True)


def test_changes_at_one_time_count_in_net_to_the_last_digit():
    usage, other, owner = (TeamUsage.under(shares(1.0, a={})), TeamUsage.under(shares(1.0, a={})), Owner("a"))
    for each in (usage, other):
        each.hold(owner, 3, 0.1)
    for time_s in (700.1, 1234.5, 2345.6):
        for more in (2, -2):
            usage.hold(owner, more, time_s)
        for later_s in (1.1, 11.3, 333.3):
            assert usage.until(time_s + later_s) == other.until(time_s + later_s)


def test_with_no_half_life_only_what_is_held_now_counts():
    usage = TeamUsage.under(shares(0.0, a={}))
    usage.hold(Owner("a"), 4, 0.0)
    assert usage.until(HOUR_S) == {}


def claims(*jobs: Any, nodes: Cluster, resizes: bool = True, throughput: Any = None) -> dict[str, Claim]:
    """Claims of jobs that wait on an idle cluster."""
    opened = session(make_policy("fifo"), nodes, throughput)
    for each in jobs:
        opened.submit(each, 0.0)
    total = {"x": 4, "y": 4}
    found = claims_of(opened.jobs.values(), shares(a={}), opened.speeds, total, resizes=resizes)
    return {owner.team: each for owner, each in found.items()}


def test_jobs_claim_what_they_can_use_by_type():
    """On y nothing runs, and more than two GPUs make a job slower."""
    seconds = {1: 8.0, 2: 4.0, 3: 6.0, 4: 6.0}
    speeds = TimedSteps(lambda model, kind, place, batch: None if kind == "y" else seconds[sum(place)])
    elastic, rigid = job("e", gpus=3, low=1, high=4, user="a"), job("r", gpus=3, user="a")
    nodes = mixed_cluster(x=(4,), y=(4,))
    found = claims(elastic, rigid, nodes=nodes, throughput=speeds)["a"].waiting
    assert [(each.least, dict(each.most)) for each in found] == [(1, {"x": 2}), (3, {"x": 3})]
    rigid_policy = claims(elastic, nodes=nodes, throughput=speeds, resizes=False)["a"].waiting
    assert [(each.least, dict(each.most)) for each in rigid_policy] == [(3, {"x": 3})]
