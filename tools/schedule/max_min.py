"""Max-min fair parts of GPUs, in whole numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from pliant.schemas.job import Gpus

_EVERY_NUMBER: Final = Gpus.model_construct(requested=1)  # to check it would build a model by itself


def equal_shares(gpus: int, limits: Sequence[tuple[int, int]], sizes: Sequence[Gpus] = ()) -> list[int]:
    """Whole GPUs by job, max-min fair within ``(low, high)``; the remainder goes to the first in order.

    The lows must fit: their sum is at most ``gpus``. O(jobs · log gpus).

    :param sizes: by job, the sizes that it may have, its limits among them. Default: every number.
    """
    own = sizes or [_EVERY_NUMBER] * len(limits)
    # jobs of the same limits and sizes count at once: a large cluster has thousands of jobs and few kinds
    kinds = [(low, high, each.per_replica, each.sizes) for (low, high), each in zip(limits, own, strict=True)]
    of_kind, counts = dict(zip(kinds, own, strict=True)), Counter(kinds)

    def part_at(level: int, kind: tuple[int, int, int, Any]) -> int:
        return min(max(of_kind[kind].whole(level), kind[0]), kind[1])

    def total_at(level: int) -> int:
        return sum(part_at(level, kind) * count for kind, count in counts.items())

    level = bisect_right(range(1, gpus + 1), gpus, key=total_at)
    by_kind = {kind: part_at(level, kind) for kind in counts}
    parts = [by_kind[kind] for kind in kinds]
    remainder = before = gpus - sum(parts)
    while remainder:
        for index, (low, high) in enumerate(limits):
            if not remainder:
                break
            more = own[index].above(parts[index]) - parts[index]
            if 0 < more <= min(remainder, high - parts[index]) and low <= level:
                parts[index] += more
                remainder -= more
        if remainder == before:
            break
        before = remainder
    return parts
