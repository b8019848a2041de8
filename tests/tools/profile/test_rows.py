"""Merging profiles, and the costs that their rows state."""

from __future__ import annotations

from dataclasses import replace

from pliant.schemas.profile import Profile
from pliant.tools.profile.throughput import merged, rescales
from pliant.tools.profile.throughput_model import ThroughputByPlacement, ThroughputBySize
from tests.tools.profile.rows_builder import reduce, step


def test_a_new_measurement_replaces_the_old_one_of_the_same_key() -> None:
    old = (step(1, 8, None), step(1, 16, 0.2), reduce(2, 10, 0.1), reduce(2, 20, 0.2))
    new = (step(1, 8, 0.1), step(1, 16, 0.25), reduce(2, 20, 0.3))
    assert merged(old, new) == (reduce(2, 10, 0.1), reduce(2, 20, 0.3), step(1, 8, 0.1), step(1, 16, 0.25))


def test_gang_placement_type_and_accumulation_tell_rows_apart() -> None:
    rows = (step(4, 8, 0.1), step("2,2", 8, 0.1), step(4, 8, 0.1, accum=2), step(4, 8, 0.1, gpu_type="t4"))
    assert len(merged((), rows)) == 4


def test_the_order_of_the_rows_does_not_depend_on_the_order_of_measuring() -> None:
    rows = (step(2, 8, 0.1), step(1, 8, 0.1), step(10, 8, 0.1))
    assert merged((), rows) == merged((), rows[::-1])
    assert [row.gpus for row in merged((), rows)] == [1, 2, 10]


ROWS = (
    replace(step(1, 8, 0.1), relaunch_seconds=6.0),
    replace(step(2, 8, 0.1), relaunch_seconds=8.0, rescale_seconds=0.25),
    replace(step(4, 8, 0.1), relaunch_seconds=8.0, rescale_seconds=0.75),
    replace(step(1, 8, 0.1, model="alone"), relaunch_seconds=3.0),
    step(1, 8, 0.1, model="bare"),
)


def test_a_rescale_is_in_place_where_that_was_measured_else_a_relaunch() -> None:
    assert rescales(ROWS) == {"net": [0.25, 0.75], "alone": [3.0]}


def test_throughput_models_tell_the_mean_of_a_model_or_else_of_all() -> None:
    for kind in (ThroughputBySize, ThroughputByPlacement):
        model = kind(Profile(ROWS))
        found = [model.rescale_seconds(name) for name in ("net", "alone", "bare", "other")]
        assert found == [0.5, 3.0, 4.0 / 3, 4.0 / 3]
        assert kind(Profile(ROWS[4:])).rescale_seconds("bare") is None
