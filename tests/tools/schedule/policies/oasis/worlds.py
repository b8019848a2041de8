"""Small random worlds for the market of OASiS."""

import numpy as np

from pliant.tools.schedule.policies.multi_resource.fleet import Bid, Servers, sigmoid_worth
from pliant.tools.schedule.policies.oasis.market import Market
from pliant.tools.schedule.policies.oasis.prices import PriceBounds


def servers_of(rng: np.random.Generator, workers: int, ps: int) -> Servers:
    """Servers with GPUs, CPUs and bandwidth; some of the first kind lack a resource."""
    gpus, cpus = rng.integers(0, 5, workers), rng.integers(2, 9, workers)
    return Servers(
        ("gpu", "cpu", "bandwidth"),
        np.column_stack([gpus, cpus, rng.uniform(4, 9, workers)]),
        np.column_stack([np.zeros(ps), rng.integers(1, 7, ps), rng.uniform(5, 12, ps)]),
    )


def bid_of(rng: np.random.Generator, name: str, slots: int, work: int, most: int) -> Bid:
    """Every third job or so needs no PS, or no GPU; some need one PS whatever their bandwidth."""
    arrival = int(rng.integers(slots))
    bandwidth, ps_bandwidth = float(rng.uniform(0.5, 2)), float(rng.uniform(1.0, 4))
    with_ps, stated = rng.random() < 0.7, rng.random() < 0.8
    limits = np.sort(rng.integers(1, most + 1, 2)) if rng.random() < 0.3 else (1, rng.integers(1, most + 1))
    return Bid(
        id=name,
        arrival=arrival,
        work=int(rng.integers(1, work + 1)),
        most_workers=int(limits[1]),
        least_workers=int(limits[0]),
        worker=np.array([rng.integers(0, 3), rng.integers(1, 4), bandwidth]),
        ps=np.array([0, rng.integers(1, 3), ps_bandwidth]) if with_ps else np.zeros(3),
        worth=sigmoid_worth(
            rng.uniform(1, 100), rng.choice([0.0, 0.5, 5.0]), rng.uniform(0, slots), arrival, slots
        ),
        worker_bandwidth=bandwidth if with_ps and stated else 0.0,
        ps_bandwidth=ps_bandwidth if with_ps else 0.0,
    )


def busy_market(rng: np.random.Generator, servers: Servers, bids: list[Bid], slots: int) -> Market:
    """A market that has been offered all these jobs, at bounds that some of them have made."""
    bounds = PriceBounds.of(bids, servers, slots).scaled(float(rng.uniform(0.1, 10)))
    market = Market(servers, bounds, slots)
    for bid in sorted(bids, key=lambda bid: bid.arrival):
        market.offer(bid)
    return market
