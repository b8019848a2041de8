"""The best schedule of OASiS: as cheap as the best of all schedules, and as a MILP finds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from pliant.tools.schedule.policies.multi_resource.fleet import Bid, Floats, Servers
from pliant.tools.schedule.policies.oasis.market import Market, Places, Side, schedules
from pliant.tools.schedule.policies.oasis.prices import PriceBounds
from tests.tools.schedule.policies.oasis.worlds import bid_of, busy_market, servers_of

SEEDS = st.integers(0, 2**32 - 1)


def limits(side: Side, demand: Floats, slot: int) -> list[int]:
    """[server] how many of this demand fit, resource by resource."""
    found = []
    for capacity, used in zip(side.capacity, side.used[slot], strict=True):
        needed = [(float(c - u), float(d)) for c, u, d in zip(capacity, used, demand, strict=True) if d > 0]
        found.append(min((int((free + 1e-9) / each + 1e-9) for free, each in needed), default=99))
    return found


def by_all_schedules(market: Market, bid: Bid) -> list[float]:
    """[slot from arrival] the least cost over all placements of every slot and all divisions of the work."""
    tables = []
    for slot in range(bid.arrival, market.slots):
        table: dict[int, float] = {0: 0.0}
        workers = limits(market.workers, bid.worker, slot)
        ps = limits(market.ps, bid.ps, slot) if bid.needs_ps else [0] * len(market.ps.capacity)
        most = bid.most_workers
        for y in product(*(range(min(limit, most) + 1) for limit in workers)):
            for z in product(*(range(min(limit, sum(y)) + 1) for limit in ps)):
                served = sum(z) * bid.ps_bandwidth >= sum(y) * bid.worker_bandwidth * (1 - 1e-9)
                served = served and (sum(z) > 0 or not sum(y))
                if 0 < sum(y) < bid.least_workers or sum(y) > most or sum(z) > sum(y):
                    continue
                if bid.needs_ps and not served:
                    continue
                cost = sum(n * market.workers.prices[slot, h] @ bid.worker for h, n in enumerate(y))
                cost += sum(n * market.ps.prices[slot, k] @ bid.ps for k, n in enumerate(z))
                table[sum(y)] = min(table.get(sum(y), np.inf), float(cost))
        tables.append(table)
    return [
        min(
            (
                sum(table[size] for table, size in zip(tables, sizes, strict=False))
                for sizes in product(*(table for table in tables[: end + 1]))
                if sum(sizes) >= bid.work
            ),
            default=np.inf,
        )
        for end in range(len(tables))
    ]


def by_milp(market: Market, bid: Bid, end: int) -> float:
    """The least cost of ending in slot ``end`` or before, as one MILP; infinite where there is none."""
    slots = range(bid.arrival, end + 1)
    servers, ps = len(market.workers.capacity), len(market.ps.capacity) if bid.needs_ps else 0
    width = servers + ps
    count = len(slots) * width + len(slots)  # the last ones: whether it runs in a slot
    costs, most = np.zeros(count), np.ones(count)
    rows, low, high = [np.zeros(count)], [float(bid.work)], [np.inf]
    for number, slot in enumerate(slots):
        w = slice(number * width, number * width + servers)
        p = slice(number * width + servers, (number + 1) * width)
        costs[w] = market.workers.prices[slot] @ bid.worker
        most[w] = limits(market.workers, bid.worker, slot)
        rows[0][w] = 1
        for bound, sign in ((bid.least_workers, 1), (bid.most_workers, -1)):
            size = np.zeros(count)
            size[w], size[len(slots) * width + number] = sign, -sign * bound
            rows, low, high = [*rows, size], [*low, 0.0], [*high, np.inf]
        if bid.needs_ps:
            costs[p], most[p] = market.ps.prices[slot] @ bid.ps, limits(market.ps, bid.ps, slot)
            served, fewer = np.zeros(count), np.zeros(count)
            served[w], served[p] = -bid.worker_bandwidth, bid.ps_bandwidth
            fewer[w], fewer[p] = 1, -1
            one = np.zeros(count)
            one[w], one[p] = -1, bid.most_workers
            rows, low, high = [*rows, served, fewer, one], [*low, *[0.0] * 3], [*high, *[np.inf] * 3]
    found = milp(
        costs,
        integrality=np.ones(count),
        bounds=Bounds(0, most),
        constraints=LinearConstraint(np.array(rows), low, high),
        options={"mip_rel_gap": 0},
    )
    return float(found.fun) if found.success else np.inf


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_costs_of_all_ends_are_those_of_the_best_of_all_schedules(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slots = 3
    servers = servers_of(rng, 2, 2)
    market = busy_market(rng, servers, [bid_of(rng, f"job-{n}", slots, 4, 3) for n in range(3)], slots)
    bid = bid_of(rng, "next", slots, 6, 3)
    np.testing.assert_allclose(market.quote(bid).costs, by_all_schedules(market, bid), rtol=1e-9)


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_costs_are_those_of_a_milp(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slots = 6
    servers = servers_of(rng, 4, 3)
    market = busy_market(rng, servers, [bid_of(rng, f"job-{n}", slots, 20, 8) for n in range(6)], slots)
    bid = bid_of(rng, "next", slots, 25, 8)
    for side in (market.workers, market.ps):  # of like size, for the solver rounds to a millionth
        side.prices[:] = rng.uniform(0.5, 2, side.prices.shape)
    costs = market.quote(bid).costs
    for end in {bid.arrival, slots - 1}:
        np.testing.assert_allclose(costs[end - bid.arrival], by_milp(market, bid, end), rtol=1e-5)


def world_of_two(worker_prices: tuple[float, float], ps_price: float) -> Market:
    """One slot; two servers with 3 and 9 places for workers, one server with 9 places for PS."""
    servers = Servers(("cpu",), np.array([[3.0], [9.0]]), np.array([[9.0]]))
    cheap = Bid("x", 0, 1, 1, np.ones(1), np.ones(1), np.ones(1))
    market = Market(servers, PriceBounds.of([cheap], servers, 1), 1)
    market.workers.prices[0, :, 0] = worker_prices
    market.ps.prices[:] = ps_price
    return market


def test_the_cheapest_servers_are_filled_first_and_ps_follow_the_workers() -> None:
    market = world_of_two((1.0, 2.0), 10.0)
    bid = Bid("job", 0, 5, 9, np.ones(1), np.ones(1), np.full(1, 100.0), 1.0, 2.0)
    quote = market.quote(bid)
    assert quote.costs.tolist() == [3 * 1 + 2 * 2 + 3 * 10]
    assert quote.plan.workers.tolist() == [[3, 2]]
    assert quote.plan.ps.tolist() == [[3]]


def test_there_are_never_more_ps_than_workers() -> None:
    """A worker with more bandwidth than a PS has can never be served."""
    market = world_of_two((1.0, 2.0), 1.0)
    bid = Bid("job", 0, 1, 9, np.ones(1), np.ones(1), np.full(1, 100.0), 2.0, 1.0)
    assert not np.isfinite(market.quote(bid).costs).any()
    assert market.quote(bid).last is None


def test_without_ps_demand_the_servers_of_ps_do_not_matter() -> None:
    servers = Servers(("cpu",), np.full((1, 1), 4.0), np.zeros((0, 1)))
    bid = Bid("job", 0, 6, 4, np.ones(1), np.zeros(1), np.full(3, 5.0), 1.0, 0.0)
    market = Market(servers, PriceBounds.of([bid], servers, 3), 3)
    assert market.quote(bid).last == 1
    assert market.quote(bid).plan.sizes().sum() == 6
    assert market.quote(bid).plan.ps.shape == (2, 0)


@settings(max_examples=60, deadline=None)
@given(
    gains=st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any),
    costs=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    work=st.integers(1, 12),
    first_part=st.sampled_from([1.0, 0.5]),
)
def test_sizes_that_are_not_in_proportion_cost_what_trying_all_of_them_finds(gains, costs, work, first_part):
    """One server; a size does what its row of ``advance`` says, and half of it in half a slot."""
    advance = np.array([0, *np.cumsum(gains)], dtype=np.int64)
    advance[1:][np.diff(advance) == 0] = 0  # no faster than a smaller one: not a size
    most = len(gains)
    bid = Bid(
        id="a",
        arrival=0,
        work=work,
        most_workers=most,
        worker=np.ones(1),
        ps=np.zeros(1),
        worth=np.ones(len(costs)),
        advance=advance,
        first_part=first_part,
    )
    prices = np.array(costs, dtype=float)[:, None]
    numbers = np.full((len(costs), 1), most)
    nothing = Places.of(np.zeros((len(costs), 0)), np.zeros((len(costs), 0), dtype=np.int64))
    found = schedules(bid, 0, Places.of(prices, numbers), nothing)
    usable = [0, *np.flatnonzero(advance).tolist()]
    for end in range(len(costs)):
        ways = product(usable, repeat=end + 1)
        done = (
            (sum(size * cost for size, cost in zip(way, costs, strict=False)), _done(bid, way))
            for way in ways
        )
        least = min((cost for cost, units in done if units >= work), default=np.inf)
        assert found.by_end[end] == least
        if np.isfinite(least):
            sizes = found.plan(end).sizes()
            assert float((sizes * np.array(costs[: end + 1])).sum()) == least
            assert _done(bid, sizes.tolist()) >= work


def _done(bid: Bid, sizes: Sequence[int]) -> int:
    """Units of work that these sizes do, slot by slot."""
    return sum(int(bid.advances(is_first=not slot)[size]) for slot, size in enumerate(sizes))
