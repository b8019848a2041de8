"""What the figures of the paper show, measured: ten seeds of each world under each scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.parts.slot_schedules import broken_rules
from experiments.harness.pieces import in_pieces
from experiments.harness.spec import Findings, Tell
from experiments.oasis.simulate import BASELINES, Outcome, World, under, under_oasis
from experiments.oasis.worlds import TESTBED, cluster, testbed, world
from pliant.tools.schedule.policies.oasis.market import Market
from pliant.tools.schedule.policies.oasis.offline import solve
from pliant.tools.schedule.policies.oasis.prices import Bound, PriceBounds

SEEDS: Final = range(100, 110)
"""Of the worlds. The estimate of price bounds was chosen on others: 0 and 1."""
JOBS: Final = (100, 200, 300, 400)
SLOTS: Final = 300
SCHEDULERS: Final = ("oasis", "oasis-exact", *BASELINES)
"""``oasis`` takes bounds of prices from jobs of the past, ``oasis-exact`` those of the paper's equations."""
PARTS: Final = (0.2, 0.5, 1.0, 3.0, 5.0, 10.0)
"""Of the estimated U/L, in figure 6."""
MOVES: Final[tuple[Bound, ...]] = ("U", "L")
"""Which of the two is wrong there."""
QUANTILES: Final = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
"""Of the past jobs by what a unit is worth to them: L is half of that."""
SIZES: Final = (3, 6, 9, 12)
"""Servers in all, in figure 5: half of them for workers, rounded up."""
VALUES: Final = ((50, 100), (75, 100), (1, 100), (25, 100))
"""Of γ1, in figure 5, in the order of its bars."""
LIMIT_S: Final = 20.0
"""For one offline optimum."""
PROVEN_GAP: Final = 1e-3
"""With no more of the utility that may be missing, an optimum counts as proven."""
LITERAL: Final[Mapping[str, Any]] = {"minibatches": [10, 100]}
"""The ranges as the paper prints them."""


def measure(folder: Path, workers: int, tell: Tell, seeds: Sequence[int] = SEEDS, scale: int = 1) -> Findings:
    """All figures.

    :param scale: divides jobs and slots, for a smoke test.
    """
    sizes = [jobs // scale for jobs in JOBS]
    ends, slots, few = (sizes[0], sizes[-1]), SLOTS // scale, max(10, 100 // scale)
    parts: dict[str, list[Callable[[], Any]]] = {
        "figure4": [partial(_lateness, 2 * few, few, seed) for seed in seeds],
        "figure5": [
            partial(ratio, servers, value, seed) for seed in seeds for servers in SIZES for value in VALUES
        ],
        "figure78": [partial(_testbed, seed) for seed in seeds],
        "figure3": [partial(_totals, jobs, slots, seed) for seed in seeds for jobs in sizes],
        "literal": [partial(_totals, sizes[0], slots, seed, LITERAL) for seed in seeds],
        "quantiles": [partial(_quantiles, jobs, slots, seed) for seed in seeds for jobs in ends],
        "idle": [partial(_idle, sizes[0], slots, seed) for seed in seeds],
        "figure6": [partial(_inaccurate, jobs, slots, seed) for seed in seeds for jobs in sizes],
    }
    tasks = {f"{name}-{at}": each for name, part in parts.items() for at, each in enumerate(part)}
    found = in_pieces(tasks, folder, workers, tell)
    return {
        "seeds": len(seeds),
        "slots": slots,
        **{name: [found[f"{name}-{at}"] for at in range(len(part))] for name, part in parts.items()},
    }


def outcomes(made: World, schedulers: Sequence[str] = SCHEDULERS) -> dict[str, Outcome]:
    """What came of a world under each scheduler."""
    runs: dict[str, Callable[[], Outcome]] = {
        "oasis": lambda: under_oasis(made, estimated(made)),
        "oasis-exact": lambda: under_oasis(made, PriceBounds.of(made.bids, made.servers, made.slots)),
    }
    return {name: runs[name]() if name in runs else under(name, made) for name in schedulers}


def estimated(made: World, **how: float) -> PriceBounds:
    """The bounds of prices that are known before the first job arrives."""
    return PriceBounds.estimated(made.past, made.servers, made.slots, **how)


def _totals(jobs: int, slots: int, seed: int, ranges: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Figure 3: total utility."""
    made = world(seed, jobs, slots, **(ranges or {}))
    found = outcomes(made)
    ours = [name for name in found if name.startswith("oasis")]
    return {
        "jobs": jobs,
        "seed": seed,
        "utility": {name: round(outcome.utility, 3) for name, outcome in found.items()},
        "ended": {name: len(outcome.plans) for name, outcome in found.items()},
        "broken": {name: len(broken_rules(made.servers, found[name].plans, slots)) for name in ours},
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


def ten_jobs(seed: int, servers: int = SIZES[-1], value: tuple[int, int] = (1, 100)) -> World:
    """A world of figure 5: ten jobs in ten slots."""
    fleet = cluster(np.random.default_rng([5, seed]), (servers + 1) // 2, servers // 2)
    return world(seed, 10, 10, fleet, value=list(value), epochs=TESTBED["epochs"])


def ratio(servers: int, value: tuple[int, int], seed: int) -> dict[str, Any]:
    """Figure 5: the offline optimum over OASiS."""
    made = ten_jobs(seed, servers, value)
    best = solve(made.bids, made.servers, made.slots, LIMIT_S)
    found = outcomes(made, ("oasis", "oasis-exact"))
    return {
        "servers": servers,
        "value": list(value),
        "seed": seed,
        "optimum": round(best.utility, 6),
        "gap": round(best.gap, 6),
        "bound": round(PriceBounds.of(made.bids, made.servers, made.slots).competitive_ratio, 2),
        "utility": {name: round(outcome.utility, 6) for name, outcome in found.items()},
    }


def is_proven(row: Mapping[str, Any]) -> bool:
    """Whether jobs of a world of figure 5 can end, and its optimum is known."""
    return row["optimum"] > 0 and row["gap"] <= PROVEN_GAP


def _quantiles(jobs: int, slots: int, seed: int) -> dict[str, Any]:
    """Total utility by the past job that L is taken from."""
    made = world(seed, jobs, slots)
    bounds = {f"{quantile:g}": estimated(made, quantile=quantile) for quantile in QUANTILES}
    utility = {name: round(under_oasis(made, each).utility, 3) for name, each in bounds.items()}
    return {"jobs": jobs, "seed": seed, "utility": utility}


def _idle(jobs: int, slots: int, seed: int) -> dict[str, Any]:
    """The part of the jobs that could end, but are turned away where nothing else runs."""
    made = world(seed, jobs, slots)
    found = {}
    for quantile in QUANTILES:
        market = Market(made.servers, estimated(made, quantile=quantile), slots)
        quotes = [quote for bid in made.bids if np.isfinite((quote := market.quote(bid)).payoff)]
        found[f"{quantile:g}"] = round(1 - sum(quote.is_worth_it for quote in quotes) / len(quotes), 4)
    return {"seed": seed, "turned_away": found}


def _inaccurate(jobs: int, slots: int, seed: int) -> dict[str, Any]:
    """Figure 6: U/L is not what it should be."""
    made = world(seed, jobs, slots)
    bounds = estimated(made)
    wrong = [(moves, part) for moves in MOVES for part in PARTS]
    found = {
        f"{moves} {part:g}": under_oasis(made, bounds.scaled(part, moves)).utility for moves, part in wrong
    }
    return {"jobs": jobs, "seed": seed, "utility": {name: round(value, 3) for name, value in found.items()}}


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
