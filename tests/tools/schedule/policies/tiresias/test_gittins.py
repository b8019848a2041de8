"""Queues of least attained service, ordered by what finished jobs tell."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.errors import UsageError
from pliant.tools.schedule.policies.tiresias import Services, TiresiasGittins
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job, session, sizes

HOUR = 3600.0
TIMES = st.lists(st.floats(1, 1e5), max_size=8)


def opened(nodes, *jobs, **parameters) -> Session:
    held = session(TiresiasGittins(**parameters), nodes)
    for each in jobs:
        held.submit(each, each.submit_time)
    return held


def ran_at(held: Session, *hours: float) -> list[str]:
    found = []
    for hour in hours:
        held.decide(hour * HOUR)
        found += list(sizes(held))
    return found


def test_the_index_is_the_chance_to_finish_over_the_service_it_takes():
    services = Services([8, 1, 4, 2])
    found = services.indices(np.array([0.0, 1, 2, 4, 7, 8, 9]), 2.0)
    assert found.tolist() == [
        2 / (1 + 2 + 2 + 2),  # of four, two are over within 2
        1 / (1 + 2 + 2),  # of three that took more than 1, one within 3
        1 / (2 + 2),
        0,  # the one that took more than 4 took more than 6
        1 / 1,
        0,  # nobody took more than 8
        0,
    ]
    assert Services().indices(np.array([0.0, 5]), 2.0).tolist() == [0, 0]


@given(TIMES, TIMES, st.lists(st.floats(0, 1e5), min_size=1, max_size=5), st.floats(1, 1e5))
def test_services_that_come_later_count_as_if_known_before(before, after, attained, quantum):
    grown = Services(before)
    grown.add(after)
    at_once = Services([*before, *after]).indices(np.array(attained), quantum)
    assert grown.indices(np.array(attained), quantum).tolist() == at_once.tolist()
    for index, had in zip(at_once.tolist(), attained, strict=True):
        left = [service - had for service in (*before, *after) if service > had]
        chance = sum(each <= quantum for each in left) / len(left) if left else 0.0
        cost = sum(min(each, quantum) for each in left) / len(left) if left else 1.0
        assert index == pytest.approx(chance / cost, rel=1e-4)


def test_whoever_is_about_to_finish_goes_first_and_whoever_is_not_goes_last():
    held = opened(cluster(1), job("a"), quantum_gpu_hours=1.0, history_gpu_hours="1,10,10")
    assert ran_at(held, 0, 0.5) == ["a", "a"]
    held.submit(job("b", at=0.5 * HOUR), 0.5 * HOUR)
    assert ran_at(held, 0.5, 0.9, 1) == ["a", "a", "b"], "an hour has passed and a has not finished"
    held.end("b", 1.5 * HOUR, "cancelled")
    assert ran_at(held, 1.5, 10) == ["a", "a"]
    held.submit(job("c", at=10 * HOUR), 10 * HOUR)
    assert ran_at(held, 10) == ["a"], "after nine hours and a half it is sure to finish within the next"


def test_before_any_history_it_is_first_in_first_out():
    held = opened(cluster(1), job("a"), job("b", at=1), queue_gpu_hours="1")
    assert ran_at(held, 0.1, 0.5, 1.05, 1.2, 2.2) == ["a", "a", "a", "b", "a"]


def test_it_learns_from_jobs_that_finish_and_from_no_others():
    for outcome, then in (("finished", "new"), ("cancelled", "old"), ("failed", "old")):
        held = opened(cluster(1, 1), job("old"), job("x"), quantum_gpu_hours=2.0)
        assert ran_at(held, 0) == ["old", "x"]
        held.end("x", HOUR, outcome)
        held.node_down("n1", HOUR)
        held.submit(job("new", at=HOUR), HOUR)
        held.decide(HOUR)
        assert sizes(held) == {then: 1}, "one job took an hour: a new one is over by then, old is beyond"


def test_queues_come_before_the_index():
    held = opened(cluster(1), job("a"), queue_gpu_hours="1", quantum_gpu_hours=1.0, history_gpu_hours="2")
    assert ran_at(held, 0, 1) == ["a", "a"]
    held.submit(job("b", at=HOUR), HOUR)
    assert ran_at(held, 1) == ["b"], "a is sure to be over in an hour, but in the second queue"


def test_history_and_queues_are_carried():
    told = {"quantum_gpu_hours": 2.0, "history_gpu_hours": "3"}
    held = opened(cluster(1, 1), job("a"), job("b"), job("c", at=1), **told)
    assert ran_at(held, 0.1) == ["a", "b"]
    held.end("a", HOUR)
    held.decide(HOUR)
    state = held.policy.dump_state()
    assert state["services"] == [0.9 * HOUR]
    again = TiresiasGittins(**told)
    again.load_state(state, held.jobs)
    assert again.dump_state() == state
    assert again.explain(held.snapshot(HOUR)) != {}


def test_rounds_are_left_out_only_while_nobody_waits():
    held = opened(cluster(1), job("a"), queue_gpu_hours="1")
    held.decide(0)
    assert held.quiet_until_s == HOUR
    held.submit(job("b", at=60), 60)
    held.decide(60)
    assert held.quiet_until_s == -float("inf")


def test_it_says_the_index():
    held = opened(cluster(1), job("a"), job("b", at=1), quantum_gpu_hours=2.0, history_gpu_hours="1,2,4,8")
    held.decide(1)
    held.decide(HOUR + 1)
    told = held.explain(HOUR + 1)
    assert told["a"].reason.startswith("queue 1 of 2, place 2, with ")
    assert told["b"].reason.endswith("Gittins index 0.286 per GPU-hour")
    assert told["b"].needs_gpus is None


@pytest.mark.parametrize(
    ("name", "wrong"), [("history_gpu_hours", "1,x"), ("history_gpu_hours", "0"), ("quantum_gpu_hours", 0)]
)
def test_what_it_does_not_take(name, wrong):
    with pytest.raises(UsageError, match=name):
        make_policy("tiresias-gittins", {name: wrong})
