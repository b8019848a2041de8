"""What a policy and its jobs get while slots, or further GPUs, are withheld."""

from __future__ import annotations

import math

import pytest

from pliant.schemas.event import Event
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.from_log import session_from_events
from pliant.tools.schedule.policy import Target
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.session.withheld import LONG_S, Withheld
from tests.builders import cluster, job, session, sizes
from tests.tools.schedule.session.test_session import Says, opened, steps

GROWS = job("a", low=1, high=4)


def test_policies_see_the_capacity_without_a_slot_that_is_out_of_service() -> None:
    held = opened(cluster(2, 2), GROWS)
    held.withdraw("n1/0", 10, until_s=70)
    held.decide(11)
    (seen,) = held.policy.seen
    assert (seen.total_gpus, seen.free_gpus, seen.gpus_by_type()) == (3, {"gpu": 3}, {"gpu": 3})
    assert [node.gpus for node in held.nodes] == [2, 1]
    held.decide(70)
    seen = held.policy.seen[-1]
    assert (seen.total_gpus, seen.free_gpus) == (4, {"gpu": 4})
    assert [(change.kind, change.gpus) for change in seen.changes] == [("capacity", 1)]
    assert seen.changes[0].time_s == 70


def test_a_slot_is_out_of_service_once_until_the_latest_time_that_was_said() -> None:
    held = opened(cluster(2))
    held.withdraw("n0/1", 0, until_s=60)
    held.withdraw("n0/1", 50, until_s=170)
    held.advance(60)
    assert held.up_gpus == 1
    held.restore("n0/1", 100)
    assert (held.up_gpus, held.free.free_on("n0")) == (2, 2)
    held.advance(200)
    assert held.up_gpus == 2


def test_a_node_comes_back_without_the_slots_that_are_out_of_service() -> None:
    held = opened(cluster(2, 1), job("a"))
    held.node_down("n0", 1)
    held.withdraw("n0/1", 2, until_s=60)
    held.node_up("n0", 3)
    assert (held.up_gpus, held.free.free_on("n0")) == (2, 1)
    held.advance(60)
    assert (held.up_gpus, held.free.free_on("n0")) == (3, 2)
    steps(held, 61, a=Target(1, placement=(("n1", 1),)))
    with pytest.raises(ValueError, match="would have -1 of 1 GPUs free"):
        held.withdraw("n1/0", 62, until_s=90)


def test_a_job_gets_another_node_where_a_slot_is_withheld_from_it_and_others_get_that_slot() -> None:
    held = opened(cluster(1, 2), GROWS, job("b"))
    held.withheld.bar("a", "n0/0", 60)
    assert steps(held, 0, a=1) == [("a", "start")]
    assert held.jobs["a"].placement == (("n1", 1),)
    assert steps(held, 1, a=3, b=0) == [], "with the slot of n0 it would be one too few"
    assert steps(held, 2, a=2, b=1) == [("a", "grow"), ("b", "start")]
    assert held.jobs["b"].placement == (("n0", 1),)
    steps(held, 3, b=0)
    assert steps(held, 60, a=3) == [("a", "grow")], "the time is over"


def test_a_place_that_a_policy_names_is_not_taken_while_it_is_withheld() -> None:
    held = opened(cluster(1, 1), GROWS, job("b", low=1, high=2))
    steps(held, 0, a=Target(1, placement=(("n0", 1),)), b=Target(1, placement=(("n1", 1),)))
    held.withheld.bar("a", "n1/0", 60)
    swap = {"a": Target(1, placement=(("n1", 1),)), "b": Target(1, placement=(("n0", 1),))}
    assert steps(held, 1, **swap) == []
    assert sizes(held) == {"a": 1, "b": 1}
    assert steps(held, 61, **swap) == [("a", "move"), ("b", "move")]


def test_a_job_that_shall_wait_keeps_its_size_shrinks_and_does_not_grow() -> None:
    held = opened(cluster(4), GROWS)
    steps(held, 0, a=2)
    held.withheld.hold("a", 60)
    assert steps(held, 1, a=4) == []
    assert steps(held, 2, a=1) == [("a", "shrink")]
    assert steps(held, 60, a=4) == [("a", "grow")]


def test_a_job_that_is_let_go_and_a_slot_that_proved_good_change_nothing_for_others() -> None:
    withheld = Withheld()
    withheld.bar("a", "n0/0", 60)
    withheld.bar("b", "n0/0", 70)
    withheld.bar("b", "n1/0", 80)
    withheld.hold("a", 50)
    withheld.release("a")
    assert (withheld.hidden_from("a"), withheld.held_until_s("a"), withheld.next_s) == ({}, None, 70)
    assert withheld.hidden_from("b") == {"n0": 1, "n1": 1}
    assert withheld.restore("n0/0") is False, "it was withheld from one job, not out of service"
    assert (withheld.hidden_from("b"), withheld.next_s) == ({"n1": 1}, 80)
    withheld.withdraw("n1/0", 90)
    assert withheld.hidden_from("b") == {}, "its node has one GPU less for all jobs already"
    assert withheld.restore("n1/0") is True
    assert withheld.next_s == math.inf


def test_slots_that_wait_for_an_operator_are_those_of_the_node_for_more_than_a_day() -> None:
    withheld = Withheld()
    for slot, until_s in (("n0/0", 2 * LONG_S), ("n0/1", LONG_S), ("n1/0", 2 * LONG_S)):
        withheld.withdraw(slot, until_s)
    assert withheld.until_resumed("n0", 10) == ["n0/0"]
    assert withheld.until_resumed("n0", LONG_S) == [], "a day is left of it, not more"


def test_what_is_withheld_is_rebuilt_from_the_log() -> None:
    nodes, throughput = cluster(2, 2), CurveThroughput()
    detail = {"job": GROWS.model_dump(mode="json", exclude_defaults=True)}
    events = [
        Event(0, "submit", "a", detail=detail),
        Event(1, "start", "a", gpus=2, placement=(("n0", 1), ("n1", 1))),
        Event(9, "shrink", "a", gpus=1, placement=(("n0", 1),), detail={"wait_seconds": 30}),
        Event(9, "slot_down", "a", detail={"slot": "n0/1", "seconds": 60}),
        Event(9, "slot_down", None, detail={"slot": "n1/0", "seconds": 60, "by": "a"}),
    ]

    def at(now_s: float, *more: Event) -> Session:
        held = session_from_events([*events, *more], Says(), nodes, throughput, now_s=now_s)
        held.advance(now_s)
        return held

    held = at(20)
    assert (held.up_gpus, held.withheld.held_until_s("a"), held.withheld.hidden_from("a")) == (
        3,
        39,
        {"n0": 1},
    )
    held = at(40)
    assert (held.up_gpus, held.withheld.held_until_s("a"), held.withheld.next_s) == (3, None, 69)
    held = at(69)
    assert (held.up_gpus, held.withheld.hidden_from("a")) == (4, {})
    held = at(20, Event(15, "slot_up", "a", detail={"slot": "n1/0"}))
    assert (held.up_gpus, held.withheld.held_until_s("a")) == (4, None)


def test_a_policy_that_started_a_job_which_shall_wait_starts_it_once_it_may() -> None:
    held = session(make_policy("fifo"), cluster(1))
    held.submit(job("a"), 0)
    held.submit(job("b"), 0)
    held.withheld.hold("a", 60)
    held.decide(0)
    assert sizes(held) == {}
    held.decide(1)
    held.decide(60)
    assert sizes(held) == {"a": 1}, "it has not lost its place in the line"
