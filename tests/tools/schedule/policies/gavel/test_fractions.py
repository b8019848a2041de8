"""Fractions of time: optimal, and max-min fair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from pliant.tools.schedule.policies.common import Stake
from pliant.tools.schedule.policies.gavel import Kind, best_rate, gain, least_ratio, max_min

GAINS = st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.0, 8.0])
"""Far enough apart that no job can trade a rounding error of another for much."""


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Kind], list[int]]:
    """Up to five jobs, some alike, on one to three GPU types; every job runs on some type."""
    capacity = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    kinds = [
        Kind(tuple(draw(st.tuples(*(GAINS for _ in capacity)))), draw(st.integers(1, 4)))
        for _ in range(draw(st.integers(1, 5)))
    ]
    return [kind for kind in kinds if best_rate(kind, capacity) > 0], capacity


def limits(jobs: Sequence[Kind], capacity: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Dense rows over fractions[job][type]: at most all of the time, at most all GPUs."""
    time_rows = np.kron(np.eye(len(jobs)), np.ones(len(capacity)))
    gpu_rows = np.kron([job.gpus for job in jobs], np.eye(len(capacity)))
    return np.vstack([time_rows, gpu_rows]), np.concatenate([np.ones(len(jobs)), capacity])


def gains_matrix(jobs: Sequence[Kind], capacity: Sequence[int]) -> np.ndarray:
    """Rows of what each job gains, over the same variables; a type that is too small is worth nothing."""
    rows = np.zeros((len(jobs), len(jobs) * len(capacity)))
    for row, job in enumerate(jobs):
        for index, gpus in enumerate(capacity):
            if job.gpus <= gpus:
                rows[row, row * len(capacity) + index] = job.gains[index]
    return rows


def best_vertex(jobs: Sequence[Kind], capacity: Sequence[int]) -> float:
    """The largest least gain, by trying every vertex of the polytope of fractions and level."""
    rows, most = limits(jobs, capacity)
    level = np.hstack([-gains_matrix(jobs, capacity), np.ones((len(jobs), 1))])
    within = np.hstack([rows, np.zeros((len(rows), 1))])
    positive = -np.eye(rows.shape[1] + 1)
    matrix = np.vstack([level, within, positive])
    bounds = np.concatenate([np.zeros(len(jobs)), most, np.zeros(rows.shape[1] + 1)])
    chosen = np.array(list(combinations(range(len(matrix)), matrix.shape[1])))
    square = matrix[chosen]
    regular = np.abs(np.linalg.det(square)) > 1e-9
    points = np.linalg.solve(square[regular], bounds[chosen[regular]][..., np.newaxis])[..., 0]
    feasible = (points @ matrix.T <= bounds + 1e-7).all(axis=1)
    return float(points[feasible, -1].max())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(GAINS, GAINS, st.integers(1, 2)), min_size=2, max_size=3))
def test_the_least_gain_is_that_of_the_best_vertex(rows: list[tuple[float, float, int]]):
    capacity = [2, 3]
    jobs = [Kind((first, second), gpus) for first, second, gpus in rows if first + second]
    if jobs:
        found = max_min(Counter(jobs), capacity)
        least = min(gain(job, found[job]) for job in jobs)
        assert least == pytest.approx(best_vertex(jobs, capacity), rel=1e-5)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_no_job_can_gain_more_unless_one_that_gains_no_more_loses(problem: tuple[list[Kind], list[int]]):
    jobs, capacity = problem
    found = max_min(Counter(jobs), capacity)
    got = np.array([gain(job, found[job]) for job in jobs])
    rows, most = limits(jobs, capacity)
    worth = gains_matrix(jobs, capacity)
    for index in range(len(jobs)):
        kept = [other for other in range(len(jobs)) if other != index and got[other] <= got[index] + 1e-6]
        better = linprog(
            -worth[index],
            A_ub=np.vstack([rows, -worth[kept]]),
            b_ub=np.concatenate([most, -got[kept] * (1 - 2e-6)]),
        )
        assert -better.fun <= got[index] * (1 + 1e-3)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_fractions_fit_the_time_and_the_gpus(problem: tuple[list[Kind], list[int]]):
    jobs, capacity = problem
    found = max_min(Counter(jobs), capacity)
    rows, most = limits(jobs, capacity)
    parts = np.concatenate([found[job] for job in jobs]) if jobs else np.zeros(0)
    assert (parts >= 0).all()
    if jobs:
        assert (rows @ parts <= most * (1 + 1e-6)).all()


def test_each_job_goes_where_it_gains_most():
    picky, even = Kind((4.0, 1.0), 1), Kind((1.0, 1.0), 1)
    found = max_min({picky: 1, even: 1}, [1, 1])
    assert found[picky] == pytest.approx((1.0, 0.0), abs=1e-5)
    assert found[even] == pytest.approx((0.0, 1.0), abs=1e-5)


def test_what_a_held_back_job_leaves_raises_the_others():
    slow, fast = Kind((1.0,), 1), Kind((8.0,), 1)
    assert max_min({slow: 1, fast: 3}, [2]) == {slow: (1.0,), fast: (pytest.approx(1 / 3, abs=1e-4),)}


def test_a_job_that_fits_no_type_gets_nothing():
    wide, thin = Kind((1.0, 1.0), 4), Kind((1.0, 1.0), 1)
    assert max_min({wide: 1, thin: 1}, [2, 3])[wide] == (0.0, 0.0)


@st.composite
def rivals(draw: st.DrawFn) -> tuple[dict[str, tuple[Kind, Stake]], list[int]]:
    """Jobs that have waited and run for some time."""
    jobs, capacity = draw(problems())
    seconds = st.floats(0.0, 1e4)
    stakes = [Stake(draw(seconds), draw(st.floats(1.0, 1e4)), draw(st.floats(10.0, 1e4))) for _ in jobs]
    return {str(index): each for index, each in enumerate(zip(jobs, stakes, strict=True))}, capacity


@settings(max_examples=40, deadline=None)
@given(rivals())
def test_the_largest_ratio_is_as_small_as_it_can_be(rival: tuple[dict[str, tuple[Kind, Stake]], list[int]]):
    members, capacity = rival
    if not members:
        return
    found = least_ratio(members, capacity)
    worst = max(stake.rho(gain(kind, found[each])) for each, (kind, stake) in members.items())
    assert not _possible(0.99 * worst, members, capacity)


def _possible(ratio: float, members: dict[str, tuple[Kind, Stake]], capacity: Sequence[int]) -> bool:
    """Whether all jobs can end within a ratio, by a program of the throughputs that it takes."""
    jobs = [kind for kind, _ in members.values()]
    left = np.array([ratio * stake.isolated_s - stake.elapsed_s for _, stake in members.values()])
    if (left <= 0).any():
        return False
    needed = np.array([stake.remaining_samples for _, stake in members.values()]) / left
    rows, most = limits(jobs, capacity)
    worth = gains_matrix(jobs, capacity)
    found = linprog(
        np.zeros(rows.shape[1]), A_ub=np.vstack([rows, -worth]), b_ub=np.concatenate([most, -needed])
    )
    return found.status == 0
