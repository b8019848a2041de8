"""The fluid schedule that prices stand for: when jobs would end if none came and changes were free."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np

from pliant.tools.schedule.policies.shadow_price import knapsack
from pliant.tools.schedule.policies.shadow_price.curves import EXACT_GPUS, Floats, Ints
from pliant.tools.schedule.policies.shadow_price.prices import PricedJob, Worth, priced

STAGES: Final = 64
"""Ends that are computed; later ones count as infinite."""
FEW: Final = 3
"""Jobs of which every order is tried."""
_DONE: Final = 1e-9
"""Part of a job's work that is rounding."""


def ends_s(prices: Floats, rates: Floats, work: Floats, sizes: Ints) -> Floats:
    """Seconds from now by job; infinite where the job is not among the first :data:`STAGES` to end.

    :param rates: [job, size] progress per second.
    :param work: what is left, in the unit of the rates.
    :param sizes: of which the last is all GPUs.
    """
    left, found, now_s = work.copy(), np.full(len(work), np.inf), 0.0
    alive = np.arange(len(work))
    for _ in range(STAGES):
        speeds = rates[alive, _sizes(prices[alive], rates[alive], sizes)]
        if not speeds.any():
            break
        with np.errstate(divide="ignore"):
            lasts_s = float((left[alive] / speeds).min())
        now_s += lasts_s
        left[alive] -= speeds * lasts_s
        over = left[alive] <= _DONE * work[alive]
        found[alive[over]] = now_s
        alive = alive[~over]
        if not alive.size:
            break
    return found


def best_order(
    jobs: Sequence[PricedJob],
    rates: Floats,
    work: Floats,
    sizes: Ints,
    worth: Worth,
    *,
    order: Sequence[int] | None = None,
    future: float = 0.0,
) -> list[int]:
    """Of all orders of a few jobs, last to end first, the one whose fluid schedule has least flow time.

    :param order: of equal ones, the one closest to this order; None: to that of the jobs.
    """
    weights = np.array([job.weight for job in jobs])

    def flow_s(order: list[int]) -> float:
        prices = np.zeros(len(jobs))
        prices[order] = priced([jobs[row] for row in order], worth, future)
        return float(weights @ ends_s(prices, rates, work, sizes))

    return min((list(each) for each in itertools.permutations(order or range(len(jobs)))), key=flow_s)


def _sizes(prices: Floats, rates: Floats, sizes: Ints) -> Ints:
    """Positions of the sizes of largest worth."""
    gpus = int(sizes[-1])
    worth = np.where(rates > 0, prices[:, None] * rates, -np.inf)
    worth[:, 0] = 0.0
    if gpus > EXACT_GPUS:
        return knapsack.by_price(worth, sizes, gpus)
    return np.array(knapsack.exact([*worth], gpus), dtype=np.int64)
