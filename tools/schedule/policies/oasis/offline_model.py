"""The offline problem of OASiS as a MILP: variables by job, slot and server, and the constraints on them.

A job is admitted with one last slot, which replaces the paper's constraint (8), and its workers come in slots
from its arrival to that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pliant.tools.schedule.policies.multi_resource.model import (
    Bid,
    Floats,
    Ints,
    Plan,
    Servers,
    whole_fits,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    Rows = csr_array[Any, tuple[int, int]]

Used = tuple[Floats, Floats]
"""[slot, server, resource] of workers' servers, and of those of PS."""


@dataclass(frozen=True, slots=True)
class _Job:
    """Where the variables of one job are: one by end, workers by slot and server, PS, whether it runs."""

    bid: Bid
    number: int
    """Of its bid."""
    ends: Ints
    """[number] the slots in which it can end."""
    first_end: int
    first_worker: int
    first_ps: int
    first_run: int
    slots: int
    """From its arrival to the last slot."""

    def column(self, slot: int, servers: int, *, ps: bool = False) -> slice:
        """The workers or PS of the slot of that number from its arrival on."""
        start = (self.first_ps if ps else self.first_worker) + slot * servers
        return slice(start, start + servers)

    @property
    def has_least(self) -> bool:
        """Whether a slot in which it runs at all has a smallest size."""
        return self.bid.least_workers > 1


@dataclass(frozen=True, slots=True)
class Layout:
    """All variables."""

    jobs: tuple[_Job, ...]
    count: int
    worths: Floats
    most: Floats
    servers: int
    ps_servers: int

    @classmethod
    def of(cls, bids: Sequence[Bid], servers: Servers, slots: int) -> Layout:
        """Those of the bids that can end in time."""
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
            job = _Job(bid, number, ends, start, first_worker, first_ps, first_run, length)
            runs = np.ones(length * job.has_least)
            jobs.append(job)
            worths += [bid.worth[ends], np.zeros(first_run - first_worker + len(runs))]
            most += [np.ones(len(ends)), np.tile(fits, length), np.tile(ps_fits, length), runs]
            start = first_run + len(runs)
        values, limits = (np.concatenate([np.zeros(0), *each]) for each in (worths, most))
        return cls(tuple(jobs), start, values, limits, len(servers.workers), len(servers.ps))

    @property
    def best(self) -> float:
        """If every job ended as early as it can."""
        largest: dict[str, float] = {}
        for job in self.jobs:
            largest[job.bid.id] = max(largest.get(job.bid.id, 0.0), float(job.bid.worth[job.ends[0]]))
        return sum(largest.values())

    def plans(self, values: Ints, bids: int) -> tuple[Plan | None, ...]:
        """The plans that these values of the variables mean, by the number of the bid."""
        found: list[Plan | None] = [None] * bids
        for job in self.jobs:
            if not values[job.first_end : job.first_worker].any():
                continue
            shapes = ((job.first_worker, self.servers), (job.first_ps, self.ps_servers))
            workers, ps = (
                values[start : start + job.slots * width].reshape(job.slots, width) for start, width in shapes
            )
            end = int(np.flatnonzero(workers.any(axis=1))[-1]) + 1
            found[job.number] = Plan(job.bid.arrival, workers[:end], _fewest_ps(job.bid, workers, ps)[:end])
        return tuple(found)


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


def constraints(layout: Layout, servers: Servers, used: Used | None) -> tuple[Rows, Floats, Floats]:
    """Rows, and the least and the most of each."""
    rows = _Rows(layout.count)
    for job in layout.jobs:
        _of_job(rows, job, layout)
    _one_of_each(rows, layout)
    _of_servers(rows, layout, servers, used)
    return rows.built()


def _of_job(rows: _Rows, job: _Job, layout: Layout) -> None:
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
    """One end of one bid with an id."""
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
