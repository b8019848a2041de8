"""OASiS: admission on arrival, and schedules over future slots, by the prices of resources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pliant.schemas.io import read_jobs
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.oasis.books_slots import GRACE, Answers, BooksSlots, why_none
from pliant.tools.schedule.policies.oasis.estimate import Estimate, Kind
from pliant.tools.schedule.policies.oasis.ledger import Ledger, Offer, is_plain
from pliant.tools.schedule.policies.oasis.market import Quote
from pliant.tools.schedule.policies.oasis.words import admission, refusal, terms
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    from pliant.schemas.job import Job

_WORTHLESS: Final = 1e-6
"""Part of its value below which a job that may bid again is turned away for good."""


class Oasis(BooksSlots):
    """OASiS: a job is admitted on arrival if it is worth more than it costs, with its slots to come.

    Bao, Peng, Wu, Li: "Online Job Scheduling in Distributed Machine Learning Clusters" (INFOCOM 2018). Time
    is cut into slots. When a job arrives, the policy finds the schedule (how many workers and parameter
    servers, on which nodes, in each slot to come) with the largest utility less the cost of its resources.
    If that payoff is positive, these slots are the job's, and prices rise for those after it; else it is
    rejected, with the value or the target with which it would not have been. Prices grow exponentially with
    the part of a resource that is booked, from what a unit is worth at least (L) to what it is worth at most
    (U).

    A job says by ``utility`` what finishing in time is worth to it, by ``resources`` what its workers and
    parameter servers need, and by ``gpus.max`` how many workers it can use. A job without parameter servers
    is a plain torchrun job. Where a profile says that twice the workers are not twice as fast, a slot counts
    for what its size does in it, and sizes that are no faster than a smaller one are left out; the paper has
    speed in proportion to workers. Of the present slot a job can have what is left, a tenth at least.

    It pays where not all jobs can end in time and those that cannot need not run at all, or where utilities
    differ: a job that comes too late for its target is turned away at once, and costs the others nothing.
    It does not pay where every job has to end sooner or later, or where all deadlines weigh the same: then
    ``ares`` and ``shadow-price`` meet as many and turn none away (docs/choosing-a-policy.md); nor where jobs
    are much shorter than a slot. Each arrival costs a search over all slots, 3 to 15 ms with 100 of them:
    jobs that come one by one do not notice, but the first decision on 1,000 waiting jobs takes 3 to 15 s.

    - ``slot_seconds``: length of a slot. Where many jobs have less time than two slots, take shorter ones,
      and more of them; a decision takes longer in proportion.
    - ``horizon_slots``: slots that are planned ahead, T in the paper, counted from the present one.
    - ``rescale_s``: seconds that a start or a change costs, where the profile has not measured them. As many
      of each slot are not planned, at most half of it: a plan that fills its slots would end one slot late.
    - ``bounds_by``: "paper": U and L as in equations 23 to 26. "estimate": U as there, and L so that a job
      that is worth little pays half of its utility on empty servers; there the printed L is so low, where
      jobs are time-critical, that prices say nothing until a server is full.
    - ``quantile``: of an estimate, the part of the known jobs that are worth less by unit of resources than
      the one that L is half of. Jobs worth less than half as much as that one are rejected where nothing
      runs, too. Default: by the load, the part that would be left out if the jobs of the last
      ``horizon_slots``, those worth most by unit first, filled half of the cluster; 0 where all of them fit
      (docs/experiments/oasis.md has figures).
    - ``bounds_from``: a job file whose jobs U and L are taken from, each as if it bid in the first whole slot
      after it came. Those of the trace itself give the bounds that equations 23 to 26 have for a horizon that
      moves with each arrival. Default: the jobs that have been seen so far, those that arrive at the moment
      included.
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

    def _estimate(self) -> Estimate:
        return Estimate(self.bounds_by, self.quantile, self.percent / 100)

    def _is_opened(self, snapshot: Snapshot, ledger: Ledger) -> None:
        like = [(self._first_whole(job.submit_time), job_state(job, snapshot.speeds)) for job in self._like]
        ledger.learn((slot, bid) for slot, job in like for bid in ledger.bids(job, 0.0, slot).values())

    def _begin(self, time_s: float) -> tuple[int, float]:
        """What is left of the present slot, if it is worth a start; else the next."""
        passed = time_s / self.slot_seconds - self._present(time_s)
        if passed > 1 - GRACE:
            return self._present(time_s) + 1, 1.0
        return self._present(time_s), 1.0 if passed <= GRACE else 1 - passed

    def _hear(self, candidates: Sequence[JobState], snapshot: Snapshot, ledger: Ledger) -> Answers:
        """Let jobs bid one after the other; returns what is said of each, and why some are rejected."""
        bids = {job.id: (job, ledger.bids(job, snapshot.time_s)) for job in candidates}
        if not self._like:
            ledger.learn(
                (ledger.origin, bid)
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
                rejected[job.id] = why_none(job, snapshot)
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
        return Answers(said, rejected)

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
