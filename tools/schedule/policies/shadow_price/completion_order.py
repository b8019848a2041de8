"""The order in which jobs are to end: least GPU-seconds first, then neighbours exchanged while that saves.

Of a few jobs, every order is tried. Prices of an order are those of :mod:`prices`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic

import numpy as np

from pliant.tools.schedule.policies.shadow_price.curves import Floats, Ints
from pliant.tools.schedule.policies.shadow_price.prices import (
    JobT,
    Made,
    Priced,
    PricedJob,
    Prices,
    ends_s,
    priced,
)

_ERROR: Final = 1e-15
"""Part of the sum of all weights, by job: far more than prices of concave curves differ from exact ones."""
_GAIN: Final = 1e-9
"""Relative saving below which an exchange is rounding."""
FEW: Final = 3
"""Jobs of which every order is tried."""
_MANY: Final = 16
"""Jobs of which the order is worth a look at their curves."""


def improved(
    order: list[int],
    jobs: Sequence[JobT],
    work: Sequence[float],
    worth: Prices[JobT, Made],
    *,
    future: float = 0.0,
    sweeps: int = 3,
    error: float = 0.0,
) -> list[int]:
    """A better order, last to end first: neighbours a, b change places while λ_a R_a + λ_b R_b falls.

    :param work: R by job, in the unit of its rates.
    :param sweeps: the most passes over all neighbours.
    :param error: relative, of the prices.
    :raises CloseCallError: whether neighbours change places cannot be said with that error.
    """
    if len(order) < 2 or not sweeps:
        return order
    made = worth.start(future)
    last = _Pass(order, 1, order[0], worth.price(jobs[order[0]], made), made, [], [])
    passes, left = [last], sweeps - 1
    with np.errstate(invalid="ignore"):  # 0 · inf, where a weight is lost in the sum of the others
        while passes:
            going = [each for each in passes if each.at < len(each.source)]
            following = _step(going, jobs, work, worth, error)
            for each in going:
                if each.at == len(order):
                    each.found.append(each.held)
            passes = [each for each in passes if each.at < len(order)]
            if following is not None and left:
                last, left = following, left - 1
                passes.append(last)
    return last.found


class CloseCallError(Exception):
    """Exact prices are needed."""


def improved_fast(
    order: list[int],
    jobs: Sequence[PricedJob],
    work: Sequence[float],
    exact: Prices[PricedJob, Priced[PricedJob, Floats]],
    concave: Prices[PricedJob, Priced[PricedJob, Floats]],
    *,
    future: float,
    sweeps: int,
    gpus: int,
) -> list[int]:
    """The same order as with exact prices, by those of concave curves where all are and no call is close."""
    if len(jobs) >= _MANY and all(job.is_concave for job in set(jobs)):
        weights = [job.weight for job in jobs]
        error = _ERROR * len(jobs) * (sum(weights) + future * gpus) / min(weights)
        try:
            return improved(order, jobs, work, concave, future=future, sweeps=sweeps, error=error)
        except CloseCallError:
            pass
    return improved(order, jobs, work, exact, future=future, sweeps=sweeps)


@dataclass(slots=True)
class _Pass(Generic[Made]):
    """One pass, last to end first; a job that changes places is compared with the next, too.

    The next pass follows a step behind, so that what several of them ask for is computed at once.
    """

    source: list[int]
    """The order that it improves, as far as the pass before it has come."""
    at: int
    """The job there is compared with the one that is held."""
    held: int
    price: float
    """Price of the job that is held."""
    made: Made
    """The worth of GPUs to those before it."""
    found: list[int]
    unchanged: list[tuple[float, Made]]
    """Price and worth when each job of ``found`` was held, up to the first that changed places."""
    changed: bool = False


def _step(
    going: Sequence[_Pass[Made]],
    jobs: Sequence[JobT],
    work: Sequence[float],
    worth: Prices[JobT, Made],
    error: float,
) -> _Pass[Made] | None:
    """Each pass goes on by one job. Returns the pass that follows the first one that changes something."""
    following = None
    for each, asked in zip(going, _exchanges(going, jobs, worth), strict=True):
        first, after_held, after_other, then_other, then_held = asked
        other = each.source[each.at]
        kept = each.price * work[each.held] + then_other * work[other]
        gain = kept * (1 - _GAIN) - (then_held * work[each.held] + first * work[other])
        if error and abs(gain) <= error * kept:
            raise CloseCallError
        each.at += 1
        if gain > 0:
            each.found.append(other)
            if not each.changed:
                each.changed, following = True, _following(each, first)
            each.made, each.price = after_other, then_held
        else:
            each.found.append(each.held)
            if not each.changed:
                each.unchanged.append((each.price, each.made))
            each.held, each.made, each.price = other, after_held, then_other
    return following


def _exchanges(
    going: Sequence[_Pass[Made]], jobs: Sequence[JobT], worth: Prices[JobT, Made]
) -> Iterable[tuple[float, Made, Made, float, float]]:
    """By pass the price of the other job if it comes first, the worth after either, and the prices there."""
    if len(going) == 1:  # most often
        held, other = jobs[going[0].held], jobs[going[0].source[going[0].at]]
        price, made = going[0].price, going[0].made
        first = worth.price(other, made)
        after_held, after_other = worth.with_job(held, price, made), worth.with_job(other, first, made)
        return [
            (first, after_held, after_other, worth.price(other, after_held), worth.price(held, after_other))
        ]
    count, others = len(going), [jobs[each.source[each.at]] for each in going]
    helds = [jobs[each.held] for each in going]
    firsts = worth.prices([(other, each.made) for other, each in zip(others, going, strict=True)])
    held_first = [(held, each.price, each.made) for held, each in zip(helds, going, strict=True)]
    other_first = [
        (other, first, each.made) for other, first, each in zip(others, firsts, going, strict=True)
    ]
    made_of = worth.with_jobs([*held_first, *other_first])
    then = worth.prices([*zip([*others, *helds], made_of, strict=True)])
    return zip(firsts, made_of[:count], made_of[count:], then[:count], then[count:], strict=True)


def _following(ahead: _Pass[Made], price: float) -> _Pass[Made]:
    """The pass after one that has just made its first change: up to there it finds nothing else.

    :param price: of the job that has come to the front.
    """
    *front, moved = ahead.found
    if not front:
        return _Pass(ahead.found, 1, moved, price, ahead.made, [], [])
    before, made = ahead.unchanged[-1]
    return _Pass(ahead.found, len(front), front[-1], before, made, front[:-1], ahead.unchanged[:-1])


def best_order(
    jobs: Sequence[PricedJob],
    rates: Floats,
    work: Floats,
    sizes: Ints,
    worth: Prices[PricedJob, Made],
    *,
    order: Sequence[int] | None = None,
    future: float = 0.0,
) -> list[int]:
    """Of all orders of a few jobs, last to end first, the one whose fluid schedule has least flow time.

    :param order: of equal ones, the one closest to this order; None: to that of the jobs.
    """
    if len(jobs) == 1:
        return [0]
    weights = np.array([job.weight for job in jobs])

    def flow_s(order: list[int]) -> float:
        prices = np.zeros(len(jobs))
        prices[order] = priced([jobs[row] for row in order], worth, future)
        return float(weights @ ends_s(prices, rates, work, sizes))

    return min((list(each) for each in itertools.permutations(order or range(len(jobs)))), key=flow_s)
