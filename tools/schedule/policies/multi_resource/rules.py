"""Who holds what now, by the rules of the schedulers without a horizon: FIFO, RRH and DRF.

As OASiS (INFOCOM 2018), section V, describes them; all place workers and parameter servers (PS) in turn.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pliant.tools.schedule.policies.multi_resource.fleet import (
    Active,
    Fleet,
    Placed,
    dominant_share,
    shares_of_one,
)
from pliant.tools.schedule.policies.oasis.model import Servers

Holdings = Mapping[str, Placed]
"""By job id; a job that is not named holds nothing."""


def by_arrival(jobs: Iterable[Active], servers: Servers) -> Holdings:
    """FIFO: jobs hold what they requested until they end; no job overtakes another one."""
    fleet = Fleet(servers)
    running = {job.bid.id: job for job in jobs if job.placed is not None}
    fleet.hold(running.values())
    found = {job_id: job.placed for job_id, job in running.items() if job.placed is not None}
    for job in sorted((job for job in jobs if job.placed is None), key=lambda job: job.order):
        placed = fleet.in_turn(job.bid, job.requested)
        if placed is None:
            if fits_when_empty(job, servers):
                break
            continue
        found[job.bid.id] = placed
    return found


def fits_when_empty(job: Active, servers: Servers) -> bool:
    """Whether what the job requests fits the cluster when nothing runs."""
    return Fleet(servers).in_turn(job.bid, job.requested) is not None


def by_dominant_share(jobs: Sequence[Active], servers: Servers) -> Holdings:
    """DRF: worker by worker to the job with the smallest dominant share, all from scratch.

    Ghodsi et al., Dominant Resource Fairness, NSDI 2011, with whole workers.
    """
    fleet = Fleet(servers)
    found: dict[str, Placed] = {}
    shares = {job.bid.id: shares_of_one(job.bid, servers) for job in jobs}
    queue = [(0.0, *job.order, job) for job in jobs]
    heapq.heapify(queue)
    while queue:
        *_, job = heapq.heappop(queue)
        held = found.get(job.bid.id)
        size = held.size if held else 0
        more = 1 if held else job.bid.least_workers
        if size + more > min(job.bid.most_workers, max(job.left, job.bid.least_workers)):
            continue
        placed = fleet.in_turn(job.bid, more, held)
        if placed is None:
            continue
        found[job.bid.id] = placed
        of_worker, of_ps = shares[job.bid.id]
        share = max(placed.size * of_worker, int(placed.ps.sum()) * of_ps)
        heapq.heappush(queue, (share, *job.order, job))
    return found


@dataclass(frozen=True, slots=True)
class RiskReward:
    """RRH: what a job earns if it runs now, less what its running costs the others by delay.

    Irwin et al., Balancing Risk and Reward in a Market-Based Task Service, HPDC 2004. There a task fills a
    processor; here the others are delayed by the job's duration times the dominant share that it takes.
    """

    servers: Servers
    threshold: float = 0.0
    """A job is admitted if its gain less the cost is larger."""

    def gains(self, jobs: Sequence[Active], now: int) -> dict[str, float]:
        """Gain less cost of each job that runs from slot ``now`` on without a pause."""
        if not jobs:
            return {}
        durations = np.array([job.slots_left(job.requested) for job in jobs])
        shares = np.array([min(1.0, dominant_share(job.bid, job.requested, self.servers)) for job in jobs])
        ends = now + durations - 1
        earned = np.array([_worth(job, end) for job, end in zip(jobs, ends.tolist(), strict=True)])
        found = {}
        for index, job in enumerate(jobs):
            delayed = (ends + durations[index]).tolist()
            late = np.array([_worth(other, end) for other, end in zip(jobs, delayed, strict=True)])
            lost = earned - late
            cost = shares[index] * float(lost.sum() - lost[index])
            found[job.bid.id] = float(earned[index]) - cost
        return found

    def admits(self, job: Active, others: Sequence[Active], now: int) -> bool:
        """Whether a job that arrives joins these."""
        return self.gains([*others, job], now)[job.bid.id] > self.threshold

    def holdings(self, jobs: Sequence[Active], now: int) -> Holdings:
        """Who runs: by gain less cost per slot, as long as they fit; a running job stays where it is."""
        gains = self.gains(jobs, now)
        worthy = [job for job in jobs if gains[job.bid.id] > 0]
        worthy.sort(key=lambda job: (-gains[job.bid.id] / job.slots_left(job.requested), job.order))
        fleet = Fleet(self.servers)
        found = {}
        for job in worthy:
            placed = _again(fleet, job) or fleet.in_turn(job.bid, job.requested)
            if placed is not None:
                found[job.bid.id] = placed
        return found


def _again(fleet: Fleet, job: Active) -> Placed | None:
    """The places that the job holds, taken once more; None: it holds none, or others have them now."""
    placed = job.placed
    if placed is None:
        return None
    free = fleet.workers.fits(job.bid.worker, placed.size), fleet.ps.fits(job.bid.ps, int(placed.ps.sum()))
    if (placed.workers > free[0]).any() or (placed.ps > free[1]).any():
        return None
    fleet.take(job.bid, placed)
    return placed


def _worth(job: Active, end: int) -> float:
    """Beyond the last slot nothing is worth anything."""
    return float(job.bid.worth[end]) if end < len(job.bid.worth) else 0.0
