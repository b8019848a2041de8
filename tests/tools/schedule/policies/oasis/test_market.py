"""The market of OASiS: prices, admission, commitments, and what a rejected job would have needed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.parts.slot_schedules import broken_rules
from pliant.tools.schedule.policies.multi_resource.fleet import Bid, Servers, SlotPlan, sigmoid_worth
from pliant.tools.schedule.policies.oasis.market import Market
from pliant.tools.schedule.policies.oasis.prices import Bound, PriceBounds
from tests.tools.schedule.policies.oasis.worlds import bid_of, servers_of

ONE = Servers(("cpu", "memory"), np.array([[4.0, 8.0]]), np.zeros((0, 2)))


def job(name: str, work: int, value: float = 10.0, decay: float = 0.0, target: float = 2.0) -> Bid:
    """Four workers at most, of one CPU and one GB each, no PS, in four slots."""
    worth = sigmoid_worth(value, decay, target, 0, 4)
    return Bid(name, 0, work, 4, np.array([1.0, 1.0]), np.zeros(2), worth)


def test_prices_begin_at_the_least_and_end_at_the_largest_worth_of_a_unit() -> None:
    """Two jobs of 8 and 2 worker-slots that are worth 5 and 20 whenever they end, in 4 slots of 4 + 8 units.

    1/η is min(8·2, 2·2) / (4·12) = 1/12; the worth of a unit is 5/16 and 20/4; L = 5/16/4·1/12.
    """
    jobs = [job("slow", 8, 10.0), job("quick", 2, 40.0)]
    bounds = PriceBounds.of(jobs, ONE, 4)
    least = 5 / 16 / 4 / 12
    assert np.exp(bounds.workers.log_least) == pytest.approx(least)
    assert np.exp(bounds.workers.log_most) == pytest.approx([20.0, 20.0])
    assert bounds.competitive_ratio == pytest.approx(2 * np.log(20 / least))
    market = Market(ONE, bounds, 4)
    assert market.workers.prices[0, 0] == pytest.approx([least, least])
    market.commit(jobs[0], SlotPlan(0, np.array([[2]]), np.zeros((1, 0), dtype=np.int64)))
    assert market.workers.prices[0, 0, 0] == pytest.approx(np.sqrt(20 * least)), "half of the CPUs"
    assert market.workers.prices[0, 0, 1] == pytest.approx(least**0.75 * 20**0.25), "a quarter of the memory"
    assert market.workers.prices[1, 0] == pytest.approx([least, least])


@pytest.mark.parametrize(("moves", "empty", "full"), [("U", 1.0, 0.2), ("L", 5.0, 1.0)])
def test_a_fifth_of_the_ratio_makes_full_servers_cheaper_or_empty_ones_dearer(
    moves: Bound, empty: float, full: float
) -> None:
    right = PriceBounds.of([job("a", 8)], ONE, 4)
    wrong = right.scaled(0.2, moves)
    for part, factor in ((0.0, empty), (1.0, full)):
        used = np.full(2, part)
        assert wrong.workers.prices(used) == pytest.approx(factor * right.workers.prices(used))
    assert right.workers.log_ratio - wrong.workers.log_ratio == pytest.approx(np.log(5))


def test_bounds_of_jobs_that_are_worth_nothing_at_the_end_are_finite() -> None:
    bounds = PriceBounds.of([job("critical", 4, decay=500.0, target=0.0)], ONE, 4)
    assert np.isfinite(bounds.workers.log_least)


def test_a_job_worth_more_than_its_resources_is_admitted_and_raises_the_prices() -> None:
    market = Market(ONE, PriceBounds.of([job("a", 8)], ONE, 4), 4)
    before = market.workers.prices.copy()
    quote, plan = market.offer(job("a", 8))
    assert plan is not None
    assert plan.sizes().sum() == 8
    assert quote.payoff > 0
    assert (market.workers.prices[plan.slots] > before[plan.slots]).any()
    market.release(job("a", 8), plan)
    np.testing.assert_allclose(market.workers.prices, before)
    assert not market.workers.used.any()


def test_what_is_given_back_is_what_lies_ahead() -> None:
    market = Market(ONE, PriceBounds.of([job("a", 8)], ONE, 4), 4)
    plan = SlotPlan(0, np.array([[4], [4]]), np.zeros((2, 0), dtype=np.int64))
    market.commit(job("a", 8), plan)
    market.release(job("a", 8), plan, now=1)
    assert market.workers.used[:, 0, 0].tolist() == [4, 0, 0, 0]
    market.release(job("a", 8), plan, now=2)
    market.move_on(1)
    assert not market.workers.used.any()
    np.testing.assert_allclose(market.workers.prices, market.workers.prices[0, 0, 0])


def test_what_has_no_price_still_limits() -> None:
    """Memory for two workers at a time, which costs nothing."""
    servers = replace(ONE, workers=np.array([[4.0, 2.0]]), priced=np.array([True, False]))
    market = Market(servers, PriceBounds.of([job("a", 8)], servers, 4), 4)
    _, plan = market.offer(job("a", 8))
    assert plan is not None
    assert plan.sizes().tolist() == [2, 2, 2, 2]
    assert not market.workers.prices[:, :, 1].any()


def test_a_job_keeps_to_the_servers_that_it_may_use() -> None:
    servers = replace(ONE, workers=np.full((2, 2), 4.0))
    market = Market(servers, PriceBounds.of([job("a", 8)], servers, 4), 4)
    quote = market.quote(replace(job("a", 8), servers=np.array([False, True])))
    assert quote.plan.workers[:, 0].tolist() == [0] * len(quote.plan.workers)


def test_a_rigid_job_runs_on_all_its_workers_or_on_none() -> None:
    market = Market(ONE, PriceBounds.of([job("a", 8)], ONE, 4), 4)
    plan = market.quote(replace(job("a", 8), work=7, least_workers=3, most_workers=3)).plan
    assert set(plan.sizes().tolist()) <= {0, 3}
    assert plan.sizes().sum() == 9


def test_a_hopeless_bid_is_seen_without_a_schedule() -> None:
    market = Market(ONE, PriceBounds.of([job("a", 8, 100.0)], ONE, 4), 4)
    assert not market.is_hopeless(job("b", 8, 100.0))
    market.offer(job("a", 16, 100.0))
    assert market.is_hopeless(job("b", 8))
    assert not market.quote(job("b", 8)).is_worth_it


def test_a_full_cluster_admits_nothing() -> None:
    market = Market(ONE, PriceBounds.of([job("a", 16)], ONE, 4), 4)
    assert market.offer(job("a", 16))[1] is not None
    quote, plan = market.offer(job("b", 1, value=1e9))
    assert plan is None
    assert quote.last is None
    assert quote.least_scale == np.inf


@pytest.mark.parametrize("decay", [0.5, 3.0])
def test_a_rejected_job_learns_what_would_have_been_admitted(decay: float) -> None:
    """Just more than the least scale is admitted, just less is not."""
    market = Market(ONE, PriceBounds.of([job("a", 8, 100.0)], ONE, 4), 4)
    market.offer(job("a", 8, 100.0))
    market.offer(job("b", 6, 100.0))
    bid = job("late", 2, 1.0, decay, 0.0)
    quote, plan = market.offer(bid)
    assert plan is None
    assert np.isfinite(quote.least_scale)
    for factor, admitted in ((0.999, False), (1.001, True)):
        again = replace(bid, worth=bid.worth * quote.least_scale * factor)
        assert market.quote(again).is_worth_it is admitted


def test_a_job_that_is_asked_again_later_begins_then() -> None:
    market = Market(ONE, PriceBounds.of([job("a", 8)], ONE, 4), 4)
    quote = market.quote(job("a", 8), now=2)
    assert quote.first == 2
    assert quote.plan.first == 2
    assert quote.last == 3


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_no_committed_schedule_breaks_a_rule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slots = 12
    servers = servers_of(rng, 4, 4)
    bids = [bid_of(rng, f"job-{n}", slots, 40, 9) for n in range(25)]
    market = Market(servers, PriceBounds.of(bids, servers, slots), slots)
    planned = []
    for bid in sorted(bids, key=lambda bid: bid.arrival):
        hopeless = market.is_hopeless(bid)
        quote, plan = market.offer(bid)
        assert not (hopeless and plan)
        if plan is not None:
            planned.append((bid, plan))
            assert plan.last == quote.last
            assert quote.payoff > 0
    assert broken_rules(servers, planned, slots) == []


def test_the_check_of_schedules_sees_every_broken_rule() -> None:
    bid = Bid("a", 1, 3, 2, np.array([3.0, 1.0]), np.array([1.0, 0.0]), np.ones(4), 1.0, 1.0)
    servers = replace(ONE, ps=np.array([[1.0, 0.0]]))
    plan = SlotPlan(0, np.array([[2], [0]]), np.array([[1], [2]]))
    found = broken_rules(servers, [(bid, plan)], 4)
    assert len(found) == 7
    good = SlotPlan(1, np.array([[1], [1], [1]]), np.array([[1], [1], [1]]))
    assert broken_rules(servers, [(bid, good)], 4) == []


def test_an_estimate_begins_at_half_of_what_a_unit_is_worth_to_the_median_job() -> None:
    """Jobs that are worth 5 to 50 and take 8 worker-slots of two units each; U is as for the true bounds."""
    jobs = [job(f"job-{n}", 8, 10.0 * n) for n in range(1, 11)]
    found = PriceBounds.estimated(jobs, ONE, 4)
    assert np.exp(found.workers.log_least) == pytest.approx(27.5 / 16 / 2)
    assert found.workers.log_most == pytest.approx(PriceBounds.of(jobs, ONE, 4).workers.log_most)
    poorest = PriceBounds.estimated(jobs, ONE, 4, quantile=0.0)
    assert np.exp(poorest.workers.log_least) == pytest.approx(5 / 16 / 2)


def test_a_job_that_is_all_that_is_known_is_admitted_to_an_idle_cluster() -> None:
    bid = job("alone", 4)
    assert Market(ONE, PriceBounds.estimated([bid], ONE, 4), 4).offer(bid)[1] is not None


def test_parameter_servers_without_bandwidth_are_one_a_job() -> None:
    """As the placement step has it: nothing says for how many workers one does."""
    servers = replace(ONE, ps=np.array([[2.0, 8.0]]))
    bid = replace(job("a", 8), ps=np.array([1.0, 0.0]))
    _, plan = Market(servers, PriceBounds.of([bid], servers, 4), 4).offer(bid)
    assert plan is not None
    assert [row for row in plan.ps.sum(axis=1).tolist() if row] == [1] * int((plan.sizes() > 0).sum())
    assert broken_rules(servers, [(bid, plan)], 4) == []
    assert broken_rules(servers, [(bid, replace(plan, ps=0 * plan.ps))], 4)
