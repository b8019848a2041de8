"""Sizes of largest value: against a mixed-integer program, and close to it in large pools."""

from __future__ import annotations

import numpy as np
import pytest

from pliant.tools.schedule.policies.shadow_price.prices import exact_knapsack, knapsack_by_price


def test_the_sizes_are_those_of_a_mixed_integer_program():
    rng = np.random.default_rng(1)
    for _ in range(12):
        gpus, jobs = int(rng.integers(1, 13)), int(rng.integers(1, 7))
        values = _values(rng, jobs, gpus)
        sizes = exact_knapsack([*values], gpus)
        assert sum(sizes) <= gpus
        assert _total(values, sizes) == pytest.approx(_milp(values, gpus))


def test_of_equal_sizes_the_smaller_is_taken():
    assert exact_knapsack([np.array([0.0, 1.0, 1.0])], 2) == [1]


def test_a_job_keeps_its_gpus_where_leaving_costs_more_than_the_other_gains():
    waits, runs = np.array([0.0, 1.0]), np.array([-0.5, 0.8])
    assert exact_knapsack([waits, runs], 1) == [0, 1]


def test_one_price_of_a_gpu_comes_close_to_the_best_for_many_jobs():
    rng = np.random.default_rng(2)
    for _ in range(10):
        gpus, jobs = 96, 40
        values = _values(rng, jobs, gpus)
        sizes = knapsack_by_price(values, np.arange(gpus + 1), gpus)
        assert sizes.sum() <= gpus
        assert _total(values, sizes.tolist()) >= 0.98 * _total(values, exact_knapsack([*values], gpus))


def test_jobs_that_are_all_alike_fill_a_large_pool():
    values = np.tile(np.sqrt(np.arange(9.0)), (1000, 1))
    assert knapsack_by_price(values, np.arange(9), 512).sum() == 512


def _values(rng: np.random.Generator, jobs: int, gpus: int) -> np.ndarray:
    values = rng.uniform(0, 1, (jobs, 1)) * np.cumsum(rng.exponential(1, (jobs, gpus + 1)), axis=1) ** 0.7
    values[:, 0] = np.where(rng.random(jobs) < 0.3, -0.1, 0.0)
    values[:, 1:][rng.random((jobs, gpus)) < 0.2] = -np.inf
    return values


def _total(values: np.ndarray, sizes: list[int]) -> float:
    return float(sum(values[job, size] for job, size in enumerate(sizes)))


def _milp(values: np.ndarray, gpus: int) -> float:
    from scipy.optimize import LinearConstraint, milp

    jobs, columns = values.shape
    finite = np.where(np.isfinite(values), values, -1e6)
    one_each = np.kron(np.eye(jobs), np.ones(columns))
    capacity = np.tile(np.arange(columns), jobs)
    limits = [LinearConstraint(one_each, 1, 1), LinearConstraint(capacity, 0, gpus)]
    found = milp(-finite.ravel(), constraints=limits, integrality=np.ones(finite.size), bounds=(0, 1))
    return -float(found.fun)
