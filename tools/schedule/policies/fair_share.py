"""Equal GPUs to every job at every instant."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from pliant.schemas.text import counted, in_gpus
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.max_min import equal_shares
from pliant.tools.schedule.policies.common import (
    Grant,
    decision_from_grants,
    is_in_reach,
    minimum_alone,
    reject_impossible,
    those_that_stay_first,
)
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Traits
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np

    from pliant.tools.schedule.rates import Speeds


@dataclass(frozen=True, slots=True, eq=False)
class SharingJob:
    """One job that shares, with the fewest and the most GPUs it takes."""

    job: JobState
    low: int
    high: int


@dataclass(slots=True)
class SharedType:
    """All GPUs of one type and the jobs that share them, in order of arrival."""

    gpu_type: str
    gpus: int
    promised: int = 0
    """Sum of the members' minima."""
    members: list[SharingJob] = field(default_factory=list)
    in_turn: bool = False
    """Whether members that moved here have put all of them in order of priority, then of arrival."""

    def share_with_one_more(self) -> float:
        return self.gpus / (len(self.members) + 1)

    def has_room(self, low: int) -> bool:
        return self.promised + low <= self.gpus

    def add(self, member: SharingJob) -> None:
        self.members.append(member)
        self.promised += member.low

    def insert(self, member: SharingJob) -> None:
        """Add a job that is not the last in turn."""
        if not self.in_turn:
            self.members.sort(key=_turn)
            self.in_turn = True
        insort(self.members, member, key=_turn)
        self.promised += member.low

    def remove(self, member: SharingJob) -> None:
        self.members.remove(member)
        self.promised -= member.low


class FairShare(Policy):
    """Equal sharing in whole GPUs: at every change each active job holds an equal part of the cluster.

    Max-min fair within the jobs' limits: every job gets the same number of GPUs, except those whose
    minimum is above it, and those whose maximum is below it or that would be slower on that many; their
    rest goes to the others. The remainder goes, one GPU or replica each, to the first jobs. A job that
    is not elastic gets what it requested or nothing, and no job gets more replicas than it has samples
    in a batch. Jobs are admitted in order of priority, then of arrival: the first whose minimum does not
    fit waits, and all later ones behind it. A job whose minimum the nodes that are up could not run,
    were they empty, waits alone. Where no job is elastic, that is ``fifo``.

    With several GPU types each job shares one of them: a running job stays, a new one goes where its
    part is largest, then where it is fastest; the latest job moves if another type would give it a
    larger part.
    """

    name: ClassVar[str] = "fair-share"
    traits: ClassVar[Traits] = Traits(
        knows="nothing",
        priority_means="jobs of higher priority are admitted first; parts are equal all the same",
        elasticity="size",
        when_rigid="gives each what it requested, first come, first served, as fifo does",
    )

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        rejected = reject_impossible(snapshot, minimum_alone)
        jobs = those_that_stay_first([job for job in snapshot.arrivals() if job.id not in rejected])
        pools = _admit(snapshot, jobs)
        _balance(snapshot, pools)
        grants: dict[str, Grant] = {}
        for pool in pools.values():
            for member, gpus in zip(pool.members, _parts(pool, snapshot.speeds), strict=True):
                grants[member.job.id] = Grant(gpus, pool.gpu_type)
        return decision_from_grants(snapshot, grants, rejected)

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        active = counted(len(snapshot.jobs), "active job")
        return {
            job.id: Explanation(f"its part of {snapshot.total_gpus} GPUs among {active}")
            if job.gpus
            else Explanation(
                f"waits until the minima of earlier jobs leave {in_gpus(job.min_gpus)}",
                job.min_gpus,
            )
            for job in snapshot.jobs.values()
        }


def _turn(member: SharingJob) -> tuple[float, float, str]:
    return member.job.turn


def _parts(pool: SharedType, speeds: Speeds) -> list[int]:
    """Equal parts of a pool in sizes of the jobs; GPUs that make a job slower go to the others."""
    limits = [(member.low, member.high) for member in pool.members]
    sizes = [member.job.spec.gpus for member in pool.members]
    while True:
        parts = equal_shares(pool.gpus, limits, sizes)
        useful = [
            speeds.useful(member.job, part, pool.gpu_type) or member.low
            for member, part in zip(pool.members, parts, strict=True)
        ]
        if useful == parts:
            return parts
        limits = [
            (low, most if most < part else high)
            for (low, high), most, part in zip(limits, useful, parts, strict=True)
        ]


def _member(job: JobState, gpus: int) -> SharingJob:
    """Each GPU needs a sample of a stated batch."""
    low, high = job.min_gpus, job.max_gpus(gpus)
    if job.spec.batch.size is not None:
        high = min(high, job.spec.gpus.whole(job.reference_batch * job.per_replica))
    return SharingJob(job, low, max(low, high))


def _runs_on(snapshot: Snapshot, job: JobState, gpu_type: str) -> bool:
    return job.fits_now(job.min_gpus, gpu_type) and snapshot.speeds.rate(job, job.min_gpus, gpu_type) > 0


def _admit(snapshot: Snapshot, jobs: Sequence[JobState]) -> dict[str, SharedType]:
    gpus_up = snapshot.gpus_by_type()
    pools = {kind: SharedType(kind, gpus) for kind, gpus in gpus_up.items()}
    for job in jobs:
        pool = _pool_for(snapshot, job, pools)
        if pool is not None:
            pool.add(_member(job, pool.gpus))
        elif is_in_reach(job, job.min_gpus, gpus_up, snapshot.speeds):
            break
    return pools


def _pool_for(snapshot: Snapshot, job: JobState, pools: Mapping[str, SharedType]) -> SharedType | None:
    own = pools.get(job.gpu_type or "")
    if own is not None and own.has_room(job.min_gpus):
        return own
    open_to_it = [
        pool for kind, pool in pools.items() if pool.has_room(job.min_gpus) and _runs_on(snapshot, job, kind)
    ]
    return min(
        open_to_it,
        key=lambda pool: (
            -pool.share_with_one_more(),
            -snapshot.speeds.rate(job, job.min_gpus, pool.gpu_type),
            pool.gpu_type,
        ),
        default=None,
    )


def _balance(snapshot: Snapshot, pools: Mapping[str, SharedType]) -> None:
    """Move the latest job to another type as long as that gives it a larger part."""
    while len(pools) > 1:
        crowded = min((pool for pool in pools.values() if pool.members), key=_part, default=None)
        if crowded is None or not _move_one(snapshot, crowded, pools):
            return


def _part(pool: SharedType) -> tuple[float, str]:
    return pool.gpus / len(pool.members), pool.gpu_type


def _move_one(snapshot: Snapshot, crowded: SharedType, pools: Mapping[str, SharedType]) -> bool:
    part = _part(crowded)[0]
    roomier = [pool for pool in pools.values() if pool.share_with_one_more() > part]
    roomier.sort(key=lambda pool: (-pool.share_with_one_more(), pool.gpu_type))
    for member in reversed(crowded.members):
        for pool in roomier:
            if pool.has_room(member.low) and _runs_on(snapshot, member.job, pool.gpu_type):
                crowded.remove(member)
                pool.insert(_member(member.job, pool.gpus))
                return True
    return False
