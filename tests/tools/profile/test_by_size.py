"""The throughput model: worked by hand, and what must hold for any profile."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pliant.schemas.errors import BadInputError
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.predict import holdout_errors
from pliant.tools.profile.throughput import CurveThroughput, local_limit, plan_batch
from pliant.tools.profile.throughput_model import ThroughputBySize
from tests.tools.profile.rows_builder import reduce, step, throughput

ONE_GPU = (step(1, 8, 0.1), step(1, 16, 0.14), step(1, 32, 0.3))


def seconds(
    model: ThroughputBySize, gpus: int | tuple[int, ...], batch: int, per_gpu_max: int | None = None
) -> float | None:
    placement = (gpus,) if isinstance(gpus, int) else gpus
    return model.step_seconds("net", "gpu", placement, batch, per_gpu_max)


GANG_OF_FOUR = (step(1, 8, 0.1, parameters=3_000_000), reduce(4, 2_000_000, 0.02), reduce(4, 4_000_000, 0.04))
APART = (step(2, 8, 0.15, compute=0.1), step(4, 8, 0.2, compute=0.1))
TOGETHER = (step(2, 8, 0.15), step(4, 8, 0.2))


@pytest.mark.parametrize(
    ("rows", "gpus", "batch", "expected"),
    [
        pytest.param(ONE_GPU, 1, 16, 0.14, id="measured"),
        pytest.param(ONE_GPU, 1, 12, 0.12, id="linear between batches"),
        pytest.param(ONE_GPU, 1, 24, 0.22, id="linear between the next two"),
        pytest.param(ONE_GPU, 1, 2, 0.1, id="no faster below the smallest batch"),
        pytest.param(ONE_GPU, 1, 1, 0.1, id="a sample for each worker"),
        pytest.param((*ONE_GPU, step(2, 8, 0.2)), 2, 1, None, id="more workers than samples"),
        pytest.param(ONE_GPU, 1, 64, 2 * 0.3, id="accumulated beyond the largest batch"),
        pytest.param(
            (*ONE_GPU, step(1, 24, None)), 1, 32, 2 * 0.14, id="a batch that did not fit is not used"
        ),
        pytest.param((step(1, 8, None),), 1, 8, None, id="nothing fits"),
        pytest.param((*ONE_GPU, step(2, 32, 0.35)), 2, 192, 2 * 0.3 + 0.35, id="one synchronisation a step"),
        pytest.param(
            (*ONE_GPU, step(2, 16, 0.34, accum=2)), 2, 32, 0.2, id="last micro-step of a measured row"
        ),
        pytest.param(
            (*ONE_GPU, step(2, 16, 0.24)), 2, 64, 0.3 + 0.1, id="overhead of the nearest batch above"
        ),
        pytest.param(
            (*ONE_GPU, step(2, 16, 0.24)), 2, 16, 0.1 + 0.1, id="overhead of the nearest batch below"
        ),
        pytest.param((*ONE_GPU, step(4, 8, 0.16)), 2, 16, 0.1 + 0.06 / 3, id="overhead linear in the size"),
        pytest.param((*ONE_GPU, step(4, 8, 0.16)), 3, 24, 0.1 + 0.06 * 2 / 3, id="likewise at three"),
        pytest.param((*ONE_GPU, step(2, 8, 0.16)), 4, 32, None, id="nothing claimed beyond the largest size"),
        pytest.param(GANG_OF_FOUR, 4, 32, 0.1 + 0.03, id="an all-reduce of the weights reaches further"),
        pytest.param(GANG_OF_FOUR, 2, 16, 0.1 + 0.01, id="smaller all-reduce"),
        pytest.param(GANG_OF_FOUR, 8, 64, None, id="beyond all-reduces"),
        pytest.param(
            (step(1, 8, 0.1, parameters=8_000_000), reduce(2, 4_000_000, 0.04)),
            *(2, 16, 0.1 + 0.08),
            id="larger all-reduces grow in proportion",
        ),
        pytest.param(APART, 1, 8, 0.1, id="computing is told from gangs"),
        pytest.param(APART, 3, 24, 0.175, id="and sizes between them"),
        pytest.param(TOGETHER, 1, 8, None, id="sizes below are unknown without separation"),
        pytest.param(TOGETHER, 3, 24, 0.175, id="those between are not"),
    ],
)
def test_the_formula_worked_by_hand(
    rows: tuple[ProfileRow, ...], gpus: int, batch: int, expected: float | None
) -> None:
    found = seconds(throughput(*rows), gpus, batch)
    assert found == (expected if expected is None else pytest.approx(expected))


def test_a_job_may_state_a_smaller_limit_than_the_profile() -> None:
    model = throughput(*ONE_GPU, step(2, 16, 0.2))
    assert seconds(model, 2, 64, per_gpu_max=16) == pytest.approx(0.14 + 0.2)
    accumulated = throughput(*ONE_GPU, step(2, 16, 0.34, accum=2))
    assert seconds(accumulated, 2, 64, per_gpu_max=16) == 0.34
    assert seconds(accumulated, 2, 96, per_gpu_max=16) == pytest.approx(0.14 + 0.14 + 0.2)


def test_an_answer_is_measured_where_a_row_of_that_type_and_placement_says_it() -> None:
    model = throughput(*ONE_GPU, step(2, 16, 0.21), step(1, 64, 0.1, source="modelled"))
    assert seconds(model, 2, 32) == 0.21
    assert seconds(model, 1, 64) == 0.1
    asked = [("gpu", 2, 32), ("gpu", 1, 24), ("gpu", 1, 64), ("new", 1, 16)]
    found = [model.source("net", kind, (gpus,), batch, None) for kind, gpus, batch in asked]
    assert found == ["measured", "modelled", "modelled", "modelled"]


def test_rows_that_measure_the_same_count_as_their_mean() -> None:
    rows = (step(2, 16, 0.2), step("1,1", 16, 0.4), step(2, 16, 0.3), step(2, 16, 9.0, source="modelled"))
    model = throughput(*ONE_GPU, step(1, 16, 0.16), *rows)
    assert seconds(model, 2, 32) == pytest.approx(0.25), "two measurements; the modelled one is none"
    assert seconds(model, (1, 1), 32) == 0.4
    assert seconds(model, 1, 16) == pytest.approx(0.15)
    assert model.source("net", "gpu", (2,), 32, None) == "measured"
    errors = holdout_errors(Profile((*ONE_GPU, step(2, 16, 0.2), step(2, 16, 0.3), step(2, 32, 0.35))))
    assert [error.predicted_s for error in errors[:2]] == [errors[0].predicted_s] * 2
    assert errors[0].predicted_s not in (0.2, 0.3), "the other measurement was not seen either"


def test_the_limit_of_a_local_batch_is_what_fits_and_what_the_job_allows() -> None:
    assert throughput(*ONE_GPU).max_local_batch("net", "gpu") == 32
    assert throughput(*ONE_GPU, step(1, 24, None)).max_local_batch("net", "gpu") == 16
    misfit = throughput(step(1, 8, None))
    assert (misfit.max_local_batch("net", "gpu"), local_limit(misfit, "net", "gpu", 4)) == (0, 0)
    assert [local_limit(CurveThroughput(), "net", "gpu", own) for own in (None, 4)] == [None, 4]
    assert local_limit(throughput(step(1, 8, 0.5)), "net", "gpu", 4) == 4


def test_the_same_placement_wins_over_the_same_size() -> None:
    model = throughput(*ONE_GPU, step(4, 8, 0.12), step("2,2", 8, 0.2))
    assert seconds(model, (4,), 32) == 0.12
    assert seconds(model, (2, 2), 32) == 0.2
    assert seconds(model, (3, 1), 32) == 0.2
    assert model.source("net", "gpu", (3, 1), 32, None) == "modelled"


def test_an_unmeasured_type_runs_at_its_relative_speed() -> None:
    model = throughput(*ONE_GPU, gpu=1.0, fast=2.0)
    assert model.step_seconds("net", "fast", (1,), 16, None) == pytest.approx(0.07)
    assert model.step_seconds("net", "other", (1,), 16, None) == pytest.approx(0.14)


def test_an_unmeasured_type_follows_the_type_with_most_rows() -> None:
    model = throughput(*ONE_GPU, step(1, 8, 0.5, gpu_type="slow"), gpu=2.0, new=1.0)
    assert model.step_seconds("net", "new", (1,), 8, None) == pytest.approx(0.2)


def test_an_unprofiled_model_says_how_to_get_it() -> None:
    with pytest.raises(
        BadInputError, match=r"'vgg' is not in the profile \(it has: net\); measure it with `pliant profile`"
    ):
        throughput(*ONE_GPU).step_seconds("vgg", "gpu", (1,), 8, None)


def test_a_profile_without_training_rows_knows_nothing() -> None:
    with pytest.raises(BadInputError, match="the profile: has no training rows"):
        ThroughputBySize(Profile((reduce(2, 10, 0.1),)))
    with pytest.raises(BadInputError, match=r"^p\.parquet: has no training rows"):
        ThroughputBySize(Profile((reduce(2, 10, 0.1),), source="p.parquet"))


times = st.floats(1e-4, 10.0)
local_batches = st.dictionaries(st.integers(1, 256), st.one_of(st.none(), times), min_size=1, max_size=5)
profiles = st.dictionaries(st.sampled_from([1, 2, 3, 4, 8]), local_batches, min_size=1, max_size=4)


@given(profiles, st.integers(1, 10), st.integers(1, 2000), st.one_of(st.none(), st.integers(1, 300)))
def test_no_answer_is_negative_or_beyond_a_probed_batch(
    measured: dict[int, dict[int, float | None]], gpus: int, batch: int, per_gpu_max: int | None
) -> None:
    rows = [step(k, local, found) for k, points in measured.items() for local, found in points.items()]
    model = throughput(*rows)
    answer = seconds(model, gpus, batch, per_gpu_max)
    if answer is None:
        return
    assert answer > 0
    limit = model.max_local_batch("net", "gpu")
    assert limit is not None
    plan = plan_batch(batch, gpus, min(limit, per_gpu_max or limit))
    assert plan.local <= max(row.local_batch for row in rows if row.feasible)
    assert all(plan.local < row.local_batch for row in rows if not row.feasible)


@given(profiles)
def test_measured_rows_are_reproduced_exactly(measured: dict[int, dict[int, float | None]]) -> None:
    rows = [step(k, local, found) for k, points in measured.items() for local, found in points.items()]
    model = throughput(*rows)
    limit = model.max_local_batch("net", "gpu") or 0
    for row in rows:
        if row.local_batch <= limit:
            assert seconds(model, row.gpus, row.gpus * row.local_batch) == row.step_seconds


@given(st.lists(times, min_size=2, max_size=5), st.sampled_from([1, 2]))
def test_time_grows_with_the_batch_where_the_measurements_do(found: list[float], gpus: int) -> None:
    assume(len(set(found)) == len(found))
    ordered = sorted(found)
    rows = [step(gpus, 8 * (index + 1), value) for index, value in enumerate(ordered)]
    model = throughput(*rows)
    answers = [seconds(model, gpus, gpus * local) for local in range(1, 8 * len(rows) + 1)]
    assert answers == sorted(answers, key=lambda value: value or 0.0)
