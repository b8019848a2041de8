"""What a session knows of the last decision, and the rule on how long jobs keep their GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policy import Target
from pliant.tools.schedule.snapshot import Change


@dataclass(slots=True)
class LastDecision:
    """The last decision, as far as it matters for when the policy is asked again."""

    due_s: float | None = None
    """Time at which the policy is to be asked again at the latest."""
    quiet_until_s: float = -math.inf
    """Time until which rounds may be skipped while nothing has changed."""
    kept_until_s: Mapping[str, float] = field(default_factory=dict)
    """Jobs that keep their GPUs for a time although the decision wanted them changed."""
    admissions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Statements of the decision on jobs that it admitted or rejected."""
    refused: list[Change] = field(default_factory=list)
    """Jobs that wait although the policy gave them GPUs; its next snapshot says so."""
    outlasts_ends: bool = False
    """Whether it was carried out and ``Decision.outlasts_ends``."""
    retry_s: float = -math.inf
    """Earliest time at which a copy of the policy is asked what to do without some jobs."""

    def decide_by(self, at_s: float | None) -> None:
        self.due_s = min((each for each in (at_s, self.due_s) if each is not None), default=None)

    def refuse(self, job: JobState, time_s: float) -> None:
        self.refused.append(Change(time_s, "lost", job))


@dataclass(frozen=True, slots=True)
class Dwell:
    """The cluster's rule on how long a job keeps its GPUs before a policy may change them.

    A job that ends, is cancelled or loses its node leaves at any time.
    """

    min_run_s: float = 0.0
    """Seconds for which a job that got GPUs is not preempted."""
    cooldown_s: float = 0.0
    """Seconds for which a job whose GPUs or batch changed keeps them."""
    pins: bool = False
    """Whether a job that cannot save keeps its GPUs until it ends."""

    @property
    def holds(self) -> bool:
        """Whether it keeps anything."""
        return bool(self.min_run_s or self.cooldown_s or self.pins)

    def kept_until_s(
        self, targets: Mapping[str, Target], jobs: Mapping[str, JobState], time_s: float
    ) -> dict[str, float]:
        """Jobs that keep their GPUs although a policy wants a change, and until when."""
        if not self.holds:
            return {}
        kept = {}
        for job_id, target in targets.items():
            job = jobs[job_id]
            until_s = job.changed_s + self.cooldown_s if target.gpus else job.granted_s + self.min_run_s
            if job.is_pinned:
                until_s = math.inf
            if job.gpus and until_s > time_s:
                kept[job_id] = until_s
        return kept
