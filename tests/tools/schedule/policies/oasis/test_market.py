from dataclasses import replace

import numpy as np
import pytest

from benchmarks.parts.slot_schedules import broken_rules
from pliant.tools.schedule.policies.multi_resource.fleet import Bid, Servers, SlotPlan, sigmoid_worth
from pliant.tools.schedule.policies.oasis.market import Market
from pliant.tools.schedule.policies.oasis.prices import PriceBounds

ONE = Servers(("cpu", "memory"), np.array([[4.0, 8.0]]), np.zeros((0, 2)))


def job(name: str, work: int, value: float = 10.0, decay: float = 0.0, target: float = 2.0) -> Bid:
    """Four workers at most, of one CPU and one GB each, no PS, in four slots."""
    worth = sigmoid_worth(value, decay, target, 0, 4)
    return Bid(name, 0, work, 4, np.array([1.0, 1.0]), np.zeros(2), worth)


def market_for(*known: Bid, servers: Servers = ONE) -> Market:
    """Four slots at the true bounds of these jobs."""
    return Market(servers, PriceBounds.of(known, servers, 4), 4)


def test_prices_go_from_the_least_to_the_largest_worth_of_a_unit() -> None:
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
def test_a_fifth_of_the_ratio_moves_one_end_of_the_prices(moves, empty, full):
    right = PriceBounds.of([job("a", 8)], ONE, 4)
    wrong = right.scaled(0.2, moves)
    for part, factor in ((0.0, empty), (1.0, full)):
        used = np.full(2, part)
        assert wrong.workers.prices(used) == pytest.approx(factor * right.workers.prices(used))
    assert right.workers.log_ratio - wrong.workers.log_ratio == pytest.approx(np.log(5))


def test_a_job_worth_more_than_its_resources_raises_the_prices() -> None:
    market, bid = market_for(job("a", 8)), job("a", 8)
    before = market.workers.prices.copy()
    quote, plan = market.offer(bid)
    assert plan.sizes().sum() == 8
    assert quote.payoff > 0
    assert (market.workers.prices[plan.slots] > before[plan.slots]).any()
    market.release(bid, plan)
    np.testing.assert_allclose(market.workers.prices, before)
    assert not market.workers.used.any()

    plan = SlotPlan(0, np.array([[4], [4]]), np.zeros((2, 0), dtype=np.int64))
    market.commit(bid, plan)
    market.release(bid, plan, now=1)
    assert market.workers.used[:, 0, 0].tolist() == [4, 0, 0, 0]
    market.release(bid, plan, now=2)
    market.move_on(1)
    assert not market.workers.used.any()
    np.testing.assert_allclose(market.workers.prices, market.workers.prices[0, 0, 0])


def test_a_job_keeps_to_its_servers_and_a_full_cluster_to_itself() -> None:
    # Memory for two workers at a time, which costs nothing.
    servers = replace(ONE, workers=np.array([[4.0, 2.0]]), priced=np.array([True, False]))
    market, bid = market_for(job("a", 8), servers=servers), job("a", 8)
    _, plan = market.offer(bid)
    assert plan.sizes().tolist() == [2, 2, 2, 2]
    assert not market.workers.prices[:, :, 1].any()

    market = market_for(bid, servers=replace(ONE, workers=np.full((2, 2), 4.0)))
    quote = market.quote(replace(bid, servers=np.array([False, True])))
    assert quote.plan.workers[:, 0].tolist() == [0] * len(quote.plan.workers)

    market = market_for(bid)
    plan = market.quote(replace(bid, work=7, least_workers=3, most_workers=3)).plan
    assert set(plan.sizes().tolist()) <= {0, 3}
    assert plan.sizes().sum() == 9

    quote = market.quote(bid, now=2)
    assert (quote.first, quote.plan.first, quote.last) == (2, 2, 3)
    # A full cluster admits nothing.
    market = market_for(job("a", 8, 100.0))
    assert not market.is_hopeless(job("b", 8, 100.0))
    assert market.offer(job("a", 16, 100.0))[1] is not None
    assert market.is_hopeless(job("b", 8))
    quote, plan = market.offer(job("b", 1, value=1e9))
    assert plan is None
    assert not quote.is_worth_it
    assert quote.last is None
    assert quote.least_scale == np.inf


@pytest.mark.parametrize("decay", [0.5, 3.0])
def test_a_rejected_job_learns_what_would_have_been_admitted(decay: float) -> None:
    market, bid = market_for(job("a", 8, 100.0)), job("late", 2, 1.0, decay, 0.0)
    for name, work in (("a", 8), ("b", 6)):
        market.offer(job(name, work, 100.0))
    quote, plan = market.offer(bid)
    assert plan is None
    assert np.isfinite(quote.least_scale)
    for factor, admitted in ((0.999, False), (1.001, True)):
        again = replace(bid, worth=bid.worth * quote.least_scale * factor)
        assert market.quote(again).is_worth_it is admitted


def test_broken_rules_are_seen_and_estimates_have_a_beginning() -> None:
    bid = Bid("a", 1, 3, 2, np.array([3.0, 1.0]), np.array([1.0, 0.0]), np.ones(4), 1.0, 1.0)
    servers = replace(ONE, ps=np.array([[1.0, 0.0]]))
    plan = SlotPlan(0, np.array([[2], [0]]), np.array([[1], [2]]))
    assert len(broken_rules(servers, [(bid, plan)], 4)) == 7
    good = SlotPlan(1, np.array([[1], [1], [1]]), np.array([[1], [1], [1]]))
    assert broken_rules(servers, [(bid, good)], 4) == []
    # Estimates begin at half the median and servers at one.
    # Jobs that are worth 5 to 50 and take 8 worker-slots of two units each; U is as for the true bounds.
    jobs = [job(f"job-{n}", 8, 10.0 * n) for n in range(1, 11)]
    result = PriceBounds.estimated(jobs, ONE, 4)
    assert np.exp(result.workers.log_least) == pytest.approx(27.5 / 16 / 2)
    assert result.workers.log_most == pytest.approx(PriceBounds.of(jobs, ONE, 4).workers.log_most)
    poorest = PriceBounds.estimated(jobs, ONE, 4, quantile=0.0)
    assert np.exp(poorest.workers.log_least) == pytest.approx(5 / 16 / 2)

    bid = job("alone", 4)
    assert Market(ONE, PriceBounds.estimated([bid], ONE, 4), 4).offer(bid)[1] is not None

    bounds = PriceBounds.of([job("critical", 4, decay=500.0, target=0.0)], ONE, 4)
    assert np.isfinite(bounds.workers.log_least)

    # As the placement step has it: nothing says for how many workers one does.
    servers = replace(ONE, ps=np.array([[2.0, 8.0]]))
    bid = replace(job("a", 8), ps=np.array([1.0, 0.0]))
    _, plan = Market(servers, PriceBounds.of([bid], servers, 4), 4).offer(bid)
    assert [row for row in plan.ps.sum(axis=1).tolist() if row] == [1] * int((plan.sizes() > 0).sum())
    assert broken_rules(servers, [(bid, plan)], 4) == []
    assert broken_rules(servers, [(bid, replace(plan, ps=0 * plan.ps))], 4)


def test_a_market_priced_again_has_the_same_commitments() -> None:
    """To the last bit, in whatever order jobs came; sums that may be rounded are not exact."""
    jobs = [job("a", 4, 100.0), job("b", 3, 50.0), job("c", 2, 70.0)]
    market, again = market_for(jobs[0]), market_for(*jobs)
    plans = [(bid, plan) for bid in jobs if (plan := market.offer(bid)[1]) is not None]
    assert len(plans) > 1
    for bid, plan in reversed(plans):
        again.commit(bid, plan)
    market.price_again(again.bounds)
    assert market.is_exact
    assert market.workers.used.tobytes() == again.workers.used.tobytes()
    assert market.workers.prices.tobytes() == again.workers.prices.tobytes()
    market.commit(replace(jobs[0], worker=jobs[0].worker * 0.1), plans[0][1])
    assert not market.is_exact
