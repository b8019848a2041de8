from __future__ import annotations

from dataclasses import replace

from pliant.schemas.profile import Profile
from pliant.tools.profile.by_placement import ThroughputByPlacement
from pliant.tools.profile.costs import rescales
from pliant.tools.profile.measured import ThroughputBySize
from tests.tools.profile.rows_builder import step

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
