"""The offline optimum: as much as all orders and schedules of tiny worlds give, never less than OASiS."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.parts.slot_schedules import broken_rules
from pliant.tools.schedule.policies.multi_resource.model import Bid, Servers
from pliant.tools.schedule.policies.oasis.market import Market
from pliant.tools.schedule.policies.oasis.offline import solve
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
    bids = [bid_of(rng, f"job-{n}", slots, 8, 1) for n in range(5)]
    market = Market(servers, PriceBounds.of(bids, servers, slots), slots)
    offered = [(bid, market.offer(bid)[1]) for bid in sorted(bids, key=lambda bid: bid.arrival)]
    online = sum(float(bid.worth[plan.last]) for bid, plan in offered if plan is not None)
    found = solve(bids, servers, slots)
    assert (
        broken_rules(servers, [(bid, found.plans[bid.id]) for bid in bids if bid.id in found.plans], slots)
        == []
    )
    assert found.utility >= online * (1 - 1e-3)


def test_it_knows_that_a_better_job_will_come() -> None:
    """The first job alone would be admitted; with the second to come the slot is kept for it."""
    bids = [job("early", 0, 1, [1.0, 0.0]), job("long", 0, 2, [3.0, 3.0]), job("late", 1, 1, [9.0, 9.0])]
    found = solve(bids, ONE_PLACE, 2)
    assert set(found.plans) == {"early", "late"}
    assert found.utility == 10


def test_without_a_job_that_can_end_nothing_is_solved() -> None:
    found = solve([job("long", 0, 3, [1.0, 1.0])], ONE_PLACE, 2)
    assert (found.plans, found.utility, found.gap) == ({}, 0.0, 0.0)
