"""Least attained service first."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pliant.tools.schedule.policies.common import explain_gang, serve_in_order
from pliant.tools.schedule.policy import PRIORITY_FIRST, Decision, Explanation, Policy, Traits
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np


class Las(Policy):
    """Least attained service: the jobs that have received the least GPU-time run.

    At each round all GPUs are dealt out again in order of GPU-seconds received, ties by arrival: every
    job gets what it requested, or is passed over where that is not left. Preemptive, needs no knowledge
    of the work. There are no thresholds: jobs with equal service take turns round by round.
    """

    name: ClassVar[str] = "las"
    traits: ClassVar[Traits] = Traits(
        knows="service",
        priority_means=PRIORITY_FIRST,
        default_interval_s=60.0,
    )

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        return serve_in_order(snapshot, lambda job: (-job.priority, job.attained_service_s(snapshot.time_s)))

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        return {
            job.id: explain_gang(
                job, f"{job.attained_service_s(snapshot.time_s):.0f} GPU-seconds received so far"
            )
            for job in snapshot.jobs.values()
        }
