"""OASiS: admission on arrival, and schedules over future slots, by the prices of resources."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pliant.schemas.io import read_jobs
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import why_impossible
from pliant.tools.schedule.policies.oasis.bookings import Row, row_of
from pliant.tools.schedule.policies.oasis.estimate import Estimate, Kind
from pliant.tools.schedule.policies.oasis.exchange import Exchange
from pliant.tools.schedule.policies.oasis.ledger import Ledger, Offer, is_plain
from pliant.tools.schedule.policies.oasis.market import Quote
from pliant.tools.schedule.policies.oasis.targets import targets
from pliant.tools.schedule.policies.oasis.words import admission, planned, refusal, terms
from pliant.tools.schedule.policy import Decision, Explanation, Knows, Policy, Reserved
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np

    from pliant.schemas.job import Elasticity, Job

MOST_BIDS: Final = 1000
"""Bids in one decision; of a longer queue the rest bids in decisions that follow at once."""
_GRACE: Final = 0.1
"""Part of a slot for which it can still be booked: decisions and starts take time."""
_CLOCK: Final = 1e-6
"""Part of a slot by which the sum of slots may miss a time."""
_SLIP: Final = 1.0
"""Worker-slots that a job may be behind its plan before it is planned again."""
_WORTHLESS: Final = 1e-6
"""Part of its value below which a job that may bid again is turned away for good."""


class Oasis(Policy):
    """OASiS: a job is admitted on arrival if it is worth more than it costs, with its slots to come.

    Bao, Peng, Wu, Li: "Online Job Scheduling in Distributed Machine Learning Clusters" (INFOCOM 2018). Time
    is cut into slots. When a job arrives, the policy finds the schedule (how many workers and parameter
    servers, on which nodes, in each slot to come) with the largest utility less the cost of its resources.
    If that payoff is positive, these slots are the job's, and prices rise for those after it; else it is
    rejected, with the value or the target with which it would not have been. Prices grow exponentially with
    the part of a resource that is booked, from what a unit is worth at least (L) to what it is worth at most
    (U).

    A job says by ``utility`` what finishing in time is worth to it, by ``resources`` what its workers and
    parameter servers need, and by ``gpus.max`` how many workers it can use. Work counts in worker-slots, at
    the speed that one worker has among the most, or alone where that is less. A job without parameter servers
    is a plain torchrun job. Whole slots only: a job begins with the slot after its arrival, unless no more
    than a tenth of the present one has passed.

    - ``slot_seconds``: length of a slot.
    - ``horizon_slots``: slots that are planned ahead, T in the paper, counted from the present one.
    - ``bounds_by``: "paper": U and L as in equations 23 to 26. "estimate": U as there, and L so that a job
      that is worth little pays half of its utility on empty servers; there the printed L is so low, where
      jobs are time-critical, that prices say nothing until a server is full.
    - ``quantile``: of an estimate, the part of the jobs that are worth less by unit of resources. They are
      rejected where nothing runs, too; with 0 there are none.
    - ``bounds_from``: a job file whose jobs U and L are taken from; those of the trace itself give the true
      values. Default: the jobs that have been seen so far, those that arrive at the moment included.
    - ``percent``: of the ratio U/L to work with, as in the paper's figure 6: U is multiplied, L stays.
    - ``requeue``: a job that is not admitted waits, and bids again in each slot, until it is worth nothing or
      nothing is booked that could come free.

    Where the paper is silent: a job that states no utility cannot be weighed; it is admitted, and gets
    the slots in which it ends first. One that states no work is rejected, unless it is predicted. A job
    that falls behind its plan, or loses a node, is planned again, whatever that costs, for it has been
    admitted; work of such jobs that the horizon has no room for is planned as time goes on. Jobs that
    cannot be resized run with all of their workers or none. A job keeps to one GPU type.
    """

    name: ClassVar[str] = "oasis"
    knows: ClassVar[Knows] = "work"
    elasticity: ClassVar[Elasticity] = "size"
    rebuilds_state: ClassVar[bool] = False

    def __init__(
        self,
        *,
        slot_seconds: float = 1200.0,
        horizon_slots: int = 100,
        bounds_by: Kind = "estimate",
        quantile: float = 0.5,
        bounds_from: str | None = None,
        percent: float = 100.0,
        requeue: bool = False,
    ) -> None:
        if not 0.1 <= slot_seconds <= 1e9:
            raise ValueError(f"slot_seconds is {slot_seconds:g}, expected 0.1 to 1e9")
        if not 1 <= horizon_slots <= 10_000:
            raise ValueError(f"horizon_slots is {horizon_slots}, expected 1 to 10000")
        if not 0 <= quantile <= 1:
            raise ValueError(f"quantile is {quantile:g}, expected 0 to 1")
        if not 1e-3 <= percent <= 1e6:
            raise ValueError(f"percent is {percent:g}, expected 0.001 to 1000000")
        self.slot_seconds = slot_seconds
        self.horizon_slots = horizon_slots
        self.bounds_by: Kind = bounds_by
        self.quantile = quantile
        self.bounds_from = bounds_from
        self.percent = percent
        self.requeue = requeue
        self._like: tuple[Job, ...] = () if bounds_from is None else tuple(read_jobs(bounds_from))
        self._ledger: Ledger | None = None
        self._saved: Mapping[str, Any] | None = None
        self._admitted: set[str] = set()
        """Jobs that have had slots: they get others where they need them."""
        self._asked: dict[str, Row] = {}
        """What was asked for of each job, for the session may have other nodes for it."""
        self._bid_in: dict[str, int] = {}
        """The first slot that a job that waits could have had when it has bid last."""
        self._refusals: dict[str, str] = {}
        """Why jobs that may bid again wait."""
        self._slot = -1

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        """Admit what has arrived, and give jobs what they have booked of the present slot."""
        ledger, slot = self._opened(snapshot), self._present(snapshot.time_s)
        begins, self._slot = slot != self._slot, slot
        ledger.move_to(self._first_whole(snapshot.time_s))
        self._take_in(snapshot, ledger)
        if begins:
            self._catch_up(snapshot, ledger)
        candidates = self._candidates(snapshot, ledger)
        said, rejected = self._hear(candidates[:MOST_BIDS], snapshot, ledger)
        staying = [job for job in snapshot.jobs.values() if job.id not in rejected]
        found, displaced = targets(staying, snapshot.free, ledger.bookings, slot, self._asked)
        for job_id in displaced:
            ledger.drop(job_id)
        planned_ahead = any(job.total_samples is not None for job in staying)
        again_s = (slot + 1) * self.slot_seconds if planned_ahead else None
        if len(candidates) > MOST_BIDS:
            again_s = math.nextafter(snapshot.time_s, math.inf)
        return Decision(found, rejected, again_s, admissions=said)

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        """The slots of each job, or why it has none."""
        if self._ledger is None:
            return {}
        found = {}
        for job in snapshot.jobs.values():
            booking = self._ledger.bookings.get(job.id)
            if booking is not None:
                reason = planned(booking, self._slot, snapshot.time_s, self.slot_seconds)
            else:
                reason = self._refusals.get(job.id, "waits for slots to be planned")
            found[job.id] = Explanation(reason)
        return found

    def reserved(self, snapshot: Snapshot) -> dict[str, list[Reserved]]:
        """What jobs have booked of the slots to come."""
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
        """Bookings, and what has been seen of jobs."""
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
        """Take it up with the first decision, which shows the nodes."""
        del jobs
        self._saved = state

    # Time: a slot is named by its number since time 0.

    def _present(self, time_s: float) -> int:
        return math.floor(time_s / self.slot_seconds + _CLOCK)

    def _first_whole(self, time_s: float) -> int:
        """The first slot that can be booked."""
        return math.ceil(time_s / self.slot_seconds - _GRACE)

    # Jobs.

    def _opened(self, snapshot: Snapshot) -> Ledger:
        if self._ledger is not None:
            return self._ledger
        exchange = Exchange(snapshot.nodes, snapshot.speeds, self.slot_seconds)
        estimate = Estimate(self.bounds_by, self.quantile, self.percent / 100)
        ledger = self._ledger = Ledger(exchange, estimate, self.horizon_slots)
        if self._saved is not None:
            state, self._saved = self._saved, None
            ledger.load(state["ledger"], list(snapshot.jobs.values()))
            self._admitted = set(state["admitted"])
            self._asked = {job_id: row_of(row) for job_id, row in state["asked"].items()}
            self._bid_in, self._refusals = dict(state["bid_in"]), dict(state["refusals"])
            self._slot = state["slot"]
        ledger.learn(
            bid for job in self._like for bid in ledger.bids(job_state(job, snapshot.speeds), 0.0).values()
        )
        return ledger

    def _take_in(self, snapshot: Snapshot, ledger: Ledger) -> None:
        """What has happened to jobs and nodes."""
        for change in snapshot.changes:
            if change.node is not None:
                ledger.refresh()
            elif change.kind == "arrived" and change.job is not None:
                self._bid_in.pop(change.job.id, None)
        known = {**ledger.bookings, **self._refusals, **self._asked, **self._bid_in}
        gone = [job_id for job_id in known if job_id not in snapshot.jobs]
        for job_id in gone:
            ledger.drop(job_id)
            for kept in (self._bid_in, self._refusals, self._asked):
                kept.pop(job_id, None)
        for change in snapshot.changes:
            if change.ended_job is not None and change.kind != "cancelled":  # one that is held may come back
                self._admitted.discard(change.ended_job.id)
        for job_id in [job_id for job_id, booking in ledger.bookings.items() if not ledger.fits(booking)]:
            ledger.drop(job_id)

    def _catch_up(self, snapshot: Snapshot, ledger: Ledger) -> None:
        """Plan jobs again that are behind their plans, or at the end of them."""
        for job_id, booking in list(ledger.bookings.items()):
            job, left = snapshot.jobs[job_id], float(booking.workers_from(ledger.origin))
            if ledger.origin > self._slot:
                rest = ledger.origin - snapshot.time_s / self.slot_seconds
                left += booking.at(self._slot).gpus * rest
            needed = ledger.exchange.worker_slots(job, booking.gpu_type, snapshot.time_s)
            if booking.plan.last < self._slot or needed > left + _SLIP:
                ledger.book_again(job, snapshot.time_s)

    def _candidates(self, snapshot: Snapshot, ledger: Ledger) -> list[JobState]:
        """Jobs without slots that have not bid for those from now on, those that were admitted first."""
        waiting = [
            job
            for job in snapshot.jobs.values()
            if job.id not in ledger.bookings and self._bid_in.get(job.id) != ledger.origin
        ]
        return sorted(waiting, key=lambda job: (not self._is_in(job), *job.arrival))

    def _is_in(self, job: JobState) -> bool:
        """Whether a job has been admitted, as far as can be known."""
        return job.id in self._admitted or job.first_start_s is not None

    def _hear(
        self, candidates: Iterable[JobState], snapshot: Snapshot, ledger: Ledger
    ) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Let jobs bid one after the other; returns what is said of each, and why some are rejected."""
        bids = {job.id: (job, ledger.bids(job, snapshot.time_s)) for job in candidates}
        if not self._like:
            ledger.learn(
                bid
                for job, of_job in bids.values()
                for bid in of_job.values()
                if job.id not in self._bid_in and not is_plain(job)
            )
        said: dict[str, dict[str, Any]] = {}
        rejected: dict[str, str] = {}
        for job, of_job in bids.values():
            is_new = job.id not in self._bid_in
            self._bid_in[job.id] = ledger.origin
            sure = self._is_in(job) or is_plain(job)
            offer = ledger.certain(of_job, soonest=is_plain(job)) if sure else ledger.best(of_job)
            if not of_job and not self._is_in(job):
                rejected[job.id] = _why_none(job, snapshot)
            elif offer is not None and (sure or offer.quote.is_worth_it):
                said[job.id] = {"admitted": True, **self._admission(offer, ledger.origin)}
                ledger.book(job.id, offer)
                self._admitted.add(job.id)
                self._refusals.pop(job.id, None)
            elif offer is not None:
                found = self._refused(job, offer, ledger.origin)
                reason = refusal(found, self.horizon_slots, self.slot_seconds)
                if self.requeue and ledger.bookings and _hopes(job, offer.quote):
                    self._refusals[job.id] = f"bids again: {reason}"
                else:
                    rejected[job.id] = reason
                if is_new or job.id in rejected:
                    said[job.id] = {"admitted": False, **found}
        return said, rejected

    def _admission(self, offer: Offer, origin: int) -> dict[str, Any]:
        return admission(offer.quote, offer.end, origin, self.slot_seconds)

    def _refused(self, job: JobState, offer: Offer, origin: int) -> dict[str, Any]:
        """What the market says to a job that it does not admit."""
        since_s = (origin + offer.quote.first + 1) * self.slot_seconds - job.spec.submit_time
        asked = terms(offer.quote, job.spec.utility, since_s, self.slot_seconds)
        return {**self._admission(offer, origin), **asked}


def _hopes(job: JobState, quote: Quote) -> bool:
    """Whether a job may be admitted later."""
    able = len(quote.worths) >= quote.bid.shortest
    return able and float(quote.worths[quote.bid.shortest - 1]) > _WORTHLESS * job.spec.utility.value


def _why_none(job: JobState, snapshot: Snapshot) -> str:
    """Why a job cannot bid at all."""
    if job.total_samples is None:
        return "states no work: what it would cost cannot be known"
    return why_impossible(job, job.spec.min_gpus, snapshot.speeds) or "no size of it runs on any GPU type"
