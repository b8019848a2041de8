"""Equal shares in whole GPUs, dealt out again and again: what a policy may promise not to fall behind.

A deal holds for ``deal_s`` seconds, or until the GPUs change; in each every job trains for ``lost_s`` seconds
less. Every job gets the same number of GPUs within its limits, and those that have had the fewest
GPU-seconds come first: they get the GPUs that are over, and where not all minima fit the others sit out a
deal. A job enters at the first deal after its submission and its grace, and leaves with the deal in which it
has done its work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf
from typing import Final

from pliant.schemas.runinfo import EqualDeals
from pliant.tools.report.references.jobs import ReferenceJob, rate_at

_ROUNDING: Final = 1e-9
_MOST_DEALS: Final = 1_000_000
"""19 years of ten minutes each: what has not ended by then counts as never."""


@dataclass(slots=True)
class _Sharer:
    job: ReferenceJob
    enters_s: float
    done: float = 0.0
    service_gpu_s: float = 0.0
    gpus: int = 0
    rate: float = 0.0


def equal_deal_finishes(
    jobs: Sequence[ReferenceJob],
    capacity: Sequence[tuple[float, int]],
    terms: EqualDeals,
    left_s: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Ends of the deals in which the jobs end, seconds; a job that never ends is left out.

    :param left_s: when jobs left that did not end, by id: no share of a later deal is theirs.
    """
    coming = sorted((_entering(job, terms) for job in jobs), key=lambda each: each.enters_s, reverse=True)
    changes = [(time_s, gpus) for time_s, gpus in capacity[1:]]
    gone = left_s or {}
    there: list[_Sharer] = []
    finishes: dict[str, float] = {}
    now, gpus = 0.0, capacity[0][1]
    for _ in range(_MOST_DEALS):
        if not coming and not there:
            break
        if not there:
            now = max(now, coming[-1].enters_s)
        while coming and coming[-1].enters_s <= now:
            there.append(coming.pop())
        while changes and changes[0][0] <= now:
            gpus = changes.pop(0)[1]
        until = min(now + terms.deal_s, changes[0][0] if changes else inf)
        there = [each for each in there if gone.get(each.job.id, inf) > now]
        if not changes and not coming and not _trains_ever(there, gpus, terms):
            break
        _deal(there, gpus)
        for each in there:
            each.done += each.rate * max(0.0, until - now - terms.lost_s)
            each.service_gpu_s += each.gpus * (until - now)
        over = {each.job.id for each in there if each.done >= each.job.samples * (1 - _ROUNDING)}
        finishes |= dict.fromkeys(over, until)
        there, now = [each for each in there if each.job.id not in over], until
    return finishes


def _entering(job: ReferenceJob, terms: EqualDeals) -> _Sharer:
    return _Sharer(job, job.arrival_s + terms.grace_s + terms.grace * job.alone_s)


def _trains_ever(there: Sequence[_Sharer], gpus: int, terms: EqualDeals) -> bool:
    """Whether any job trains in the deals that follow, now that the GPUs stay as they are."""
    return terms.lost_s < terms.deal_s and any(each.job.least_gpus <= gpus for each in there)


def _deal(there: Sequence[_Sharer], gpus: int) -> None:
    admitted, limits, left = [], [], gpus
    for each in there:
        each.gpus, each.rate = 0, 0.0
    for each in sorted(there, key=lambda each: (each.service_gpu_s, each.enters_s, each.job.id)):
        most = max(each.job.least_gpus, floor(each.job.curve[-1][0]))
        if each.job.least_gpus <= left:
            left -= each.job.least_gpus
            admitted.append(each)
            limits.append((each.job.least_gpus, most))
    for each, part in zip(admitted, _parts(gpus, limits), strict=True):
        each.gpus, each.rate = part, rate_at(each.job.curve, part)


def _parts(gpus: int, limits: Sequence[tuple[int, int]]) -> list[int]:
    """Whole GPUs, equal within the limits; what is over goes to the first.

    Reports do without the code of policies (``equal_shares``), which they check; a test compares the two.
    """

    def at(level: int) -> list[int]:
        return [min(max(level, low), high) for low, high in limits]

    low, high = 0, gpus
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sum(at(middle)) <= gpus else (low, middle - 1)
    parts = at(low)
    over = gpus - sum(parts)
    for index, (least, most) in enumerate(limits):
        if over and least <= low < most:
            parts[index], over = parts[index] + 1, over - 1
    return parts
