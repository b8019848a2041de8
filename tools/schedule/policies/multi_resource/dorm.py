"""Dorm: the most utilization that a bounded loss of fairness and few adjustments allow, as one MILP.

Sun et al., Towards Distributed Machine Learning in Shared Clusters: A Dynamically-Partitioned Approach
(SMARTCOMP 2017), as OASiS compares with it. Departures: the MILP counts workers and parameter servers (PS) by
job in the whole cluster, and they are then placed in turn; what no server has space for is left out. A job
that holds nothing and would hold nothing under DRF either waits. The limit of unfairness gives way where it
cannot be kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from pliant.tools.schedule.policies.multi_resource.fleet import (
    Active,
    Fleet,
    Floats,
    Ints,
    PlacedWorkers,
    Servers,
    shares_of_one,
    whole_fits,
)
from pliant.tools.schedule.policies.multi_resource.rules import Holdings, by_dominant_share
from pliant.tools.schedule.policies.solver import solved

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    Rows = csr_array[Any, tuple[int, int]]

_GAP: Final = 0.02
"""Relative; a solution this near to the best is as good."""
_UNFAIR: Final = 100.0
"""Cost of each unit of unfairness beyond the limit, which cannot be kept where few jobs may be adjusted."""
_NODES: Final = 1
"""Nodes of the search tree at most: with a limit of time, decisions would depend on the machine."""


@dataclass(frozen=True, slots=True)
class DormRule:
    """The rule of Dorm with its limits."""

    servers: Servers
    fairness: float = 0.1
    """The sum over the jobs of |share - share under DRF| is at most twice this, or one worker's share."""
    adjusted: float = 0.1
    """Part of the running jobs whose workers may change at a time."""

    def holdings(self, jobs: Sequence[Active]) -> Holdings:
        fair = by_dominant_share(jobs, self.servers)
        jobs = [job for job in jobs if job.placed is not None or job.bid.id in fair]
        if not jobs:
            return {}
        fleet = Fleet(self.servers)
        holdings: dict[str, PlacedWorkers] = {}
        moved = []
        for job, size in zip(jobs, self._sizes(jobs, fair).tolist(), strict=True):
            if job.placed is not None and job.placed.size == size:
                fleet.take(job.bid, job.placed)
                holdings[job.bid.id] = job.placed
            elif size:
                moved.append((job, size))
        for job, size in sorted(moved, key=lambda pair: pair[0].order):
            placed = _as_many(fleet, job, size)
            if placed is not None:
                holdings[job.bid.id] = placed
        return holdings

    def _sizes(self, jobs: Sequence[Active], fair: Holdings) -> Ints:
        """[job] workers; as they are where the solver finds nothing better in time."""
        model = _Model.of(jobs, fair, self)
        solution = solved(
            *(model.costs, model.rows, model.low, model.high),
            whole=model.whole.astype(np.int64),
            most=model.most,
            node_limit=_NODES,
            mip_rel_gap=_GAP,
        )
        if solution.x is None:
            return np.array([job.placed.size if job.placed else 0 for job in jobs])
        sizes: Ints = np.rint(solution.x[: len(jobs)]).astype(np.int64)
        return sizes


def _as_many(fleet: Fleet, job: Active, size: int) -> PlacedWorkers | None:
    """The most workers that fit, up to ``size``."""
    while size >= job.bid.least_workers:
        placed = fleet.in_turn(job.bid, size)
        if placed is not None:
            return placed
        size -= 1
    return None


def _most_of(job: Active, servers: Servers) -> int:
    """The most workers of a job; 0 where not even one fits any server."""
    fits = whole_fits(servers.workers, job.bid.worker, job.bid.most_workers)
    if job.bid.servers is not None:
        fits = np.where(job.bid.servers, fits, 0)
    return min(int(fits.sum()), job.bid.most_workers, max(job.left, job.bid.least_workers))


@dataclass(frozen=True, slots=True)
class _Model:
    """Variables, by job: workers; PS, not whole; distance from the fair share; whether it is adjusted; then
    unfairness beyond the limit.
    """

    costs: Floats
    most: Floats
    whole: Floats
    rows: Rows
    low: Floats
    high: Floats

    @classmethod
    def of(cls, jobs: Sequence[Active], fair: Holdings, limits: DormRule) -> _Model:
        count, servers = len(jobs), limits.servers
        bids = [job.bid for job in jobs]
        capacity = servers.workers.sum(axis=0), servers.ps.sum(axis=0)
        worker = np.array([bid.worker for bid in bids]).T
        ps = np.array([bid.ps * bid.needs_ps for bid in bids]).T
        most = np.array([_most_of(job, servers) for job in jobs])
        serves = np.array([bid.workers_per_ps if bid.needs_ps else 0.0 for bid in bids])
        share = np.array([min(1.0, shares_of_one(bid, servers)[0]) for bid in bids])
        fair_share = share * [fair[bid.id].size if bid.id in fair else 0 for bid in bids]
        now = np.array([job.placed.size if job.placed else 0 for job in jobs])
        running, none, all_of = now > 0, np.zeros(count), np.full(count, np.inf)
        adjusted = math.ceil(limits.adjusted * int(running.sum()))
        one = np.ones(count)
        rows = _stacked(
            [
                [worker, None, None, None, None],
                [None, ps, None, None, None],
                [-one, serves, None, None, None],
                [share, None, -one, None, None],
                [share, None, one, None, None],
                [one, None, None, -most, None],
                [one, None, None, most, None],
                [None, None, one[None], None, np.array([[-1.0]])],
                [None, None, None, running[None], None],
            ]
        )
        serves_low = np.where(serves > 0, 0.0, -np.inf)
        fairness = max(2 * limits.fairness, float(share.max()))
        low = (serves_low, -all_of, fair_share, -all_of, np.where(running, now, 0))
        high = (*capacity, all_of, fair_share, all_of, np.where(running, now, most), all_of)
        with np.errstate(divide="ignore", invalid="ignore"):
            used = np.nan_to_num(worker / capacity[0][:, None], posinf=0).sum(axis=0)
        return cls(
            costs=np.concatenate([-used, np.full(count, 1e-6), none, none, [_UNFAIR]]),
            most=np.concatenate([most, np.where(serves > 0, most, 0), all_of, np.ones(count), [np.inf]]),
            whole=np.concatenate([np.ones(count), none, none, running, [0]]),
            rows=rows,
            low=np.concatenate([-np.inf * np.ones(2 * len(worker)), *low, [-np.inf, -np.inf]]),
            high=np.concatenate([*high, [fairness, float(adjusted)]]),
        )


def _stacked(lines: Sequence[Sequence[npt.NDArray[Any] | None]]) -> Rows:
    """A matrix of blocks: those of one dimension are diagonals, those that are None zeros.

    scipy's ``block_array`` takes ten times as long: longer than the solver, where jobs are few.
    """
    from scipy.sparse import csr_array

    widths = [
        max(0 if block is None else block.shape[-1] for block in column)
        for column in zip(*lines, strict=True)
    ]
    parts, row = [], 0
    for line in lines:
        for at, block in enumerate(line):
            if block is not None:
                places = np.nonzero(block)
                parts.append((row + places[0], sum(widths[:at]) + places[-1], block[places].astype(float)))
        row += max(len(block) for block in line if block is not None)
    rows, columns, values = map(np.concatenate, zip(*parts, strict=True))
    return csr_array((values, (rows, columns)), shape=(row, sum(widths)))
