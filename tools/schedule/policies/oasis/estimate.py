"""The bounds of prices, U and L, from jobs: those seen so far, or those of a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, Final, Literal

import numpy as np

from pliant.tools.schedule.policies.multi_resource.model import Bid, Servers
from pliant.tools.schedule.policies.oasis.prices import Known, PriceBounds

_MOST: Final = 400
"""Jobs that an estimate is made from: the last that were seen, and those that the true bounds need."""
FILLED: Final = 0.5
"""Of the capacity of a cluster, what the jobs that it serves may need."""
Kind = Literal["estimate", "paper"]


class Estimate:
    """Jobs that stand for those to come, and the bounds that follow from them.

    :param kind: "paper": equations 23 to 26, as if these were all jobs; "estimate": L is what a unit is worth
        to a job that is worth little.
    :param quantile: of an estimate: the part of the jobs that are worth less. None: as many as the cluster
        has no time for, by :func:`left_over`.
    :param part: what U/L is multiplied by.
    """

    def __init__(self, kind: Kind = "paper", quantile: float | None = 0.0, part: float = 1.0) -> None:
        self._kind = kind
        self._quantile = quantile
        self._part = part
        self._jobs: list[tuple[int, Known]] = []
        """With the slot of its arrival, since time 0."""
        self._found: tuple[Servers, int, PriceBounds] | None = None
        """The last bounds, and what they were of; None: other jobs are known since."""

    def learn(self, bids: Iterable[tuple[int, Bid]], servers: Servers, slots: int) -> bool:
        """More jobs are known, each with the slot of its arrival; returns whether that changes the bounds."""
        new = [(slot, Known.of(bid, slots)) for slot, bid in bids]
        if not new:
            return False
        before = _key(self.bounds(servers, slots))
        self._jobs, self._found = [*self._jobs, *new], None
        if len(self._jobs) > _MOST:
            is_estimate = self._kind == "estimate"
            self._jobs = self._jobs[-_MOST:] if is_estimate else _thinned(self._jobs, servers, slots)
        return _key(self.bounds(servers, slots)) != before

    def bounds(self, servers: Servers, slots: int) -> PriceBounds:
        """U and L of these jobs."""
        if self._found is None or self._found[1] != slots or not _alike(self._found[0], servers):
            self._found = servers, slots, self._fresh(servers, slots)
        return self._found[2]

    def _fresh(self, servers: Servers, slots: int) -> PriceBounds:
        jobs = [job for _, job in self._jobs]
        if self._kind == "paper":
            found = PriceBounds.of(jobs, servers, slots)
        else:
            quantile = left_over(self._jobs, servers, slots) if self._quantile is None else self._quantile
            found = PriceBounds.estimated(jobs, servers, slots, quantile)
        return found if self._part == 1 else found.scaled(self._part)

    def dump(self) -> list[dict[str, Any]]:
        """As JSON values."""
        names = [field.name for field in fields(Known)]
        return [
            {"slot": slot, **{name: _plain(getattr(job, name)) for name in names}} for slot, job in self._jobs
        ]

    def load(self, values: Sequence[dict[str, Any]], resources: int) -> None:
        """Take up what :meth:`dump` gave, unless it is of other resources."""
        jobs = [(each["slot"], _job(each)) for each in values if "slot" in each]
        self._jobs, self._found = [pair for pair in jobs if len(pair[1].worker) == resources], None


def _thinned(kept: list[tuple[int, Known]], servers: Servers, slots: int) -> list[tuple[int, Known]]:
    """A part that has the same bounds: halves are left out where that matters not, then quarters."""

    def key_of(jobs: list[tuple[int, Known]]) -> tuple[object, ...]:
        return _key(PriceBounds.of([job for _, job in jobs], servers, slots))

    whole, size = key_of(kept), len(kept)
    while size := size // 2:
        at = 0
        while at < len(kept):
            others = [*kept[:at], *kept[at + size :]]
            if key_of(others) == whole:
                kept = others
            else:
                at += size
    return kept


def left_over(jobs: Sequence[tuple[int, Known]], servers: Servers, slots: int) -> float:
    """The part of the jobs that would be left out if those worth most by unit came first.

    Jobs of the last ``slots`` slots count, in the time in which they came, at least a quarter of that; they
    may fill :data:`FILLED` of one kind of resource, for no schedule leaves no gaps.
    """
    last = max((slot for slot, _ in jobs), default=0)
    recent = [(slot, job) for slot, job in jobs if slot > last - slots]
    if not recent:
        return 0.0
    span = max(last - min(slot for slot, _ in recent) + 1, slots / 4)
    capacity = np.where(np.isfinite(servers.workers), servers.workers, 0.0).sum(axis=0) * servers.weights
    most = np.where(capacity > 0, FILLED * span * capacity, np.inf)
    worths = [job.by_unit(job.worker, servers.weights) for _, job in recent]
    order = sorted(range(len(recent)), key=lambda at: -worths[at])
    seen: set[str] = set()
    filled = np.zeros(len(capacity))
    for rank, at in enumerate(order):
        job = recent[at][1]
        if job.id not in seen:  # of the GPU types that it can have, the one that suits it best
            seen.add(job.id)
            filled += job.work * job.worker
        if (filled > most).any():
            return 1 - rank / len(order)
    return 0.0


def _job(values: dict[str, Any]) -> Known:
    """Of what :meth:`Estimate.dump` gave."""
    stated = {key: value for key, value in values.items() if key != "slot"}
    return Known(**{**stated, **{name: np.array(stated[name], dtype=float) for name in ("worker", "ps")}})


def _alike(one: Servers, other: Servers) -> bool:
    pairs = ((one.workers, other.workers), (one.ps, other.ps), (one.weights, other.weights))
    return one is other or all(np.array_equal(*pair) for pair in pairs)


def _key(bounds: PriceBounds) -> tuple[object, ...]:
    sides = (bounds.workers, bounds.ps)
    return tuple((side.log_least, side.log_most.tobytes()) for side in sides)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
