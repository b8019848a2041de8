"""The order in which jobs are to end: least GPU-seconds first, then neighbours exchanged while that saves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pliant.tools.schedule.policies.shadow_price.prices import PricedJob, Worth

_GAIN: Final = 1e-9
"""Relative saving below which an exchange is rounding."""


def improved(
    order: list[int],
    jobs: Sequence[PricedJob],
    work: Sequence[float],
    worth: Worth,
    *,
    future: float = 0.0,
    sweeps: int = 3,
) -> list[int]:
    """A better order, last to end first.

    Neighbours a, b change places while λ_a R_a + λ_b R_b falls.

    :param work: R by job, in the unit of its rates.
    :param sweeps: the most passes over all neighbours.
    """
    for _ in range(sweeps):
        order, changed = _sweep(order, jobs, work, worth, future)
        if not changed:
            break
    return order


def _sweep(
    order: list[int], jobs: Sequence[PricedJob], work: Sequence[float], worth: Worth, future: float
) -> tuple[list[int], bool]:
    """One pass, last to end first; a job that changes places is compared with the next, too."""
    if len(order) < 2:
        return order, False
    made, changed, found = worth.start(future), False, []
    held = order[0]
    price = worth.price(jobs[held], made)
    for other in order[1:]:
        after_held = worth.with_job(jobs[held], price, made)
        then_other = worth.price(jobs[other], after_held)
        other_first = worth.price(jobs[other], made)
        after_other = worth.with_job(jobs[other], other_first, made)
        then_held = worth.price(jobs[held], after_other)
        kept = price * work[held] + then_other * work[other]
        if then_held * work[held] + other_first * work[other] < kept * (1 - _GAIN):
            found.append(other)
            made, price, changed = after_other, then_held, True
        else:
            found.append(held)
            held, made, price = other, after_held, then_other
    return [*found, held], changed
