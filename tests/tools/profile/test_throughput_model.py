from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import LinearNDInterpolator

from pliant.schemas.errors import BadInputError
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.predict import holdout_errors
from pliant.tools.profile.throughput import CurveThroughput, local_limit, plan_batch
from pliant.tools.profile.throughput_model import (
    StepTimes,
    ThroughputByPlacement,
    ThroughputBySize,
    smallest_rotation,
)
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
        pytest.param((*ONE_GPU, step(1, 24, None)), 1, 32, 2 * 0.14, id="a misfit is not used"),
        pytest.param((step(1, 8, None),), 1, 8, None, id="nothing fits"),
        pytest.param((*ONE_GPU, step(2, 32, 0.35)), 2, 192, 2 * 0.3 + 0.35, id="one synchronisation a step"),
        pytest.param((*ONE_GPU, step(2, 16, 0.34, accum=2)), 2, 32, 0.2, id="the last micro-step"),
        pytest.param((*ONE_GPU, step(2, 16, 0.24)), 2, 64, 0.3 + 0.1, id="overhead of the next batch above"),
        pytest.param((*ONE_GPU, step(2, 16, 0.24)), 2, 16, 0.1 + 0.1, id="overhead of the next batch below"),
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
def test_the_formula_worked_by_hand(rows, gpus, batch, expected):
    found = seconds(throughput(*rows), gpus, batch)
    assert found == (expected if expected is None else pytest.approx(expected))


def test_rows_of_one_measurement_and_placement_count_first() -> None:
    rows = (step(2, 16, 0.2), step("1,1", 16, 0.4), step(2, 16, 0.3), step(2, 16, 9.0, source="modelled"))
    model = throughput(*ONE_GPU, step(1, 16, 0.16), *rows)
    assert seconds(model, 2, 32) == pytest.approx(0.25), "two measurements; the modelled one is none"
    assert seconds(model, (1, 1), 32) == 0.4
    assert seconds(model, 1, 16) == pytest.approx(0.15)
    assert model.source("net", "gpu", (2,), 32, None) == "measured"
    errors = holdout_errors(Profile((*ONE_GPU, step(2, 16, 0.2), step(2, 16, 0.3), step(2, 32, 0.35))))
    assert [error.predicted_s for error in errors[:2]] == [errors[0].predicted_s] * 2
    assert errors[0].predicted_s not in (0.2, 0.3), "the other measurement was not seen either"
    # The same placement wins over the same size.
    model = throughput(*ONE_GPU, step(4, 8, 0.12), step("2,2", 8, 0.2))
    assert seconds(model, (4,), 32) == 0.12
    assert seconds(model, (2, 2), 32) == 0.2
    assert seconds(model, (3, 1), 32) == 0.2
    assert model.source("net", "gpu", (3, 1), 32, None) == "modelled"
    # An answer is measured where a row of that type and placement says it.
    model = throughput(*ONE_GPU, step(2, 16, 0.21), step(1, 64, 0.1, source="modelled"))
    assert seconds(model, 2, 32) == 0.21
    assert seconds(model, 1, 64) == 0.1
    asked = [("gpu", 2, 32), ("gpu", 1, 24), ("gpu", 1, 64), ("new", 1, 16)]
    found = [model.source("net", kind, (gpus,), batch, None) for kind, gpus, batch in asked]
    assert found == ["measured", "modelled", "modelled", "modelled"]


def test_limits_of_batches_and_types_that_were_not_measured() -> None:
    assert throughput(*ONE_GPU).max_local_batch("net", "gpu") == 32
    assert throughput(*ONE_GPU, step(1, 24, None)).max_local_batch("net", "gpu") == 16
    misfit = throughput(step(1, 8, None))
    assert (misfit.max_local_batch("net", "gpu"), local_limit(misfit, "net", "gpu", 4)) == (0, 0)
    assert [local_limit(CurveThroughput(), "net", "gpu", own) for own in (None, 4)] == [None, 4]
    assert local_limit(throughput(step(1, 8, 0.5)), "net", "gpu", 4) == 4
    # A job may state a smaller limit than the profile.
    model = throughput(*ONE_GPU, step(2, 16, 0.2))
    assert seconds(model, 2, 64, per_gpu_max=16) == pytest.approx(0.14 + 0.2)
    accumulated = throughput(*ONE_GPU, step(2, 16, 0.34, accum=2))
    assert seconds(accumulated, 2, 64, per_gpu_max=16) == 0.34
    assert seconds(accumulated, 2, 96, per_gpu_max=16) == pytest.approx(0.14 + 0.14 + 0.2)
    # Unmeasured types and models.
    model = throughput(*ONE_GPU, gpu=1.0, fast=2.0)
    assert model.step_seconds("net", "fast", (1,), 16, None) == pytest.approx(0.07)
    assert model.step_seconds("net", "other", (1,), 16, None) == pytest.approx(0.14)
    # An unmeasured type follows the type with most rows.
    model = throughput(*ONE_GPU, step(1, 8, 0.5, gpu_type="slow"), gpu=2.0, new=1.0)
    assert model.step_seconds("net", "new", (1,), 8, None) == pytest.approx(0.2)
    # What a profile does not hold is bad input.
    with pytest.raises(
        BadInputError, match=r"'vgg' is not in the profile \(it has: net\); measure it with `pliant profile`"
    ):
        throughput(*ONE_GPU).step_seconds("vgg", "gpu", (1,), 8, None)
    # A profile without training rows knows nothing.
    with pytest.raises(BadInputError, match="the profile: has no training rows"):
        ThroughputBySize(Profile((reduce(2, 10, 0.1),)))
    with pytest.raises(BadInputError, match=r"^p\.parquet: has no training rows"):
        ThroughputBySize(Profile((reduce(2, 10, 0.1),), source="p.parquet"))


times = st.floats(1e-4, 10.0)
local_batches = st.dictionaries(st.integers(1, 256), st.one_of(st.none(), times), min_size=1, max_size=5)
profiles = st.dictionaries(st.sampled_from([1, 2, 3, 4, 8]), local_batches, min_size=1, max_size=4)


@given(profiles, st.integers(1, 10), st.integers(1, 2000), st.one_of(st.none(), st.integers(1, 300)))
def test_rows_are_reproduced_and_no_answer_is_beyond_them(measured, gpus, batch, per_gpu_max):
    rows = [step(k, local, found) for k, points in measured.items() for local, found in points.items()]
    model = throughput(*rows)
    limit = model.max_local_batch("net", "gpu") or 0
    for row in rows:
        if row.local_batch <= limit:
            assert seconds(model, row.gpus, row.gpus * row.local_batch) == row.step_seconds
    answer = seconds(model, gpus, batch, per_gpu_max)
    if answer is None:
        return
    assert answer > 0
    plan = plan_batch(batch, gpus, min(limit, per_gpu_max or limit))
    assert plan.local <= max(row.local_batch for row in rows if row.feasible)
    assert all(plan.local < row.local_batch for row in rows if not row.feasible)


def row(ring: str, local: int, step_s: float, sync_s: float, *, counted: bool = False) -> ProfileRow:
    """A measurement of a placement in its ring order; ``counted``: only nodes and GPUs are known."""
    placement = ",".join(sorted(ring.split(","), key=int, reverse=True))
    times = {"compute_seconds": step_s - sync_s, "sync_seconds": sync_s}
    measured = step(placement, local, step_s, model="m", gpu_type="t4", source="imported")
    return replace(measured, node_order=None if counted else ring, **times)


def by_placement(*rows: ProfileRow, **more) -> ThroughputByPlacement:
    return ThroughputByPlacement(Profile(rows), **more)


def test_a_placement_is_linear_between_its_local_batches() -> None:
    held = by_placement(row("2", 8, 1.0, 0.2), row("2", 16, 3.0, 0.6))
    assert held.times("m", "t4", (2,), 10) == pytest.approx((1.5, 0.3))
    assert held.times("m", "t4", (2,), 4) == (1.0, 0.2)
    assert held.times("m", "t4", (2,), 99) == (3.0, 0.6)
    # Rotations of a placement are one.
    assert smallest_rotation((4, 1, 2)) == smallest_rotation((1, 2, 4)) == (1, 2, 4)
    assert smallest_rotation((4, 2, 1)) == (1, 4, 2)
    held = by_placement(row("1,2,4", 8, 1.0, 0.5), row("1,4,2", 8, 3.0, 0.5))
    assert held.times("m", "t4", (4, 1, 2), 8) == StepTimes(1.0, 0.5)
    assert held.times("m", "t4", (4, 2, 1), 8) == StepTimes(3.0, 0.5)
    # Limits of the local batch.
    held = by_placement(row("1", 4, 1, 0), row("1", 16, 1, 0), most_local={"m": 8})
    assert (held.local_batches("m", "t4"), held.max_local_batch("m", "t4")) == ([4, 16], 8)
    assert by_placement(row("1", 4, 1, 0), row("1", 16, 1, 0)).max_local_batch("m", "t4") == 16
    # More nodes than sixteen count as sixteen.
    rings = [",".join(["1"] * nodes) for nodes in (1, 15, 16)] + [",".join(["4"] * n) for n in (1, 15, 16)]
    rows = [row(ring, local, float(ring.count(",") + 1), 0.1) for ring in rings for local in (8, 32)]
    assert by_placement(*rows).times("m", "t4", (1,) * 20, 16) == pytest.approx((16.0, 0.1))


def plane(nodes: int, gpus: int, local: int) -> float:
    return 0.1 * nodes + 0.01 * gpus + 0.001 * local


def grid(*, counted: bool) -> list[ProfileRow]:
    rings = {"1": (1, 1), "4": (1, 4), "1,1": (2, 2), "4,4": (2, 8), "1,1,1": (3, 3), "4,4,4": (3, 12)}
    return [
        row(ring, local, plane(*shape, local), 0.05, counted=counted)
        for ring, shape in rings.items()
        for local in (8, 32)
    ]


@pytest.mark.parametrize("counted", [False, True])
def test_other_placements_lie_between_measured_ones(counted: bool):
    alone = [row("1", batch, plane(1, 1, batch), 0.05) for batch in (8, 32)]
    held = by_placement(*grid(counted=counted), *alone)
    found = held.times("m", "t4", (3, 2), 20)
    assert found == pytest.approx((plane(2, 5, 20), 0.05))
    assert held.times("m", "t4", (4, 4, 4, 4), 20) is None, "beyond what was measured nothing is known"


def test_placements_accumulation_and_types_not_measured() -> None:
    rows = [row("1,3", 8, 1.0, 0.1), row("2,2", 8, 3.0, 0.3), *grid(counted=False)]
    held = by_placement(*rows, row("1,3", 32, 5.0, 0.1))
    reference = by_placement(*grid(counted=False), row("2,2", 8, 2.0, 0.2), row("2,2", 32, 5.0, 0.1))
    assert held.times("m", "t4", (1, 2), 20) == pytest.approx(reference.times("m", "t4", (1, 2), 20))
    assert held.times("m", "t4", (3, 1), 8) == (1.0, 0.1), "a measured one keeps its own"
    # Accumulation repeats the step without its sync.
    assert StepTimes(1.0, 0.4).accumulated(1) == 1.0
    assert StepTimes(1.0, 0.4).accumulated(3) == pytest.approx(2.2)
    held = by_placement(row("2", 8, 1.0, 0.4), row("2", 16, 1.8, 0.4))
    assert held.step_seconds("m", "t4", (2,), 64, None) == pytest.approx(1.8 + 1.4), "32 a GPU, 16 at a time"
    assert held.step_seconds("m", "t4", (2,), 64, 8) == pytest.approx(1.0 + 3 * 0.6)
    assert held.step_seconds("m", "t4", (2,), 1, None) is None, "a worker without a sample"
    assert held.step_seconds("m", "t4", (2,), 2, None) == 1.0
    # A type that was not measured has its stated speed.
    held = by_placement(row("1", 8, 1.0, 0.2), speeds={"t4": 1.0, "v100": 2.0})
    assert held.times("m", "v100", (1,), 8) == (0.5, 0.1)
    with pytest.raises(BadInputError, match="'x' is not in the profile"):
        held.times("x", "t4", (1,), 8)
    with pytest.raises(BadInputError, match="no training rows"):
        by_placement()


def test_times_lie_between_scattered_points_as_in_scipy() -> None:
    """On a grid with uneven gaps, where many points lie on one sphere."""
    points = [(x, y, z) for x in (1, 2, 4) for y in (4, 5, 6, 11) for z in (8, 11, 16, 32)]
    values = [(x * y + z**0.5, float((7 * x + 3 * y * y + 11 * z) % 13)) for x, y, z in points]
    rows = [
        replace(row("1", z, *value), node_order=None, nodes=x, gpus=y, source="imported")
        for (x, y, z), value in zip(points, values, strict=True)
    ]
    held = by_placement(*rows)
    held.load(["m", "unknown"], ["t4"])
    reference = LinearNDInterpolator(np.array(points, float), np.array(values))
    rng = np.random.default_rng(1)
    for nodes, more, local in rng.integers([1, 3, 8], [5, 9, 33], (300, 3)).tolist():
        found = held.times("m", "t4", (more,) + (1,) * (nodes - 1), local)
        expected = reference([nodes, more + nodes - 1, local])[0]
        assert found is None if np.isnan(expected[0]) else found == pytest.approx(expected, rel=1e-12)
    # Points on one plane have nothing between them; far from axes Qhull says so.
    flat = [replace(each, gpus=each.nodes + each.local_batch) for each in rows]
    assert by_placement(*flat).times("m", "t4", (9, 1), 9) is None


def test_a_plane_has_nothing_between_its_points() -> None:
    nodes = ("4", "4,4", "4,4,4")
    held = by_placement(
        *[row(placement, batch, 0.01 * batch, 0.0) for placement in nodes for batch in (8, 16)]
    )
    found = held.times("m", "t4", (4, 4), 12)
    assert found is not None
    assert found.step_seconds == pytest.approx(0.12)
    assert held.times("m", "t4", (3, 2), 12) is None
