"""What is left of jobs, as ONES draws it from their progress."""

from __future__ import annotations

import numpy as np
import pytest

from pliant.tools.schedule.work_ahead import WorkAhead, known_work

NAN = float("nan")
AHEAD = WorkAhead(
    exact=np.array([NAN, 70.0, NAN]),
    reached=np.array([100.0, 1.0, 50.0]),
    before=np.array([0.0, 0.0, 20.0]),
    alpha=np.array([1.0, 1.0, 2.0]) * 1e12,
    beta=np.array([3.0, 1.0, 2.0]) * 1e12,
)
"""The first is at a quarter: three times what it has done is left. The last is to be at a half after an epoch
of 50 samples, of which 20 are to come. So sure, every draw is the mean."""
LEFT = [300.0, 70.0, 70.0]


def test_what_is_left_follows_from_what_is_done_and_the_progress() -> None:
    assert AHEAD.expected() == pytest.approx(LEFT)
    drawn = AHEAD.draws(np.random.default_rng(0), 4)
    assert drawn.shape == (4, 3)
    assert drawn == pytest.approx(np.array([LEFT] * 4), rel=1e-4)


def test_a_part_of_the_jobs_has_what_is_left_of_these() -> None:
    assert AHEAD.only([2, 0]).expected() == pytest.approx([LEFT[2], LEFT[0]])


def test_known_work_is_drawn_as_it_is_and_takes_no_random_number() -> None:
    rng = np.random.default_rng(0)
    assert known_work([5.0, 6.0]).draws(rng, 2).tolist() == [[5.0, 6.0]] * 2
    assert rng.random() == np.random.default_rng(0).random()
    assert known_work([5.0]).expected().tolist() == [5.0]


def test_the_draws_of_a_job_with_hardly_any_progress_are_finite() -> None:
    unsure = WorkAhead(*(np.array([value]) for value in (NAN, 10.0, 0.0, 1e-9, 1.0)))
    assert unsure.draws(np.random.default_rng(0), 3).max() == pytest.approx(10.0 * (1000 - 1))
