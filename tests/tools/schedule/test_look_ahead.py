"""The event loop around a session: which moment is next, and what has happened by then."""

from __future__ import annotations

from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policies.las import Las
from pliant.tools.schedule.predict_start import advance, happen, in_order_of_arrival, next_moment_s
from tests.builders import cluster, job, session


def test_jobs_arrive_and_end_in_turn():
    held = session(Fifo(), cluster(1))
    coming = in_order_of_arrival(
        [job("late", at=5.0, work={"samples": 4}), job("early", at=1.0, work={"samples": 10})]
    )
    moments, now_s = [], 0.0
    while (next_s := advance(held, now_s, coming)) is not None:
        now_s = next_s
        held.decide(now_s)
        moments.append((now_s, sorted(held.jobs)))
    assert moments == [(1.0, ["early"]), (5.0, ["early", "late"]), (11.0, ["late"]), (15.0, [])]


def test_a_job_that_ends_makes_room_for_one_that_arrives_at_that_moment():
    held = session(Fifo(), cluster(1))
    coming = in_order_of_arrival([job("a", work={"samples": 5}), job("b", at=5.0, work={"samples": 1})])
    happen(held, 0.0, coming)
    held.decide(0.0)
    assert advance(held, 0.0, coming) == 5.0
    assert (list(held.jobs), list(held.ended)) == (["b"], ["a"])


def test_a_policy_with_rounds_is_asked_in_rounds():
    held = session(Las(), cluster(1))
    held.submit(job("a", work={"samples": 5}), 0.0)
    held.decide(0.0)
    assert next_moment_s(held, 0.0) == Las.default_interval_s
    assert list(held.jobs) == ["a"], "to look is not to go there"


def test_nothing_is_to_come_where_no_end_is_known():
    held = session(Fifo(), cluster(1))
    held.submit(job("a"), 0.0)
    held.decide(0.0)
    assert advance(held, 0.0) is None
    assert next_moment_s(held, 0.0, end_of=lambda _: 7.0) == 7.0
