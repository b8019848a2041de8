"""Time of an arrival under OASiS, its utility over other schedulers and the offline optimum, and feasibility.

Times are CPU seconds of this process, the largest over the jobs of a world, each the least of several; worlds
are those of ``experiments/oasis``. Utilities are totals in 300 slots, medians over ten seeds of OASiS over
another scheduler; they take ten minutes. Offline optima are of ten jobs in ten slots on 3 to 12 servers.
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
from benchmarks.parts.oasis_cluster import jobs_of, nodes_of
from benchmarks.parts.slot_schedules import broken_rules
from experiments.oasis.measure import JOBS, SEEDS, SIZES, SLOTS, estimated, is_proven, outcomes, ratio
from experiments.oasis.simulate import BASELINES, World
from experiments.oasis.worlds import cluster, world
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.policies.multi_resource.fleet import Servers
from pliant.tools.schedule.policies.oasis.market import Market
from pliant.tools.schedule.policies.oasis.policy import Oasis
from pliant.tools.schedule.predict_start import advance, happen, in_order_of_arrival
from pliant.tools.schedule.session.session import Session

MEASURES: Final = (
    "tools/schedule/policies/oasis",
    "tools/schedule/policies/multi_resource",
    "experiments/oasis",
)

INSTANCES: Final = 20
WIDEST: Final = (1, 100)
"""Of γ1, in the worlds of the offline optimum."""


def figures(
    repeats: int = 3, instances: int = INSTANCES, scale: int = 1, *, utilities: bool = True
) -> list[Figure]:
    """All figures; without ``utilities`` the ratios over other schedulers are null.

    :param scale: divides jobs and slots.
    """
    return [
        *times(repeats, scale),
        *feasibility(instances, scale),
        *offline(range(SEEDS.start, SEEDS.start + max(1, len(SEEDS) // scale))),
        *ratios(scale, run=utilities),
    ]


def smallest() -> list[Figure]:
    """All of it, small."""
    return figures(repeats=1, instances=1, scale=50, utilities=False)


def times(repeats: int, scale: int = 1) -> Iterator[Figure]:
    """The slowest arrival of a hundred, for two sizes."""
    for slots, servers, limit_ms in ((100, 80, 50.0), (300, 100, 200.0)):
        rng = np.random.default_rng(slots)
        made = world(0, 100 // scale, slots // scale, cluster(rng, servers // 2, servers // 2))
        slowest = 1000 * slowest_arrival_s(made, repeats)
        yield Figure(f"oasis_arrival_{slots}x{servers}_ms", slowest, "ms", limit_ms)
        policy = 1000 * slowest_decision_s(made.servers, 100 // scale, slots // scale, repeats)
        yield Figure(f"oasis_decision_{slots}x{servers}_ms", policy, "ms", limit_ms)


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


def slowest_decision_s(servers: Servers, jobs: int, slots: int, repeats: int) -> float:
    """The same of the policy: all that it does when a job has arrived, learning included."""
    return max(
        min(times) for times in zip(*(_decisions(servers, jobs, slots) for _ in range(repeats)), strict=True)
    )


def _decisions(servers: Servers, jobs: int, slots: int) -> list[float]:
    """Of each decision in which a job arrives, while jobs run and end as they do."""
    session = Session(Oasis(horizon_slots=slots), nodes_of(servers), CurveThroughput())
    ahead, time_s, taken = in_order_of_arrival(jobs_of(0, jobs, slots)), 0.0, []
    happen(session, time_s, ahead)
    while True:
        arrives = any(change.kind == "arrived" for change in session.changes.entries)
        started = process_time()
        session.decide(time_s)
        taken += [process_time() - started] * arrives
        next_s = advance(session, time_s, ahead)
        if next_s is None or not (ahead or session.jobs):
            return taken
        time_s = next_s


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


def offline(seeds: Sequence[int] = SEEDS) -> Iterator[Figure]:
    """The optimum over OASiS in the worlds of figure 5 of the paper with the widest range of priorities."""
    rows = [ratio(servers, WIDEST, seed) for seed in seeds for servers in SIZES]
    pairs = [(row["optimum"], row["utility"]["oasis"]) for row in rows if is_proven(row)]
    ratios = [best / ours if ours else math.inf for best, ours in pairs]
    totals = sum(best for best, _ in pairs) / sum(ours for _, ours in pairs)
    yield Figure("oasis_offline_ratio_median", median(ratios), "ratio", 1.6, low=1.0)
    yield Figure("oasis_offline_ratio_max", max(ratios), "ratio", 1.6, low=1.0)
    yield Figure("oasis_offline_ratio_totals", totals, "ratio", 1.6, low=1.0)
    yield Figure("oasis_offline_within", sum(1 <= each <= 1.6 for each in ratios), "instances")
    yield Figure("oasis_offline_proven", len(pairs), f"of {len(rows)} instances")


def ratios(scale: int = 1, seeds: Sequence[int] = SEEDS, *, run: bool = True) -> Iterator[Figure]:
    """Total utility over each baseline, by number of jobs."""
    for jobs in JOBS:
        made = [world(seed, jobs // scale, SLOTS // scale) for seed in seeds] if run else []
        found = [outcomes(each, ("oasis", *BASELINES)) for each in made]
        for name in BASELINES:
            each = [run_["oasis"].utility / theirs for run_ in found if (theirs := run_[name].utility) > 0]
            value = median(each) if each else None
            yield Figure(f"oasis_utility_ratio_{name}_{jobs}", value, "ratio", 1.0, at_least=True)
