"""Progress in pieces of different rates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.tools.replay.compat import WholeSecondPieces
from pliant.tools.replay.progress.models import Pieces

STEPS = Pieces([0.0, 10.0, 30.0, 40.0], [1.0, 4.0, 2.0])
"""10, 5 and 5 seconds."""


def test_a_job_is_where_its_pieces_take_it():
    trajectory = STEPS.trajectory(0.0)
    assert trajectory.seconds == 20
    told = [trajectory.samples_done(100.0, 100.0 + passed) for passed in (-5, 0, 5, 10, 12, 15, 17.5, 20, 99)]
    assert told == [0, 0, 5, 10, 18, 30, 35, 40, 40]


def test_it_begins_in_the_middle_or_at_a_bound():
    assert STEPS.trajectory(5.0).seconds == 15
    assert STEPS.trajectory(5.0).samples_done(0.0, 6.0) == 14
    at_bound = STEPS.trajectory(10.0)
    assert (at_bound.rate, at_bound.seconds) == (4.0, 10)
    nearly = STEPS.trajectory(10.0 - 1e-12)
    assert (nearly.rate, nearly.seconds) == (4.0, pytest.approx(10))
    assert STEPS.trajectory(40.0).seconds == 0


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
    rates = [rate for _, rate in widths]
    pieces = WholeSecondPieces(bounds, rates, 60.0) if whole_seconds else Pieces(bounds, rates)
    trajectory = pieces.trajectory(part * bounds[-1])
    told = [trajectory.samples_done(0.0, time) for time in sorted(times)]
    assert told == sorted(told)
    assert all(part * bounds[-1] <= done <= bounds[-1] for done in told)
    assert trajectory.samples_done(0.0, trajectory.seconds + 1e-6) == pytest.approx(bounds[-1])
