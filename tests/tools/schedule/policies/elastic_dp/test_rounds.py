"""When elastic-dp scales, told by times alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.elastic_dp.policy import ScalingTimes
from pliant.tools.schedule.snapshot import Change, ChangeKind
from tests.builders import job

GPUS = 40
SOMEBODY = JobState(job("a"), 1, None)


def change(time_s: float, kind: ChangeKind = "arrived") -> Change:
    return Change(time_s, kind, SOMEBODY)


def asked(times: ScalingTimes, changes: Sequence[Change], now_s: float) -> bool:
    """Whether sizes may change now; if so, they are looked at."""
    due = times.due(changes, now_s, GPUS)
    if due:
        times.hold(now_s)
    return due


def test_a_moment_is_answered_once():
    times = ScalingTimes(600, None)
    assert asked(times, [change(0)], 0)
    assert not asked(times, [change(5)], 5)
    assert asked(times, [], 600)
    assert not asked(times, [], 600)
    assert not asked(times, [change(601)], 601)
    assert asked(times, [change(1199), change(1300)], 1300), "the one of 1200 s was missed"
    assert not asked(times, [change(1301)], 1301)


def test_jobs_that_the_policy_turned_away_are_no_reason_to_look_again():
    times = ScalingTimes(600, None)
    assert asked(times, [change(0), change(0)], 0)
    assert not asked(times, [change(0, "rejected"), change(3)], 3)
    assert asked(times, [change(600)], 600)
    assert not asked(times, [change(600, "rejected")], 600)


def test_ends_are_counted_against_the_jobs_of_the_moment():
    times = ScalingTimes(600, 0.25)
    assert asked(times, [change(0)] * 8, 0)
    assert not asked(times, [change(1, "finished")], 1)
    assert asked(times, [change(2, "failed")], 2)
    assert not asked(times, [change(3, "cancelled")], 3)
    assert asked(times, [change(4, "finished")], 4), "two of six"


def test_no_more_jobs_count_than_there_are_gpus():
    times = ScalingTimes(600, 0.25)
    assert asked(times, [change(0)] * 1000, 0)
    assert not asked(times, [change(1, "finished")] * 9, 1)
    assert asked(times, [change(2, "finished")], 2)


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.0, 1.0, 40.0, 99.0, 100.0, 250.0]),
            st.sampled_from(["arrived", "arrived", "finished", "rejected", "lost"]),
        ),
        min_size=1,
        max_size=30,
    ),
    ended_part=st.sampled_from([None, 0.05, 0.5]),
    interval_s=st.sampled_from([0.0, 0.1, 100.0, 600.0]),
    carried=st.booleans(),
)
def test_told_the_whole_history_or_there_all_along(steps, ended_part, interval_s, carried):
    now_s, history = 0.0, []
    for passes_s, kind in steps:
        now_s += passes_s
        history.append(change(now_s, kind))
    kept = ScalingTimes(interval_s, ended_part)
    for time_s, group in groupby(history, key=lambda each: each.time_s):
        if carried:
            state = json.loads(json.dumps(kept.dump()))
            kept = ScalingTimes(interval_s, ended_part)
            kept.load(state)
        due = asked(kept, list(group), time_s)
    assert asked(ScalingTimes(interval_s, ended_part), history, now_s) == due


@pytest.mark.parametrize("interval_s", [0.1, 0.3, 1 / 3, 7.7, 600])
def test_the_next_moment_is_always_one(interval_s: float):
    now_s = 0.0
    for _ in range(2000):
        times = ScalingTimes(interval_s, None)
        asked(times, [change(now_s)], now_s)
        next_s = times.next_s(now_s)
        assert now_s < next_s <= now_s + interval_s * 1.001
        assert asked(times, [], next_s)
        now_s = next_s
