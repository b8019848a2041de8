"""How long a job keeps what it was given before a policy may take or change it: the cluster's rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pliant.schemas.cluster import Cluster
from pliant.tools.schedule.session.assignment import Wish


@dataclass(frozen=True, slots=True)
class Dwell:
    """Times against flapping. A job that ends, is cancelled or loses its node leaves at any time."""

    min_run_s: float = 0.0
    """A job that got GPUs is not preempted before this time has passed."""
    cooldown_s: float = 0.0
    """A job whose GPUs or batch have changed keeps them for this time."""

    @classmethod
    def of(cls, cluster: Cluster) -> Dwell:
        """The times that a cluster names."""
        return cls(cluster.min_run_seconds, cluster.cooldown_seconds)

    def kept_until_s(self, wishes: Mapping[str, Wish], time_s: float) -> dict[str, float]:
        """The jobs that keep what they hold although a policy wants it changed, and until when."""
        if not (self.min_run_s or self.cooldown_s):
            return {}
        found = {}
        for job_id, (job, target) in wishes.items():
            until_s = job.changed_s + self.cooldown_s if target.gpus else job.granted_s + self.min_run_s
            if job.gpus and until_s > time_s:
                found[job_id] = until_s
        return found
