"""One pool shared out: the prices of its jobs, the worth of their sizes, and the sizes that they get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.shadow_price import knapsack
from pliant.tools.schedule.policies.shadow_price.bound import Guard
from pliant.tools.schedule.policies.shadow_price.curves import EXACT_GPUS, Floats, Ints
from pliant.tools.schedule.policies.shadow_price.fluid import FEW, best_order
from pliant.tools.schedule.policies.shadow_price.members import Members
from pliant.tools.schedule.policies.shadow_price.order import improved
from pliant.tools.schedule.policies.shadow_price.prices import (
    ExactWorth,
    PricedJob,
    SlopeWorth,
    Worth,
    priced,
)
from pliant.tools.schedule.policies.shadow_price.values import values

_TIE: Final = 1e-6
"""Worth of a job's end, in weighted completion time, where the prices see no difference."""


@dataclass(frozen=True)
class Rules:
    """How GPUs are shared out."""

    dwell_s: float
    sweeps: int
    future: float


@dataclass(frozen=True)
class Shares:
    """What was decided for one pool; rows are those of the members."""

    members: Members
    order: list[int]
    """Rows, last to end first."""
    prices: Floats
    """λ by job: seconds of weighted completion time for a sample of progress."""
    values: Floats
    """v by [job, size]: the same for each second on a size."""
    chosen: Ints
    """The size, by position."""
    guard: Guard

    @property
    def spare_gpus(self) -> int:
        """GPUs that no job gets."""
        return self.members.pool.gpus - int(self.members.sizes[self.chosen].sum())

    def served(self) -> list[JobState]:
        """The jobs that get GPUs."""
        return [job for row, job in enumerate(self.members.jobs) if self.chosen[row]]

    def gpus(self, row: int) -> int:
        """GPUs that a job gets."""
        return int(self.members.sizes[self.chosen[row]])


def shared(members: Members, rules: Rules, guard: Guard) -> Shares:
    """Share a pool out among sizes that are safe. Pools of up to :data:`EXACT_GPUS` are solved exactly."""
    order, prices = _prices(members, rules)
    worth = values(members, prices, rules.dwell_s)
    chosen = _chosen(members, _allowed(members, worth + _sooner(members, rules.dwell_s), guard))
    return Shares(members, order, prices, worth, chosen, guard)


def _sooner(members: Members, dwell_s: float) -> Floats:
    """By [job, size], what breaks ties: of equal sums, that which brings its jobs closest to their ends.

    Prices are equal for jobs that would all fit once those before them have ended, as rigid jobs often do.
    They are made for the order in which the shorter job ends first. If that one runs, fewer jobs are
    left when more arrive.
    """
    with np.errstate(divide="ignore"):
        parts = np.minimum(1.0, dwell_s * members.soon / members.left[:, None])
    found: Floats = _TIE * members.weights[:, None] * parts
    return found


def _chosen(members: Members, worth: Floats) -> Ints:
    gpus = members.pool.gpus
    if gpus > EXACT_GPUS:
        return knapsack.by_price(worth, members.sizes, gpus)
    last = np.maximum(worth.argmax(axis=1), members.held) + 1
    rows = [row[:count] for row, count in zip(worth, last.tolist(), strict=True)]
    return np.array(knapsack.exact(rows, gpus), dtype=np.int64)


def _allowed(members: Members, worth: Floats, guard: Guard) -> Floats:
    """The values of safe sizes; -inf elsewhere. Jobs of which none fits beside those before are left free."""
    found, left = worth.copy(), members.pool.gpus
    for row in np.flatnonzero(~guard.safe.all(axis=1)).tolist():
        able = guard.safe[row] & np.isfinite(worth[row])
        if able.any() and (least := int(members.sizes[able.argmax()])) <= left:
            left -= least
            found[row] = np.where(able, worth[row], -np.inf)
    return found


def _prices(members: Members, rules: Rules) -> tuple[list[int], Floats]:
    """The order, last to end first, and λ by job; with a future, at a part of the mean price of a GPU."""
    gpus = members.pool.gpus
    exact = gpus <= EXACT_GPUS
    worth: Worth = ExactWorth(gpus) if exact else SlopeWorth(gpus, members.sizes)
    jobs = [
        PricedJob.of(rates, weight)
        for rates, weight in zip(members.whole, members.weights.tolist(), strict=True)
    ]
    future = rules.future * float(members.weights.sum()) / gpus
    order, prices = members.shortest_last(), np.zeros(len(jobs))
    if exact and len(jobs) <= FEW and rules.sweeps:
        order = best_order(
            jobs, members.whole, members.left, members.sizes, worth, order=order, future=future
        )
    elif exact:
        order = improved(order, jobs, members.left.tolist(), worth, future=future, sweeps=rules.sweeps)
    prices[order] = priced([jobs[row] for row in order], worth, future)
    return order, prices
