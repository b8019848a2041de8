"""The seven parameters of Pollux's throughput model, and finding them again from what a job measured."""

from __future__ import annotations

import numpy as np
import pytest

from pliant.tools.schedule.jobs import Observation
from pliant.tools.schedule.policies.pollux.goodput import Fit, fit

TRUE = Fit(alpha_c=0.05, beta_c=0.001, alpha_n=0.04, beta_n=0.002, alpha_r=0.02, beta_r=0.001, gamma=2.0)
PLACES = ((1,), (2,), (3,), (4,), (1, 1), (2, 2), (4, 4), (4, 4, 4))


def seconds(model: Fit, place: tuple[int, ...], local: int, accum: int = 1) -> float:
    several, gpus = np.array(len(place) > 1), np.array(sum(place))
    return float(model.step_seconds(several, gpus, np.array(local), np.array(accum)))


def measured(model: Fit, place: tuple[int, ...], local: int, accum: int = 1) -> Observation:
    step_s = seconds(model, place, local, accum)
    return Observation(place, local, accum, step_s, step_s - accum * (model.alpha_c + model.beta_c * local))


def test_one_gpu_computes_and_does_not_synchronise():
    assert seconds(TRUE, (1,), 50) == pytest.approx(0.1)


def test_without_overlap_computing_and_synchronising_add_up():
    plain = TRUE._replace(gamma=1.0)
    assert seconds(plain, (2,), 50) == pytest.approx(0.1 + 0.02)
    assert seconds(plain, (4,), 50) == pytest.approx(0.1 + 0.02 + 2 * 0.001)
    assert seconds(plain, (2, 2), 50) == pytest.approx(0.1 + 0.04 + 2 * 0.002)


def test_overlap_hides_a_part_of_the_shorter_one():
    assert seconds(TRUE, (2,), 50) == pytest.approx((0.1**2 + 0.02**2) ** 0.5)


def test_only_the_last_micro_step_synchronises():
    assert seconds(TRUE, (2,), 50, accum=3) == pytest.approx(2 * 0.1 + (0.1**2 + 0.02**2) ** 0.5)


def test_a_fit_recovers_the_times_it_was_made_from():
    found = fit([measured(TRUE, place, local) for place in PLACES for local in (16, 64, 256)])
    for place in (*PLACES, (4, 4, 4, 4)):
        for local in (16, 100, 256):
            assert seconds(found, place, local) == pytest.approx(seconds(TRUE, place, local), rel=0.02)
    assert found.alpha_c == pytest.approx(TRUE.alpha_c, rel=0.02)
    assert found.beta_c == pytest.approx(TRUE.beta_c, rel=0.02)


def test_steps_with_accumulation_tell_as_much():
    found = fit([measured(TRUE, place, local, accum=3) for place in PLACES for local in (16, 64, 256)])
    assert seconds(found, (4, 4), 64) == pytest.approx(seconds(TRUE, (4, 4), 64), rel=0.02)


def test_after_one_gpu_more_gpus_are_taken_to_cost_nothing():
    found = fit([measured(TRUE, (1,), 16), measured(TRUE, (1,), 64)])
    assert seconds(found, (4, 4), 64) == pytest.approx(seconds(TRUE, (1,), 64), rel=0.01)


def test_from_one_batch_half_of_computing_is_taken_to_be_constant():
    found = fit([measured(TRUE, (1,), 50)])
    assert found.alpha_c == pytest.approx(0.05, rel=0.01)
    assert found.beta_c * 50 == pytest.approx(0.05, rel=0.01)


def test_across_nodes_is_taken_to_be_a_little_worse_until_it_is_measured():
    found = fit([measured(TRUE, (gpus,), local) for gpus in (1, 2, 4) for local in (16, 64)])
    assert found.alpha_n == pytest.approx(1.1 * found.alpha_r)
    assert seconds(found, (2, 2), 16) > seconds(found, (4,), 16)


def test_times_that_are_not_told_apart_can_be_fitted_too():
    whole = [measured(TRUE, place, 64)._replace(sync_seconds=None) for place in PLACES]
    found = fit([measured(TRUE, (1,), 16), *whole])
    assert seconds(found, (4, 4), 64) == pytest.approx(seconds(TRUE, (4, 4), 64), rel=0.1)


def test_the_order_of_equal_calls_does_not_matter_and_nothing_is_kept():
    told = [measured(TRUE, place, 64) for place in PLACES]
    first = fit(told)
    fit(told[:3])
    assert fit(told) == first


def test_nothing_to_fit_is_said():
    with pytest.raises(ValueError, match="no observations"):
        fit([])
