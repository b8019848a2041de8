"""The offline optimum as a policy: what a replay could have earned, with all jobs known from the start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final, NamedTuple

from pliant.schemas.errors import UsageError
from pliant.schemas.text.wording import counted
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.multi_resource.model import Bid
from pliant.tools.schedule.policies.oasis.bookings import Booking
from pliant.tools.schedule.policies.oasis.books_slots import Answers, BooksSlots, why_none
from pliant.tools.schedule.policies.oasis.estimate import Estimate
from pliant.tools.schedule.policies.oasis.ledger import Ledger, is_plain
from pliant.tools.schedule.policies.oasis.offline import Optimum, solve, variables
from pliant.tools.schedule.snapshot import Snapshot

MOST_VARIABLES: Final = 100_000
"""Whole numbers of the largest problem that is tried."""


class _Part(NamedTuple):
    """What the optimum has for one job."""

    booking: Booking | None
    """None: it is left out."""
    worth: float
    gap: float
    """Of the optimum that it is a part of."""


class OasisOffline(BooksSlots):
    """The offline optimum of OASiS: the most total utility in whole slots of the jobs that state a utility.

    Problem (1) of Bao, Peng, Wu, Li: "Online Job Scheduling in Distributed Machine Learning Clusters"
    (INFOCOM 2018), as one MILP over all jobs of a replay, which HiGHS solves: who is admitted, and how many
    workers and parameter servers on which nodes in each slot. It is a yardstick for ``oasis``: no scheduler
    knows the future, and ``pliant run`` refuses it. Utilities, resources and slots are those of ``oasis``.

    It is meant for some 10 jobs in 10 slots on 12 nodes, as in the paper. A problem of more than 100,000
    variables is refused. Events keep a ``gap`` for each job: the part of the total utility that may be
    missing because time ran out. Other policies can earn more where they do not keep to whole slots.

    - ``slot_seconds``: length of a slot.
    - ``horizon_slots``: slots that are planned. Jobs that arrive later are planned when they arrive, with
      those that are known by then.
    - ``limit_s``: seconds for one problem; the best found by then is taken.

    Jobs that state no utility are not weighed: they are admitted, and end as soon as the slots of the others
    allow. The problem is solved again when a plan cannot be kept: a node is lost, a job is slower.
    """

    name: ClassVar[str] = "oasis-offline"
    knows_future: ClassVar[bool] = True
    depends_on_clock: ClassVar[frozenset[str]] = frozenset({"limit_s"})

    def __init__(
        self, *, slot_seconds: float = 1200.0, horizon_slots: int = 10, limit_s: float = 60.0
    ) -> None:
        super().__init__(slot_seconds=slot_seconds, horizon_slots=horizon_slots)
        if not 0 < limit_s <= 1e6:
            raise ValueError(f"limit_s is {limit_s:g}, expected more than 0, up to 1000000")
        self.limit_s = limit_s
        self._parts: dict[str, _Part] = {}
        """Of jobs that have not been heard yet, by id."""

    def _estimate(self) -> Estimate:
        return Estimate()

    def _soonest(self, job: JobState) -> bool:
        return True

    def _hear(self, candidates: Sequence[JobState], snapshot: Snapshot, ledger: Ledger) -> Answers:
        """Book what the optimum has for each."""
        found = Answers({}, {})
        weighed = []
        for job in candidates:
            bids = ledger.bids(job, snapshot.time_s)
            self._bid_in[job.id] = ledger.origin
            if not bids and not self._is_in(job):
                found.rejected[job.id] = why_none(job, snapshot)
            elif not self._is_in(job) and not is_plain(job):
                weighed.append((job, bids))
            elif (offer := ledger.certain(bids, soonest=True)) is not None:
                ledger.book(job.id, offer)
                self._admitted.add(job.id)
        if not all(self._stands(job, ledger) for job, _ in weighed):
            self._parts = self._solved(weighed, snapshot, ledger)
        for job, _ in weighed:
            self._answer(job, self._parts.pop(job.id), ledger, found)
        return found

    def _stands(self, job: JobState, ledger: Ledger) -> bool:
        """Whether there is a part for a job, and it can still be booked."""
        part = self._parts.get(job.id)
        return part is not None and (part.booking is None or ledger.has_space(part.booking))

    def _answer(self, job: JobState, part: _Part, ledger: Ledger, found: Answers) -> None:
        detail = {"worth": float(f"{part.worth:.6g}"), "gap": float(f"{part.gap:.3g}")}
        if part.booking is None:
            found.rejected[job.id] = f"the largest total utility is without it{_in_words(part.gap)}"
            found.said[job.id] = {"admitted": False, "gap": detail["gap"]}
            return
        ledger.take(job.id, part.booking)
        self._admitted.add(job.id)
        end_s = (part.booking.plan.last + 1) * self.slot_seconds
        found.said[job.id] = {"admitted": True, **detail, "end_s": end_s}

    def _solved(
        self, weighed: Sequence[tuple[JobState, Mapping[str, Bid]]], snapshot: Snapshot, ledger: Ledger
    ) -> dict[str, _Part]:
        """The optimum of these jobs and all to come, beside what is booked."""
        offered = [(job.id, kind, bid) for job, bids in weighed for kind, bid in bids.items()]
        offered += self._coming(snapshot, ledger)
        bids, market = [bid for *_, bid in offered], ledger.market
        count = variables(bids, market.servers, self.horizon_slots)
        if count > MOST_VARIABLES:
            jobs, slots = counted(len({bid.id for bid in bids}), "job"), counted(self.horizon_slots, "slot")
            raise UsageError(
                f'policy "{self.name}": {jobs} in {slots} on {counted(len(snapshot.nodes), "node")} are '
                f"a problem of {count:,} variables, and {MOST_VARIABLES:,} is the most that is tried: take "
                "fewer jobs, slots or nodes"
            )
        best = solve(bids, market.servers, self.horizon_slots, self.limit_s, used=market.used)
        parts = {job_id: _Part(None, 0.0, best.gap) for job_id, *_ in offered}
        parts |= dict(_booked(offered, best, ledger))
        return parts | {job.id: _Part(None, 0.0, best.gap) for job, _ in weighed if job.id not in parts}

    def _coming(self, snapshot: Snapshot, ledger: Ledger) -> list[tuple[str, str, Bid]]:
        """Bids of jobs that have not arrived, those that state what they are worth."""
        states = [job_state(job, snapshot.speeds) for job in snapshot.future]
        arrivals = {job.id: self._first_whole(job.spec.submit_time) - ledger.origin for job in states}
        return [
            (job.id, kind, replace(bid, arrival=arrivals[job.id]))
            for job in states
            if not is_plain(job) and arrivals[job.id] < self.horizon_slots
            for kind, bid in ledger.bids(job, snapshot.time_s).items()
        ]


def _booked(
    offered: Sequence[tuple[str, str, Bid]], best: Optimum, ledger: Ledger
) -> Iterator[tuple[str, _Part]]:
    servers = ledger.market.servers
    for (job_id, kind, bid), plan in zip(offered, best.plans, strict=True):
        if plan is not None:
            booking = Booking.of(bid, kind, plan, ledger.origin, servers)
            yield job_id, _Part(booking, float(bid.worth[plan.last]), best.gap)


def _in_words(gap: float) -> str:
    return f", as far as is known: {100 * gap:.1f} % more may be possible" if gap > 1e-3 else ""
