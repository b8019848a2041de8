"""What the figures of the paper show, measured: ten seeds of each world under each scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.parts.slot_schedules import broken_rules
from experiments.harness.spec import Findings, Tell
from experiments.oasis.simulate import BASELINES, Outcome, World, under, under_oasis
from experiments.oasis.worlds import TESTBED, cluster, testbed, world
from pliant.tools.schedule.policies.oasis.offline import solve
from pliant.tools.schedule.policies.oasis.prices import PriceBounds

SEEDS: Final = 10
JOBS: Final = (100, 200, 300, 400)
SLOTS: Final = 300
SCHEDULERS: Final = ("oasis", "oasis-exact", *BASELINES)
"""``oasis`` takes estimated bounds of prices, ``oasis-exact`` those of the paper's equations."""
PARTS: Final = (0.2, 0.5, 1.0, 3.0, 5.0, 10.0)
"""Of the estimated U/L, in figure 6."""
SIZES: Final = (3, 6, 9, 12)
"""Servers in all, in figure 5: half of them for workers, rounded up."""
VALUES: Final = ((50, 100), (75, 100), (1, 100), (25, 100))
"""Of γ1, in figure 5, in the order of its bars."""
LIMIT_S: Final = 60.0
"""For one offline optimum."""
LITERAL: Final[Mapping[str, Any]] = {"minibatches": [10, 100]}
"""The ranges as the paper prints them."""


def measure(folder: Path, workers: int, tell: Tell, seeds: int = SEEDS, scale: int = 1) -> Findings:
    """All figures.

    :param scale: divides jobs and slots, for a smoke test.
    """
    del folder
    sizes = [jobs // scale for jobs in JOBS]
    slots, few = SLOTS // scale, max(10, 100 // scale)
    tasks: dict[str, list[Callable[[], Any]]] = {
        "figure4": [partial(_lateness, 2 * few, few, seed) for seed in range(seeds)],
        "figure5": [
            partial(_ratio, servers, value, seed)
            for seed in range(seeds)
            for servers in SIZES
            for value in VALUES
        ],
        "figure6": [partial(_inaccurate, jobs, slots, seed) for seed in range(seeds) for jobs in sizes],
        "figure78": [partial(_testbed, seed) for seed in range(seeds)],
        "figure3": [partial(_totals, jobs, slots, seed) for seed in range(seeds) for jobs in sizes],
        "literal": [partial(_totals, sizes[0], slots, seed, LITERAL) for seed in range(seeds)],
    }
    found: dict[str, Any] = {"seeds": seeds, "slots": slots}
    with ProcessPoolExecutor(max_workers=workers) as pool:
        pending = {name: [pool.submit(task) for task in each] for name, each in tasks.items()}
        for name, futures in pending.items():
            found[name] = [future.result() for future in futures]
            tell(f"{name}: {len(futures)} worlds")
    return found


def outcomes(made: World, schedulers: Sequence[str] = SCHEDULERS) -> dict[str, Outcome]:
    """What came of a world under each scheduler."""
    runs: dict[str, Callable[[], Outcome]] = {
        "oasis": lambda: under_oasis(made, PriceBounds.estimated(made.bids, made.servers, made.slots)),
        "oasis-exact": lambda: under_oasis(made),
    }
    return {name: runs[name]() if name in runs else under(name, made) for name in schedulers}


def _totals(jobs: int, slots: int, seed: int, ranges: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Figure 3: total utility."""
    made = world(seed, jobs, slots, **(ranges or {}))
    found = outcomes(made)
    return {
        "jobs": jobs,
        "seed": seed,
        "utility": {name: round(outcome.utility, 3) for name, outcome in found.items()},
        "ended": {name: len(outcome.plans) for name, outcome in found.items()},
        "broken": {
            name: len(broken_rules(made.servers, outcome.plans, slots))
            for name, outcome in found.items()
            if name.startswith("oasis")
        },
    }


def _lateness(jobs: int, slots: int, seed: int) -> dict[str, Any]:
    """Figure 4: the slot of the end, from the arrival, less the target; half of the jobs are critical."""
    made = world(seed, jobs, slots, sensitive_share=0.5, critical_share=0.5)
    return {"seed": seed, "late": {name: _late(made, each) for name, each in outcomes(made).items()}}


def _late(made: World, outcome: Outcome) -> dict[str, list[float]]:
    ends = outcome.ends
    found: dict[str, list[float]] = {"sensitive": [], "critical": []}
    for job in made.jobs:
        if job.bid.id in ends and job.decay > 0:
            late = ends[job.bid.id] - job.bid.arrival - job.target
            found["critical" if job.decay >= 4 else "sensitive"].append(round(late, 3))
    return found


def _ratio(servers: int, value: tuple[int, int], seed: int) -> dict[str, Any]:
    """Figure 5: the offline optimum over OASiS, ten jobs in ten slots."""
    rng = np.random.default_rng([5, seed])
    fleet = cluster(rng, (servers + 1) // 2, servers // 2)
    made = world(seed, 10, 10, fleet, value=list(value), epochs=[4, 30])
    best = solve(made.bids, fleet, 10, LIMIT_S)
    exact = PriceBounds.of(made.bids, fleet, 10)
    found = outcomes(made, ("oasis", "oasis-exact"))
    return {
        "servers": servers,
        "value": list(value),
        "seed": seed,
        "optimum": round(best.utility, 6),
        "gap": round(best.gap, 6),
        "bound": round(exact.competitive_ratio, 2),
        "utility": {name: round(outcome.utility, 6) for name, outcome in found.items()},
    }


def _inaccurate(jobs: int, slots: int, seed: int) -> dict[str, Any]:
    """Figure 6: U/L is not what it should be."""
    made = world(seed, jobs, slots)
    bounds = PriceBounds.estimated(made.bids, made.servers, slots)
    utility = {f"{part:g}": round(under_oasis(made, bounds.scaled(part)).utility, 3) for part in PARTS}
    return {"jobs": jobs, "seed": seed, "utility": utility}


def _testbed(seed: int) -> dict[str, Any]:
    """Figures 7 and 8: twelve jobs in ten slots on nine servers."""
    made = world(seed, 12, 10, testbed(), last=9, **TESTBED)
    found = outcomes(made)
    late = {
        name: [x for each in _late(made, outcome).values() for x in each] for name, outcome in found.items()
    }
    return {
        "seed": seed,
        "utility": {name: round(outcome.utility, 3) for name, outcome in found.items()},
        "late": late,
    }
