"""OASiS: admission on arrival, and schedules over future slots, by the prices of resources.

:class:`BooksSlots` is any policy that books slots to come for jobs; :func:`targets` says what jobs then hold.
:class:`Oasis` books them at the prices of the :mod:`market`. The texts of its answers come last.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self

from pliant.schemas.io import read_jobs
from pliant.schemas.job import Utility
from pliant.schemas.text import counted, span_text
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import JobState, NodeGpus
from pliant.tools.schedule.placement import FreeGpus
from pliant.tools.schedule.policies.common import why_impossible
from pliant.tools.schedule.policies.oasis.ledger import (
    Booking,
    Exchange,
    Ledger,
    Offer,
    SlotHolding,
    is_plain,
    row_of,
)
from pliant.tools.schedule.policies.oasis.market import Quote
from pliant.tools.schedule.policies.oasis.prices import BoundsEstimate, Kind
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Reserved, Target, Traits
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np

    from pliant.schemas.job import Job


MOST_BIDS: Final = 1000
"""Bids in one decision; of a longer queue the rest bids in decisions that follow at once."""
GRACE: Final = 0.1
"""Part of a slot for which it can still be booked: decisions and starts take time."""
_CLOCK: Final = 1e-6
"""Part of a slot by which the sum of slots may miss a time."""
_SLIP: Final = 1.0
"""Worker-slots that a job may be behind its plan before it is planned again."""


class Answers(NamedTuple):
    """What becomes of jobs that have no slots."""

    admissions: dict[str, dict[str, Any]]
    """Details for events, of each bid that is admitted or rejected."""
    rejected: dict[str, str]


class PlannedWork(NamedTuple):
    """What a booking comes to, in seconds of slots; kept until it begins, for many are booked far ahead."""

    booking: Booking
    rates: Mapping[int, float]
    """Samples per second by GPUs."""
    whole: float
    """Whole of its slots."""
    slip: float

    @classmethod
    def of(cls, booking: Booking, rates: Mapping[int, float]) -> Self:
        slip = min(rates.values(), default=0.0) / min(rates, default=1) * _SLIP
        whole = sum(rates.get(size, 0.0) for size in booking.sizes_from(booking.begins))
        return cls(booking, rates, whole, slip)

    def from_slot(self, slot: int, rest: float) -> float:
        """Of the slots from that one on, of which ``rest`` is left."""
        if slot < self.booking.begins:
            return self.whole
        sizes = self.booking.sizes_from(slot)
        return sum(self.rates.get(size, 0.0) * (1.0 if at else rest) for at, size in enumerate(sizes))


class BooksSlots(Policy):
    """Slots of jobs from their arrival to their end; a subclass says who gets which."""

    traits: ClassVar[Traits] = Traits(
        knows="work",
        priority_means="",
        uses_deadlines=True,
        uses_guessed_speeds=True,
        elasticity="size",
        rebuilds_state=False,
    )
    _by_size: ClassVar[bool] = False
    """Whether jobs advance by the speed of each size, or in proportion to their workers."""
    rescale_s: float | None = None
    """Seconds of each slot that a change may cost; None: changes are taken to cost nothing."""

    def __init__(self, *, slot_seconds: float, horizon_slots: int) -> None:
        if not 0.1 <= slot_seconds <= 1e9:
            raise ValueError(f"slot_seconds is {slot_seconds:g}, expected 0.1 to 1e9")
        if not 1 <= horizon_slots <= 10_000:
            raise ValueError(f"horizon_slots is {horizon_slots}, expected 1 to 10000")
        self.slot_seconds = slot_seconds
        self.horizon_slots = horizon_slots
        self._ledger: Ledger | None = None
        self._saved: Mapping[str, Any] | None = None
        # Jobs that have had slots: they get others where they need them.
        self._admitted: set[str] = set()
        # What was asked for of each job, for the session may have other nodes for it.
        self._asked: dict[str, SlotHolding] = {}
        # The first slot that a job that waits could have had when it has bid last.
        self._bid_in: dict[str, int] = {}
        # Why jobs that may bid again wait.
        self._refusals: dict[str, str] = {}
        self._slot = -1
        # Jobs without slots.
        self._waiting: set[str] = set()
        # Those that have not bid for the slots from `_bids_from` on, the first to bid first, ...
        self._to_bid: list[str] = []
        # ... and those that have come since, or lost their slots.
        self._came: set[str] = set()
        self._bids_from = -1
        # What jobs have booked of the present slot: of all that have some of it, or held GPUs in it.
        self._rows: dict[str, SlotHolding] = {}
        # Of jobs with slots, when the present one began.
        self._ahead: dict[str, PlannedWork] = {}
        # Whether bookings are those of a state, which may be of other nodes.
        self._is_resumed = False

    @abstractmethod
    def _estimate(self) -> BoundsEstimate:
        """What the bounds of prices come from."""

    @abstractmethod
    def _answer_bids(self, candidates: Sequence[JobState], snapshot: Snapshot, ledger: Ledger) -> Answers:
        """Book slots for jobs that have none, or turn them away."""

    def _soonest(self, job: JobState) -> bool:
        return is_plain(job)

    def _is_opened(self, snapshot: Snapshot, ledger: Ledger) -> None:
        """Called once, before anything is booked, unless state was loaded."""

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        ledger, slot = self._opened(snapshot), self._present(snapshot.time_s)
        begins, self._slot = slot != self._slot, slot
        ledger.move_to(*self._begin(snapshot.time_s))
        self._follow_bookings(snapshot, ledger)
        self._take_in(snapshot, ledger)
        if begins:
            self._catch_up(snapshot, ledger)
            self._rows = self._rows_of(ledger.bookings, snapshot, ledger)
        candidates = self._candidates(snapshot, ledger)
        admissions, rejected = self._answer_bids(candidates[:MOST_BIDS], snapshot, ledger)
        self._follow_bookings(snapshot, ledger)
        jobs, asked = snapshot.jobs, self._asked
        rows = ((jobs[job_id], row) for job_id, row in self._rows.items())
        target_by_job, displaced = targets(rows, snapshot.free, ledger.bookings, slot, asked)
        for job_id in displaced:
            ledger.drop(job_id)
        staying = (job for job_id, job in jobs.items() if job_id not in rejected)
        planned_ahead = any(job.total_samples is not None for job in staying)
        again_s = (slot + 1) * self.slot_seconds if planned_ahead else None
        if len(candidates) > MOST_BIDS:
            again_s = math.nextafter(snapshot.time_s, math.inf)
        return Decision(target_by_job, rejected, again_s, admissions=admissions)

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        if self._ledger is None:
            return {}
        explanations = {}
        for job in snapshot.jobs.values():
            booking = self._ledger.bookings.get(job.id)
            if booking is not None:
                reason = planned(booking, self._slot, snapshot.time_s, self.slot_seconds)
            else:
                reason = self._refusals.get(job.id, "waits for slots to be planned")
            explanations[job.id] = Explanation(reason)
        return explanations

    def reserved(self, snapshot: Snapshot) -> dict[str, list[Reserved]]:
        bookings = {} if self._ledger is None else self._ledger.bookings
        return {
            job_id: [
                Reserved(at * self.slot_seconds, until * self.slot_seconds, row.workers, row.servers)
                for at, until, row in booking.spans(self._slot + 1)
            ]
            for job_id, booking in bookings.items()
            if job_id in snapshot.jobs
        }

    def dump_state(self) -> Any:
        if self._ledger is None:
            return self._saved
        return {
            "ledger": self._ledger.dump(),
            "admitted": sorted(self._admitted),
            "asked": {job_id: list(row) for job_id, row in self._asked.items()},
            "bid_in": self._bid_in,
            "refusals": self._refusals,
            "slot": self._slot,
        }

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        del jobs
        self._saved = state

    # Time: a slot is named by its number since time 0.

    def _present(self, time_s: float) -> int:
        return math.floor(time_s / self.slot_seconds + _CLOCK)

    def _begin(self, time_s: float) -> tuple[int, float]:
        """The first slot that can be booked, and what is left of it."""
        return self._first_whole(time_s), 1.0

    def _first_whole(self, time_s: float) -> int:
        return math.ceil(time_s / self.slot_seconds - GRACE)

    # Jobs.

    def _opened(self, snapshot: Snapshot) -> Ledger:
        if self._ledger is not None:
            return self._ledger
        exchange = Exchange(
            snapshot.nodes,
            snapshot.speeds,
            self.slot_seconds,
            by_size=self._by_size,
            rescale_s=self.rescale_s,
        )
        ledger = self._ledger = Ledger(exchange, self._estimate(), self.horizon_slots)
        if self._saved is not None:
            state, self._saved = self._saved, None
            self._restore(state, ledger, snapshot)
        else:
            self._is_opened(snapshot, ledger)
        return ledger

    def _restore(self, state: Mapping[str, Any], ledger: Ledger, snapshot: Snapshot) -> None:
        ledger.load(state["ledger"], list(snapshot.jobs.values()))
        self._admitted = set(state["admitted"])
        self._asked = {job_id: row_of(row) for job_id, row in state["asked"].items()}
        self._bid_in, self._refusals = dict(state["bid_in"]), dict(state["refusals"])
        self._slot = state["slot"]
        self._is_resumed = True

    def _take_in(self, snapshot: Snapshot, ledger: Ledger) -> None:
        for change in snapshot.changes:
            if change.node is not None:
                ledger.refresh()
            elif change.kind == "arrived" and change.job is not None:
                self._bid_in.pop(change.job.id, None)
        jobs = snapshot.jobs
        back = [
            each.ended_job.id for each in snapshot.changes if each.ended_job and each.ended_job.id in jobs
        ]
        for job_id in (*back, *self._gone(snapshot, ledger)):  # one that is back may ask for something else
            ledger.drop(job_id)
            for kept in (self._bid_in, self._refusals, self._asked, self._rows):
                kept.pop(job_id, None)
        for change in snapshot.changes:
            if change.ended_job is not None and change.kind != "cancelled":  # one that is held may come back
                self._admitted.discard(change.ended_job.id)
        if self._is_resumed or any(change.node is not None for change in snapshot.changes):
            self._is_resumed = False
            for job_id in [each for each, booking in ledger.bookings.items() if not ledger.fits(booking)]:
                ledger.drop(job_id)

    def _gone(self, snapshot: Snapshot, ledger: Ledger) -> list[str]:
        """Jobs that have left, those with slots first, as they were booked; notes those that have come."""
        jobs, bookings = snapshot.jobs, ledger.bookings
        changed = {change.job.id for change in snapshot.changes if change.job is not None}
        left = {job_id for job_id in changed if job_id not in jobs}
        self._waiting -= left
        self._wait(job_id for job_id in changed - left if job_id not in bookings)
        booked = [job_id for job_id in left if job_id in bookings]
        if len(booked) > 1:  # what is given back may be rounded in this order
            booked = [job_id for job_id in bookings if job_id in left]
        is_complete = len(bookings) - len(booked) + len(self._waiting) == len(jobs)
        if is_complete and not self._is_resumed:
            return [*booked, *sorted(left.difference(booked))]
        # a state was loaded, or jobs have come or gone of which no change says so
        self._waiting = {job_id for job_id in jobs if job_id not in bookings}
        self._bids_from = -1
        self._rows = self._rows_of(bookings, snapshot, ledger)
        known = {**bookings, **self._refusals, **self._asked, **self._bid_in}
        return [job_id for job_id in known if job_id not in jobs]

    def _wait(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            self._waiting.add(job_id)
            if self._bid_in.get(job_id) != self._bids_from:
                self._came.add(job_id)

    def _follow_bookings(self, snapshot: Snapshot, ledger: Ledger) -> None:
        """Take in which jobs got or lost slots."""
        touched, bookings = ledger.touched, ledger.bookings
        self._waiting.difference_update(bookings.keys() & touched)
        self._wait(job_id for job_id in touched if job_id not in bookings and job_id in snapshot.jobs)
        for job_id in touched:
            self._rows.pop(job_id, None)
        self._rows |= self._rows_of(bookings.keys() & touched, snapshot, ledger)
        touched.clear()

    def _rows_of(self, job_ids: Iterable[str], snapshot: Snapshot, ledger: Ledger) -> dict[str, SlotHolding]:
        rows = {}
        for job_id in job_ids:
            job, row = snapshot.jobs.get(job_id), ledger.bookings[job_id].at(self._slot)
            if job is not None and (row.gpus or job.gpus):
                rows[job_id] = row
        return rows

    def _catch_up(self, snapshot: Snapshot, ledger: Ledger) -> None:
        """Plan jobs again that are behind their plans, or at the end of them.

        A job that is behind late in a slot keeps what it has of it.
        """
        rest = self._slot + 1 - snapshot.time_s / self.slot_seconds
        before, self._ahead = self._ahead, {}
        for job_id, booking in list(ledger.bookings.items()):
            job, rates = snapshot.jobs[job_id], ledger.exchange.rates(snapshot.jobs[job_id], booking.gpu_type)
            work = before.get(job_id)
            if work is None or work.booking is not booking or work.rates is not rates:
                work = PlannedWork.of(booking, rates)
            self._ahead[job_id] = work
            planned = work.from_slot(self._slot, rest)
            needed = job.remaining_samples(snapshot.time_s)
            is_behind = needed is None or needed > (planned + work.slip) * self.slot_seconds
            if booking.plan.last < self._slot or (is_behind and rest >= 1 - GRACE):
                ledger.book_again(job, snapshot.time_s, self._slot, soonest=self._soonest(job))

    def _candidates(self, snapshot: Snapshot, ledger: Ledger) -> list[JobState]:
        """Jobs without slots that have not bid for those from now on, those that were admitted first."""
        self._follow_bookings(snapshot, ledger)
        if self._bids_from != ledger.origin:
            self._bids_from, self._to_bid, self._came = ledger.origin, [], set(self._waiting)
        waiting, bid_in = self._waiting, self._bid_in
        bidding = [
            snapshot.jobs[job_id]
            for job_id in dict.fromkeys([*self._to_bid, *self._came])
            if job_id in waiting and bid_in.get(job_id) != ledger.origin
        ]
        if self._came:
            bidding.sort(key=lambda job: (not self._is_in(job), *job.arrival))
            self._came.clear()
        self._to_bid = [job.id for job in bidding]
        return bidding

    def _is_in(self, job: JobState) -> bool:
        return job.id in self._admitted or job.first_start_s is not None


def why_none(job: JobState, snapshot: Snapshot) -> str:
    if job.total_samples is None:
        return f"{job.spec.work_gap or 'states no work'}: what it would cost cannot be known"
    return why_impossible(job, job.min_gpus, snapshot.speeds) or "no size of it runs on any GPU type"


_WORTHLESS: Final = 1e-6
"""Part of its value below which a job that may bid again is turned away for good."""


class Oasis(BooksSlots):
    """OASiS: a job is admitted on arrival if it is worth more than it costs, with its slots to come.

    Bao, Peng, Wu, Li: "Online Job Scheduling in Distributed Machine Learning Clusters" (INFOCOM 2018).
    Time is cut into slots. When a job arrives, the policy finds the schedule (how many workers and
    parameter servers, on which nodes, in each slot to come) with the largest utility less the cost of
    its resources. If that payoff is positive, these slots are the job's, and prices rise for those after
    it; else it is rejected, with the value or the target with which it would not have been. Prices grow
    exponentially with the booked part of a resource, from the least (L) to the most (U) that a unit is
    worth. Jobs that may run on the same few nodes only share them with those alone that have slots now.

    A job says by ``utility`` what finishing in time is worth to it, by ``resources`` what its workers
    and parameter servers need, and by ``gpus.max`` how many workers it can use. Where it pays is in
    docs/choosing-a-policy.md. Each arrival costs a search over all slots, up to 11 ms with 100 slots on
    80 servers (``make bench NAME=oasis``); the first decision on a queue of 1,000 makes as many.

    Departures from the paper: a job has the most workers that its limit and the nodes allow (equations
    23 and 24), not its limit alone. Speed is the profile's, not in proportion to workers; sizes that are
    no faster than a smaller one are left out. Of the present slot a job can have what is left, a tenth
    at least.

    Where the paper is silent: a job without utility is admitted, and gets the slots in which it ends
    first. One of unknown work is rejected, unless it is predicted. A job that falls behind its plan, or
    loses a node, is planned again, whatever that costs. Jobs that cannot be resized run with all of
    their workers or none. A job keeps to one GPU type.

    - ``slot_seconds``: length of a slot. Where many jobs have less time than two slots, take shorter
      ones, and more of them; a decision takes longer in proportion.
    - ``horizon_slots``: slots that are planned ahead, T in the paper, counted from the present one.
    - ``rescale_s``: seconds that a start or a change costs, where the profile has not measured them. As
      many of each slot are not planned, at most half of it.
    - ``bounds_by``: "paper": U and L as in equations 23 to 26. "estimate": U as there, and L so that a
      job that is worth little pays half of its utility on empty servers.
    - ``quantile``: of an estimate, the part of the known jobs that are worth less by unit of resources
      than the one that L is half of. Jobs worth less than half as much as that one are rejected.
      Default: the part that would be left out if the jobs of the last ``horizon_slots``, those worth
      most by unit first, filled half of the cluster (figures: docs/experiments/oasis.md).
    - ``bounds_from``: a job file whose jobs U and L are taken from. Default: the jobs that have been
      seen so far.
    - ``percent``: of the ratio U/L to work with, as in the paper's figure 6: U is multiplied, L stays.
    - ``requeue``: a job that is not admitted waits, and bids again in each slot, until it is worth
      nothing or nothing is booked that could come free.
    """

    name: ClassVar[str] = "oasis"
    _by_size: ClassVar[bool] = True

    def __init__(
        self,
        *,
        slot_seconds: float = 1200.0,
        horizon_slots: int = 100,
        rescale_s: float = 30.0,
        bounds_by: Kind = "estimate",
        quantile: float | None = None,
        bounds_from: str | None = None,
        percent: float = 100.0,
        requeue: bool = False,
    ) -> None:
        super().__init__(slot_seconds=slot_seconds, horizon_slots=horizon_slots)
        if quantile is not None and not 0 <= quantile <= 1:
            raise ValueError(f"quantile is {quantile:g}, expected 0 to 1")
        if not 0 <= rescale_s <= 1e9:
            raise ValueError(f"rescale_s is {rescale_s:g}, expected 0 to 1e9")
        if not 1e-3 <= percent <= 1e6:
            raise ValueError(f"percent is {percent:g}, expected 0.001 to 1000000")
        self.rescale_s = rescale_s
        self.bounds_by: Kind = bounds_by
        self.quantile = quantile
        self.bounds_from = bounds_from
        self.percent = percent
        self.requeue = requeue
        self._like: tuple[Job, ...] = () if bounds_from is None else tuple(read_jobs(bounds_from))

    def _estimate(self) -> BoundsEstimate:
        return BoundsEstimate(self.bounds_by, self.quantile, self.percent / 100)

    def _is_opened(self, snapshot: Snapshot, ledger: Ledger) -> None:
        like = [(self._first_whole(job.submit_time), job_state(job, snapshot.speeds)) for job in self._like]
        ledger.learn((slot, bid) for slot, job in like for bid in ledger.bids(job, 0.0, slot).values())

    def _begin(self, time_s: float) -> tuple[int, float]:
        """What is left of the present slot, if it is worth a start; else the next."""
        passed = time_s / self.slot_seconds - self._present(time_s)
        if passed > 1 - GRACE:
            return self._present(time_s) + 1, 1.0
        return self._present(time_s), 1.0 if passed <= GRACE else 1 - passed

    def _answer_bids(self, candidates: Sequence[JobState], snapshot: Snapshot, ledger: Ledger) -> Answers:
        new = [job for job in candidates if job.id not in self._bid_in and not is_plain(job)]
        bids = {job.id: ledger.bids(job, snapshot.time_s) for job in new}
        if not self._like:
            ledger.learn((ledger.origin, bid) for of_job in bids.values() for bid in of_job.values())
        admissions: dict[str, dict[str, Any]] = {}
        rejected: dict[str, str] = {}
        for job in candidates:
            is_new = job.id not in self._bid_in
            self._bid_in[job.id] = ledger.origin
            sure = self._is_in(job) or is_plain(job)
            if sure and not job.gpus and job.total_samples is not None and ledger.is_full_for(job):
                continue
            of_job = bids[job.id] if job.id in bids else ledger.bids(job, snapshot.time_s)
            offer = ledger.certain(of_job, soonest=is_plain(job)) if sure else ledger.best(of_job)
            if not of_job and not self._is_in(job):
                rejected[job.id] = why_none(job, snapshot)
            elif offer is not None and (sure or offer.quote.is_worth_it):
                admissions[job.id] = {"admitted": True, **self._admission(offer, ledger.origin)}
                ledger.book(job.id, offer)
                self._admitted.add(job.id)
                self._refusals.pop(job.id, None)
            elif offer is not None:
                refused = self._refused(job, offer, ledger.origin)
                reason = refusal(refused, self.horizon_slots, self.slot_seconds)
                if self.requeue and ledger.bookings and _hopes(job, offer.quote):
                    self._refusals[job.id] = f"bids again: {reason}"
                else:
                    rejected[job.id] = reason
                if is_new or job.id in rejected:
                    admissions[job.id] = {"admitted": False, **refused}
        return Answers(admissions, rejected)

    def _admission(self, offer: Offer, origin: int) -> dict[str, Any]:
        return admission(offer.quote, offer.end, origin, self.slot_seconds)

    def _refused(self, job: JobState, offer: Offer, origin: int) -> dict[str, Any]:
        since_s = (origin + offer.quote.first + 1) * self.slot_seconds - job.spec.submit_time
        asked = terms(offer.quote, job.spec.utility, since_s, self.slot_seconds)
        return {**self._admission(offer, origin), **asked}


def _hopes(job: JobState, quote: Quote) -> bool:
    able = len(quote.worths) >= quote.bid.shortest
    return able and float(quote.worths[quote.bid.shortest - 1]) > _WORTHLESS * job.spec.utility.value


def targets(
    rows: Iterable[tuple[JobState, SlotHolding]],
    free: FreeGpus,
    bookings: Mapping[str, Booking],
    slot: int,
    asked: dict[str, SlotHolding],
) -> tuple[dict[str, Target], list[str]]:
    """What changes, and the jobs that found no place in this slot although they have booked one.

    A job whose booked GPUs are withheld or not given back yet gets others of the type.

    :param rows: what jobs have booked of the slot, of all that have some of it or hold GPUs.
    :param asked: what was asked for before, by job; brought up to date.
    """
    wanted = {
        job.id: (job, row)
        for job, row in rows
        if _differs(job, row, asked) and (slot >= bookings[job.id].plan.first or not job.gpus)
    }  # a job that was planned again keeps what it has until then
    if not wanted:
        return {}, []
    left = free.after(job.placement for job, _ in wanted.values())
    target_by_job: dict[str, Target] = {}
    others = []
    for job_id, (_, row) in sorted(wanted.items()):
        kind, asked[job_id] = bookings[job_id].gpu_type, row
        if all(left.free_on(name) >= count for name, count in row.workers):
            target_by_job[job_id] = Target(row.gpus, kind, None, row.workers or None, row.servers or None)
            left.take(row.workers)
        else:
            others.append(job_id)
    displaced = []
    for job_id in others:
        job, row = wanted[job_id]
        place = left.choose(row.gpus, (bookings[job_id].gpu_type,), per_replica=job.per_replica)
        if place is None:
            displaced.append(job_id)
            asked.pop(job_id)
        else:
            left.take(place)
        if place is not None or job.gpus:
            target_by_job[job_id] = _on(place, bookings[job_id].gpu_type)
    return target_by_job, displaced


def _differs(job: JobState, row: SlotHolding, asked: Mapping[str, SlotHolding]) -> bool:
    if job.gpus != row.gpus:
        return True
    return (row.workers, row.servers) != (job.placement, job.servers) and asked.get(job.id) != row


def _on(place: NodeGpus | None, gpu_type: str) -> Target:
    return Target(0) if place is None else Target(sum(count for _, count in place), gpu_type, None, place)


_DIGITS = 6


def admission(quote: Quote, end: int | None, origin: int, slot_s: float) -> dict[str, Any]:
    if end is None:
        return {}
    worth, cost = float(quote.worths[end - quote.first]), float(quote.costs[end - quote.first])
    values = {"payoff": worth - cost, "worth": worth, "cost": cost}
    return {
        **{name: _rounded(value) for name, value in values.items()},
        "end_s": (origin + end + 1) * slot_s,
    }


def terms(quote: Quote, utility: Utility, since_s: float, slot_s: float) -> dict[str, float]:
    """What would have been admitted: the smallest value, or the earliest target, all else being the same.

    :param since_s: seconds from the submission to the end of the first slot of the quote.
    """
    terms = {}
    if math.isfinite(scale := quote.least_scale):
        terms["least_value"] = _rounded(scale * utility.value)
    shapes = utility.shape == "sigmoid" and utility.decay > 0
    ends = ((since_s + at * slot_s, float(cost)) for at, cost in enumerate(quote.costs))
    targets = [
        end_s - math.log(utility.value / cost - 1) / utility.decay if shapes else end_s
        for end_s, cost in ends
        if cost > 0 and utility.value / cost > 1
    ]
    if targets and (shapes or utility.shape == "step"):
        terms["least_target_s"] = _rounded(max(0.0, min(targets)))
    return terms


def refusal(refused: dict[str, Any], slots: int, slot_s: float) -> str:
    if "cost" not in refused:
        return f"does not end within the {counted(slots, 'slot')} of {span_text(slot_s)} ahead"
    text = f"costs {refused['cost']:.4g} and is worth {refused['worth']:.4g} at best"
    ways = []
    if "least_value" in refused:
        ways.append(f"a value above {refused['least_value']:.4g}")
    if "least_target_s" in refused:
        ways.append(f"a target later than {span_text(refused['least_target_s'])}")
    return f"{text}; {' or '.join(ways)} would do" if ways else text


def planned(booking: Booking, slot: int, now_s: float, slot_s: float) -> str:
    spans = list(booking.spans(slot))
    parts = []
    for at, until, row in spans[:3]:
        begins, ends = (span_text(each * slot_s - now_s) for each in (at, until))
        parts.append(f"{counted(row.gpus, 'worker')} " + (f"for {ends}" if at <= slot else f"in {begins}"))
    if len(spans) > 3:
        parts.append(f"{len(spans) - 3} more changes")
    ends = f"ends within {span_text((booking.plan.last + 1) * slot_s - now_s)}"
    return "; ".join([*parts, ends]) if parts else "waits for another slot"


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
