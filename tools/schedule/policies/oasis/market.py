"""The market of OASiS: what is committed of every server in every slot, and the schedules that jobs buy.

Algorithm 1 of "Online Job Scheduling in Distributed Machine Learning Clusters" (Bao et al., 2018): a job is
admitted if the best schedule at the prices of its arrival is worth more than it costs; its slots are then
committed, which raises the prices for those after it.

The best schedule (:func:`schedules`) is algorithm 2, exactly, for all ends in one forward pass. Inside a slot
a server is a number of equal places at one price, and the cheapest places first are the cheapest workers. PS
live on servers of their own, and their number follows from that of the workers. So what y workers cost in a
slot is a table, and cost(t, w) = min over y of slot(t, y) + cost(t - 1, w - y), where w is the least work
done by then.

Departures: work is counted in worker-slots instead of chunks, or, where speed is not in proportion to
workers, in parts of what the fastest size does in a slot (``Bid.advance``); of the slot of its arrival a part
may be left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from pliant.tools.schedule.policies.multi_resource.fleet import (
    ROUNDING,
    Bid,
    Bools,
    Floats,
    Ints,
    Servers,
    SlotPlan,
    whole_fits,
)
from pliant.tools.schedule.policies.oasis.prices import PriceBounds, SideBounds

_STEPS: Final = 1024
"""Sums of demands in whole parts of 1 / N, N this number, are exact, up to :data:`_LARGEST` each, ..."""
_LARGEST: Final = 4096
_WIDEST: Final = 0.9 / (_STEPS * ROUNDING)
"""... where no capacity is larger: else what is committed could count as rounding."""
MOST: Final = 1_000_000
"""Workers of a job on one server."""
_MOST_KEPT: Final = 2_000_000
"""Numbers that one side keeps of rooms, and as many in each of the three arrays of places."""
_MOST_ASKED: Final = 1_000
"""Demands of which it is known that they came before."""
_CELLS: Final = 65_536
"""Sums that are looked at together: they stay in a fast cache."""
_ROUNDING: Final = 1e-12
"""Part of a cost that counts as none: of plans that cost the same, rounding would choose."""
MORE: Final = 1e-9
"""Relative: a payoff counts as positive if it is more than this part of the utility."""


class Market:
    """All servers over slots 0 to ``slots`` - 1."""

    def __init__(self, servers: Servers, bounds: PriceBounds, slots: int) -> None:
        self.servers = servers
        self.bounds = bounds
        self.slots = slots
        self.workers = Side(servers.workers, bounds.workers, slots)
        self.ps = Side(servers.ps, bounds.ps, slots)

    def quote(self, bid: Bid, now: int = 0, until: int | None = None) -> Quote:
        """The best schedules of a job from its arrival on, or from slot ``now`` if that is later.

        :param until: the slot before which they end. Default: all slots count.
        """
        first = max(bid.arrival, now)
        slots = slice(first, self.slots if until is None else until)
        workers = self.workers.places(bid.worker, slots, bid.servers)
        places = [workers, self._ps_places(bid, slots)]
        if bid.first_part < 1 and first == bid.arrival:
            places = [each.first_at(bid.first_price) for each in places]
        by_end = schedules(bid, first, *places)
        return Quote(bid, first, by_end.by_end, by_end)

    def most_work(self, bid: Bid) -> Ints:
        """[slot from arrival] no schedule does more until then: a quick look at the servers of workers."""
        room = self.workers.room(bid.worker, bid.most_workers, bid.servers)[bid.arrival :]
        first, later = (np.maximum.accumulate(bid.advances(is_first=at)) for at in (True, False))
        return np.concatenate([first[room[:1]], later[room[1:]]]).cumsum()

    def is_hopeless(self, bid: Bid) -> bool:
        """Whether even the cheapest prices of all servers are too high: a quick look, without a schedule."""
        first = bid.arrival
        cheapest = np.minimum.accumulate(self.workers.cheapest[first:] @ bid.worker)[bid.shortest - 1 :]
        return not np.any(bid.worth[first:][bid.shortest - 1 :] > bid.least_worker_slots * cheapest)

    def offer(self, bid: Bid) -> tuple[Quote, SlotPlan | None]:
        """Admit a job and commit its plan, or turn it away without one."""
        quote = self.quote(bid)
        if not quote.is_worth_it:
            return quote, None
        plan = quote.plan
        self.commit(bid, plan)
        return quote, plan

    def commit(self, bid: Bid, plan: SlotPlan) -> None:
        self.workers.take(plan.workers, bid.worker, plan.slots)
        self.ps.take(plan.ps, bid.ps, plan.slots)

    def release(self, bid: Bid, plan: SlotPlan, now: int = 0) -> None:
        if now > plan.last:
            return
        skipped = max(0, now - plan.first)
        slots = slice(plan.first + skipped, plan.last + 1)
        self.workers.take(-plan.workers[skipped:], bid.worker, slots)
        self.ps.take(-plan.ps[skipped:], bid.ps, slots)

    def move_on(self, slots: int) -> None:
        """Drop the first slots: the slot of that number becomes slot 0."""
        gone = min(slots, self.slots)
        if gone > 0:
            self.workers.move_on(gone)
            self.ps.move_on(gone)

    @property
    def is_exact(self) -> bool:
        """Whether what is committed is the same to the last bit in whatever order jobs came and left."""
        return self.workers.is_exact and self.ps.is_exact

    def price_again(self, bounds: PriceBounds) -> None:
        """All that is committed stays, at prices between other bounds."""
        self.bounds = bounds
        self.workers.price_again(bounds.workers)
        self.ps.price_again(bounds.ps)

    @property
    def used(self) -> tuple[Floats, Floats]:
        """[slot, server, resource] what is committed of the servers of workers, and of those of PS."""
        return self.workers.used, self.ps.used

    def _ps_places(self, bid: Bid, slots: slice) -> Places:
        if not bid.needs_ps:
            return Places.none(*self.ps.used[slots].shape[:2])
        return self.ps.places(bid.ps, slots)


class Side:
    """One kind of servers over all slots."""

    def __init__(self, capacity: Floats, bounds: SideBounds, slots: int) -> None:
        self.capacity = capacity
        self.bounds = bounds
        # [slot, server, resource] committed.
        self.used = np.zeros((slots, *capacity.shape))
        # [slot, server, resource] of a unit.
        self.prices = self._prices(slice(None))
        # Whether no sum in `used` has been rounded.
        self.is_exact = bool((capacity[np.isfinite(capacity)] < _WIDEST).all())
        self._cheapest: Floats | None = None
        # Counts the commitments.
        self._turn = 0
        # [slot] the turn in which something of it was committed last.
        self._taken = np.zeros(slots, dtype=np.int64)
        self._memory = _Memory()

    def room(self, demand: Floats, most: int, servers: Bools | None) -> Ints:
        """[slot] how many of a demand fit all servers together, ``most`` at the most."""
        key, known = _key(demand, servers), self._memory.rooms
        turn, rooms = known.get(key, (-1, None))
        if rooms is None:
            rooms = np.zeros(len(self.used), dtype=np.int64)
            if (len(known) + 1) * len(rooms) > _MOST_KEPT:
                known.clear()
        if turn < self._turn:
            slots = self._taken_since(turn)
            rooms[slots] = self._numbers(demand, slots, servers).sum(axis=1)
            known[key] = self._turn, rooms
        room: Ints = np.minimum(rooms, most)
        return room

    def places(self, demand: Floats, slots: slice, servers: Bools | None = None) -> Places:
        """All that fit, up to :data:`MOST` a server.

        Places of a repeated demand are kept; only slots that have changed since are sorted again.
        """
        key, memory = _key(demand, servers), self._memory
        turn, places = memory.places.get(key, (-1, None))
        if places is None and not memory.keeps(key, self.used[:, :, :1].size):
            return self._places_now(demand, slots, servers)
        if places is None:
            places = self._places_now(demand, slice(None), servers).frozen()
        elif turn < self._turn:
            changed = self._taken_since(turn)
            places = places.but_for(changed, self._places_now(demand, changed, servers)).frozen()
        memory.places[key] = self._turn, places
        return Places(places.prices[slots], places.order[slots], places.ends[slots])

    def _taken_since(self, turn: int) -> slice:
        """The slots in which something was committed after a turn, and those between them."""
        slots = np.flatnonzero(self._taken > turn)
        return slice(int(slots[0]), int(slots[-1]) + 1) if len(slots) else slice(0)

    def _places_now(self, demand: Floats, slots: slice, servers: Bools | None) -> Places:
        return Places.of(self.prices[slots] @ demand, self._numbers(demand, slots, servers))

    def _numbers(self, demand: Floats, slots: slice, servers: Bools | None) -> Ints:
        """[slot, server] how many of a demand fit, up to :data:`MOST`."""
        numbers = whole_fits(self.free(slots), demand, MOST)
        if servers is not None and not servers.all():
            numbers[:, ~servers] = 0
        return numbers

    def free(self, slots: slice) -> Floats:
        """[slot, server, resource] what is not committed."""
        free: Floats = self.capacity - self.used[slots]
        return free

    @property
    def cheapest(self) -> Floats:
        """[slot, resource] the least price of a unit on any server."""
        if self._cheapest is None:
            self._cheapest = self.prices.min(axis=1, initial=np.inf)
        return self._cheapest

    def take(self, counts: Ints, demand: Floats, slots: slice) -> None:
        """Commit, or with counts below 0 give back, and price again."""
        busy = np.flatnonzero(counts.any(axis=1))
        if not len(busy):
            return
        first, end = int(busy[0]), int(busy[-1]) + 1
        counts, slots = counts[first:end], slice(slots.start + first, slots.start + end)
        self._turn += 1
        self._taken[slots] = self._turn
        self.is_exact = self.is_exact and _sums_exactly(demand)
        used = self.used[slots] + counts[:, :, None] * demand
        self.used[slots] = np.where(np.abs(used) <= ROUNDING * self.capacity, 0.0, used)
        self.prices[slots] = self._prices(slots)
        if self._cheapest is not None:
            self._cheapest[slots] = self.prices[slots].min(axis=1, initial=np.inf)

    def price_again(self, bounds: SideBounds) -> None:
        self.bounds, self._cheapest = bounds, None
        self._memory = _Memory()
        self.prices = self._prices(slice(None))

    def move_on(self, slots: int) -> None:
        for values, empty in ((self.used, 0.0), (self.prices, self.bounds.prices(np.zeros(1)))):
            values[:-slots] = values[slots:].copy()
            values[-slots:] = empty
        self._cheapest = None
        self._memory = _Memory()

    def _prices(self, slots: slice) -> Floats:
        part = np.zeros_like(self.used[slots])
        np.divide(self.used[slots], self.capacity, out=part, where=self.capacity > 0)
        return self.bounds.prices(part)


_Asked = tuple[bytes, bytes]
"""A demand, and the servers that it may be on."""


def _key(demand: Floats, servers: Bools | None) -> _Asked:
    return demand.tobytes(), b"" if servers is None else servers.tobytes()


class _Memory:
    """What one side has found for demands, with the turn in which it did."""

    def __init__(self) -> None:
        self.rooms: dict[_Asked, tuple[int, Ints]] = {}
        self.places: dict[_Asked, tuple[int, Places]] = {}
        # For which places were requested, in the order of their first request.
        self._asked: dict[_Asked, None] = {}

    def __deepcopy__(self, memo: object) -> _Memory:
        """Empty: results do not depend on it, only the time they take."""
        return _Memory()

    def keeps(self, asked: _Asked, size: int) -> bool:
        """Whether to keep places of ``size`` numbers: from the second request on, if they fit at all.

        Makes room by dropping the oldest.
        """
        if asked not in self._asked:
            if len(self._asked) == _MOST_ASKED:
                del self._asked[next(iter(self._asked))]
            self._asked[asked] = None
            return False
        while self.places and (len(self.places) + 1) * size > _MOST_KEPT:
            oldest = next(iter(self.places))
            del self.places[oldest]
            self._asked.pop(oldest, None)
        return size <= _MOST_KEPT


def _sums_exactly(demand: Floats) -> bool:
    steps = demand * _STEPS
    return bool((steps == np.floor(steps)).all()) and float(demand.max(initial=0.0)) <= _LARGEST


@dataclass(frozen=True, slots=True)
class Quote:
    """What the market asks of one job now, for each slot that it could end in."""

    bid: Bid
    first: int
    """The slot of the first cost: that of its arrival, or the one the market is in."""
    costs: Floats
    """[slot from first] the least that ending then costs; infinite: it cannot end then."""
    found: Schedules

    @property
    def worths(self) -> Floats:
        """[slot from first] utility if it ends then."""
        return self.bid.worth[self.first : self.first + len(self.costs)]

    @property
    def payoffs(self) -> Floats:
        """[slot from first] utility less cost."""
        return self.worths - self.costs

    @property
    def last(self) -> int | None:
        """The slot to end in with the largest payoff, the first of several; None if none is feasible."""
        if not np.isfinite(self.costs).any():
            return None
        return self.first + int(np.argmax(self.payoffs))

    @property
    def payoff(self) -> float:
        return float(self.payoffs.max(initial=-np.inf))

    @property
    def is_worth_it(self) -> bool:
        last = self.last
        return last is not None and self.payoff > MORE * float(self.worths[last - self.first])

    @property
    def plan(self) -> SlotPlan:
        last = self.last
        assert last is not None, "some schedule is feasible"  # noqa: S101
        return self.found.plan(last - self.first)

    @property
    def least_scale(self) -> float:
        """Its utility times more than this would have been admitted; infinite: not even then."""
        with np.errstate(divide="ignore", invalid="ignore"):
            scales = np.where(np.isfinite(self.costs), self.costs / self.worths, np.inf)
        return float(np.nanmin(scales, initial=np.inf))


# The best schedule of one job at given prices.


def schedules(bid: Bid, first: int, workers: Places, ps: Places) -> Schedules:
    """All ends of one job from slot ``first`` on; the places are those of the slots from there."""
    costs = _slot_costs(bid, workers, ps)
    ends = costs.shape[1] - np.isfinite(costs)[:, ::-1].argmax(axis=1)  # no workers cost nothing
    cost_rows = [row[:end] for row, end in zip(costs, ends.tolist(), strict=True)]
    advances = [_advance(bid, first, slot) for slot in (0, 1)]
    most = np.maximum.accumulate(advances, axis=1)[np.minimum(np.arange(len(ends)), 1), ends - 1]
    reach = np.minimum(most.cumsum(), bid.work)
    lowest = np.maximum(bid.work - (most.sum() - most.cumsum()), 0)
    if not cost_rows or reach[-1] < bid.work:  # rows are left out where it cannot end at all
        return Schedules(bid, first, workers, ps, (), (), lowest[:0])
    rows: list[Floats] = []
    before, before_low = np.zeros(1), 0
    for slot, row in enumerate(cost_rows):
        low = int(lowest[slot])
        span = (low, int(reach[slot]))
        if bid.advance is None and (slot or bid.first_part >= 1):
            before = _min_plus(before, before_low, row, *span)
        else:
            before = _min_plus_of(before, before_low, row, advances[slot > 0], span)
        before_low = low
        rows.append(before)
    return Schedules(bid, first, workers, ps, tuple(cost_rows), tuple(rows), lowest)


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

    def plan(self, end: int) -> SlotPlan:
        """The cheapest schedule that ends ``end`` slots after the first, which must be one of finite cost."""
        left, sizes = self.bid.work, np.zeros(end + 1, dtype=np.int64)
        for slot in range(end, -1, -1):
            if not left:  # no workers cost nothing
                break
            advance = _advance(self.bid, self.first, slot)
            sizes[slot] = self._size(slot, left, advance)
            left = max(0, left - int(advance[sizes[slot]]))
        ps = self.bid.ps_of(sizes)
        return SlotPlan(self.first, self.workers.take(sizes), self.ps.take(ps))

    def _size(self, slot: int, left: int, advance: Ints) -> int:
        """Workers of a slot in the cheapest way to do ``left`` until then; of equal ones the fewest."""
        cost = self.slot_costs[slot]
        before, low = (self.costs[slot - 1], int(self.lowest[slot - 1])) if slot else (np.zeros(1), 0)
        done = np.maximum(left - low - advance[: len(cost)], 0)
        known = np.where(done < len(before), before[np.minimum(done, len(before) - 1)], np.inf)
        sums = known + cost
        least = min(1, int(np.argmin(sums)))
        return least + int(np.argmax(sums[least:] <= sums.min() * (1 + _ROUNDING)))


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
        order = np.argsort(prices, axis=1, kind="stable")
        return cls(prices, order, np.take_along_axis(numbers, order, axis=1).cumsum(axis=1))

    def but_for(self, slots: slice, others: Places) -> Places:
        """With others in these slots; what was quoted before stays as it is."""
        made = Places(self.prices.copy(), self.order.copy(), self.ends.copy())
        made.prices[slots], made.order[slots], made.ends[slots] = others.prices, others.order, others.ends
        return made

    def frozen(self) -> Places:
        """The same, and no one can write to it."""
        for values in (self.prices, self.order, self.ends):
            values.flags.writeable = False
        return self

    def first_at(self, factor: float) -> Places:
        """The same with the prices of the first slot times a factor."""
        prices = self.prices.copy()
        prices[:1] *= factor
        return replace(self, prices=prices)

    @classmethod
    def none(cls, slots: int, servers: int) -> Places:
        """For a job without PS: nothing fits, and the order has no meaning."""
        shape = (slots, servers)
        return cls(np.zeros(shape), np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64))

    def costs(self, most: int) -> Floats:
        """[slot, n] the least that n places cost, for n up to ``most``; infinite where there are fewer."""
        slots, servers = self.prices.shape
        if not servers:
            return np.where(np.arange(most + 1) > 0, np.inf, np.zeros((slots, 1)))
        count = self._count_for(most)
        rank = _ranks(self.ends[:, :count], most)
        server = np.take_along_axis(self.order[:, :count], np.minimum(rank, count - 1), axis=1)
        each = np.where(rank < count, np.take_along_axis(self.prices, server, axis=1), np.inf)
        sums = np.zeros((slots, most + 1))
        np.cumsum(each, axis=1, out=sums[:, 1:])
        return sums

    def _count_for(self, most: int) -> int:
        """A number of servers: in every slot, the cheapest have ``most`` places, or all that there are."""
        count, servers = max(1, most), int(self.ends.shape[1])
        wanted = np.minimum(self.ends[:, -1], most)
        while count < servers and (self.ends[:, count - 1] < wanted).any():
            count *= 2
        return min(count, servers)

    def take(self, counts: Ints) -> Ints:
        """[slot, server] places of as many of each of the first slots, the cheapest."""
        slots = len(counts)
        taken = np.zeros((slots, self.prices.shape[1]), dtype=np.int64)
        used = np.flatnonzero(counts)
        ends = self.ends[used]
        before = np.concatenate([np.zeros((len(used), 1), dtype=np.int64), ends[:, :-1]], axis=1)
        rows = np.clip(counts[used, None] - before, 0, ends - before)
        taken[used[:, None], self.order[used]] = rows
        return taken


def _ranks(ends: Ints, most: int) -> Ints:
    """[slot, n] how many servers are full before place n (from 0) is taken: one search for all slots."""
    slots, servers = ends.shape
    shift = np.arange(slots)[:, None] * (most + 1)
    flat = (np.minimum(ends, most) + shift).ravel()
    wanted = (np.arange(most) + shift).ravel()
    places = np.searchsorted(flat, wanted, side="right").reshape(slots, most)
    ranks: Ints = places - np.arange(slots)[:, None] * servers
    return ranks


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
    if len(cost) == 1:  # not one worker fits
        return before[low - before_low : high - before_low + 1]
    sizes = np.flatnonzero(np.isfinite(cost))
    most, count = int(advance[sizes].max()), high - low + 1
    padded = np.full(most + max(len(before), high - before_low + 1), np.inf)
    padded[:most] = before[0]
    padded[most : most + len(before)] = before
    starts = most + low - before_low - advance[sizes]
    shape, strides = (len(padded) - count + 1, count), 2 * padded.strides
    # [start, w - low] is before[start + w - low - most], that is before[w - advance].
    shifted: Floats = np.ndarray(shape, np.float64, padded, strides=strides)
    return np.asarray((shifted[starts] + cost[sizes, None]).min(axis=0))


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
    # [w - low, y] is before[w - y].
    shifted = np.lib.stride_tricks.as_strided(start, (high - low + 1, most + 1), (size, -size))
    least = np.empty(high - low + 1)
    width = max(1, _CELLS // (most + 1))
    for first in range(0, len(least), width):
        np.min(shifted[first : first + width] + cost, axis=1, out=least[first : first + width])
    return least
