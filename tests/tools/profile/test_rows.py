"""Merging profiles."""

from __future__ import annotations

from pliant.tools.profile.rows import merged
from tests.tools.profile.rows_builder import reduce, step


def test_a_new_measurement_replaces_the_old_one_of_the_same_key() -> None:
    old = (step(1, 8, 0.1), step(1, 16, 0.2), reduce(2, 10, 0.1), reduce(2, 20, 0.2))
    new = (step(1, 16, 0.25), reduce(2, 20, 0.3))
    assert merged(old, new) == (reduce(2, 10, 0.1), reduce(2, 20, 0.3), step(1, 8, 0.1), step(1, 16, 0.25))


def test_what_fits_now_is_no_longer_infeasible() -> None:
    assert merged((step(1, 8, None),), (step(1, 8, 0.1),)) == (step(1, 8, 0.1),)


def test_gang_placement_type_and_accumulation_tell_rows_apart() -> None:
    rows = (step(4, 8, 0.1), step("2,2", 8, 0.1), step(4, 8, 0.1, accum=2), step(4, 8, 0.1, gpu_type="t4"))
    assert len(merged((), rows)) == 4


def test_the_order_of_the_rows_does_not_depend_on_the_order_of_measuring() -> None:
    rows = (step(2, 8, 0.1), step(1, 8, 0.1), step(10, 8, 0.1))
    assert merged((), rows) == merged((), rows[::-1])
    assert [row.gpus for row in merged((), rows)] == [1, 2, 10]
