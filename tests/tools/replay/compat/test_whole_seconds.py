"""Progress in pieces of whole seconds."""

from __future__ import annotations

import pytest

from pliant.tools.replay.compat import WholeSecondPieces


def test_whole_seconds_are_rounded_piece_by_piece():
    pieces = WholeSecondPieces([0.0, 10.4, 20.0, 30.6], [1.0, 1.0, 1.0])
    assert pieces.ends_s == [0, 10, 20, 31]  # 10.4, 9.6 and 10.6 seconds
    trajectory = pieces.trajectory(0.0)
    assert trajectory.seconds == 31
    assert trajectory.samples_done(0.0, 10.0) == 10.4, "rounded down, it is over sooner"
    assert trajectory.samples_done(0.0, 19.9) == pytest.approx(20.0), "rounded up, it waits at the bound"
    assert pieces.trajectory(5.0).seconds == 5 + 10 + 11  # 5.4 seconds left of the first


def test_what_is_rounded_down_to_a_round_is_not_over_in_it():
    pieces = WholeSecondPieces([0.0, 60.3, 120.0, 179.6], [1.0, 1.0, 1.0], 60.0)
    assert pieces.ends_s == [0, 60, 120, 180]
    trajectory = pieces.trajectory(0.0)
    assert trajectory.samples_done(0.0, 60.0) == 60.0, "60.3 s cut to 60: the round at 60 comes first"
    assert trajectory.samples_done(0.0, 61.0) == pytest.approx(61.3)
    assert trajectory.samples_done(0.0, 120.0) == 120.0, "59.7 s drawn out to 60: over when the round comes"
    assert not trajectory.is_late(180.0)
    short = WholeSecondPieces([0.0, 60.3], [1.0], 60.0).trajectory(0.0)
    assert short.is_late(60.0)
    assert not short.is_late(67.0), "between rounds nobody looks"


def test_pieces_of_no_time_follow_each_other_at_once():
    pieces = WholeSecondPieces([0.0, 60.0, 60.2, 60.4, 100.0], [1.0] * 4, 60.0)
    trajectory = pieces.trajectory(0.0)
    assert trajectory.samples_done(0.0, 60.0) == 60.0, "the first is over, the next was cut to nothing"
    assert trajectory.samples_done(0.0, 61.0) == pytest.approx(61.4)
