"""The books of OASiS: which jobs have booked which slots of the market, while time moves on.

The market counts slots from the present one and knows servers by position. :class:`Ledger` keeps bookings by
slots since time 0 and by names of nodes; :class:`Exchange` turns a job into a bid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

import numpy as np

from pliant.schemas.job import Utility
from pliant.tools.schedule.jobs import JobState, NodeGpus, NodeState, gpus_of
from pliant.tools.schedule.policies.multi_resource.fleet import (
    Bid,
    Bools,
    Floats,
    Ints,
    ServerNodes,
    Servers,
    SlotPlan,
    whole_fits,
)
from pliant.tools.schedule.policies.oasis.market import MOST, Market, Quote
from pliant.tools.schedule.policies.oasis.prices import BoundsEstimate
from pliant.tools.schedule.rates import Speeds

_UNSTATED: Final = Utility()
_ROUNDING: Final = 1e-6
"""Part of a unit of work by which what is left may exceed a whole number and count as that."""
_UNITS: Final = 64
"""Work of a slot at the fastest size, at least."""
_EVERY: Final = 16
"""Every size up to this one is offered; of larger ones those that are this much larger than the last:"""
_STEP: Final = 1.125


class Ledger:
    """The next slots of a cluster, from ``origin`` on.

    :param slots: how many are planned ahead.
    """

    def __init__(self, exchange: Exchange, estimate: BoundsEstimate, slots: int) -> None:
        self.exchange = exchange
        self.estimate = estimate
        self.bookings: dict[str, Booking] = {}
        # Jobs that got, lost or exchanged slots; the reader empties it.
        self.touched: set[str] = set()
        self.origin = 0
        # Of the slot `origin`, what is left of it.
        self.first_part = 1.0
        self._slots = slots
        self._market: Market | None = None
        self._demands: dict[str, Sequence[tuple[Floats, Bools]]] = {}

    def move_to(self, origin: int, first_part: float = 1.0) -> None:
        """The first slot that can be booked is ``origin`` now, or a part of it."""
        self.first_part = first_part
        if self._market is not None and origin > self.origin:
            self._market.move_on(origin - self.origin)
        self.origin = origin

    def refresh(self) -> None:
        self._market = None

    def learn(self, bids: Iterable[tuple[int, Bid]]) -> None:
        """More jobs are known, with the slots of their arrival, so prices may have other bounds."""
        servers = self.exchange.now() if self._market is None else self._market.servers
        if not self.estimate.learn(bids, servers, self._slots):
            return
        if self._market is not None and self._market.is_exact:
            self._market.price_again(self.estimate.bounds(servers, self._slots))
        else:
            self._market = None

    def bids(self, job: JobState, time_s: float, origin: int | None = None) -> dict[str, Bid]:
        """What a job asks for on each GPU type that it can run on; on the one that it holds, if any.

        :param origin: the slot that it would begin with, the whole of it; None: what is left of the first.
        """
        types = [job.gpu_type] if job.gpus and job.gpu_type else self.exchange.gpu_types
        first, part = (self.origin, self.first_part) if origin is None else (origin, 1.0)
        bids = {kind: self.exchange.bid(job, kind, time_s, (first, self._slots), part) for kind in types}
        return {kind: bid for kind, bid in bids.items() if bid is not None}

    def best(self, bids: Mapping[str, Bid]) -> Offer | None:
        offers = [Offer(kind, quote, quote.last) for kind, quote in self._quotes(bids)]
        return max(offers, key=lambda offer: offer.quote.payoff, default=None)

    def certain(self, bids: Mapping[str, Bid], *, soonest: bool) -> Offer | None:
        """An offer to a job that is to run in any case; None if it finds no slot at all.

        Work that does not fit the slots ahead is planned in part.

        :param soonest: the earliest end, else the largest payoff.
        """
        most = {kind: self.market.most_work(bid) for kind, bid in bids.items()}
        work = {kind: bid.work for kind, bid in bids.items()}
        while work:
            able = {
                kind: bid if bid.work == work[kind] else replace(bid, work=work[kind])
                for kind, bid in bids.items()
                if kind in work and work[kind] <= most[kind][-1]
            }
            if not able:
                best = None
            elif soonest:
                best = self._soonest(able, most)
            else:
                offers = [Offer(kind, quote, quote.last) for kind, quote in self._quotes(able)]
                ends = [offer for offer in offers if offer.end is not None]
                best = max(ends, key=lambda offer: offer.quote.payoff, default=None)
            if best is not None:
                return best
            work = {kind: less for kind, each in work.items() if (less := _halved(each, bids[kind]))}
        return None

    def is_full_for(self, job: JobState) -> bool:
        """Whether a job that holds no GPUs would run somewhere, but not one worker has room in any slot."""
        if job.id not in self._demands:
            self._demands[job.id] = self.exchange.worker_demands(job)
        workers, demands = self.market.workers, self._demands[job.id]
        return bool(demands) and not any(
            workers.room(demand, 1, servers).any() for demand, servers in demands
        )

    def book(self, job_id: str, offer: Offer) -> None:
        quote, end = offer.quote, offer.end
        assert end is not None, "some schedule is feasible"  # noqa: S101
        plan = quote.found.plan(end - quote.first)
        self.market.commit(quote.bid, plan)
        servers = self.market.servers
        self.bookings[job_id] = Booking.of(quote.bid, offer.gpu_type, plan, self.origin, servers)
        self.touched.add(job_id)

    def take(self, job_id: str, booking: Booking) -> None:
        """Commit a booking that another has found, if :meth:`has_space` for it."""
        plan = booking.from_slot(self.origin)
        assert plan is not None, "some of its slots are to come"  # noqa: S101
        self.market.commit(booking.bid, plan)
        self.bookings[job_id] = booking
        self.touched.add(job_id)

    def has_space(self, booking: Booking) -> bool:
        """Whether nothing booked is in the way of a booking of which no slot has passed."""
        plan, market = booking.from_slot(self.origin), self.market
        if plan is None or plan.sizes().sum() < booking.plan.sizes().sum():
            return False
        sides = ((market.workers, plan.workers, booking.bid.worker), (market.ps, plan.ps, booking.bid.ps))
        return all(
            bool((counts <= whole_fits(side.free(plan.slots), demand, MOST)).all())
            for side, counts, demand in sides
        )

    def drop(self, job_id: str) -> None:
        booking = self.bookings.pop(job_id, None)
        self.touched.add(job_id)
        self._demands.pop(job_id, None)
        plan = booking.from_slot(self.origin) if booking is not None else None
        if booking is not None and plan is not None and self._market is not None:
            self._market.release(booking.bid, plan)

    def book_again(self, job: JobState, time_s: float, slot: int, *, soonest: bool) -> None:
        """Find other slots for the rest of a job, whatever they cost; without any it keeps those it has.

        :param slot: the present one, of which it keeps what it has.
        :param soonest: as in :meth:`certain`.
        """
        before = self.bookings[job.id]
        self.drop(job.id)
        offer = self.certain(self.bids(job, time_s), soonest=soonest)
        if offer is not None:
            self.book(job.id, offer)
            self.bookings[job.id] = self.bookings[job.id].continuing(before, slot)
            return
        self.bookings[job.id] = before
        if (plan := before.from_slot(self.origin)) is not None:
            self.market.commit(before.bid, plan)

    def fits(self, booking: Booking) -> bool:
        """Whether the servers still have all that a booking and the others take."""
        plan = booking.from_slot(self.origin)
        if plan is None:
            return True
        market = self.market
        for side, counts in ((market.workers, plan.workers), (market.ps, plan.ps)):
            over = (side.used[plan.slots] > side.capacity * (1 + 1e-9) + 1e-9).any(axis=2)
            if (over & (counts > 0)).any():
                return False
        return True

    @property
    def market(self) -> Market:
        if self._market is None:
            servers = self.exchange.now()
            bounds = self.estimate.bounds(servers, self._slots)
            self._market = Market(servers, bounds, self._slots)
            for booking in self.bookings.values():
                if (plan := booking.from_slot(self.origin)) is not None:
                    self._market.commit(booking.bid, plan)
        return self._market

    def _quotes(self, bids: Mapping[str, Bid]) -> list[tuple[str, Quote]]:
        return [(kind, self.market.quote(bid)) for kind, bid in bids.items()]

    def _soonest(self, bids: Mapping[str, Bid], most: Mapping[str, Ints]) -> Offer | None:
        """The earliest end, of equal ones the largest payoff.

        :param most: by type, :meth:`Market.most_work`: no slot before it can be the last one.
        """
        offers = []
        for kind, bid in bids.items():
            least = bid.arrival + int(most[kind].searchsorted(bid.work)) + 1
            quote = self.market.quote(bid, until=least)
            if not np.isfinite(quote.costs).any():
                quote = self.market.quote(bid)
            feasible = np.flatnonzero(np.isfinite(quote.costs))
            if len(feasible):
                offers.append(Offer(kind, quote, quote.first + int(feasible[0])))
        earliest = min((offer.end for offer in offers if offer.end is not None), default=None)
        equal = [offer for offer in offers if offer.end == earliest]
        if len(equal) > 1:  # what later ends would pay counts, too
            equal = [offer._replace(quote=self.market.quote(offer.quote.bid)) for offer in equal]
        return max(equal, key=lambda offer: offer.quote.payoff, default=None)

    def dump(self) -> dict[str, Any]:
        return {
            "origin": self.origin,
            "bookings": {job_id: booking.dump() for job_id, booking in self.bookings.items()},
            "estimate": self.estimate.dump(),
        }

    def load(self, state: Mapping[str, Any], jobs: Sequence[JobState]) -> None:
        """Jobs that are gone need no slots."""
        self.origin, servers = int(state["origin"]), self.exchange.now()
        self.estimate.load(state["estimate"], len(self.exchange.resources))
        known = {job.id: job for job in jobs}
        self.bookings = {
            job_id: Booking.load(values, self.exchange.demands(known[job_id], values[0]), servers)
            for job_id, values in state["bookings"].items()
            if job_id in known
        }
        self._market = None


class Offer(NamedTuple):
    """A schedule that a job may have."""

    gpu_type: str
    quote: Quote
    end: int | None
    """The slot of the market that it ends with; None if none is feasible."""


def is_plain(job: JobState) -> bool:
    """Whether a job does not state what it is worth: it is admitted, and runs as soon as it can."""
    return job.spec.utility == _UNSTATED


def _halved(work: int, bid: Bid) -> int:
    """Half of the work, in whole steps of a bid; 0: there is none left."""
    whole = bid.least_workers if bid.least_workers == bid.most_workers else 1
    return work // (2 * whole) * whole


# Bookings: plans by the number of a slot since time 0 and by the names of nodes.


@dataclass(frozen=True, slots=True)
class Booking:
    """The slots of one job."""

    bid: Bid
    gpu_type: str
    plan: SlotPlan
    """Its slots are numbered from time 0."""
    names: tuple[tuple[str, ...], tuple[str, ...]]
    """Names of the nodes of workers, and of those of parameter servers."""
    begins: int = field(init=False)
    """The first slot that is not idle."""

    def __post_init__(self) -> None:
        busy = self.plan.workers.any(axis=1) | self.plan.ps.any(axis=1)
        object.__setattr__(self, "begins", self.plan.first + int(np.append(busy, True).argmax()))

    @classmethod
    def of(cls, bid: Bid, gpu_type: str, plan: SlotPlan, origin: int, servers: Servers) -> Self:
        """A plan of a market whose slot 0 is the slot ``origin``."""
        return cls(
            bid,
            gpu_type,
            replace(plan, first=origin + plan.first),
            (servers.worker_names, servers.ps_names),
        )

    def continuing(self, before: Self, slot: int) -> Self:
        """With what the booking before it has of the present slot, which has begun."""
        alike = (before.gpu_type, before.names) == (self.gpu_type, self.names)
        if not alike or slot >= self.plan.first or not before.at(slot).gpus:
            return self
        gap, row = self.plan.first - slot - 1, slice(slot - before.plan.first, slot - before.plan.first + 1)
        workers, ps = (
            np.concatenate([old[row], np.zeros((gap, old.shape[1]), dtype=np.int64), new])
            for old, new in ((before.plan.workers, self.plan.workers), (before.plan.ps, self.plan.ps))
        )
        return replace(self, plan=SlotPlan(slot, workers, ps))

    def at(self, slot: int) -> SlotHolding:
        plan = self.plan
        if not self.begins <= slot <= plan.last:
            return SlotHolding()
        at = slot - plan.first
        counts = plan.workers[at] * self.bid.gpus, plan.ps[at]
        return SlotHolding(*(_named(*pair) for pair in zip(counts, self.names, strict=True)))

    def sizes_from(self, slot: int) -> list[int]:
        """GPUs slot by slot."""
        workers = self.plan.sizes()[max(0, slot - self.plan.first) :]
        sizes: list[int] = (workers * self.bid.gpus).tolist()
        return [0] * max(0, self.plan.first - slot) + sizes

    def from_slot(self, origin: int) -> SlotPlan | None:
        """The part from the slot ``origin`` on, for a market that begins there; None if there is none."""
        skipped = max(0, origin - self.plan.first)
        if self.plan.first + skipped > self.plan.last:
            return None
        return SlotPlan(
            self.plan.first + skipped - origin, self.plan.workers[skipped:], self.plan.ps[skipped:]
        )

    def spans(self, slot: int) -> Iterator[tuple[int, int, SlotHolding]]:
        """(first slot, slot after the last, what it holds) of slots from ``slot`` on that are alike."""
        begin = at = max(slot, self.plan.first)
        while at <= self.plan.last:
            at += 1
            if at > self.plan.last or self.at(at) != self.at(begin):
                if self.at(begin).gpus:
                    yield begin, at, self.at(begin)
                begin = at

    def dump(self) -> list[Any]:
        rows = [self.at(slot) for slot in range(self.plan.first, self.plan.last + 1)]
        return [self.gpu_type, self.plan.first, [list(row) for row in rows]]

    @classmethod
    def load(cls, values: Sequence[Any], bid: Bid, servers: Servers) -> Self:
        """Nodes that are no longer there are left out."""
        gpu_type, first, rows = values
        names = (servers.worker_names, servers.ps_names)
        workers, ps = (
            np.array([_counts(dict(row[side]), names[side]) for row in rows], dtype=np.int64)
            for side in (0, 1)
        )
        return cls(bid, gpu_type, SlotPlan(first, workers // bid.gpus, ps), names)


class SlotHolding(NamedTuple):
    """What a job holds in one slot."""

    workers: NodeGpus = ()
    servers: NodeGpus = ()

    @property
    def gpus(self) -> int:
        return gpus_of(self.workers) if self.workers else 0


def row_of(values: Sequence[Any]) -> SlotHolding:
    return SlotHolding(*(tuple((str(name), int(count)) for name, count in place) for place in values))


def _named(counts: Ints, names: Sequence[str]) -> NodeGpus:
    return tuple((names[index], int(counts[index])) for index in np.flatnonzero(counts).tolist())


def _counts(held: Mapping[str, int], names: Sequence[str]) -> list[int]:
    return [held.get(name, 0) for name in names]


# Jobs as bids for slots to come.


class Exchange(ServerNodes):
    """The nodes of a cluster as servers, and jobs as bids.

    :param slot_s: seconds of a slot.
    :param by_size: work advances at the speed of each size; False: in proportion to the workers, at the speed
        that one has where a worker is slowest.
    :param rescale_s: cost of a change of workers where the profile has not measured it. That much of each
        slot, at most half, is not planned; None: all of it is.
    """

    def __init__(
        self,
        nodes: Sequence[NodeState],
        speeds: Speeds,
        slot_s: float,
        *,
        by_size: bool = True,
        rescale_s: float | None = None,
    ) -> None:
        super().__init__(nodes)
        self._speeds = speeds
        self._slot_s = slot_s
        self._by_size = by_size
        self._rescale_s = rescale_s
        self._of_type = {kind: self.of_type(kind) for kind, gpus in speeds.gpu_types.items() if gpus}

    @property
    def gpu_types(self) -> Iterable[str]:
        return self._of_type

    def worker_demands(self, job: JobState) -> list[tuple[Floats, Bools]]:
        """([resource] what a worker takes, [server] those that it may be on) by GPU type that it runs on."""
        types = ((kind, servers) for kind, servers in self._of_type.items() if self.rates(job, kind))
        return [(self.demands(job, kind).worker, servers) for kind, servers in types]

    def bid(
        self, job: JobState, gpu_type: str, time_s: float, slots: tuple[int, int], first_part: float = 1.0
    ) -> Bid | None:
        """What a job asks for on one GPU type; None if it does not run there.

        :param slots: the first slot of the market, and how many it has.
        :param first_part: what is left of that slot.
        """
        demands, left = self.demands(job, gpu_type), job.remaining_samples(time_s)
        sizes = self._sizes(job, gpu_type, demands.gpus)
        if sizes is None or left is None:
            return None
        trains_s = self._trains_s(job)
        some_sizes = job.spec.gpus.sizes is not None or job.per_replica > demands.gpus  # on several nodes
        by_size = some_sizes or (self._by_size and not (sizes.in_proportion and first_part >= 1))
        work = max(1, math.ceil(left / ((sizes.unit if by_size else sizes.slowest) * trains_s) - _ROUNDING))
        if not by_size and sizes.least == sizes.most:
            work = sizes.least * -(-work // sizes.least)
        return replace(
            demands,
            work=work,
            most_workers=len(sizes.advance) - 1 if by_size else sizes.most,
            least_workers=sizes.least,
            worth=self._worths(job, *slots),
            servers=self._of_type[gpu_type],
            advance=sizes.advance if by_size else None,
            first_part=first_part,
        )

    def _sizes(self, job: JobState, gpu_type: str, worker_gpus: int) -> _Sizes | None:
        """None if it does not run there."""
        rates = {size // worker_gpus: rate for size, rate in self.rates(job, gpu_type).items()}
        what = ("oasis sizes", gpu_type, worker_gpus, tuple(rates))
        return self._speeds.of_kind(job, what, lambda: _Sizes.of(rates)) if rates else None

    def _trains_s(self, job: JobState) -> float:
        """Seconds of a slot for which a job trains even if its workers change with it."""
        if self._rescale_s is None:
            return self._slot_s
        measured = self._speeds.rescale_seconds(job.spec.model)
        lost_s = self._rescale_s if measured is None else measured
        return self._slot_s - min(lost_s, self._slot_s / 2)

    def rates(self, job: JobState, gpu_type: str) -> dict[int, float]:
        """Samples per second by the sizes that a job may have on a type; empty if it does not run there."""
        sizes = tuple(job.sizes(self._speeds.gpu_types[gpu_type]))

        def made() -> dict[int, float]:
            rates = ((size, self._speeds.rate(job, size, gpu_type)) for size in sizes)
            return {size: rate for size, rate in rates if rate > 0}

        return self._speeds.of_kind(job, ("rates", gpu_type, sizes), made)

    def _worths(self, job: JobState, first: int, count: int) -> Floats:
        """[slot] what a job is worth that ends with each of ``count`` slots from ``first`` on."""
        utility = job.spec.utility
        if utility.shape == "constant":
            return np.full(count, utility.value)
        since_s = ((first + 1 + slot) * self._slot_s - job.spec.submit_time for slot in range(count))
        return np.array([utility.worth(max(0.0, each_s)) for each_s in since_s])


class _Sizes(NamedTuple):
    """What jobs that are equally fast offer by number of workers."""

    least: int
    most: int
    slowest: float
    """The least samples per second of one worker."""
    in_proportion: bool
    """Whether all workers are as fast as that."""
    advance: Ints
    unit: float
    """Samples per second of a unit of ``advance``."""

    @classmethod
    def of(cls, rates: Mapping[int, float]) -> Self:
        each = [rate / size for size, rate in rates.items()]
        in_proportion = max(each) <= min(each) * (1 + _ROUNDING)
        return cls(min(rates), max(rates), min(each), in_proportion, *_advance(rates))


def _advance(rates: Mapping[int, float]) -> tuple[Ints, float]:
    """[workers] whole units of work that a slot does, and the samples per second of one unit.

    Sizes no faster than a smaller one are left out, and of large ones some. The number of units of the
    fastest size is the one that rounds down least.
    """
    useful: dict[int, float] = {}
    fastest = 0.0
    for size, rate in rates.items():
        is_offered = size <= _EVERY or size >= _STEP * max(useful, default=0) or size == max(rates)
        if is_offered and rate > fastest * (1 + _ROUNDING):
            useful[size] = fastest = rate
    shares = np.array([*useful.values()]) / fastest
    counts = np.arange(_UNITS, 2 * _UNITS + 1)
    whole = np.floor(shares * counts[:, None] * (1 + _ROUNDING))
    best = int(np.argmin((1 - whole / (shares * counts[:, None])).max(axis=1)))
    advance = np.zeros(max(useful) + 1, dtype=np.int64)
    advance[list(useful)] = whole[best]
    return advance, fastest / int(counts[best])
