"""Slurm's rules by hand: priorities from the manual's formulas, backfill that delays no job, preemption."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.cluster import Owner
from pliant.schemas.job import Job
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policies.slurm import FairShares, Slurm
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, decided, job, mixed_cluster, opened
from tests.tools.schedule.policies.started import joined, started

FIFO = dict.fromkeys(
    ("priority_weight_age", "priority_weight_fairshare", "priority_weight_job_size"), 0.0
) | {"bf_interval_s": 0.0, "bf_resolution_s": 1.0}
"""Jobs in order of submission, planned to the second whenever something changes."""


def limited(name: str, gpus: int, limit_s: float, *, at: float = 0.0, **more) -> Job:
    labels = {"time_limit": str(limit_s), **more.pop("labels", {})}
    return job(name, at=at, gpus=gpus, gpu_seconds=gpus * limit_s / 2, labels=labels, **more)


def priority_of(held: Session, job_id: str, now_s: float) -> int:
    return int(held.explain(now_s)[job_id].reason.partition("priority ")[2].split()[0].rstrip(","))


def test_the_priority_is_the_sum_of_weighted_factors():
    policy = Slurm(
        priority_weight_fairshare=0.0,
        priority_weight_qos=2000.0,
        priority_max_age_s=1000.0,
        priority_calc_period_s=0.0,
        partitions="main=1,debug=4",
        qos="normal=10,high=40",
    )
    labels = {"partition": "main", "qos": "normal"}
    held = started(policy, cluster(8), job("a", gpus=8, gpu_seconds=1e6))
    held.submit(job("b", at=100.0, gpus=2, labels=labels, priority=7.0), 100.0)
    for now_s, age in ((100.0, 0), (350.0, 250), (5000.0, 1000)):
        held.decide(now_s)
        assert priority_of(held, "b", now_s) == age + 250 + 250 + 500 + 7

    for favors, expected in ((False, 250), (True, 750)):
        policy = Slurm(priority_weight_fairshare=0.0, priority_favor_small=favors)
        assert priority_of(started(policy, cluster(8), job("a", gpus=2)), "a", 0.0) == expected

    policy = Slurm(priority_weight_fairshare=0.0, priority_weight_job_size=0.0, priority_max_age_s=1000.0)
    held = started(policy, cluster(1), job("a", gpu_seconds=1e6), job("b"))
    for now_s, age in ((299.0, 0), (300.0, 300), (599.0, 300), (700.0, 600)):
        held.decide(now_s)
        assert priority_of(held, "b", now_s) == age


def test_fair_shares_are_those_of_the_classic_formula():
    # Account A has 3 shares of 4 and two users, B has 1 and one user; S = 0.375, 0.375 and 0.25.
    fair = FairShares({"A": 3.0})
    for owner in (Owner("A", "ann"), Owner("A", "bob"), Owner("B", "cyd")):
        fair.join(owner)
        assert fair.factor(owner) == 1.0
    fair.settle({Owner("A", "ann"): 30.0, Owner("A", "bob"): 10.0, Owner("B", "cyd"): 60.0})
    assert fair.factor(Owner("A", "ann")) == pytest.approx(2 ** -((0.3 + (0.4 - 0.3) / 2) / 0.375))
    assert fair.factor(Owner("A", "bob")) == pytest.approx(2 ** -((0.1 + (0.4 - 0.1) / 2) / 0.375))
    assert fair.factor(Owner("B", "cyd")) == pytest.approx(2 ** -(0.6 / 0.25))
    fair.join(Owner("A", "eve"))
    assert fair.factor(Owner("A", "eve")) == pytest.approx(2 ** -((0.4 / 3) / 0.25))

    fair = FairShares({"A": 0.0, "B": 1.0})
    fair.join(Owner("A", "ann"))
    assert fair.factor(Owner("A", "ann")) == 0.0


def test_usage_halves_in_a_half_life_and_the_least_comes_first():
    """Ann holds two GPUs for an hour, and an hour later Bob one for an hour.

    A GPU held for an hour counts as c / 2 at its end. So two hours later Ann has used c / 4, and Bob c / 2:
    1/3 and 2/3 of all, and with what the other used 2/3 and 5/6. Each is to have a half.
    """
    hour_s = 3600.0
    policy = Slurm(priority_decay_half_life_s=hour_s, priority_calc_period_s=0.0)
    held = started(policy, cluster(2), job("a", gpus=2, user="ann", gpu_seconds=1e6))
    held.end("a", hour_s)
    held.decide(hour_s)
    joined(held, 2 * hour_s, job("b", gpus=1, user="bob", gpu_seconds=1e6))
    held.end("b", 3 * hour_s)
    users = [
        job(user, at=4 * hour_s + n, user=user, gpu_seconds=1e6) for n, user in enumerate(("ann", "bob"))
    ]
    joined(held, 3 * hour_s, *users)
    assert priority_of(held, "ann", 3 * hour_s) == math.floor(10_000 * 2 ** -(4 / 3) + 500)
    assert priority_of(held, "bob", 3 * hour_s) == math.floor(10_000 * 2 ** -(5 / 3) + 500)
    held = started(Slurm(bf_interval_s=0.0), cluster(1), job("a", user="ann", gpu_seconds=1000.0))
    joined(held, 2.0, job("a2", at=1.0, user="ann"), job("b", at=2.0, user="bob"))
    held.decide(400.0)
    held.end("a", 500.0)
    assert decided(held, 500.0) == {"b": 1}


def test_no_job_that_waits_is_delayed():
    """Four GPUs, three of them taken until 100. Then "head" takes three until 150, "wide" all until 250.

    "long" would leave the start of "head" alone, so EASY starts it; but "wide" would wait for its end.
    """
    jobs = (
        limited("run", 3, 100),
        limited("head", 3, 50, at=1),
        limited("wide", 4, 100, at=2),
        limited("long", 1, 500, at=3),
        limited("short", 1, 140, at=4),
    )
    held = started(Slurm(**FIFO), cluster(4), jobs[0])
    assert joined(held, 5.0, *jobs[1:]) == {"run": 3, "short": 1}
    easy = opened(Fifo("easy"), cluster(4), *(each.model_copy(update={"labels": {}}) for each in jobs))
    assert "long" in decided(easy, 5.0)


@pytest.mark.parametrize(
    ("parameters", "limit_s", "starts"),
    [
        pytest.param({}, 94, True, id="it ends before a booked start"),
        pytest.param({}, 95, False, id="it ends at a booked start"),
        pytest.param(
            {"bf_resolution_s": 60.0}, 61, False, id="95 s are two steps of 60 s, and so is its end"
        ),
        pytest.param({"bf_resolution_s": 60.0}, 60, True, id="it ends after one step"),
        pytest.param({"bf_window_s": 3600.0}, 500, False, id="the head starts within the window"),
        pytest.param({"bf_window_s": 90.0}, 500, True, id="what starts beyond the window is not booked"),
        pytest.param({"bf_max_job_test": 1}, 50, False, id="a pass reads the head alone"),
        pytest.param({"bf_max_job_test": 2}, 50, True, id="a pass reads two jobs"),
    ],
)
def test_a_job_starts_where_it_delays_no_booked_start(parameters: dict, limit_s: float, starts: bool):
    """From 5 on "run" frees its GPUs after 95 s, when "head" is to start."""
    held = started(Slurm(**FIFO | parameters), cluster(4), limited("run", 3, 100))
    jobs = limited("head", 4, 50, at=1), limited("short", 1, limit_s, at=2)
    assert joined(held, 5.0, *jobs) == {"run": 3} | ({"short": 1} if starts else {})


def test_passes_keep_their_interval_and_starts_in_order_do_not():
    held = opened(Slurm(**FIFO | {"bf_interval_s": 30.0}), cluster(4), limited("run", 3, 100))
    joined(held, 0.0, limited("head", 4, 50, at=1))
    assert joined(held, 5.0, limited("short", 1, 50, at=2)) == {"run": 3}
    assert held.decided.due_s == 30.0
    assert decided(held, 30.0) == {"run": 3, "short": 1}
    held.end("run", 31.0)
    held.end("short", 31.0)
    assert decided(held, 31.0) == {"head": 4}


def test_a_job_goes_where_it_starts_first_and_ends_at_its_limit():
    nodes = mixed_cluster(a=(2,), b=(4,))
    held = started(Slurm(**FIFO), nodes, limited("run", 2, 50), limited("more", 4, 100, at=1))
    joined(held, 3.0, limited("head", 2, 50, at=2), limited("next", 2, 50, at=3))
    held.end("run", 40.0)
    held.decide(40.0)
    assert held.jobs["head"].gpu_type == "a"
    assert not held.jobs["next"].gpus
    held = started(Slurm(**FIFO), cluster(4), limited("run", 3, 10))
    assert joined(held, 60.0, limited("head", 4, 50, at=1), limited("short", 1, 5, at=2)) == {"run": 3}


@given(st.floats(0, 10), st.integers(0, 5))
def test_users_overestimate_by_up_to_so_much(overestimate: float, seed: int):
    policy = Slurm(overestimate=overestimate, overestimate_seed=seed)
    started(policy, cluster(2), job("a", gpus=2, gpu_seconds=200))
    limit_s = policy.dump_state()["jobs"]["a"][1]
    assert 100 <= limit_s <= 100 * (1 + overestimate)


def test_a_job_of_unknown_work_gets_the_default_limit():
    policy = Slurm(overestimate=0.0, default_time_s=500.0)
    own = limited("d", 1, 70, limits={"run_seconds": 90.0})
    started(policy, cluster(4), job("a", gpu_seconds=30), job("b"), limited("c", 1, 70), own)
    state = policy.dump_state()["jobs"]
    assert {name: values[1] for name, values in state.items()} == {"a": 30, "b": 500, "c": 70, "d": 90}


@pytest.mark.parametrize("stated", ["soon", "0", "1-00"])
def test_a_limit_that_cannot_be_read_turns_its_job_away(stated: str):
    held = opened(Slurm(), cluster(1), job("a", labels={"time_limit": stated}))
    (change,) = held.decide(0.0)
    assert not held.jobs
    statement = f'label time_limit is "{stated}", expected seconds, or a time like 30s, 5m, 2h or 1d, above 0'
    assert (change.step, change.reason) == ("reject", statement)


def test_the_lowest_priorities_are_preempted_where_needed():
    policy = Slurm(preempts="high>low", qos="low=1,high=9", priority_weight_fairshare=0.0)
    low, high = {"qos": "low"}, {"qos": "high"}
    sizes = (("a", 2, 1.0), ("b", 2, 2.0), ("c", 3, 3.0))
    running = [job(n, gpus=g, labels=low, gpu_seconds=1e4, priority=p) for n, g, p in sizes]
    held = opened(policy, cluster(8), *running, job("d", gpus=1, gpu_seconds=1e4))
    assert decided(held, 0.0) == {"a": 2, "b": 2, "c": 3, "d": 1}
    assert joined(held, 1.0, job("h", at=1.0, gpus=3, labels=high)) == {"c": 3, "d": 1, "h": 3}
    assert joined(held, 2.0, job("x", at=2.0, gpus=5, labels=high)) == {"c": 3, "d": 1, "h": 3}
    held.end("h", 3.0)
    assert decided(held, 3.0) == {"b": 2, "d": 1, "x": 5}

    policy = Slurm(preempts="high>low", preempt_exempt_time_s=60.0)
    held = started(policy, cluster(1), job("a", labels=low, gpu_seconds=1e4))
    assert joined(held, 10.0, job("h", at=10.0, labels=high)) == {"a": 1}
    assert held.decided.due_s == 60.0
    assert decided(held, 60.0) == {"h": 1}
