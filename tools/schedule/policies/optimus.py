"""Optimus: GPUs one by one to the job that saves most time by them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, ClassVar, Literal

from pliant.schemas.text import in_gpus
from pliant.tools.schedule.jobs import JobKind, JobState
from pliant.tools.schedule.policies.common import (
    GpuBudget,
    Grant,
    decision_from_grants,
    minimum_alone,
    reject_impossible,
    those_that_stay_first,
)
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Target, Traits
from pliant.tools.schedule.snapshot import Oracle, Snapshot

if TYPE_CHECKING:
    import numpy as np


@dataclass(slots=True)
class _Share:
    """What one job holds while GPUs are being dealt out."""

    job: JobState
    grant: Grant
    most: int
    steps: float
    """Optimizer steps that are left."""
    next_sizes: _NextSizes


class _NextSizes:
    """What the next size is worth by size, for jobs of one kind on one GPU type."""

    def __init__(self, oracle: Oracle, job: JobState, gpu_type: str) -> None:
        self._oracle, self._job, self._gpu_type = oracle, job, gpu_type
        self._known: list[tuple[float, int]] = []

    def at(self, gpus: int) -> tuple[float, int]:
        """Seconds by which each GPU up to the next size shortens a step, and how many GPUs that takes.

        0 seconds where either size does not run, or there is no next one.
        """
        try:
            return self._known[gpus]
        except IndexError:
            while len(self._known) <= gpus:
                self._known.append(self._at(len(self._known)))
            return self._known[gpus]

    def _at(self, gpus: int) -> tuple[float, int]:
        more = self._job.spec.gpus.above(gpus) - gpus if gpus else 0
        if more <= 0:
            return 0.0, 0
        now_s = self._oracle.step_seconds(self._job, gpus, self._gpu_type)
        then_s = self._oracle.step_seconds(self._job, gpus + more, self._gpu_type)
        return (0.0 if now_s is None or then_s is None else (now_s - then_s) / more), more


class Estimates:
    """What a scheduler can know of what an oracle tells: the stated work and the throughput model."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._speeds = snapshot.speeds
        self._total = max(snapshot.total_gpus, 1)

    def remaining_steps(self, job: JobState, time_s: float) -> float:
        """Remaining samples over the reference batch; 0 where the work is unknown."""
        return (job.remaining_samples(time_s) or 0.0) / job.reference_batch

    def step_seconds(self, job: JobState, gpus: int, gpu_type: str) -> float | None:
        rate = self._speeds.rate(job, gpus, gpu_type)
        return job.reference_batch / rate if rate > 0 else None

    def max_gpus(self, job: JobState) -> int:
        return job.max_gpus(self._total)

    def kind(self, job: JobState) -> object:
        return JobKind.of(job)


class Optimus(Policy):
    """Least total completion time by marginal gains: each next GPU goes where it saves the most time.

    Optimus (EuroSys '18), section 4.1. In order of arrival every job gets its smallest size while GPUs
    last. Then, one at a time, a GPU goes to the job of largest (step time now − step time with it) ×
    remaining steps, until none gains. Jobs whose size stays keep their place; the others are placed
    smallest first. A job that may not have every size goes on to the next one that it may have, and the
    gain counts by GPU. Departures from the paper: GPUs instead of workers and parameter servers;
    remaining steps from the stated work instead of a fitted loss curve, unless an oracle tells them;
    step times from the throughput model. A job of unknown work stays at its smallest size.
    """

    name: ClassVar[str] = "optimus"
    traits: ClassVar[Traits] = Traits(
        knows="profile",
        elasticity="size",
        default_interval_s=60.0,
        uses_oracle=True,
        priority_means="jobs of higher priority get their first GPUs first",
    )

    def __init__(self, placement: Literal["compact", "emptiest"] = "compact") -> None:
        self.placement = placement
        # GPU type, its table and the most GPUs of each active job.
        self._known: dict[str, tuple[str, _NextSizes, int]] = {}

    def chooses_nodes(self) -> bool:
        return self.placement == "emptiest"

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        rejected = reject_impossible(snapshot, minimum_alone)
        for change in snapshot.changes:
            if change.node is not None:
                self._known.clear()  # the most that a job may get depends on the nodes that are up
            if change.ended_job is not None:
                self._known.pop(change.ended_job.id, None)
        oracle = snapshot.oracle or Estimates(snapshot)
        budget = GpuBudget(snapshot.gpus_by_type())
        jobs = those_that_stay_first([job for job in snapshot.arrivals() if job.id not in rejected])
        shares = self._smallest(jobs, budget, oracle, snapshot)
        for gpu_type in budget.left:
            _grow([share for share in shares if share.grant.gpu_type == gpu_type], budget.left[gpu_type])
        shares.sort(key=lambda share: share.grant.gpus)
        decision = decision_from_grants(snapshot, {share.job.id: share.grant for share in shares}, rejected)
        if decision.targets and self.placement == "emptiest":
            self._place(snapshot, decision.targets)
        return decision

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        oracle = snapshot.oracle or Estimates(snapshot)
        return {job.id: self._explanation(job, oracle, snapshot) for job in snapshot.jobs.values()}

    def _explanation(self, job: JobState, oracle: Oracle, snapshot: Snapshot) -> Explanation:
        if not job.gpus or job.gpu_type is None:
            return Explanation("no GPU is left for it", needs_gpus=job.min_gpus)
        if job.is_speed_guessed and snapshot.oracle is None:
            return Explanation("no profile says what one GPU more would save")
        table = _table(job, job.gpu_type, oracle, snapshot)
        drop_s, more_gpus = table.at(job.gpus)
        count = max(1, more_gpus)
        saved_s = drop_s * count * oracle.remaining_steps(job, snapshot.time_s)
        more = f"{in_gpus(count)} more" if count > 1 else "one GPU more"
        if _most(job, oracle) <= job.gpus or saved_s <= 0:
            return Explanation(f"{more} would save nothing")
        return Explanation(f"{more} would save {saved_s:.0f} s")

    def _smallest(
        self, jobs: Iterable[JobState], budget: GpuBudget, oracle: Oracle, snapshot: Snapshot
    ) -> list[_Share]:
        shares = []
        for job in jobs:
            grant = budget.fit(job, job.min_gpus, snapshot.speeds)
            if grant is None:
                if not budget.total:
                    break
                continue
            budget.take(grant)
            known = self._known.get(job.id)
            if known is None or known[0] != grant.gpu_type:
                table = _table(job, grant.gpu_type, oracle, snapshot)
                known = self._known[job.id] = (grant.gpu_type, table, _most(job, oracle))
            steps = oracle.remaining_steps(job, snapshot.time_s)
            shares.append(_Share(job, grant, known[2], steps, known[1]))
        return shares

    def _place(self, snapshot: Snapshot, targets: dict[str, Target]) -> None:
        free = snapshot.free.after(snapshot.jobs[job_id].placement for job_id in targets)
        for job_id, target in list(targets.items()):
            if target.gpus and target.gpu_type is not None:
                each = snapshot.jobs[job_id].per_replica
                place = free.emptiest(target.gpus, target.gpu_type, per_replica=each)
                free.take(place)
                targets[job_id] = Target(target.gpus, target.gpu_type, placement=place or None)


def _table(job: JobState, gpu_type: str, oracle: Oracle, snapshot: Snapshot) -> _NextSizes:
    what = ("optimus", gpu_type, oracle.kind(job))
    return snapshot.speeds.of_kind(job, what, lambda: _NextSizes(oracle, job, gpu_type))


def _most(job: JobState, oracle: Oracle) -> int:
    return job.min_gpus if job.spec.elastic == "none" else oracle.max_gpus(job)


def _grow(shares: Sequence[_Share], left: int) -> None:
    sizes = [share.grant.gpus for share in shares]
    gains = []
    for turn, (share, size) in enumerate(zip(shares, sizes, strict=True)):
        if size < share.most:
            drop_s, more = share.next_sizes.at(size)
            gains.append((-share.steps * drop_s, turn, more))
    heapify(gains)
    while left and gains and gains[0][0] < 0:
        _, turn, more = gains[0]
        if more > left:
            heappop(gains)
            continue
        share = shares[turn]
        size = sizes[turn] = sizes[turn] + more
        left -= more
        drop_s, more = share.next_sizes.at(size) if size < share.most else (0.0, 0)
        heapreplace(gains, (-share.steps * drop_s, turn, more))
    for share, size in zip(shares, sizes, strict=True):
        if size != share.grant.gpus:
            share.grant = Grant(size, share.grant.gpu_type)
