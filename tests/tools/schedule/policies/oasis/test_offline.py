"""The offline optimum: as much as all orders and schedules of tiny worlds give, never less than OASiS."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.parts.slot_schedules import broken_rules
from pliant.tools.schedule.policies.multi_resource.fleet import Bid, Servers
from pliant.tools.schedule.policies.oasis.market import Market
from pliant.tools.schedule.policies.oasis.offline import Layout, solve, variables
from pliant.tools.schedule.policies.oasis.prices import PriceBounds
from tests.tools.schedule.policies.oasis.worlds import bid_of, servers_of

ONE_PLACE = Servers(("cpu",), np.array([[1.0]]), np.zeros((0, 1)))


def job(name: str, arrival: int, work: int, worth: list[float]) -> Bid:
    return Bid(name, arrival, work, 1, np.ones(1), np.zeros(1), np.array(worth))


def by_all_orders(bids: list[Bid], slots: int) -> float:
    """One place: the best of all ways to give each slot to one job or to none."""
    best = 0.0
    for owners in product((None, *bids), repeat=slots):
        total = 0.0
        for bid in bids:
            mine = [slot for slot, owner in enumerate(owners) if owner is bid and slot >= bid.arrival]
            total += float(bid.worth[mine[-1]]) if len(mine) >= bid.work else 0.0
        best = max(best, total)
    return best


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_it_is_the_best_of_all_orders(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bids = [
        job(f"job-{n}", int(rng.integers(3)), int(rng.integers(1, 4)), sorted(rng.uniform(0, 9, 4))[::-1])
        for n in range(3)
    ]
    found = solve(bids, ONE_PLACE, 4)
    assert found.utility == pytest.approx(by_all_orders(bids, 4), rel=1e-3)
    assert found.gap <= 1e-3


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_its_plans_keep_all_rules_and_are_worth_no_less_than_those_of_oasis(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slots, servers = 5, servers_of(rng, 2, 2)
    bids = [bid_of(rng, f"job-{n}", slots, 8, 3) for n in range(5)]
    market = Market(servers, PriceBounds.of(bids, servers, slots), slots)
    offered = [(bid, market.offer(bid)[1]) for bid in sorted(bids, key=lambda bid: bid.arrival)]
    online = sum(float(bid.worth[plan.last]) for bid, plan in offered if plan is not None)
    found = solve(bids, servers, slots)
    planned = [(bid, plan) for bid, plan in zip(bids, found.plans, strict=True) if plan is not None]
    assert broken_rules(servers, planned, slots) == []
    assert found.utility >= online * (1 - 1e-3)


@pytest.mark.parametrize("seed", [51, 59, 197])
def test_it_finds_what_the_solver_misses_with_its_presolve_on(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slots, servers = 5, servers_of(rng, 2, 2)
    bids = [bid_of(rng, f"job-{n}", slots, 8, 3) for n in range(5)]
    market = Market(servers, PriceBounds.of(bids, servers, slots), slots)
    offered = [(bid, market.offer(bid)[1]) for bid in sorted(bids, key=lambda bid: bid.arrival)]
    online = sum(float(bid.worth[plan.last]) for bid, plan in offered if plan is not None)
    assert solve(bids, servers, slots).utility >= online * (1 - 1e-3) > 0


def test_units_do_not_matter() -> None:
    """A billionth of what there was, and of what jobs take, holds as many of them."""
    bids = [job(name, 0, 1, [1.0]) for name in "ab"]
    tiny = [replace(bid, worker=1e-9 * bid.worker) for bid in bids]
    assert solve(tiny, replace(ONE_PLACE, workers=1e-9 * ONE_PLACE.workers), 1).utility == 1


def test_it_knows_that_a_better_job_will_come() -> None:
    """The first job alone would be admitted; with the second to come the slot is kept for it."""
    bids = [job("early", 0, 1, [1.0, 0.0]), job("long", 0, 2, [3.0, 3.0]), job("late", 1, 1, [9.0, 9.0])]
    found = solve(bids, ONE_PLACE, 2)
    assert [plan is not None for plan in found.plans] == [True, False, True]
    assert found.utility == 10


def test_without_a_job_that_can_end_nothing_is_solved() -> None:
    found = solve([job("long", 0, 3, [1.0, 1.0])], ONE_PLACE, 2)
    assert (found.plans, found.utility, found.gap) == ((None,), 0.0, 0.0)


def test_of_two_bids_of_one_job_the_better_is_admitted() -> None:
    bids = [job("a", 0, 2, [3.0, 1.0]), job("a", 0, 1, [3.0, 1.0])]
    found = solve(bids, replace(ONE_PLACE, workers=np.array([[9.0]])), 2)
    assert [plan is not None for plan in found.plans] == [False, True]
    assert found.utility == 3


def test_what_is_used_is_not_given_away_again() -> None:
    used = np.array([1.0, 0.0, 0.0])[:, None, None], np.zeros((3, 0, 1))
    [plan] = solve([job("a", 0, 2, [5.0, 4.0, 3.0])], ONE_PLACE, 3, used=used).plans
    assert plan is not None
    assert plan.sizes().tolist() == [0, 1, 1]


def test_the_size_of_a_problem_is_known_before_it_is_built() -> None:
    bids = [
        job("a", 0, 1, [3.0, 1.0, 1.0]),
        replace(job("b", 1, 2, [3.0] * 3), least_workers=2, most_workers=2),
    ]
    assert variables(bids, ONE_PLACE, 3) == Layout.of(bids, ONE_PLACE, 3).count == 3 * 2 + 2 * 3
