import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pliant.schemas.profile import Profile
from pliant.tools.profile.throughput import Throughput
from pliant.tools.profile.throughput_model import ThroughputByPlacement, ThroughputBySize
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import JobState, node_states
from pliant.tools.schedule.policies.elastic_dp.curves import ScalingCurves, allowed_batches
from pliant.tools.schedule.rates import Speeds
from tests.builders import cluster, curves, job
from tests.tools.profile.rows_builder import step

STEP_S: Mapping[int, float] = {8: 0.30, 16: 0.35, 32: 0.50, 64: 0.90}
"""Seconds of computing by local batch: small ones waste the GPU."""
SYNC_S = 0.1


def rows(*sizes: int) -> Profile:
    return Profile(
        tuple(step(k, n, s + SYNC_S * (k > 1), model="conv") for k in sizes for n, s in STEP_S.items())
    )


def measured(*sizes: int) -> ScalingCurves:
    return curves_of(ThroughputBySize(rows(*sizes)))


def curves_of(throughput: Throughput, gpus: int = 8) -> ScalingCurves:
    return ScalingCurves(Speeds(throughput, node_states(cluster(gpus))))


def state(
    known: ScalingCurves,
    least: int,
    most: int,
    size: int | None = None,
    per_gpu_max: int | None = None,
    **more: Any,
) -> JobState:
    batch = {"size": size or most, "min": least, "max": most, "per_gpu_max": per_gpu_max}
    return job_state(job(model="conv", elastic="size+batch", batch=batch, **more), known.speeds)


def by_hand(gpus: int, batch: int) -> float:
    local = -(-batch // gpus)
    compute = np.interp(local, list(STEP_S), list(STEP_S.values()))
    return batch / (compute + SYNC_S * (gpus > 1))


def test_no_other_batch_is_faster_on_any_size() -> None:
    known = measured(1, 2, 4, 8)
    each = state(known, 32, 256)
    curve = known.of(each, "gpu", allowed_batches(each))
    assert curve.batches.tolist() == [0, 64, 128, 192, 256, 255, 252, 252, 256], "whole shares, 64 at most"
    rates = [by_hand(gpus, int(curve.batches[gpus])) for gpus in range(1, 9)]
    assert curve.factors[1:] == pytest.approx([rate / by_hand(1, 64) for rate in rates])
    # Measured placements name their batches too.
    known = curves_of(ThroughputByPlacement(rows(1, 2, 4, 8)))
    each = state(known, 8, 500)
    curve = known.of(each, "gpu", allowed_batches(each))
    for gpus in (1, 2, 4, 8):
        best = max(by_hand(gpus, batch) for batch in range(8 * gpus, min(64 * gpus, 500) + 1))
        assert by_hand(gpus, int(curve.batches[gpus])) == pytest.approx(best)
    # Comparing all batches, where only a selection is tried.
    known = measured(1, 2, 4, 8)
    for low, high in ((20, 500), (8, 37), (100, 101), (64, 64), (300, 700)):
        each = state(known, low, high, per_gpu_max=60)
        curve = known.of(each, "gpu", allowed_batches(each))
        for gpus in range(1, 9):
            able = [b for b in range(max(low, gpus), high + 1) if -(-b // gpus) <= 60]
            best = max((by_hand(gpus, batch) for batch in able), default=0.0)
            if not best:
                assert curve is None or curve.factors[gpus] == -math.inf
                continue
            batch = int(curve.batches[gpus])
            assert batch in able
            assert by_hand(gpus, batch) == pytest.approx(best)


def test_which_sizes_are_feasible() -> None:
    known = measured(1, 2, 4, 8)
    for each, fewest in (
        (state(known, 64, 64), 1),
        (state(known, 65, 100), 2),
        (state(known, 129, 512), 3),
        (state(known, 129, 512, per_gpu_max=32), 5),
    ):
        assert known.of(each, "gpu", allowed_batches(each)).least == fewest
    each = state(known, 16, 512)
    assert known.of(each, "gpu", (256, 256)).least == 4, "a policy that leaves it one batch"
    # Sizes without a speed are infeasible.
    known = measured(1, 2)
    each = state(known, 32, 256)
    curve = known.of(each, "gpu", allowed_batches(each))
    assert (curve.factors[3:] == -math.inf).all()
    assert known.of(state(known, 32, 256, gpus=3, low=3), "gpu", (32, 256)) is None

    known = measured(2, 4)
    each = state(known, 32, 256)
    curve = known.of(each, "gpu", allowed_batches(each))
    assert curve.factors[2] == pytest.approx(2.0)


def test_a_job_may_keep_its_batch_and_alike_jobs_share_a_curve() -> None:
    known = measured(1, 2, 4, 8)
    spec = job(model="conv", low=1, high=8, batch={"size": 64, "min": 16, "max": 256})
    each = job_state(spec, known.speeds)
    assert allowed_batches(each) == (64, 64)
    curve = known.of(each, "gpu", allowed_batches(each))
    assert set(curve.batches[1:].tolist()) == {64}

    rigid = job_state(job(model="conv", gpus=2, batch=256), known.speeds)
    curve = known.of(rigid, "gpu", allowed_batches(rigid))
    assert np.flatnonzero(curve.factors > -math.inf).tolist() == [2]
    assert curve.batches[2] == 256

    known = curves_of(curves(conv={1: 1.0, 8: 7.0}))
    each = state(known, 8, 4096, size=96)
    curve = known.of(each, "gpu", allowed_batches(each))
    assert curve.batches[1:].tolist() == [96] * 8
    # Jobs that are alike share a curve.
    known = measured(1, 2, 4, 8)
    first, second = (state(known, 32, 256, job_id=name) for name in "ab")
    other = state(known, 32, 255)
    assert known.of(first, "gpu", (32, 256)) is known.of(second, "gpu", (32, 256))
    assert known.of(first, "gpu", (32, 256)) is not known.of(other, "gpu", (32, 255))
