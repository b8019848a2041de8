"""Who has booked which slots: a market that moves with time, and the bookings that it is committed to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from pliant.schemas.job import Utility
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.multi_resource.model import Bid, whole_fits
from pliant.tools.schedule.policies.oasis.bookings import Booking
from pliant.tools.schedule.policies.oasis.estimate import Estimate
from pliant.tools.schedule.policies.oasis.exchange import Exchange
from pliant.tools.schedule.policies.oasis.market import Market, Quote

_UNSTATED: Final = Utility()
_MOST: Final = 1_000_000
"""Workers of a job on one server."""


class Offer(NamedTuple):
    """A schedule that a job may have."""

    gpu_type: str
    quote: Quote
    end: int | None
    """The slot of the market that it ends with; None: none is feasible."""


class Ledger:
    """The next slots of a cluster, from ``origin`` on.

    :param slots: how many are planned ahead.
    """

    def __init__(self, exchange: Exchange, estimate: Estimate, slots: int) -> None:
        self.exchange = exchange
        self.estimate = estimate
        self.bookings: dict[str, Booking] = {}
        self.origin = 0
        self.first_part = 1.0
        """Of the slot ``origin``, what is left of it."""
        self._slots = slots
        self._market: Market | None = None

    def move_to(self, origin: int, first_part: float = 1.0) -> None:
        """Time has passed: the first slot that can be booked is ``origin`` now, or a part of it."""
        self.first_part = first_part
        if self._market is not None and origin > self.origin:
            self._market.move_on(origin - self.origin)
        self.origin = origin

    def refresh(self) -> None:
        """Nodes have changed."""
        self._market = None

    def learn(self, bids: Iterable[tuple[int, Bid]]) -> None:
        """More jobs are known, with the slots of their arrival, so prices may have other bounds."""
        servers = self.exchange.now() if self._market is None else self._market.servers
        if self.estimate.learn(bids, servers, self._slots):
            self._market = None

    def bids(self, job: JobState, time_s: float, origin: int | None = None) -> dict[str, Bid]:
        """What a job asks for on each GPU type that it can run on; on the one that it holds, if any.

        :param origin: the slot that it would begin with, the whole of it; None: what is left of the first.
        """
        types = [job.gpu_type] if job.gpus and job.gpu_type else self.exchange.gpu_types
        first, part = (self.origin, self.first_part) if origin is None else (origin, 1.0)
        found = {kind: self.exchange.bid(job, kind, time_s, (first, self._slots), part) for kind in types}
        return {kind: bid for kind, bid in found.items() if bid is not None}

    def best(self, bids: Mapping[str, Bid]) -> Offer | None:
        """The offer with the largest payoff; None: there is no bid."""
        offers = [Offer(kind, quote, quote.last) for kind, quote in self._quotes(bids)]
        return max(offers, key=lambda offer: offer.quote.payoff, default=None)

    def certain(self, bids: Mapping[str, Bid], *, soonest: bool) -> Offer | None:
        """An offer to a job that is to run in any case; None: it finds no slot at all.

        Work that does not fit the slots ahead is planned in part; the rest follows when there are more.

        :param soonest: the earliest end, else the largest payoff.
        """
        while bids:
            offers = [offer for offer in self._offers(bids, soonest=soonest) if offer.end is not None]
            if offers and soonest:
                return min(offers, key=lambda offer: (offer.end, -offer.quote.payoff))
            if offers:
                return max(offers, key=lambda offer: offer.quote.payoff)
            bids = {kind: less for kind, bid in bids.items() if (less := _halved(bid)) is not None}
        return None

    def book(self, job_id: str, offer: Offer) -> None:
        """Commit the schedule of an offer to its job."""
        quote, end = offer.quote, offer.end
        assert end is not None, "some schedule is feasible"  # noqa: S101
        plan = quote.found.plan(end - quote.first)
        self.market.commit(quote.bid, plan)
        servers = self.market.servers
        self.bookings[job_id] = Booking.of(quote.bid, offer.gpu_type, plan, self.origin, servers)

    def take(self, job_id: str, booking: Booking) -> None:
        """Commit a booking that another has found, if :meth:`has_space` for it."""
        plan = booking.from_slot(self.origin)
        assert plan is not None, "some of its slots are to come"  # noqa: S101
        self.market.commit(booking.bid, plan)
        self.bookings[job_id] = booking

    def has_space(self, booking: Booking) -> bool:
        """Whether nothing that is booked is in the way of a booking, of which no slot has passed."""
        plan, market = booking.from_slot(self.origin), self.market
        if plan is None or plan.sizes().sum() < booking.plan.sizes().sum():
            return False
        sides = ((market.workers, plan.workers, booking.bid.worker), (market.ps, plan.ps, booking.bid.ps))
        return all(
            bool((counts <= whole_fits(side.free(plan.slots), demand, _MOST)).all())
            for side, counts, demand in sides
        )

    def drop(self, job_id: str) -> None:
        """The job needs its slots no more."""
        booking = self.bookings.pop(job_id, None)
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
        found = self.certain(self.bids(job, time_s), soonest=soonest)
        if found is not None:
            self.book(job.id, found)
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
        """At the prices of now."""
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

    def _offers(self, bids: Mapping[str, Bid], *, soonest: bool) -> Iterator[Offer]:
        for kind, quote in self._quotes(bids):
            feasible = np.flatnonzero(np.isfinite(quote.costs))
            first = quote.first + int(feasible[0]) if len(feasible) else None
            yield Offer(kind, quote, first if soonest else quote.last)

    def dump(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "origin": self.origin,
            "bookings": {job_id: booking.dump() for job_id, booking in self.bookings.items()},
            "estimate": self.estimate.dump(),
        }

    def load(self, state: Mapping[str, Any], jobs: Sequence[JobState]) -> None:
        """Take up what :meth:`dump` gave; jobs that are gone need no slots."""
        self.origin, servers = int(state["origin"]), self.exchange.now()
        self.estimate.load(state["estimate"], len(self.exchange.resources))
        known = {job.id: job for job in jobs}
        self.bookings = {
            job_id: Booking.load(values, self.exchange.demands(known[job_id]), servers)
            for job_id, values in state["bookings"].items()
            if job_id in known
        }
        self._market = None


def is_plain(job: JobState) -> bool:
    """Whether a job leaves open what it is worth: it is then admitted, and runs as soon as it can."""
    return job.spec.utility == _UNSTATED


def _halved(bid: Bid) -> Bid | None:
    """With half of the work; None: there is none left."""
    whole = bid.least_workers if bid.least_workers == bid.most_workers else 1
    work = bid.work // (2 * whole) * whole
    return replace(bid, work=work) if work else None
