"""The best schedule of one job at given prices: algorithm 2 of OASiS, exactly, for all ends in one pass.

Inside a slot all workers of a job are alike and prices are fixed, so a server is a number of equal places at
one price each, and the cheapest places first are the cheapest workers. PS live on servers of their own and
their number follows from that of the workers, so they are filled the same way. What y workers cost in a slot
is thus a table, and the slots share the work: cost(t, w) = min over y of slot(t, y) + cost(t - 1, w - y),
where w is the least that is done until then: a job that has a smallest size may do more.

Departures: work is counted in worker-slots instead of chunks, or, for a job whose speed is not in proportion
to its workers, in parts of what its fastest size does in a slot (``Bid.advance``); of the slot of its arrival
a part may be left; the printed recursion, which asks for one end after the other, is a forward pass that
answers for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pliant.tools.schedule.policies.multi_resource.model import Bid, Floats, Ints, Plan

_CELLS: Final = 65_536
"""Sums that are looked at together: they stay in a fast cache."""
_ROUNDING: Final = 1e-12
"""Part of a cost that counts as none: of plans that cost the same, rounding would choose."""


@dataclass(frozen=True, slots=True)
class Places:
    """What one kind of servers offers to one job: places of equal size, at a price each, by slot."""

    prices: Floats
    """[slot, server] of one worker or PS."""
    order: Ints
    """[slot, rank] servers, cheapest first."""
    ends: Ints
    """[slot, rank] places on this server and all cheaper ones."""

    @classmethod
    def of(cls, prices: Floats, numbers: Ints) -> Places:
        """Places in order of price; of equal prices the first server comes first."""
        order = np.argsort(prices, axis=1, kind="stable")
        return cls(prices, order, np.take_along_axis(numbers, order, axis=1).cumsum(axis=1))

    def costs(self, most: int) -> Floats:
        """[slot, n] the least that n places cost, for n up to ``most``; infinite where there are fewer."""
        slots, servers = self.prices.shape
        if not servers:
            return np.where(np.arange(most + 1) > 0, np.inf, np.zeros((slots, 1)))
        rank = _ranks(self.ends, most)
        server = np.take_along_axis(self.order, np.minimum(rank, servers - 1), axis=1)
        each = np.where(rank < servers, np.take_along_axis(self.prices, server, axis=1), np.inf)
        found = np.zeros((slots, most + 1))
        np.cumsum(each, axis=1, out=found[:, 1:])
        return found

    def take(self, slot: int, count: int) -> Ints:
        """[server] the ``count`` cheapest places of a slot."""
        taken = np.zeros(self.prices.shape[1], dtype=np.int64)
        before = np.concatenate(([0], self.ends[slot, :-1]))
        taken[self.order[slot]] = np.clip(count - before, 0, self.ends[slot] - before)
        return taken


def _ranks(ends: Ints, most: int) -> Ints:
    """[slot, n] how many servers are full before place n (from 0) is taken: one search for all slots."""
    slots, servers = ends.shape
    shift = np.arange(slots)[:, None] * (most + 1)
    flat = (np.minimum(ends, most) + shift).ravel()
    wanted = (np.arange(most) + shift).ravel()
    found = np.searchsorted(flat, wanted, side="right").reshape(slots, most)
    ranks: Ints = found - np.arange(slots)[:, None] * servers
    return ranks


@dataclass(frozen=True, slots=True)
class Schedules:
    """The cheapest schedule of one job for each end."""

    bid: Bid
    first: int
    """The slot that all rows begin with."""
    workers: Places
    ps: Places
    slot_costs: tuple[Floats, ...]
    """[slot from first][y] what y workers and their PS cost, up to the most that fit."""
    costs: tuple[Floats, ...]
    """[slot from first][w - lowest] the least that w worker-slots cost until then."""
    lowest: Ints
    """[slot from first] the first w of its row: less could not be made up for any more."""

    @property
    def by_end(self) -> Floats:
        """[slot from first] the least that the job costs if it ends then or before; infinite: it cannot."""
        work = self.bid.work
        if not self.costs:
            return np.full(len(self.workers.prices), np.inf)
        pairs = zip(self.costs, self.lowest, strict=True)
        return np.array([row[work - low] if work - low < len(row) else np.inf for row, low in pairs])

    def plan(self, end: int) -> Plan:
        """The cheapest schedule that ends ``end`` slots after the first, which must be one of finite cost."""
        left, sizes = self.bid.work, np.zeros(end + 1, dtype=np.int64)
        for slot in range(end, -1, -1):
            advance = _advance(self.bid, self.first, slot)
            sizes[slot] = self._size(slot, left, advance)
            left = max(0, left - int(advance[sizes[slot]]))
        ps = self.bid.ps_of(sizes)
        return Plan(
            self.first,
            np.array([self.workers.take(slot, int(size)) for slot, size in enumerate(sizes)]),
            np.array([self.ps.take(slot, int(count)) for slot, count in enumerate(ps)]),
        )

    def _size(self, slot: int, left: int, advance: Ints) -> int:
        """Workers of a slot in the cheapest way to do ``left`` until then; of equal ones the fewest."""
        cost = self.slot_costs[slot]
        before, low = (self.costs[slot - 1], int(self.lowest[slot - 1])) if slot else (np.zeros(1), 0)
        done = np.maximum(left - low - advance[: len(cost)], 0)
        known = np.where(done < len(before), before[np.minimum(done, len(before) - 1)], np.inf)
        sums = known + cost
        least = min(1, int(np.argmin(sums)))
        return least + int(np.argmax(sums[least:] <= sums.min() * (1 + _ROUNDING)))


def schedules(bid: Bid, first: int, workers: Places, ps: Places) -> Schedules:
    """All ends of one job from slot ``first`` on; the places are those of the slots from there."""
    costs = _slot_costs(bid, workers, ps)
    ends = costs.shape[1] - np.isfinite(costs)[:, ::-1].argmax(axis=1)  # no workers cost nothing
    found = [row[:end] for row, end in zip(costs, ends.tolist(), strict=True)]
    advances = [_advance(bid, first, slot) for slot in range(min(2, len(found)))]
    most = np.array([int(advances[slot > 0][: len(row)].max()) for slot, row in enumerate(found)])
    reach = np.minimum(most.cumsum(), bid.work)
    lowest = np.maximum(bid.work - (most.sum() - most.cumsum()), 0)
    if not found or reach[-1] < bid.work:  # rows are left out where it cannot end at all
        return Schedules(bid, first, workers, ps, (), (), lowest[:0])
    rows: list[Floats] = []
    before, before_low = np.zeros(1), 0
    for slot, row in enumerate(found):
        low = int(lowest[slot])
        span = (low, int(reach[slot]))
        if bid.advance is None and (slot or bid.first_part >= 1):
            before = _min_plus(before, before_low, row, *span)
        else:
            before = _min_plus_of(before, before_low, row, advances[slot > 0], span)
        before_low = low
        rows.append(before)
    return Schedules(bid, first, workers, ps, tuple(found), tuple(rows), lowest)


def _slot_costs(bid: Bid, workers: Places, ps: Places) -> Floats:
    """[slot, y] what y workers cost together with their PS, of which there are no more than workers."""
    limit = bid.most_workers if bid.advance is not None else max(bid.work, bid.least_workers)
    costs = workers.costs(min(bid.most_workers, limit))
    costs[:, 1 : bid.least_workers] = np.inf
    if bid.advance is not None:
        costs[:, 1:][:, bid.advance[1:] == 0] = np.inf
    if not bid.needs_ps:
        return costs
    sizes = np.arange(costs.shape[1])
    wanted = bid.ps_of(sizes)
    allowed = wanted <= sizes
    of_ps = ps.costs(int(wanted[allowed].max(initial=0)))
    costs[:, ~allowed] = np.inf
    costs[:, allowed] += of_ps[:, wanted[allowed]]
    return costs


def _advance(bid: Bid, first: int, slot: int) -> Ints:
    """[workers] work that a slot does, ``slot`` slots after the first."""
    return bid.advances(is_first=not slot and first == bid.arrival)


def _min_plus_of(
    before: Floats, before_low: int, cost: Floats, advance: Ints, span: tuple[int, int]
) -> Floats:
    """:func:`_min_plus` where y workers do ``advance[y]``, by one size after the other."""
    low, high = span
    sizes = np.flatnonzero(np.isfinite(cost))
    most, count = int(advance[sizes].max()), high - low + 1
    padded = np.full(most + max(len(before), high - before_low + 1), np.inf)
    padded[:most] = before[0]
    padded[most : most + len(before)] = before
    found = np.full(count, np.inf)
    for size in sizes.tolist():
        start = most + low - before_low - int(advance[size])
        np.minimum(found, padded[start : start + count] + cost[size], out=found)
    return found


def _min_plus(before: Floats, before_low: int, cost: Floats, low: int, high: int) -> Floats:
    """[w - low] min over y of before[w - y] + cost[y], for w from ``low`` to ``high``.

    Less than ``before_low`` cannot be made up for any more, so it costs what that costs.
    """
    most, size = len(cost) - 1, before.itemsize
    if not most:
        return before[low - before_low : high - before_low + 1]
    padded = np.full(most + (high - before_low + 1), np.inf)
    padded[:most] = before[0]
    padded[most : most + len(before)] = before
    start = padded[most + low - before_low :]
    shifted = np.lib.stride_tricks.as_strided(start, (high - low + 1, most + 1), (size, -size))
    """[w - low, y] is before[w - y]."""
    found = np.empty(high - low + 1)
    width = max(1, _CELLS // (most + 1))
    for first in range(0, len(found), width):
        np.min(shifted[first : first + width] + cost, axis=1, out=found[first : first + width])
    return found
