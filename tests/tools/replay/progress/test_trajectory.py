"""Progress in pieces of different rates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.tools.replay.progress.trajectory import Pieces, PieceTrajectory

STEPS = Pieces([0.0, 10.0, 30.0, 40.0], [1.0, 4.0, 2.0])
"""10, 5 and 5 seconds."""


def test_a_job_is_where_its_pieces_take_it():
    trajectory = PieceTrajectory(STEPS, 0.0)
    assert trajectory.seconds == 20
    told = [trajectory.samples_done(100.0, 100.0 + passed) for passed in (-5, 0, 5, 10, 12, 15, 17.5, 20, 99)]
    assert told == [0, 0, 5, 10, 18, 30, 35, 40, 40]


def test_it_begins_in_the_middle_or_at_a_bound():
    assert PieceTrajectory(STEPS, 5.0).seconds == 15
    assert PieceTrajectory(STEPS, 5.0).samples_done(0.0, 6.0) == 14
    at_bound = PieceTrajectory(STEPS, 10.0)
    assert (at_bound.rate, at_bound.seconds) == (4.0, 10)
    nearly = PieceTrajectory(STEPS, 10.0 - 1e-12)
    assert (nearly.rate, nearly.seconds) == (4.0, pytest.approx(10))
    assert PieceTrajectory(STEPS, 40.0).seconds == 0


def test_whole_seconds_are_rounded_piece_by_piece():
    pieces = Pieces([0.0, 10.4, 20.0, 30.6], [1.0, 1.0, 1.0], whole_seconds=True)
    assert pieces.ends_s == [0, 10, 20, 31]  # 10.4, 9.6 and 10.6 seconds
    trajectory = PieceTrajectory(pieces, 0.0)
    assert trajectory.seconds == 31
    assert trajectory.samples_done(0.0, 10.0) == 10.4, "rounded down, it is over sooner"
    assert trajectory.samples_done(0.0, 19.9) == pytest.approx(20.0), "rounded up, it waits at the bound"
    assert PieceTrajectory(pieces, 5.0).seconds == 5 + 10 + 11  # 5.4 seconds left of the first


def test_what_is_rounded_down_to_a_round_is_not_over_in_it():
    pieces = Pieces([0.0, 60.3, 120.0, 179.6], [1.0, 1.0, 1.0], whole_seconds=True)
    assert pieces.ends_s == [0, 60, 120, 180]
    trajectory = PieceTrajectory(pieces, 0.0, round_s=60.0)
    assert trajectory.samples_done(0.0, 60.0) == 60.0, "60.3 s cut to 60: the round at 60 comes first"
    assert trajectory.samples_done(0.0, 61.0) == pytest.approx(61.3)
    assert trajectory.samples_done(0.0, 120.0) == 120.0, "59.7 s drawn out to 60: over when the round comes"
    assert not trajectory.is_late(0.0, 180.0)
    short = PieceTrajectory(Pieces([0.0, 60.3], [1.0], whole_seconds=True), 0.0, round_s=60.0)
    assert short.is_late(0.0, 60.0)
    assert not short.is_late(7.0, 67.0), "between rounds nobody looks"


def test_pieces_of_no_time_follow_each_other_at_once():
    pieces = Pieces([0.0, 60.0, 60.2, 60.4, 100.0], [1.0] * 4, whole_seconds=True)
    trajectory = PieceTrajectory(pieces, 0.0, round_s=60.0)
    assert trajectory.samples_done(0.0, 60.0) == 60.0, "the first is over, the next was cut to nothing"
    assert trajectory.samples_done(0.0, 61.0) == pytest.approx(61.4)


@given(
    st.lists(st.tuples(st.floats(0.5, 50), st.floats(0.1, 20)), min_size=1, max_size=6),
    st.floats(0, 1),
    st.booleans(),
    st.lists(st.floats(0, 400), min_size=2, max_size=8),
)
def test_progress_never_runs_back_and_ends_at_the_goal(widths, part, whole_seconds, times):
    bounds = [0.0]
    for width, _ in widths:
        bounds.append(bounds[-1] + width)
    trajectory = PieceTrajectory(
        Pieces(bounds, [rate for _, rate in widths], whole_seconds=whole_seconds), part * bounds[-1], 60.0
    )
    told = [trajectory.samples_done(0.0, time) for time in sorted(times)]
    assert told == sorted(told)
    assert all(part * bounds[-1] <= done <= bounds[-1] for done in told)
    assert trajectory.samples_done(0.0, trajectory.seconds + 1e-6) == pytest.approx(bounds[-1])
