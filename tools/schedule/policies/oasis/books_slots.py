"""Policies that book slots to come for jobs: what is kept between decisions, and what jobs then hold."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import why_impossible
from pliant.tools.schedule.policies.oasis.bookings import Row, row_of
from pliant.tools.schedule.policies.oasis.estimate import Estimate
from pliant.tools.schedule.policies.oasis.exchange import Exchange
from pliant.tools.schedule.policies.oasis.ledger import Ledger, is_plain
from pliant.tools.schedule.policies.oasis.targets import targets
from pliant.tools.schedule.policies.oasis.words import planned
from pliant.tools.schedule.policy import Decision, Explanation, Knows, Policy, Reserved
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np

    from pliant.schemas.job import Elasticity

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

    said: dict[str, dict[str, Any]]
    """Of each that is admitted or turned away, what events keep."""
    rejected: dict[str, str]
    """Why some are turned away for good."""


class BooksSlots(Policy):
    """Slots of jobs from their arrival to their end; a subclass says who gets which."""

    knows: ClassVar[Knows] = "work"
    priority_means: ClassVar[str] = ""
    trusts_guesses: ClassVar[bool] = True
    elasticity: ClassVar[Elasticity] = "size"
    rebuilds_state: ClassVar[bool] = False
    _by_size: ClassVar[bool] = False
    """Whether jobs advance by the speed of each size, or in proportion to their workers."""
    rescale_s: float | None = None
    """Of each slot, the seconds that a change may cost; None: changes are taken to cost nothing."""

    def __init__(self, *, slot_seconds: float, horizon_slots: int) -> None:
        if not 0.1 <= slot_seconds <= 1e9:
            raise ValueError(f"slot_seconds is {slot_seconds:g}, expected 0.1 to 1e9")
        if not 1 <= horizon_slots <= 10_000:
            raise ValueError(f"horizon_slots is {horizon_slots}, expected 1 to 10000")
        self.slot_seconds = slot_seconds
        self.horizon_slots = horizon_slots
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

    @abstractmethod
    def _estimate(self) -> Estimate:
        """What the bounds of prices come from."""

    @abstractmethod
    def _hear(self, candidates: Sequence[JobState], snapshot: Snapshot, ledger: Ledger) -> Answers:
        """Book slots for jobs that have none, or turn them away."""

    def _soonest(self, job: JobState) -> bool:
        """Whether a job that is to run in any case gets the slots in which it ends first."""
        return is_plain(job)

    def _is_opened(self, snapshot: Snapshot, ledger: Ledger) -> None:
        """Called once, before anything is booked; state that was loaded has what came of it."""

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        """Admit what has arrived, and give jobs what they have booked of the present slot."""
        ledger, slot = self._opened(snapshot), self._present(snapshot.time_s)
        begins, self._slot = slot != self._slot, slot
        ledger.move_to(*self._begin(snapshot.time_s))
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

    def _begin(self, time_s: float) -> tuple[int, float]:
        """The first slot that can be booked, and what is left of it."""
        return self._first_whole(time_s), 1.0

    def _first_whole(self, time_s: float) -> int:
        """The first slot that can be booked."""
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
            self._take_up(state, ledger, snapshot)
        else:
            self._is_opened(snapshot, ledger)
        return ledger

    def _take_up(self, state: Mapping[str, Any], ledger: Ledger, snapshot: Snapshot) -> None:
        """What :meth:`dump_state` gave."""
        ledger.load(state["ledger"], list(snapshot.jobs.values()))
        self._admitted = set(state["admitted"])
        self._asked = {job_id: row_of(row) for job_id, row in state["asked"].items()}
        self._bid_in, self._refusals = dict(state["bid_in"]), dict(state["refusals"])
        self._slot = state["slot"]

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
        """Plan jobs again that are behind their plans, or at the end of them.

        A job that is behind late in a slot keeps what it has of it.
        """
        rest = self._slot + 1 - snapshot.time_s / self.slot_seconds
        for job_id, booking in list(ledger.bookings.items()):
            job, rates = snapshot.jobs[job_id], ledger.exchange.rates(snapshot.jobs[job_id], booking.gpu_type)
            sizes = booking.sizes_from(self._slot)
            planned = sum(rates.get(size, 0.0) * (1.0 if at else rest) for at, size in enumerate(sizes))
            needed = job.remaining_samples(snapshot.time_s)
            slip = min(rates.values(), default=0.0) / min(rates, default=1) * _SLIP
            is_behind = needed is None or needed > (planned + slip) * self.slot_seconds
            if booking.plan.last < self._slot or (is_behind and rest >= 1 - GRACE):
                ledger.book_again(job, snapshot.time_s, self._slot, soonest=self._soonest(job))

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


def why_none(job: JobState, snapshot: Snapshot) -> str:
    """Why a job cannot bid at all."""
    if job.total_samples is None:
        return "states no work: what it would cost cannot be known"
    return why_impossible(job, job.spec.min_gpus, snapshot.speeds) or "no size of it runs on any GPU type"
