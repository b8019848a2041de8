"""Teams that share the slots of a live run."""

from __future__ import annotations

from benchmarks.parts.reclaim import reclaimed


def test_a_lent_slot_comes_back_while_the_borrower_trains_on():
    """It is seen to train on with one worker, and to grow again after the owner's job has ended."""
    assert reclaimed("shrink").seconds > 0
