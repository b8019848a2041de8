"""Earliest deadline first: at the requested sizes, or each job at its fastest."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from pliant.schemas.job import Job
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import (
    GpuBudget,
    Grant,
    decision_from_grants,
    explain_gang,
    minimum_alone,
    reject_impossible,
    rising_sizes,
    serve_in_order,
)
from pliant.tools.schedule.policy import PRIORITY_FIRST, Decision, Explanation, Policy, Traits
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np


class Edf(Policy):
    """Earliest deadline first: the jobs whose deadlines are next run, at their requested sizes.

    A deadline is the target of a utility of shape "step", counted from the submission. At every change
    all GPUs are dealt out again in that order, ties by arrival: a job gets what it requested, or is
    passed over where that is not left. Preemptive. Jobs without a deadline come last, and one that has
    missed its own keeps its place.
    """

    name: ClassVar[str] = "edf"
    traits: ClassVar[Traits] = Traits(
        knows="nothing",
        priority_means=PRIORITY_FIRST,
        uses_deadlines=True,
    )

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        return serve_in_order(snapshot, _turn)

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        return {job.id: explain_gang(job, _clause(job, snapshot)) for job in snapshot.jobs.values()}


class EdfElastic(Policy):
    """Earliest deadline first, each job at the size at which it is fastest.

    As ``edf``, but a job gets the size at which it is fastest, or the fastest of those that are left. A
    job that is not elastic gets what it requested. A running job keeps its GPU type where that has a
    size for it, another goes where it is fastest.

    The EDF of ElasticFlow (ASPLOS '23) goes further: each job has the largest size ever measured, even
    where fewer GPUs are faster, or nothing. That is ``edf`` with jobs that request the largest size.
    """

    name: ClassVar[str] = "edf-elastic"
    traits: ClassVar[Traits] = Traits(
        knows="profile",
        priority_means=PRIORITY_FIRST,
        uses_deadlines=True,
        elasticity="size",
        when_rigid="gives each what it requested, as edf does",
    )

    def counts_on_work(self, jobs: Iterable[Job]) -> bool:
        return False

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        rejected = reject_impossible(snapshot, minimum_alone)
        jobs = (job for job in snapshot.jobs.values() if job.id not in rejected)
        budget = GpuBudget(snapshot.gpus_by_type())
        grants: dict[str, Grant] = {}
        for job in sorted(jobs, key=lambda job: (*_turn(job), *job.arrival)):
            grant = _fastest(job, budget, snapshot)
            if grant is not None:
                budget.take(grant)
                grants[job.id] = grant
            elif not budget.total:
                break
        return decision_from_grants(snapshot, grants, rejected)

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        return {
            job.id: Explanation(_clause(job, snapshot), None if job.gpus else job.min_gpus)
            for job in snapshot.jobs.values()
        }


def _turn(job: JobState) -> tuple[float, float]:
    return -job.priority, job.deadline_s


def _clause(job: JobState, snapshot: Snapshot) -> str:
    left_s = job.deadline_s - snapshot.time_s
    if left_s == math.inf:
        return "no deadline, so last in order"
    return f"its deadline is in {left_s:.0f} s" if left_s >= 0 else f"its deadline was {-left_s:.0f} s ago"


def _fastest(job: JobState, budget: GpuBudget, snapshot: Snapshot) -> Grant | None:
    """The fastest size of those that are left."""
    choices = []
    for kind, left in budget.left.items():
        able = [each for each in rising_sizes(job, kind, snapshot.speeds) if each[0] <= left]
        if able and job.fits_now(able[-1][0], kind):
            size, rate = able[-1]
            choices.append((kind != job.gpu_type, -rate, kind, size))
    return Grant(min(choices)[3], min(choices)[2]) if choices else None
