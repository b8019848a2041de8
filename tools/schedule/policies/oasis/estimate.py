"""The bounds of prices, U and L, from jobs: those seen so far, or those of a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, Final, Literal

import numpy as np

from pliant.tools.schedule.policies.multi_resource.model import Bid, Servers
from pliant.tools.schedule.policies.oasis.prices import PriceBounds

_MOST: Final = 400
"""Jobs that an estimate is made from: the last that were seen, and those that the true bounds need."""
Kind = Literal["estimate", "paper"]


class Estimate:
    """Jobs that stand for those to come, and the bounds that follow from them.

    :param kind: "paper": equations 23 to 26, as if these were all jobs; "estimate": L is what a unit is worth
        to a job that is worth little.
    :param quantile: of an estimate: the part of the jobs that are worth less.
    :param part: what U/L is multiplied by.
    """

    def __init__(self, kind: Kind = "paper", quantile: float = 0.0, part: float = 1.0) -> None:
        self._kind = kind
        self._quantile = quantile
        self._part = part
        self._bids: list[Bid] = []
        self._found: tuple[Servers, int, PriceBounds] | None = None
        """The last bounds, and what they were of; None: other jobs are known since."""

    def learn(self, bids: Iterable[Bid], servers: Servers, slots: int) -> bool:
        """More jobs are known; returns whether that changes the bounds."""
        new = [replace(bid, servers=None) for bid in bids]
        if not new:
            return False
        before = _key(self.bounds(servers, slots))
        self._bids, self._found = [*self._bids, *new], None
        if len(self._bids) > _MOST:
            self._bids = self._bids[-_MOST:] if self._kind == "estimate" else self._thinned(servers, slots)
        return _key(self.bounds(servers, slots)) != before

    def bounds(self, servers: Servers, slots: int) -> PriceBounds:
        """U and L of these jobs."""
        if self._found is None or self._found[1] != slots or not _alike(self._found[0], servers):
            self._found = servers, slots, self._fresh(servers, slots)
        return self._found[2]

    def _fresh(self, servers: Servers, slots: int) -> PriceBounds:
        if self._kind == "paper":
            found = PriceBounds.of(self._bids, servers, slots)
        else:
            found = PriceBounds.estimated(self._bids, servers, slots, self._quantile)
        return found if self._part == 1 else found.scaled(self._part)

    def dump(self) -> list[dict[str, Any]]:
        """As JSON values."""
        return [{field.name: _plain(getattr(bid, field.name)) for field in fields(Bid)} for bid in self._bids]

    def load(self, values: Sequence[dict[str, Any]], resources: int) -> None:
        """Take up what :meth:`dump` gave, unless it is of other resources."""
        arrays = ("worker", "ps", "worth")
        found = [
            Bid(**{**each, **{name: np.array(each[name], dtype=float) for name in arrays}}) for each in values
        ]
        self._bids, self._found = [bid for bid in found if len(bid.worker) == resources], None

    def _thinned(self, servers: Servers, slots: int) -> list[Bid]:
        """A part that has the same bounds: halves are left out where that matters not, then quarters"""
        kept, size = self._bids, len(self._bids)
        whole = _key(PriceBounds.of(kept, servers, slots))
        while size := size // 2:
            at = 0
            while at < len(kept):
                others = [*kept[:at], *kept[at + size :]]
                if _key(PriceBounds.of(others, servers, slots)) == whole:
                    kept = others
                else:
                    at += size
        return kept


def _alike(one: Servers, other: Servers) -> bool:
    pairs = ((one.workers, other.workers), (one.ps, other.ps), (one.weights, other.weights))
    return one is other or all(np.array_equal(*pair) for pair in pairs)


def _key(bounds: PriceBounds) -> tuple[object, ...]:
    sides = (bounds.workers, bounds.ps)
    return tuple((side.log_least, side.log_most.tobytes()) for side in sides)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
