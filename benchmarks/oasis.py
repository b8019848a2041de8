"""Time of an arrival under OASiS, its utility over other schedulers and the offline optimum, and feasibility.

Times are CPU seconds of this process, the largest over the jobs of a world, each the least of several; worlds
are those of ``experiments/oasis``. Utilities are totals in 300 slots, medians over ten seeds of OASiS over
another scheduler; they take half an hour. Offline optima are of ten jobs in ten slots on twelve servers.
Schedules are checked by parts/slot_schedules.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from time import process_time
from typing import Final

import numpy as np

from benchmarks.parts.figure import Figure
from benchmarks.parts.slot_schedules import broken_rules
from experiments.oasis.measure import JOBS, PROVEN_GAP, SEEDS, SLOTS, estimated, outcomes, ten_jobs
from experiments.oasis.simulate import BASELINES, World
from experiments.oasis.worlds import cluster, world
from pliant.tools.schedule.policies.oasis.market import Market
from pliant.tools.schedule.policies.oasis.offline import solve

INSTANCES: Final = 20
LIMIT_S: Final = 30.0
"""For one offline optimum."""


def figures(
    repeats: int = 3, instances: int = INSTANCES, scale: int = 1, *, utilities: bool = True
) -> list[Figure]:
    """All figures; without ``utilities`` the ratios over other schedulers are null.

    :param scale: divides jobs and slots.
    """
    return [
        *times(repeats, scale),
        *feasibility(instances, scale),
        *offline(instances),
        *ratios(scale, run=utilities),
    ]


def times(repeats: int, scale: int = 1) -> Iterator[Figure]:
    """The slowest arrival of a hundred, for two sizes."""
    for slots, servers, limit_ms in ((100, 80, 50.0), (300, 100, 200.0)):
        rng = np.random.default_rng(slots)
        made = world(0, 100 // scale, slots // scale, cluster(rng, servers // 2, servers // 2))
        slowest = 1000 * slowest_arrival_s(made, repeats)
        yield Figure(f"oasis_arrival_{slots}x{servers}_ms", slowest, "ms", limit_ms)


def slowest_arrival_s(made: World, repeats: int) -> float:
    """From a bid to the committed schedule or the rejection."""
    bounds = estimated(made)
    taken = np.full((repeats, len(made.bids)), math.inf)
    for row in taken:
        market = Market(made.servers, bounds, made.slots)
        for index, bid in enumerate(made.bids):
            started = process_time()
            market.offer(bid)
            row[index] = process_time() - started
    return float(taken.min(axis=0).max())


def feasibility(instances: int, scale: int = 1) -> Iterator[Figure]:
    """How many worlds have a committed schedule that breaks a rule, and how many schedules were looked at."""
    broken = schedules = 0
    for seed in range(instances):
        made = world(seed, 100 // scale, 100 // scale)
        found = outcomes(made, ("oasis",))["oasis"]
        broken += len(broken_rules(made.servers, found.plans, made.slots))
        schedules += len(found.plans)
    yield Figure("oasis_schedules_infeasible", broken, "rules broken", 0.0)
    yield Figure("oasis_schedules_n", schedules, "schedules")


def offline(instances: int) -> Iterator[Figure]:
    """The optimum over OASiS with estimated bounds, where jobs can end and it is proven."""
    found = [pair for seed in range(instances) if (pair := offline_pair(seed)) is not None]
    ratios = [best / ours if ours else math.inf for best, ours in found]
    totals = sum(best for best, _ in found) / sum(ours for _, ours in found)
    yield Figure("oasis_offline_ratio_median", median(ratios), "ratio", 1.6, low=1.0)
    yield Figure("oasis_offline_ratio_max", max(ratios), "ratio", 1.6, low=1.0)
    yield Figure("oasis_offline_ratio_totals", totals, "ratio", 1.6, low=1.0)
    yield Figure("oasis_offline_proven", len(found), f"of {instances} instances")


def offline_pair(seed: int) -> tuple[float, float] | None:
    """The optimum of one instance and what OASiS earns there.

    None: no job can end, or no schedule is proven to be the best within the limit.
    """
    made = ten_jobs(seed)
    best = solve(made.bids, made.servers, made.slots, LIMIT_S)
    ours = outcomes(made, ("oasis",))["oasis"].utility
    if not best.utility or best.gap > PROVEN_GAP:
        return None
    return best.utility, ours


def ratios(scale: int = 1, seeds: Sequence[int] = SEEDS, *, run: bool = True) -> Iterator[Figure]:
    """Total utility over each baseline, by number of jobs."""
    for jobs in JOBS:
        made = [world(seed, jobs // scale, SLOTS // scale) for seed in seeds] if run else []
        found = [outcomes(each, ("oasis", *BASELINES)) for each in made]
        for name in BASELINES:
            each = [run_["oasis"].utility / theirs for run_ in found if (theirs := run_[name].utility) > 0]
            value = median(each) if each else None
            yield Figure(f"oasis_utility_ratio_{name}_{jobs}", value, "ratio", 1.0, at_least=True)
