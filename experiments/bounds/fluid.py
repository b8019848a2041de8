"""What prices come to where nothing that a policy decides costs time: between a lower bound and a policy.

Decisions come whenever something changes, changes are free but for the first start, and a job trains as fast
as its rates say, wherever it is. Arrivals are not known. What such a schedule has over the bound is what the
bound lacks, and what not knowing arrivals costs; what a policy has over the schedule is places, rounds, what
it has to learn, and what changes cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from experiments.bounds.covers import Floats
from pliant.tools.schedule.policies.shadow_price.prices import ExactWorth, PricedJob, exact_knapsack, priced

_DONE = 1e-9
"""Of a part's work, that is rounding."""


@dataclass(frozen=True, eq=False)
class Parts:
    """Work that comes in parts, one after the other; jobs that share it are alike."""

    rates: Floats
    """[part, size] progress per second on 0, 1, … GPUs."""
    work: Floats
    """[part]"""

    def after(self) -> Floats:
        """[part, size] seconds that all parts after this one take; infinite where one cannot run."""
        with np.errstate(divide="ignore"):
            each = self.work[:, None] / self.rates
        return np.vstack((np.cumsum(each[:0:-1], axis=0)[::-1], np.zeros(each.shape[1])))


def fluid_jct_s(releases_s: Sequence[float], works: Sequence[Parts], gpus: int) -> float:
    """Mean JCT of the schedule, in seconds.

    :param works: of each job; the rates have as many sizes as there are GPUs, and none.
    """
    after = {id(each): each.after() for each in works}
    come = sorted(range(len(works)), key=lambda number: releases_s[number])
    alive: dict[int, tuple[int, float]] = {}  # by job its part, and what is left of it
    ends_s: dict[int, float] = {}
    now_s = releases_s[come[0]]
    while come or alive:
        while come and releases_s[come[0]] <= now_s:
            number = come.pop(0)
            alive[number] = 0, float(works[number].work[0])
        speeds = _speeds(alive, works, after, gpus)
        until_s = releases_s[come[0]] - now_s if come else math.inf
        ends = (left / speed for (_, left), speed in zip(alive.values(), speeds, strict=True) if speed)
        lasts_s = min(until_s, min(ends, default=math.inf))
        now_s = releases_s[come[0]] if lasts_s == until_s else now_s + lasts_s
        for (number, (part, before)), speed in zip([*alive.items()], speeds, strict=True):
            work, left = works[number].work, before - speed * lasts_s
            if left > _DONE * work[part]:
                alive[number] = part, left
            elif part + 1 < len(work):
                alive[number] = part + 1, float(work[part + 1])
            else:
                del alive[number]
                ends_s[number] = now_s
    return fmean(end_s - releases_s[number] for number, end_s in ends_s.items())


def _speeds(
    alive: dict[int, tuple[int, float]], works: Sequence[Parts], after: dict[int, Floats], gpus: int
) -> list[float]:
    """Progress per second of each job, shortest first where prices are equal."""
    if not alive:
        return []
    sizes, soon, whole = np.arange(1, gpus + 1), [], []
    for number, (part, left) in alive.items():
        soon.append(works[number].rates[part])
        with np.errstate(divide="ignore"):
            whole.append(1.0 / (after[id(works[number])][part] + left / soon[-1]))
    per_gpu = [rates[1:] / sizes for rates in whole]
    order = sorted(range(len(whole)), key=lambda row: float(per_gpu[row].max()))
    prices = priced([PricedJob.of(whole[row]) for row in order], ExactWorth(gpus))
    values: list[Floats] = [np.zeros(1)] * len(whole)
    for row, price in zip(order, prices, strict=True):
        normal = int(per_gpu[row].argmax()) + 1
        value = price * whole[row][normal] / soon[row][normal] * soon[row]
        values[row] = value[: int(value.argmax()) + 1]
    chosen = exact_knapsack(values, gpus)
    return [float(rates[size]) for rates, size in zip(soon, chosen, strict=True)]
