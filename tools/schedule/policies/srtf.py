"""Shortest first: by remaining service with preemption, by total service without."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import explain_gang, requested_service_s, serve_in_order
from pliant.tools.schedule.policy import PRIORITY_FIRST, Decision, Explanation, Policy, Traits
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np


class Srtf(Policy):
    """Shortest remaining service first: the jobs with the least GPU-time to go run.

    Service is counted at the requested GPUs: remaining samples / throughput × requested. At every change
    all GPUs are dealt out again in that order, ties by arrival: a job gets what it requested, or is
    passed over where that is not left. Preemptive. Jobs of unknown work come last. On mixed GPU types
    the throughput is the mean over the types, weighted by their GPUs.
    """

    name: ClassVar[str] = "srtf"
    traits: ClassVar[Traits] = Traits(
        knows="work",
        priority_means=PRIORITY_FIRST,
    )

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        return serve_in_order(snapshot, lambda job: (-job.priority, remaining_service_s(job, snapshot)))

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        return {
            job.id: _explanation(job, remaining_service_s(job, snapshot), "to go")
            for job in snapshot.jobs.values()
        }


class Sjf(Policy):
    """Shortest job first, without preemption: of the waiting jobs, those of least total service start.

    Service is counted as in ``srtf``, from the start of the job. Running jobs keep their GPUs. Ties go
    by arrival; a gang that does not fit is passed over; jobs of unknown work come last.
    """

    name: ClassVar[str] = "sjf"
    traits: ClassVar[Traits] = Traits(
        knows="work",
        priority_means=PRIORITY_FIRST,
    )

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        return serve_in_order(
            snapshot,
            lambda job: (-math.inf,) if job.gpus else (-job.priority, total_service_s(job, snapshot)),
        )

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        return {
            job.id: _explanation(job, total_service_s(job, snapshot), "in all")
            for job in snapshot.jobs.values()
        }


def remaining_service_s(job: JobState, snapshot: Snapshot) -> float:
    """GPU-seconds to go at the requested GPUs; infinite where the work is unknown."""
    return requested_service_s(job, job.remaining_samples(snapshot.time_s), snapshot.speeds)


def total_service_s(job: JobState, snapshot: Snapshot) -> float:
    """GPU-seconds from start to end at the requested GPUs; infinite where the work is unknown."""
    return requested_service_s(job, job.total_samples, snapshot.speeds)


def _explanation(job: JobState, service_s: float, when: str) -> Explanation:
    if job.is_speed_guessed:
        return explain_gang(job, "no profile says how long it takes: in order of submission")
    if service_s == float("inf"):
        return explain_gang(job, "work unknown, so last in order")
    return explain_gang(job, f"{service_s:.0f} GPU-seconds {when}")
