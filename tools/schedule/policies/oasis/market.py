"""The market of OASiS: what is committed of every server in every slot, and what that makes resources cost.

Algorithm 1 of "Online Job Scheduling in Distributed Machine Learning Clusters" (Bao et al., 2018): a job is
admitted if the best schedule at the prices of its arrival is worth more than it costs; its slots are then
committed, which raises the prices for those after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pliant.tools.schedule.policies.multi_resource.model import (
    ROUNDING,
    Bid,
    Bools,
    Floats,
    Ints,
    Plan,
    Servers,
    whole_fits,
)
from pliant.tools.schedule.policies.oasis.prices import PriceBounds, SideBounds
from pliant.tools.schedule.policies.oasis.subroutine import Places, Schedules, schedules

MORE: Final = 1e-9
"""Relative: a payoff counts as positive if it is more than this part of the utility."""


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
        """The slot to end in with the largest payoff, the first of several; None: no schedule is feasible."""
        if not np.isfinite(self.costs).any():
            return None
        return self.first + int(np.argmax(self.payoffs))

    @property
    def payoff(self) -> float:
        """The largest; minus infinity where no schedule is feasible."""
        return float(self.payoffs.max(initial=-np.inf))

    @property
    def is_worth_it(self) -> bool:
        """Whether the job is to be admitted."""
        last = self.last
        return last is not None and self.payoff > MORE * float(self.worths[last - self.first])

    @property
    def plan(self) -> Plan:
        """The schedule with the largest payoff; there must be a feasible one."""
        last = self.last
        assert last is not None, "some schedule is feasible"  # noqa: S101
        return self.found.plan(last - self.first)

    @property
    def least_scale(self) -> float:
        """Its utility times more than this would have been admitted; infinite: not even then."""
        with np.errstate(divide="ignore", invalid="ignore"):
            scales = np.where(np.isfinite(self.costs), self.costs / self.worths, np.inf)
        return float(np.nanmin(scales, initial=np.inf))


class Side:
    """One kind of servers over all slots."""

    def __init__(self, capacity: Floats, bounds: SideBounds, slots: int) -> None:
        self.capacity = capacity
        self.bounds = bounds
        self.used = np.zeros((slots, *capacity.shape))
        """[slot, server, resource] committed."""
        self.prices = self._prices(slice(None))
        """[slot, server, resource] of a unit."""
        self._cheapest: Floats | None = None

    def places(self, demand: Floats, slots: slice, most: int, servers: Bools | None = None) -> Places:
        """What a worker or PS of this demand is offered in these slots."""
        fits = whole_fits(self.free(slots), demand, most)
        if servers is not None:
            fits[:, ~servers] = 0
        return Places.of(self.prices[slots] @ demand, fits)

    def free(self, slots: slice) -> Floats:
        """[slot, server, resource] what is not committed."""
        found: Floats = self.capacity - self.used[slots]
        return found

    @property
    def cheapest(self) -> Floats:
        """[slot, resource] the least price of a unit on any server."""
        if self._cheapest is None:
            self._cheapest = self.prices.min(axis=1, initial=np.inf)
        return self._cheapest

    def take(self, counts: Ints, demand: Floats, slots: slice) -> None:
        """Commit, or with counts below 0 give back, and price again."""
        used = self.used[slots] + counts[:, :, None] * demand
        self.used[slots] = np.where(np.abs(used) <= ROUNDING * self.capacity, 0.0, used)
        self.prices[slots] = self._prices(slots)
        if self._cheapest is not None:
            self._cheapest[slots] = self.prices[slots].min(axis=1, initial=np.inf)

    def move_on(self, slots: int) -> None:
        """Drop the first slots; as many empty ones follow at the end."""
        for values, empty in ((self.used, 0.0), (self.prices, self.bounds.prices(np.zeros(1)))):
            values[:-slots] = values[slots:].copy()
            values[-slots:] = empty
        self._cheapest = None

    def _prices(self, slots: slice) -> Floats:
        part = np.zeros_like(self.used[slots])
        np.divide(self.used[slots], self.capacity, out=part, where=self.capacity > 0)
        return self.bounds.prices(part)


class Market:
    """All servers over slots 0 to ``slots`` - 1."""

    def __init__(self, servers: Servers, bounds: PriceBounds, slots: int) -> None:
        self.servers = servers
        self.bounds = bounds
        self.slots = slots
        self.workers = Side(servers.workers, bounds.workers, slots)
        self.ps = Side(servers.ps, bounds.ps, slots)

    def quote(self, bid: Bid, now: int = 0) -> Quote:
        """The best schedules of a job from its arrival on, or from slot ``now`` if that is later."""
        first = max(bid.arrival, now)
        slots = slice(first, self.slots)
        workers = self.workers.places(bid.worker, slots, bid.most_workers, bid.servers)
        places = (workers, self._ps_places(bid, slots))
        if bid.first_part < 1 and first == bid.arrival:
            for each in places:
                each.prices[:1] *= bid.first_price
        found = schedules(bid, first, *places)
        return Quote(bid, first, found.by_end, found)

    def is_hopeless(self, bid: Bid, now: int = 0) -> bool:
        """Whether even the cheapest prices of all servers are too high: a quick look, without a schedule."""
        first = max(bid.arrival, now)
        cheapest = np.minimum.accumulate(self.workers.cheapest[first:] @ bid.worker)[bid.shortest - 1 :]
        return not np.any(bid.worth[first:][bid.shortest - 1 :] > bid.least_worker_slots * cheapest)

    def offer(self, bid: Bid, now: int = 0) -> tuple[Quote, Plan | None]:
        """Admit a job and commit its plan, or turn it away: then there is no plan."""
        quote = self.quote(bid, now)
        if not quote.is_worth_it:
            return quote, None
        plan = quote.plan
        self.commit(bid, plan)
        return quote, plan

    def commit(self, bid: Bid, plan: Plan) -> None:
        """Reserve all that a plan takes."""
        self.workers.take(plan.workers, bid.worker, plan.slots)
        self.ps.take(plan.ps, bid.ps, plan.slots)

    def release(self, bid: Bid, plan: Plan, now: int = 0) -> None:
        """Give back what a plan has reserved from slot ``now`` on."""
        if now > plan.last:
            return
        skipped = max(0, now - plan.first)
        slots = slice(plan.first + skipped, plan.last + 1)
        self.workers.take(-plan.workers[skipped:], bid.worker, slots)
        self.ps.take(-plan.ps[skipped:], bid.ps, slots)

    def move_on(self, slots: int) -> None:
        """Drop the first slots, for a market that never ends: the slot of that number becomes slot 0."""
        gone = min(slots, self.slots)
        if gone > 0:
            self.workers.move_on(gone)
            self.ps.move_on(gone)

    @property
    def used(self) -> tuple[Floats, Floats]:
        """[slot, server, resource] what is committed of the servers of workers, and of those of PS."""
        return self.workers.used, self.ps.used

    def _ps_places(self, bid: Bid, slots: slice) -> Places:
        most = int(bid.ps_of(np.array([bid.most_workers]))[0]) if bid.needs_ps else 0
        return self.ps.places(bid.ps, slots, min(most, bid.most_workers))
