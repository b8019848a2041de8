"""Themis: leases of GPUs, auctioned among the jobs whose finish-time fairness is worst."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import (
    Contention,
    GpuBudget,
    Grant,
    decision_from_grants,
    explain_gang,
    reject_impossible,
)
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Traits
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np

_ROUND_S = 360.0
_ROUNDING_S = 1e-6


class _Bid(NamedTuple):
    """What one job offers for its GPUs."""

    job: JobState
    rho: float
    """If it gets none for a lease."""
    gain: float
    """Factor by which its ρ falls by getting them, as a logarithm, for each GPU."""


class Themis(Policy):
    """Finish-time fairness by auctions: the jobs that are worst off bid for the GPUs whose leases ended.

    Themis (NSDI '20), sections 3 and 5. ρ of a job is its expected JCT over its JCT with 1/N of the
    cluster, N the mean number of active jobs since it arrived. Every 360 s free GPUs and those whose
    lease ends are offered to the jobs without a lease of largest ρ. They go to the bidder whose ρ falls
    by the largest factor per GPU, and so on while any fits; the rest goes to jobs that hold GPUs
    already, then to the others of largest ρ.

    Departures from the paper: bids are for the requested GPUs or none, so nothing is withheld as
    payment. Leftovers are not dealt at random. ρ counts a lease of waiting for a job that gets nothing,
    and at least a lease of remaining work. A job of unknown work is expected to be half done.

    fairness: GPUs are offered to the part 1 - ``fairness`` of the jobs without a lease.
    lease_s: seconds for which a winner holds what it requested.
    """

    name: ClassVar[str] = "themis"
    traits: ClassVar[Traits] = Traits(
        knows="work",
        priority_means="",
        default_interval_s=_ROUND_S,
        rebuilds_state=False,
    )

    def __init__(self, fairness: float = 0.8, lease_s: float = _ROUND_S) -> None:
        if not 0 <= fairness < 1:
            raise ValueError("parameter fairness: expected a number from 0 to below 1")
        if lease_s <= 0:
            raise ValueError("parameter lease_s: expected a number above 0")
        self.fairness = fairness
        self.lease_s = lease_s
        self._contention = Contention()
        self._lease_ends: dict[str, float] = {}

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        self._contention.follow(snapshot.changes, snapshot.time_s)
        rejected = reject_impossible(snapshot)
        jobs = sorted(
            (job for job in snapshot.jobs.values() if job.id not in rejected), key=lambda job: job.arrival
        )
        budget = GpuBudget(snapshot.gpus_by_type())
        grants: dict[str, Grant] = {}
        for job in jobs:
            if (job.stays or self._is_leased(job, snapshot.time_s)) and job.gpu_type is not None:
                grants[job.id] = Grant(job.gpus, job.gpu_type)
                budget.take(grants[job.id])
        bids = self._bids([job for job in jobs if job.id not in grants], snapshot)
        for bid in self._in_turn(bids):
            grant = budget.fit(bid.job, bid.job.requested, snapshot.speeds)
            if grant is not None:
                budget.take(grant)
                grants[bid.job.id] = grant
        self._lease(grants, snapshot.time_s)
        decision = decision_from_grants(snapshot, grants, rejected)
        if len(grants) == len(jobs):
            decision.quiet_until_s = min(self._lease_ends.values(), default=math.inf)
        return decision

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        explanations = {}
        for bid in self._bids(list(snapshot.jobs.values()), snapshot):
            job, end_s = bid.job, self._lease_ends.get(bid.job.id)
            until = f", leased until {end_s:.0f} s" if job.gpus and end_s is not None else ""
            explanations[job.id] = explain_gang(job, f"finish-time fairness {bid.rho:.2f} if left out{until}")
        return explanations

    def dump_state(self) -> dict[str, Any]:
        return {"leases": self._lease_ends, "contention": self._contention.dump()}

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        self._lease_ends = dict(state["leases"])
        self._contention = Contention.load(state["contention"])

    def _is_leased(self, job: JobState, time_s: float) -> bool:
        """Whether its lease goes on; without a known lease, one that began with its GPUs."""
        end_s = self._lease_ends.get(job.id, job.granted_s + self.lease_s)
        return job.gpus > 0 and time_s < end_s - _ROUNDING_S

    def _lease(self, grants: Mapping[str, Grant], time_s: float) -> None:
        """New leases for all that hold GPUs from now on without a lease that goes on."""
        ends = {}
        for job_id in grants:
            end_s = self._lease_ends.get(job_id, -math.inf)
            ends[job_id] = end_s if time_s < end_s - _ROUNDING_S else time_s + self.lease_s
        self._lease_ends = ends

    def _bids(self, jobs: list[JobState], snapshot: Snapshot) -> list[_Bid]:
        bids = []
        for job in jobs:
            stake = self._contention.stake(job, snapshot, self.lease_s)
            if stake is None:
                continue
            gpus = job.requested
            rate = snapshot.speeds.rate(job, gpus)
            without = stake.rho(rate, self.lease_s)
            bids.append(_Bid(job, without, math.log(without / stake.rho(rate)) / gpus))
        return sorted(bids, key=lambda bid: (-bid.rho, *bid.job.arrival))

    def _in_turn(self, bids: list[_Bid]) -> list[_Bid]:
        """Bidders by what they gain, then those that hold GPUs, then the others, these by ρ."""
        bidders = bids[: math.ceil(round((1 - self.fairness) * len(bids), 9))]
        others = bids[len(bidders) :]
        return [
            *sorted(bidders, key=lambda bid: (-bid.gain, -bid.rho, *bid.job.arrival)),
            *(bid for bid in others if bid.job.gpus),
            *(bid for bid in others if not bid.job.gpus),
        ]
