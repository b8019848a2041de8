"""The best that any scheduler could have done with all jobs known from the start: problem (1) of OASiS.

One MILP: a job is admitted with one last slot, which replaces the paper's constraint (8), and its workers
come in slots from its arrival to that one. HiGHS solves it, and reports the gap that is left in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pliant.tools.schedule.policies.multi_resource.model import Bid, Floats, Ints, Plan, Servers, whole_fits

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    Rows = csr_array[Any, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Optimum:
    """What the solver found."""

    plans: Mapping[str, Plan]
    """By job id; a job that is not named is not admitted."""
    utility: float
    """Of these plans."""
    bound: float
    """No plans have more."""

    @property
    def gap(self) -> float:
        """The part of the utility that may be missing; 0 is proven to be the best."""
        return max(0.0, self.bound / self.utility - 1) if self.utility > 0 else float(self.bound > 0)


def solve(
    bids: Sequence[Bid], servers: Servers, slots: int, limit_s: float = 60.0, gap: float = 1e-4
) -> Optimum:
    """The plans of the largest total utility.

    :param limit_s: after this the best found so far is taken, which depends on the machine.
    :param gap: relative; what is this near to the best is taken for it.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    layout = _Layout.of(bids, servers, slots)
    if not layout.count:
        return Optimum({}, 0.0, 0.0)
    rows, low, high = _constraints(layout, servers)
    found = milp(
        -layout.worths,
        integrality=np.ones(layout.count, dtype=np.int64),
        bounds=Bounds(0, layout.most),
        constraints=LinearConstraint(rows, low, high),
        options={"time_limit": limit_s, "mip_rel_gap": gap},
    )
    bound = -float(found.mip_dual_bound) if found.mip_dual_bound is not None else float(layout.best)
    if found.x is None:
        return Optimum({}, 0.0, bound)
    plans = layout.plans(np.rint(found.x).astype(np.int64))
    utility = sum(float(bid.worth[plans[bid.id].last]) for bid in bids if bid.id in plans)
    return Optimum(plans, utility, max(bound, utility))


@dataclass(frozen=True, slots=True)
class _Job:
    """Where the variables of one job are: one by end, then workers by slot and server, then PS."""

    bid: Bid
    ends: Ints
    """[number] the slots in which it can end."""
    first_end: int
    first_worker: int
    first_ps: int
    slots: int
    """From its arrival to the last slot."""

    def column(self, slot: int, servers: int, *, ps: bool = False) -> slice:
        """The workers or PS of the slot of that number from its arrival on."""
        start = (self.first_ps if ps else self.first_worker) + slot * servers
        return slice(start, start + servers)


@dataclass(frozen=True, slots=True)
class _Layout:
    """All variables."""

    jobs: tuple[_Job, ...]
    count: int
    worths: Floats
    most: Floats
    servers: int
    ps_servers: int

    @classmethod
    def of(cls, bids: Sequence[Bid], servers: Servers, slots: int) -> _Layout:
        jobs, start = [], 0
        worths, most = [], []
        for bid in bids:
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
            jobs.append(_Job(bid, ends, start, first_worker, first_ps, length))
            worths += [bid.worth[ends], np.zeros(length * (len(fits) + len(ps_fits)))]
            most += [np.ones(len(ends)), np.tile(fits, length), np.tile(ps_fits, length)]
            start = first_ps + length * len(ps_fits)
        values, limits = (np.concatenate([np.zeros(0), *each]) for each in (worths, most))
        return cls(tuple(jobs), start, values, limits, len(servers.workers), len(servers.ps))

    @property
    def best(self) -> float:
        """If every job ended as early as it can."""
        return sum(float(job.bid.worth[job.ends[0]]) for job in self.jobs)

    def plans(self, values: Ints) -> dict[str, Plan]:
        """The plans that these values of the variables mean."""
        found = {}
        for job in self.jobs:
            if not values[job.first_end : job.first_worker].any():
                continue
            shapes = ((job.first_worker, self.servers), (job.first_ps, self.ps_servers))
            workers, ps = (
                values[start : start + job.slots * width].reshape(job.slots, width) for start, width in shapes
            )
            end = int(np.flatnonzero(workers.any(axis=1))[-1]) + 1
            found[job.bid.id] = Plan(job.bid.arrival, workers[:end], _fewest_ps(job.bid, workers, ps)[:end])
        return found


def _fewest_ps(bid: Bid, workers: Ints, ps: Ints) -> Ints:
    """No more than the workers need: they are free of cost to the solver."""
    wanted = bid.ps_of(workers.sum(axis=1))
    before = ps.cumsum(axis=1) - ps
    found: Ints = np.clip(wanted[:, None] - before, 0, ps)
    return found


class _Rows:
    """Constraints as they are written down."""

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
        """For the solver."""
        from scipy.sparse import csr_array

        rows, columns, values = zip(*self._entries, strict=True)
        matrix = csr_array((values, (rows, columns)), shape=(len(self._low), self._columns))
        return matrix, np.array(self._low), np.array(self._high)


def _constraints(layout: _Layout, servers: Servers) -> tuple[Rows, Floats, Floats]:
    rows = _Rows(layout.count)
    for job in layout.jobs:
        _of_job(rows, job, layout)
    used: dict[tuple[bool, int, int, int], list[tuple[slice, Any]]] = {}
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
                        used.setdefault(key, []).append((one, demand[resource]))
    for (ps, _, server, resource), terms in used.items():
        capacity = servers.ps if ps else servers.workers
        rows.add(terms, -np.inf, float(capacity[server, resource]))
    return rows.built()


def _of_job(rows: _Rows, job: _Job, layout: _Layout) -> None:
    """Constraints (2), (3), (6), (7), and (8) as ends."""
    bid, ends = job.bid, slice(job.first_end, job.first_worker)
    workers = slice(job.first_worker, job.first_worker + job.slots * layout.servers)
    rows.add([(ends, 1)], -np.inf, 1)
    rows.add([(workers, 1), (ends, -bid.work)], 0, np.inf)
    for slot in range(job.slots):
        size = job.column(slot, layout.servers), job.column(slot, layout.ps_servers, ps=True)
        open_ends = (ends, np.where(job.ends >= bid.arrival + slot, -bid.most_workers, 0))
        rows.add([(size[0], 1), open_ends], -np.inf, 0)
        if bid.needs_ps:
            rows.add([(size[0], -bid.worker_bandwidth), (size[1], bid.ps_bandwidth)], 0, np.inf)
            rows.add([(size[1], 1), (size[0], -1)], -np.inf, 0)
