"""Jobs of unknown demand: a pool of their own, shared equally."""

from __future__ import annotations

import pytest

from pliant.tools.schedule.policies.ares.policy import Ares
from pliant.tools.schedule.policies.ares.unknown_demand import apportion, equal_split, reserved_gpus
from tests.builders import cluster, decided, job, mixed_cluster, opened, sizes
from tests.tools.schedule.policies.started import joined, started


@pytest.mark.parametrize(
    ("pool", "gpus", "reserved"),
    [(0.1, 64, 7), (0.1, 30, 3), (0.01, 4, 1), (0.5, 0, 0), (4, 64, 4), (80, 64, 64)],
)
def test_the_pool_is_a_number_of_gpus_or_a_fraction_rounded_up(pool: float, gpus: int, reserved: int) -> None:
    assert reserved_gpus(pool, gpus) == reserved


@pytest.mark.parametrize(
    ("total", "weights", "parts"),
    [(7, [4, 4], [4, 3]), (5, [10, 20, 30], [1, 2, 2]), (3, [0, 5], [0, 3]), (4, [0], [0]), (0, [], [])],
)
def test_a_number_is_cut_in_proportion(total: int, weights: list[int], parts: list[int]) -> None:
    assert apportion(total, weights) == parts


@pytest.mark.parametrize(
    ("total", "limits", "split"),
    [
        pytest.param(7, [(1, 9)] * 3, [3, 2, 2], id="the first ones get the rest"),
        pytest.param(4, [(3, 3), (2, 2), (1, 9)], [3, 0, 1], id="who does not fit waits, one behind it runs"),
        pytest.param(2, [(1, 9)] * 3, [1, 1, 0], id="first come"),
        pytest.param(3, [], [], id="no jobs"),
    ],
)
def test_gpus_are_split_equally(total: int, limits: list[tuple[int, int]], split: list[int]) -> None:
    assert equal_split(total, limits) == split


def test_gpus_are_reserved_only_while_jobs_of_unknown_demand_run() -> None:
    held = started(Ares(pool=2), cluster(8), KNOWN)
    assert sizes(held) == {"known": 8}
    assert joined(held, 1, job("x", gpus=1, low=1)) == {"known": 6, "x": 2}
    assert joined(held, 2, job("y", gpus=4, low=1)) == {"known": 6, "x": 1, "y": 1}
    held.end("x", 3)
    held.end("y", 3)
    assert decided(held, 3) == {"known": 8}

    # Alone, x has the whole cluster; beside a job of known demand, y (the first to come) leaves it no room.
    held = started(Ares(pool=2), cluster(8), job("y", gpus=2), job("x", at=1, gpus=5))
    assert sizes(held) == {"x": 5, "y": 2}
    assert joined(held, 2, KNOWN.model_copy(update={"submit_time": 2.0})) == {"known": 6, "y": 2}


def test_the_pool_does_not_depend_on_the_other_jobs() -> None:
    held = opened(Ares(pool=2), cluster(8), job("x", gpus=1, low=1), job("y", gpus=1, low=1))
    for number in range(5):
        result = joined(held, number, job(f"j{number}", at=number, gpus=6, gpu_seconds=60 - number))
        assert {i: n for i, n in result.items() if i in "xy"} == {"x": 1, "y": 1}


KNOWN = job("known", gpus=8, low=1, gpu_seconds=800)


@pytest.mark.parametrize(
    ("pool", "jobs", "expected"),
    [
        pytest.param(4, [job("x"), KNOWN], {"known": 7, "x": 1}, id="what the pool cannot use goes on"),
        pytest.param(1, [job(n, low=1) for n in "xyz"], {"x": 3, "y": 3, "z": 2}, id="alone it is all GPUs"),
        pytest.param(4, [job("x", gpus=2, low=1, batch=3)], {"x": 3}, id="infeasible sizes are passed over"),
    ],
)
def test_the_pool_shares_all_that_it_can_use(pool, jobs, expected) -> None:
    assert decided(opened(Ares(pool=pool), cluster(4, 4), *jobs), 0) == expected


def test_a_job_larger_than_the_pool_widens_it_for_the_first() -> None:
    held = started(Ares(pool=1), cluster(8), KNOWN, job("x", gpus=3), job("y", gpus=3))
    assert sizes(held) == {"known": 5, "x": 3}
    assert held.explain(0)["y"].reason == "unknown demand: needs 3 GPUs, the pool has too few left"
    held.end("x", 1)
    assert decided(held, 1) == {"known": 5, "y": 3}


def test_on_mixed_types_each_type_gives_its_part() -> None:
    jobs = job("known", low=1, gpu_seconds=800), *(job(name, low=1) for name in "xyz")
    held = started(Ares(pool=6), mixed_cluster(one=(8,), two=(4,)), *jobs)
    assert [(held.jobs[n].gpus, held.jobs[n].gpu_type) for n in "xyz"] == [(2, "one"), (2, "one"), (2, "two")]
    held.end("x", 1)
    held.decide(1)
    assert [(held.jobs[n].gpus, held.jobs[n].gpu_type) for n in "yz"] == [(4, "one"), (2, "two")]
