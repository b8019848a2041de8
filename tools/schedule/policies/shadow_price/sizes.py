"""One pool shared out: the worth of each size of each job, and the sizes that they get.

The worth of a size is the price of the job's progress (:mod:`prices`) times its rate soon, less what a change
costs. Of the sizes that keep the bound (:mod:`bound`) the knapsack takes those of largest sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from pliant.tools.schedule.policies.shadow_price.bound import Guard
from pliant.tools.schedule.policies.shadow_price.completion_order import FEW, best_order, improved_fast
from pliant.tools.schedule.policies.shadow_price.curves import EXACT_GPUS, Floats, Ints
from pliant.tools.schedule.policies.shadow_price.job_estimates import PoolColumns
from pliant.tools.schedule.policies.shadow_price.prices import (
    ConcaveWorth,
    ExactWorth,
    PricedJob,
    PriceMemory,
    Remembered,
    SlopeWorth,
    Worth,
    exact_knapsack,
    filled,
    knapsack_by_price,
    priced,
)

_REMEMBERED_GPUS: Final = 4096
"""Most GPUs of a pool whose prices are kept: in a larger one jobs change before one is used again."""
_TIE: Final = 1e-6
"""Worth of a job's end, in weighted completion time, where the prices see no difference."""
_PAYS: Final = 8.0
"""A change has at least this many times what it costs to pay, however soon other jobs change."""
_ROUNDING: Final = 1e-9
"""Part of the sum of values that may be lost to rounding."""
_MOST_LOST: Final = 0.95
"""The largest part of the value of a size that a change to it costs."""


@dataclass(frozen=True)
class Rules:
    """How GPUs are shared out."""

    dwell_s: float
    sweeps: int
    future: float


@dataclass(eq=False, slots=True)
class PoolShares:
    """What was decided for one pool; rows are those of the members."""

    members: PoolColumns
    order: list[int]
    """Rows, last to end first."""
    prices: Floats
    """λ by job: seconds of weighted completion time for a sample of progress."""
    values: Floats
    """v by [job, size]: the same for each second on a size."""
    chosen: Ints
    """The size, by position."""
    guard: Guard

    gpus: list[int] = field(init=False)
    """GPUs of each job, by row."""
    served: list[int] = field(init=False)
    """Rows of the jobs that get any."""

    def __post_init__(self) -> None:
        self.gpus = self.members.sizes[self.chosen].tolist()
        self.served = [row for row, gpus in enumerate(self.gpus) if gpus]


def shared(
    members: PoolColumns, rules: Rules, guard: Guard, memory: PriceMemory, *, by_demands: bool = False
) -> PoolShares:
    """Share a pool out among sizes that are safe. Pools of up to :data:`EXACT_GPUS` are solved exactly.

    :param by_demands: count workers of which the nodes have room for few as more than a GPU each.
    """
    order, prices = _prices(members, rules, memory)
    worth = values(members, prices, rules.dwell_s)
    allowed = _allowed(members, worth + sooner(members, rules.dwell_s), guard)
    if by_demands and (footprints := members.footprints()).max() > 1.0:
        taken = members.sizes * footprints[:, None]
        chosen = knapsack_by_price(allowed, taken, members.pool.gpus)
    else:
        chosen = chosen_sizes(members, allowed)
    return PoolShares(members, order, prices, worth, chosen, guard)


def worth_of(members: PoolColumns, memory: PriceMemory) -> Remembered[PricedJob, Floats]:
    """How the worth of the pool's GPUs is computed."""
    gpus, sizes = members.pool.gpus, members.sizes

    def made() -> Worth:
        return ExactWorth(gpus) if gpus <= EXACT_GPUS else SlopeWorth(gpus, sizes)

    return memory.worth((gpus, sizes.tobytes()), gpus, made)


def chosen_sizes(members: PoolColumns, worth: Floats) -> Ints:
    """Sizes by position of the largest sum within the pool."""
    gpus = members.pool.gpus
    if gpus > EXACT_GPUS:
        return knapsack_by_price(worth, members.sizes, gpus)
    last = (np.maximum(worth.argmax(axis=1), members.held) + 1).tolist()
    rows = _not_outbid(worth, gpus)
    sizes = exact_knapsack([worth[row, : last[row]] for row in rows], gpus)
    chosen = np.zeros(len(worth), dtype=np.int64)
    chosen[rows] = sizes
    if idle := gpus - sum(sizes):  # what weighs too little beside the others was lost to rounding
        left = np.flatnonzero((chosen == 0) & np.isfinite(worth[:, 0]))
        if left.size:
            chosen[left] = filled(worth[left], members.sizes, idle)
    return chosen


def _not_outbid(worth: Floats, gpus: int) -> list[int]:
    """Not those rigid jobs beside which as many of their size, as fit at all, are worth clearly more."""
    able = worth > -np.inf
    rigid = (np.add.reduce(able, axis=1) == 2) & (worth[:, 0] == 0)
    if np.count_nonzero(rigid) < 2:
        return [*range(len(worth))]
    stays = np.ones(len(worth), dtype=np.bool_)
    sizes = np.where(rigid, able[:, 1:].argmax(axis=1) + 1, 0)
    gains = worth[np.arange(len(worth)), sizes]
    clear = _ROUNDING * float(np.where(able, worth, 0.0).max(axis=1).sum())
    for size in set(sizes.tolist()) - {0}:
        rows = np.flatnonzero(sizes == size)
        if len(rows) > (fit := gpus // size):
            stays[rows] = gains[rows] >= np.partition(gains[rows], -fit)[-fit] - clear
    return np.flatnonzero(stays).tolist()


def _allowed(members: PoolColumns, worth: Floats, guard: Guard) -> Floats:
    """The values of safe sizes; -inf elsewhere. Jobs of which none fits beside those before are left free."""
    if np.logical_and.reduce(guard.safe, axis=None):
        return worth
    allowed, left = worth.copy(), members.pool.gpus
    for row in np.flatnonzero(~guard.safe.all(axis=1)).tolist():
        able = guard.safe[row] & np.isfinite(worth[row])
        if able.any() and (least := int(members.sizes[able.argmax()])) <= left:
            left -= least
            allowed[row] = np.where(able, worth[row], -np.inf)
    return allowed


def sooner(members: PoolColumns, dwell_s: float) -> Floats:
    """[job, size] what breaks ties: of equal sums, that which brings its jobs closest to their ends.

    Prices are equal for jobs that would all fit once those before them have ended, as rigid jobs often do. If
    the shorter one runs, fewer jobs are left when more arrive.
    """
    with np.errstate(divide="ignore"):
        parts = np.minimum(1.0, dwell_s * members.soon / members.left[:, None])
    gains: Floats = _TIE * members.weights[:, None] * parts
    return gains


def _prices(members: PoolColumns, rules: Rules, memory: PriceMemory) -> tuple[list[int], Floats]:
    """The order, last to end first, and λ by job; with a future, at a part of the mean price of a GPU."""
    gpus = members.pool.gpus
    exact = gpus <= EXACT_GPUS
    worth = worth_of(members, memory)
    jobs = memory.jobs(members.whole, members.weights.tolist())
    future = rules.future * float(members.weights.sum()) / gpus if rules.future else 0.0
    order, prices = members.shortest_last(), np.zeros(len(jobs))
    if exact and len(jobs) <= FEW and rules.sweeps:
        order = best_order(
            jobs, members.whole, members.left, members.sizes, worth, order=order, future=future
        )
    elif exact:
        concave = memory.worth(("concave", gpus), gpus, lambda: ConcaveWorth(gpus))
        order = improved_fast(
            *(order, jobs, members.left.tolist(), worth, concave),
            future=future,
            sweeps=rules.sweeps,
            gpus=gpus,
        )
    ordered = [jobs[row] for row in order]
    remembers = gpus <= _REMEMBERED_GPUS
    prices[order] = priced(ordered, worth, future) if remembers else priced(ordered, worth.worth, future)
    return order, prices


def values(members: PoolColumns, prices: Floats, dwell_s: float, pays: float = _PAYS) -> Floats:
    """[job, size], -inf where a job does not run; without GPUs 0, and for a job that has some less.

    Without costs v(k) = μ G(k), where μ G(k°) = λ F(k°) at the size k° that makes most of a GPU: λ is
    constant along a job only where its curve does not move with progress. A change costs the seconds that it
    counts over those until the next one or the end. What a job holds counts at the speed of its place.

    :param dwell_s: seconds after which what a job holds is taken to change, or ``pays`` times what its
        changes count if that is longer.
    """
    lasts = np.maximum(dwell_s, pays * members.change_s)
    rows, whole, held = np.arange(len(members.jobs)), members.whole, members.held
    worth = undisturbed(members, prices)
    kept = worth[rows, held] * members.scattered
    with np.errstate(divide="ignore"):
        lasts_s = np.minimum(lasts[:, None], members.left[:, None] / whole)
    lost = np.minimum(_MOST_LOST, members.change_s[:, None] / np.maximum(lasts_s, 1e-9))
    worth *= 1.0 - lost * members.runs[:, None]
    worth[rows, held] = kept
    np.copyto(worth, -np.inf, where=~(whole > 0))
    worth[:, 0] = np.where(held > 0, -members.change_s / lasts * kept, 0.0)
    return worth


def undisturbed(members: PoolColumns, prices: Floats) -> Floats:
    """[job, size] the same without costs, at compact places."""
    rows, normal = np.arange(len(members.jobs)), members.normal
    scale = prices * members.whole[rows, normal] / members.soon[rows, normal]
    scaled: Floats = scale[:, None] * members.soon
    return scaled
