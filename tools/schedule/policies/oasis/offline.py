"""oasis-offline: the best that any scheduler could have done with all jobs known from the start.

Problem (1) of OASiS as one MILP, which HiGHS solves; where it runs out of time it says how much more there
may be. A job is admitted with one last slot, which replaces the paper's constraint (8). Presolve stays off:
with it HiGHS 1.12 calls a schedule optimal that is not, in one of 60 small random worlds (as in
ERGO-Code/HiGHS issues 1725, 2995 and 3094).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np

from pliant.schemas.errors import UsageError
from pliant.schemas.text import counted
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.multi_resource.fleet import (
    Bid,
    Floats,
    Ints,
    Servers,
    SlotPlan,
    whole_fits,
)
from pliant.tools.schedule.policies.oasis.ledger import Booking, Ledger, is_plain
from pliant.tools.schedule.policies.oasis.policy import Answers, BooksSlots, why_none
from pliant.tools.schedule.policies.oasis.prices import BoundsEstimate
from pliant.tools.schedule.policies.solver import solved
from pliant.tools.schedule.policy import Traits
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    Rows = csr_array[Any, tuple[int, int]]

_GAP: Final = 1e-4
"""Relative: a solution this near to the best counts as the best."""
MOST_VARIABLES: Final = 100_000
"""Whole numbers of the largest problem that is tried."""


class OasisOffline(BooksSlots):
    """The offline optimum of OASiS: the most total utility in whole slots of the jobs that state a utility.

    Problem (1) of Bao, Peng, Wu, Li: "Online Job Scheduling in Distributed Machine Learning Clusters"
    (INFOCOM 2018), as one MILP over all jobs of a replay, which HiGHS solves. It is a yardstick for
    ``oasis``, for some 10 jobs in 10 slots on 12 nodes; more than 100,000 variables are refused. Events
    keep a ``gap`` for each job: the part of the total utility that may be missing because time ran out.
    Other policies can earn more where they do not keep to whole slots. Jobs that state no utility end as
    soon as the slots of the others allow. The problem is solved again when a plan cannot be kept.

    - ``slot_seconds``: length of a slot.
    - ``horizon_slots``: slots that are planned. Jobs that arrive later are planned when they arrive.
    - ``limit_s``: seconds for one problem; the best found by then is taken.
    """

    name: ClassVar[str] = "oasis-offline"
    traits: ClassVar[Traits] = replace(
        BooksSlots.traits,
        needs_future=True,
        clock_parameters=frozenset({"limit_s"}),
    )

    def __init__(
        self, *, slot_seconds: float = 1200.0, horizon_slots: int = 10, limit_s: float = 60.0
    ) -> None:
        super().__init__(slot_seconds=slot_seconds, horizon_slots=horizon_slots)
        if not 0 < limit_s <= 1e6:
            raise ValueError(f"limit_s is {limit_s:g}, expected more than 0, up to 1000000")
        self.limit_s = limit_s
        # By id, jobs whose bids have not been considered yet.
        self._parts: dict[str, _Part] = {}

    def _estimate(self) -> BoundsEstimate:
        return BoundsEstimate()

    def _soonest(self, job: JobState) -> bool:
        return True

    def _answer_bids(self, candidates: Sequence[JobState], snapshot: Snapshot, ledger: Ledger) -> Answers:
        answers = Answers({}, {})
        weighed = []
        for job in candidates:
            bids = ledger.bids(job, snapshot.time_s)
            self._bid_in[job.id] = ledger.origin
            if not bids and not self._is_in(job):
                answers.rejected[job.id] = why_none(job, snapshot)
            elif not self._is_in(job) and not is_plain(job):
                weighed.append((job, bids))
            elif (offer := ledger.certain(bids, soonest=True)) is not None:
                ledger.book(job.id, offer)
                self._admitted.add(job.id)
        if not all(self._stands(job, ledger) for job, _ in weighed):
            self._parts = self._solved(weighed, snapshot, ledger)
        for job, _ in weighed:
            self._answer(job, self._parts.pop(job.id), ledger, answers)
        return answers

    def _stands(self, job: JobState, ledger: Ledger) -> bool:
        part = self._parts.get(job.id)
        return part is not None and (part.booking is None or ledger.has_space(part.booking))

    def _answer(self, job: JobState, part: _Part, ledger: Ledger, answers: Answers) -> None:
        detail = {"worth": float(f"{part.worth:.6g}"), "gap": float(f"{part.gap:.3g}")}
        if part.booking is None:
            answers.rejected[job.id] = f"the largest total utility is without it{_in_words(part.gap)}"
            answers.admissions[job.id] = {"admitted": False, "gap": detail["gap"]}
            return
        ledger.take(job.id, part.booking)
        self._admitted.add(job.id)
        end_s = (part.booking.plan.last + 1) * self.slot_seconds
        answers.admissions[job.id] = {"admitted": True, **detail, "end_s": end_s}

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


class _Part(NamedTuple):
    booking: Booking | None
    """None if it is left out."""
    worth: float
    gap: float
    """Gap to the optimum that it is a part of."""


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


# The MILP.


@dataclass(frozen=True, slots=True)
class Optimum:
    """What the solver found."""

    plans: tuple[SlotPlan | None, ...]
    """Plan of each bid; None if it is not admitted."""
    utility: float
    bound: float
    """No plans have more."""

    @property
    def gap(self) -> float:
        """The part of the utility that may be missing; 0 is proven to be the best."""
        return max(0.0, self.bound / self.utility - 1) if self.utility > 0 else float(self.bound > 0)


def solve(
    bids: Sequence[Bid],
    servers: Servers,
    slots: int,
    limit_s: float = 60.0,
    *,
    used: Used | None = None,
) -> Optimum:
    """The plans of the largest total utility.

    :param bids: of those with one id at most one is admitted.
    :param limit_s: after this the best found so far is taken, which depends on the machine.
    :param used: what is not there for them.
    """
    layout = Layout.of(bids, servers, slots)
    if not layout.count:
        return Optimum((None,) * len(bids), 0.0, 0.0)
    rows, low, high = constraints(layout, servers, used)
    unit = float(layout.worths.max())  # the solver's tolerances, 1e-6, are absolute
    solution = solved(
        *(-layout.worths / unit, rows, low, high),
        whole=np.ones(layout.count, dtype=np.int64),
        most=layout.most,
        time_limit=limit_s,
        mip_rel_gap=_GAP,
        presolve=False,
    )
    bound = layout.best
    if solution.mip_dual_bound is not None:
        bound = min(bound, -unit * float(solution.mip_dual_bound))
    if solution.x is None:
        return Optimum((None,) * len(bids), 0.0, bound)
    plans = layout.plans(np.rint(solution.x).astype(np.int64), len(bids))
    pairs = zip(bids, plans, strict=True)
    utility = sum(float(bid.worth[plan.last]) for bid, plan in pairs if plan is not None)
    return Optimum(plans, utility, max(bound, utility))


def variables(bids: Sequence[Bid], servers: Servers, slots: int) -> int:
    count = 0
    for bid in bids:
        length = max(0, slots - bid.arrival)
        each = len(servers.workers) + bid.needs_ps * len(servers.ps) + (bid.least_workers > 1) + 1
        count += length * each
    return count


Used = tuple[Floats, Floats]
"""[slot, server, resource] of workers' servers, and of those of PS."""


@dataclass(frozen=True, slots=True)
class _JobVariables:
    """Where the variables of one job are: one by end, workers by slot and server, PS, whether it runs."""

    bid: Bid
    number: int
    """Number of its bid."""
    ends: Ints
    """[number] the slots in which it can end."""
    first_end: int
    first_worker: int
    first_ps: int
    first_run: int
    slots: int
    """Slots from its arrival to the last one."""

    def column(self, slot: int, servers: int, *, ps: bool = False) -> slice:
        start = (self.first_ps if ps else self.first_worker) + slot * servers
        return slice(start, start + servers)

    @property
    def has_least(self) -> bool:
        """Whether a slot in which it runs at all has a smallest size."""
        return self.bid.least_workers > 1


@dataclass(frozen=True, slots=True)
class Layout:
    """All variables."""

    jobs: tuple[_JobVariables, ...]
    count: int
    worths: Floats
    most: Floats
    servers: int
    ps_servers: int

    @classmethod
    def of(cls, bids: Sequence[Bid], servers: Servers, slots: int) -> Layout:
        jobs, start = [], 0
        worths, most = [], []
        for number, bid in enumerate(bids):
            ends = np.arange(bid.arrival + bid.shortest - 1, slots)
            ends = ends[bid.worth[ends] > 0]
            if not len(ends):
                continue
            length = slots - bid.arrival
            fits = whole_fits(servers.workers, bid.worker, bid.most_workers)
            if bid.servers is not None:
                fits = np.where(bid.servers, fits, 0)
            ps_fits = whole_fits(servers.ps, bid.ps, bid.most_workers) * bid.needs_ps
            first_worker = start + len(ends)
            first_ps = first_worker + length * len(fits)
            first_run = first_ps + length * len(ps_fits)
            job = _JobVariables(bid, number, ends, start, first_worker, first_ps, first_run, length)
            runs = np.ones(length * job.has_least)
            jobs.append(job)
            worths += [bid.worth[ends], np.zeros(first_run - first_worker + len(runs))]
            most += [np.ones(len(ends)), np.tile(fits, length), np.tile(ps_fits, length), runs]
            start = first_run + len(runs)
        values, limits = (np.concatenate([np.zeros(0), *each]) for each in (worths, most))
        return cls(tuple(jobs), start, values, limits, len(servers.workers), len(servers.ps))

    @property
    def best(self) -> float:
        largest: dict[str, float] = {}
        for job in self.jobs:
            largest[job.bid.id] = max(largest.get(job.bid.id, 0.0), float(job.bid.worth[job.ends[0]]))
        return sum(largest.values())

    def plans(self, values: Ints, bids: int) -> tuple[SlotPlan | None, ...]:
        plans: list[SlotPlan | None] = [None] * bids
        for job in self.jobs:
            if not values[job.first_end : job.first_worker].any():
                continue
            shapes = ((job.first_worker, self.servers), (job.first_ps, self.ps_servers))
            workers, ps = (
                values[start : start + job.slots * width].reshape(job.slots, width) for start, width in shapes
            )
            end = int(np.flatnonzero(workers.any(axis=1))[-1]) + 1
            plans[job.number] = SlotPlan(
                job.bid.arrival, workers[:end], _fewest_ps(job.bid, workers, ps)[:end]
            )
        return tuple(plans)


def _fewest_ps(bid: Bid, workers: Ints, ps: Ints) -> Ints:
    """No more than the workers need: they are free of cost to the solver."""
    wanted = bid.ps_of(workers.sum(axis=1))
    before = ps.cumsum(axis=1) - ps
    fewest: Ints = np.clip(wanted[:, None] - before, 0, ps)
    return fewest


class _Rows:
    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._entries: list[tuple[int, int, float]] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def add(self, terms: Sequence[tuple[slice, Any]], low: float, high: float) -> None:
        """``low`` ≤ sum of the terms ≤ ``high``; each is some variables with one factor or one each."""
        row = len(self._low)
        for columns, factors in terms:
            numbers = range(columns.start, columns.stop)
            for number, factor in zip(numbers, np.broadcast_to(factors, len(numbers)), strict=True):
                if factor:
                    self._entries.append((row, number, float(factor)))
        self._low.append(low)
        self._high.append(high)

    def built(self) -> tuple[Rows, Floats, Floats]:
        from scipy.sparse import csr_array

        rows, columns, values = zip(*self._entries, strict=True)
        matrix = csr_array((values, (rows, columns)), shape=(len(self._low), self._columns))
        return matrix, np.array(self._low), np.array(self._high)


def constraints(layout: Layout, servers: Servers, used: Used | None) -> tuple[Rows, Floats, Floats]:
    """Rows, and the least and the most of each."""
    rows = _Rows(layout.count)
    for job in layout.jobs:
        _of_job(rows, job, layout)
    _one_of_each(rows, layout)
    _of_servers(rows, layout, servers, used)
    return rows.built()


def _of_job(rows: _Rows, job: _JobVariables, layout: Layout) -> None:
    """Constraints (2), (3), (6), (7), and (8) as ends; in its last slot a job may do more than its work."""
    bid, ends = job.bid, slice(job.first_end, job.first_worker)
    workers = slice(job.first_worker, job.first_worker + job.slots * layout.servers)
    rows.add([(workers, 1), (ends, -bid.work)], 0, bid.least_workers - 1)
    for slot in range(job.slots):
        size = job.column(slot, layout.servers), job.column(slot, layout.ps_servers, ps=True)
        open_ends = (ends, np.where(job.ends >= bid.arrival + slot, -bid.most_workers, 0))
        rows.add([(size[0], 1), open_ends], -np.inf, 0)
        if job.has_least:
            run = slice(job.first_run + slot, job.first_run + slot + 1)
            rows.add([(size[0], 1), (run, -bid.least_workers)], 0, np.inf)
            rows.add([(size[0], 1), (run, -bid.most_workers)], -np.inf, 0)
        if bid.needs_ps:
            rows.add([(size[0], -1), (size[1], bid.workers_per_ps)], 0, np.inf)
            rows.add([(size[1], 1), (size[0], -1)], -np.inf, 0)


def _one_of_each(rows: _Rows, layout: Layout) -> None:
    ends: dict[str, list[tuple[slice, Any]]] = {}
    for job in layout.jobs:
        ends.setdefault(job.bid.id, []).append((slice(job.first_end, job.first_worker), 1))
    for terms in ends.values():
        rows.add(terms, -np.inf, 1)


def _of_servers(rows: _Rows, layout: Layout, servers: Servers, used: Used | None) -> None:
    """Constraints (4) and (5), as parts of each capacity: the tolerance of the solver is absolute."""
    taken: dict[tuple[bool, int, int, int], list[tuple[slice, Any]]] = {}
    for job in layout.jobs:
        for ps, demand, count in (
            (False, job.bid.worker, layout.servers),
            (True, job.bid.ps, layout.ps_servers),
        ):
            for slot in range(job.slots) if not ps or job.bid.needs_ps else ():
                start = job.column(slot, count, ps=ps).start
                for server in range(count):
                    for resource in np.flatnonzero(demand).tolist():
                        key = (ps, job.bid.arrival + slot, server, resource)
                        one = slice(start + server, start + server + 1)
                        taken.setdefault(key, []).append((one, demand[resource]))
    for (ps, slot, server, resource), terms in taken.items():
        capacity = float((servers.ps if ps else servers.workers)[server, resource])
        if 0 < capacity < np.inf:  # of none, not even one fits
            taken_part = 0.0 if used is None else float(used[ps][slot, server, resource]) / capacity
            parts = [(one, demand / capacity) for one, demand in terms]
            rows.add(parts, -np.inf, max(0.0, 1 - taken_part))
