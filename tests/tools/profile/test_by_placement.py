"""Step times by placement, measured and in between."""

from __future__ import annotations

import pytest

from pliant.schemas.errors import BadInputError
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.throughput_model import (
    StepTimes,
    ThroughputByPlacement,
    smallest_rotation,
    with_triangulations,
)


def row(ring: str, local: int, step_s: float, sync_s: float, *, counted: bool = False, **more) -> ProfileRow:
    """A measurement of a placement in its ring order; ``counted``: only nodes and GPUs are known."""
    shares = sorted(map(int, ring.split(",")), reverse=True)
    return ProfileRow(
        "train",
        more.get("model", "m"),
        more.get("gpu_type", "t4"),
        len(shares),
        sum(shares),
        ",".join(map(str, shares)),
        local,
        step_seconds=step_s,
        compute_seconds=step_s - sync_s,
        sync_seconds=sync_s,
        source="imported",
        node_order=None if counted else ring,
    )


def times(*rows: ProfileRow, **more) -> ThroughputByPlacement:
    return ThroughputByPlacement(Profile(rows), **more)


def test_rotations_of_a_placement_are_one():
    assert smallest_rotation((4, 1, 2)) == smallest_rotation((1, 2, 4)) == (1, 2, 4)
    assert smallest_rotation((4, 2, 1)) == (1, 4, 2)
    held = times(row("1,2,4", 8, 1.0, 0.5), row("1,4,2", 8, 3.0, 0.5))
    assert held.times("m", "t4", (4, 1, 2), 8) == StepTimes(1.0, 0.5)
    assert held.times("m", "t4", (4, 2, 1), 8) == StepTimes(3.0, 0.5)


def test_a_measured_placement_is_linear_between_its_local_batches_and_level_beyond():
    held = times(row("2", 8, 1.0, 0.2), row("2", 16, 3.0, 0.6))
    assert held.times("m", "t4", (2,), 10) == pytest.approx((1.5, 0.3))
    assert held.times("m", "t4", (2,), 4) == (1.0, 0.2)
    assert held.times("m", "t4", (2,), 99) == (3.0, 0.6)


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
def test_any_other_placement_lies_between_nodes_gpus_and_local_batches(counted: bool):
    alone = [row("1", batch, plane(1, 1, batch), 0.05) for batch in (8, 32)]
    held = times(*grid(counted=counted), *alone)
    found = held.times("m", "t4", (3, 2), 20)
    assert found == pytest.approx((plane(2, 5, 20), 0.05))
    assert held.times("m", "t4", (4, 4, 4, 4), 20) is None, "beyond what was measured nothing is known"


def test_placements_with_as_many_nodes_and_gpus_count_as_their_mean():
    rows = [row("1,3", 8, 1.0, 0.1), row("2,2", 8, 3.0, 0.3), *grid(counted=False)]
    held = times(*rows, row("1,3", 32, 5.0, 0.1))
    reference = times(*grid(counted=False), row("2,2", 8, 2.0, 0.2), row("2,2", 32, 5.0, 0.1))
    assert held.times("m", "t4", (1, 2), 20) == pytest.approx(reference.times("m", "t4", (1, 2), 20))
    assert held.times("m", "t4", (3, 1), 8) == (1.0, 0.1), "a measured one keeps its own"


def test_more_nodes_than_sixteen_count_as_sixteen():
    rings = [",".join(["1"] * nodes) for nodes in (1, 15, 16)] + [",".join(["4"] * n) for n in (1, 15, 16)]
    rows = [row(ring, local, float(ring.count(",") + 1), 0.1) for ring in rings for local in (8, 32)]
    assert times(*rows).times("m", "t4", (1,) * 20, 16) == pytest.approx((16.0, 0.1))


def test_accumulation_repeats_the_step_without_its_sync():
    assert StepTimes(1.0, 0.4).accumulated(1) == 1.0
    assert StepTimes(1.0, 0.4).accumulated(3) == pytest.approx(2.2)
    held = times(row("2", 8, 1.0, 0.4), row("2", 16, 1.8, 0.4))
    assert held.step_seconds("m", "t4", (2,), 64, None) == pytest.approx(1.8 + 1.4), "32 a GPU, 16 at a time"
    assert held.step_seconds("m", "t4", (2,), 64, 8) == pytest.approx(1.0 + 3 * 0.6)
    assert held.step_seconds("m", "t4", (2,), 1, None) is None, "a worker without a sample"


def test_limits_of_the_local_batch():
    held = times(row("1", 4, 1, 0), row("1", 16, 1, 0), most_local={"m": 8})
    assert (held.local_batches("m", "t4"), held.max_local_batch("m", "t4")) == ([4, 16], 8)
    assert times(row("1", 4, 1, 0), row("1", 16, 1, 0)).max_local_batch("m", "t4") == 16


def test_a_type_that_was_not_measured_is_as_fast_as_it_is_said_to_be():
    held = times(row("1", 8, 1.0, 0.2), speeds={"t4": 1.0, "v100": 2.0})
    assert held.times("m", "v100", (1,), 8) == (0.5, 0.1)
    with pytest.raises(BadInputError, match="'x' is not in the profile"):
        held.times("x", "t4", (1,), 8)
    with pytest.raises(BadInputError, match="no training rows"):
        times()


def test_triangulations_are_kept_in_the_metadata():
    profile = Profile(tuple(grid(counted=True)), (("tool", "x"),))
    kept = with_triangulations(profile)
    assert [key for key, _ in kept.metadata] == ["tool", "triangulation of m on t4"]
    held = ThroughputByPlacement(kept)
    held.load(["m", "unknown"], ["t4"])
    assert held.times("m", "t4", (3, 2), 20) == ThroughputByPlacement(profile).times("m", "t4", (3, 2), 20)


def test_points_on_one_plane_have_nothing_between_them():
    whole_nodes = ("4", "4,4", "4,4,4")
    held = times(
        *[row(placement, batch, 0.01 * batch, 0.0) for placement in whole_nodes for batch in (8, 16)]
    )
    found = held.times("m", "t4", (4, 4), 12)
    assert found is not None
    assert found.step_seconds == pytest.approx(0.12)
    assert held.times("m", "t4", (3, 2), 12) is None
