"""Prices against the least flow time, and the knapsack against a mixed-integer program."""

from types import SimpleNamespace

import numpy as np
import pytest

from pliant.tools.schedule.policies.shadow_price import completion_order
from pliant.tools.schedule.policies.shadow_price.prices import (
    ConcaveWorth,
    ExactWorth,
    PricedJob,
    Remembered,
    SlopeWorth,
    exact_knapsack,
    hull_slopes,
    knapsack_by_price,
    priced,
)
from pliant.tools.schedule.policies.shadow_price.sizes import chosen_sizes

K = 16
SIZES = np.arange(K + 1)
LINEAR = SIZES.astype(float)


@pytest.mark.parametrize("least", [1, 8, 32])
def test_gpus_that_are_all_worth_the_same_are_put_in_order(least: int):
    """To the last bit: a job that is linear, or cannot change its size, beside those that others have."""
    rng = np.random.default_rng(least)
    way = SlopeWorth(32, np.arange(33))
    worth, made = way.start(0.0), np.zeros(32)
    for price in rng.choice([0.0, 0.25, 0.5, 1.0, 2.0], 40).tolist():
        size = least if least == 32 else int(rng.integers(least, 33))
        rates = np.zeros(33)
        rates[least : size + 1] = np.arange(least, size + 1)
        worth = way.with_job(PricedJob.of(rates), price, worth)
        made = np.sort(np.concatenate((made, np.full(size, price))))[-32:]
        assert np.array_equal(worth, made)


def test_prices_by_hand_and_slopes_that_differ_by_rounding() -> None:
    # The first and the last are equal here, and one between them is not.
    sizes = np.array([0, 4, 10, 15, 16, 20, 21, 26])
    rates = np.array(
        [
            *(0.0, 7582.534176650492, 18956.335441626226, 28434.50316243934, 30330.136706601967),
            *(37912.67088325245, 39808.30442741508, 49286.4721482282),
        ]
    )
    slopes = hull_slopes(sizes, rates)
    assert slopes[0] == slopes[-1] != slopes.max()
    way = SlopeWorth(26, sizes)
    worth = way.with_job(PricedJob.of(rates), 0.75, way.start(0.0))
    assert np.array_equal(worth, np.sort(0.75 * slopes))
    # g(k) = k gives λ_m = m / K: all GPUs to one job after the other, so each waits for all before it. A
    # job of weight 3 is worth three times its turn.
    linear = [PricedJob.of(LINEAR)] * 6
    assert priced(linear, ExactWorth(K)) == pytest.approx([m / K for m in range(1, 7)])
    weighted = [PricedJob.of(LINEAR, weight) for weight in (1.0, 3.0)]
    for way in (ExactWorth(K), SlopeWorth(K, SIZES)):
        assert priced(weighted, way) == pytest.approx([1 / K, 4 / K])

    rates = np.sqrt(LINEAR)
    assert priced([PricedJob.of(rates)], ExactWorth(K)) == pytest.approx([1 / rates[K]])
    rates = np.where(LINEAR < 5, np.minimum(LINEAR, 3.0), 2.5)
    assert priced([PricedJob.of(rates)], ExactWorth(K)) == pytest.approx([1 / 3])


@pytest.mark.parametrize("power", [0.3, 0.5, 0.8])
def test_a_power_of_the_gpus_gives_the_ranks_of_hesrpt(power: float):
    """g(k) = k^p: of m jobs, the first to end gets 1 - ((m - 1) / m)^(1 / (1 - p)) of the GPUs.

    Berg, Vesilo and Harchol-Balter (2020). Shares go with λ^(1 / (1 - p)). GPUs come in whole numbers, so
    there are many of them.
    """
    gpus, jobs = 20_000, 5
    sizes = np.arange(gpus + 1)
    result = np.array(priced([PricedJob.of(sizes**power)] * jobs, SlopeWorth(gpus, sizes)))
    shares = result ** (1 / (1 - power))
    for m in range(1, jobs + 1):
        part = shares[m - 1] / shares[:m].sum()
        assert part == pytest.approx(1 - ((m - 1) / m) ** (1 / (1 - power)), rel=5e-3)


@pytest.mark.parametrize("rigid", [False, True])
def test_the_sizes_are_those_of_a_mixed_integer_program(rigid: bool):
    rng = np.random.default_rng(1)
    for _ in range(8):
        gpus, jobs = int(rng.integers(4, 13)), int(rng.integers(1, 7))
        values = _rigid(rng, jobs, gpus) if rigid else _values(rng, jobs, gpus)
        sizes = exact_knapsack([*values], gpus)
        assert sum(sizes) <= gpus
        assert _total(values, sizes) == pytest.approx(_milp(values, gpus))


def _rigid(rng: np.random.Generator, jobs: int, gpus: int) -> np.ndarray:
    """One size of one to four GPUs for each; some lose by getting nothing."""
    values = np.full((jobs, gpus + 1), -np.inf)
    values[:, 0] = np.where(rng.random(jobs) < 0.1, -0.5, 0.0)
    values[range(jobs), rng.choice([1, 1, 2, 4], size=jobs)] = rng.choice([0.5, 1.0, 1.5, 2.0, 4.0], jobs)
    return values


def test_the_outbid_get_nothing_and_ties_go_to_the_smaller_size() -> None:
    rng = np.random.default_rng(5)
    for _ in range(8):
        gpus, jobs = int(rng.integers(4, 13)), 40
        values, held = _rigid(rng, jobs, gpus), np.zeros(jobs, dtype=int)
        members = SimpleNamespace(pool=SimpleNamespace(gpus=gpus), held=held, sizes=np.arange(gpus + 1))
        assert chosen_sizes(members, values).tolist() == exact_knapsack([*values], gpus)
    # Of equal sizes the smaller is taken.
    assert exact_knapsack([np.array([0.0, 1.0, 1.0])], 2) == [1]

    waits, runs = np.array([0.0, 1.0]), np.array([-0.5, 0.8])
    assert exact_knapsack([waits, runs], 1) == [0, 1]

    values = np.tile(np.sqrt(np.arange(9.0)), (1000, 1))
    assert knapsack_by_price(values, np.arange(9), 512).sum() == 512
    # One price of a GPU is close to the best.
    rng = np.random.default_rng(2)
    for _ in range(10):
        gpus, jobs = 96, 40
        values = _values(rng, jobs, gpus)
        sizes = knapsack_by_price(values, np.arange(gpus + 1), gpus)
        assert sizes.sum() <= gpus
        assert _total(values, sizes.tolist()) >= 0.98 * _total(values, exact_knapsack([*values], gpus))


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
    result = milp(-finite.ravel(), constraints=limits, integrality=np.ones(finite.size), bounds=(0, 1))
    return -float(result.fun)


def test_concave_curves_are_ordered_and_close_calls_are_exact() -> None:
    rng = np.random.default_rng(23)
    for count in (16, 40):
        powers = (0.3, 0.6, 0.9, 1.0)
        curves = [PricedJob.of(LINEAR[: int(rng.integers(2, K + 2))] ** power) for power in powers]
        jobs = [curves[int(rng.integers(len(curves)))] for _ in range(count)]
        work, order = rng.lognormal(2.0, 1.0, count).tolist(), [*range(count)]
        options = {"future": 0.1, "sweeps": 10}
        exact = completion_order.improved(order, jobs, work, ExactWorth(K), **options)
        assert completion_order.improved(order, jobs, work, ConcaveWorth(K), error=1e-12, **options) == exact
        remembered = Remembered(ExactWorth(K), K), Remembered(ConcaveWorth(K), K)
        assert completion_order.improved_fast(order, jobs, work, *remembered, gpus=K, **options) == exact
    # A close call is decided by exact prices.
    jobs, order = [PricedJob.of(LINEAR), PricedJob.of(2 * LINEAR)], [0, 1]
    with pytest.raises(completion_order.CloseCallError):
        completion_order.improved(order, jobs, [1.0, 2.0], ConcaveWorth(K), error=1e-6)
    assert completion_order.improved(order, jobs, [1.0, 2.0], ExactWorth(K)) == order
