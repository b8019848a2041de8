from dataclasses import replace

import pytest

from pliant.schemas.errors import BadInputError
from pliant.schemas.io import profile_from_columns, profile_to_columns
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.throughput import UNKNOWN, Load, PairTable, merged, rescales, rows_across
from pliant.tools.profile.throughput_model import ThroughputByPlacement, ThroughputBySize
from tests.tools.profile.rows_builder import reduce, step

A, B = Load("a", 8), Load("b", 4)


def beside(row: ProfileRow, other: Load) -> ProfileRow:
    return replace(row, kind="pair", beside_model=other.model, beside_batch=other.local_batch)


def rows(gpus: int = 1, a_seconds: float | None = 0.2, b_seconds: float | None = 0.8) -> list[ProfileRow]:
    """Alone, a step of a takes 0.1 s and one of b 0.2 s."""
    return [
        step(gpus, 8, 0.1, model="a"),
        step(gpus, 4, 0.2, model="b"),
        beside(step(gpus, 8, a_seconds, model="a"), B),
        beside(step(gpus, 4, b_seconds, model="b"), A),
    ]


TWO_PLACES = [*rows(), *rows(2, 0.1, 0.4)]


@pytest.mark.parametrize(
    ("known", "pair", "gpu_type", "place", "kept"),
    [
        pytest.param(rows(), (A, B), "gpu", (1,), (0.5, 0.25), id="measured"),
        pytest.param(rows(), (B, A), "gpu", (1,), (0.25, 0.5), id="the other way round"),
        pytest.param(rows(1, None, None), (A, B), "gpu", (1,), None, id="did not fit"),
        pytest.param(rows(), (Load("a", 16), B), "gpu", (1,), UNKNOWN, id="another batch"),
        pytest.param(rows(), (A, B), "other", (1,), UNKNOWN, id="another GPU type"),
        pytest.param(rows(), (A, A), "gpu", (1,), UNKNOWN, id="two alike"),
        pytest.param(TWO_PLACES, (A, B), "gpu", (2,), (1.0, 0.5), id="at that placement"),
        pytest.param(TWO_PLACES, (A, B), "gpu", (2, 2), (0.75, 0.375), id="elsewhere: the mean"),
        pytest.param([*rows(), *rows(2, None, None)], (A, B), "gpu", (4,), None, id="did not fit somewhere"),
        pytest.param(rows(1, 0.09, 0.2), (A, B), "gpu", (1,), (1.0, 1.0), id="no job is faster for company"),
    ],
)
def test_what_each_of_two_keeps(known, pair, gpu_type, place, kept):
    assert PairTable(known).measured(*pair, gpu_type, place) == kept


def test_rows_of_batches_and_of_pairs() -> None:
    small, large = replace(step(1, 8, 0.1), peak_memory=100), replace(step(2, 16, 0.2), peak_memory=170)
    table = PairTable([small, large])
    assert table.memory(Load("net", 5), "gpu") == 100
    assert table.memory(Load("net", 9), "gpu") == 170
    assert table.memory(Load("net", 17), "gpu") is None
    # Only rows of pairs have their columns and name another job.
    assert list(profile_from_columns(profile_to_columns(rows()))) == rows()
    assert "beside_model" not in profile_to_columns(rows()[:2])
    for wrong in replace(rows()[2], beside_batch=None), replace(rows()[0], beside_model="b", beside_batch=4):
        with pytest.raises(BadInputError, match="contradicts kind"):
            profile_from_columns(profile_to_columns([*rows(), wrong]))


def test_new_measurements_replace_old_ones_and_costs_have_models() -> None:
    old = (step(1, 8, None), step(1, 16, 0.2), reduce(2, 10, 0.1), reduce(2, 20, 0.2))
    new = (step(1, 8, 0.1), step(1, 16, 0.25), reduce(2, 20, 0.3))
    assert merged(old, new) == (reduce(2, 10, 0.1), reduce(2, 20, 0.3), step(1, 8, 0.1), step(1, 16, 0.25))
    # The order of the rows does not depend on the order of measuring.
    rows = (step(2, 8, 0.1), step(1, 8, 0.1), step(10, 8, 0.1))
    assert merged((), rows) == merged((), rows[::-1])
    assert [row.gpus for row in merged((), rows)] == [1, 2, 10]
    # Rescale costs are in place or relaunches by model.
    assert rescales(ROWS) == {"net": [0.25, 0.75], "alone": [3.0]}
    # Throughput models tell the mean of a model or else of all.
    for kind in (ThroughputBySize, ThroughputByPlacement):
        model = kind(Profile(ROWS))
        found = [model.rescale_seconds(name) for name in ("net", "alone", "bare", "other")]
        assert found == [0.5, 3.0, 4.0 / 3, 4.0 / 3]
        assert kind(Profile(ROWS[4:])).rescale_seconds("bare") is None


ROWS = (
    replace(step(1, 8, 0.1), relaunch_seconds=6.0),
    replace(step(2, 8, 0.1), relaunch_seconds=8.0, rescale_seconds=0.25),
    replace(step(4, 8, 0.1), relaunch_seconds=8.0, rescale_seconds=0.75),
    replace(step(1, 8, 0.1, model="alone"), relaunch_seconds=3.0),
    step(1, 8, 0.1, model="bare"),
)


@pytest.mark.parametrize(
    ("old", "change"),
    [
        (step("2,2", 8, 0.1), {"model": "other"}),
        (step("2,2", 8, 0.1), {"gpu_type": "other"}),
        (step("2,2", 8, 0.1), {"placement": "3,1"}),
        (step("2,2", 8, 0.1), {"local_batch": 16}),
        (step("2,2", 8, 0.1), {"accum_steps": 2}),
        (step("2,2", 8, 0.1), {"across": "rack"}),
        (replace(step("2,2", 8, 0.1), across="rack"), {"across": "pod"}),
        (beside(step(2, 8, 0.1), B), {"beside_model": "other"}),
        (beside(step(2, 8, 0.1), B), {"beside_batch": 5}),
        (reduce("2,2", 1000, 0.1), {"parameters": 2000}),
    ],
)
def test_a_new_time_replaces_a_row_and_another_place_does_not(old, change) -> None:
    faster = replace(old, step_seconds=0.05)
    assert merged([old], [faster]) == (faster,)
    assert {*merged([old], [replace(faster, **change)])} == {old, replace(faster, **change)}


def test_rows_across_a_level_go_with_one_node_and_more_gpus() -> None:
    rack = [replace(step(place, 8, 0.2), across="rack") for place in ("1,1", "2,2")]
    inside, pairs, quads, more = (step(place, 8, 0.1) for place in (8, "1,1", "2,2", "4,4"))
    every = [inside, pairs, quads, more, *rack]
    assert {*rows_across(every, ("pod", "rack"))} == {*rack, inside, more}
    assert {*rows_across(every)} == {*rows_across(every, ("pod",))} == {inside, pairs, quads, more}
    assert {*rows_across([inside, *rack])} == {inside, *rack}, "no others are on several nodes"
