"""Finish-time fairness: how long a job would take with its share of the cluster for itself alone.

Themis (NSDI '20), section 3: ρ is the JCT over the time that the job takes with 1/N of the cluster, where N
is the number of active jobs, averaged over the life of the job so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import samples_to_go
from pliant.tools.schedule.snapshot import Change, Snapshot


class Stake(NamedTuple):
    """What the ρ of one job depends on."""

    elapsed_s: float
    """Since its submission."""
    remaining_samples: float
    isolated_s: float
    """All of its work on its share."""

    def rho(self, samples_per_second: float, waits_s: float = 0.0) -> float:
        """Expected JCT over isolated time if it waits so long and then trains at this rate."""
        return (self.elapsed_s + waits_s + self.remaining_samples / samples_per_second) / self.isolated_s


class Contention:
    """How many jobs were active while each job was; follows from the changes alone."""

    def __init__(self) -> None:
        self._time_s = self._job_seconds = 0.0
        self._begun: dict[str, tuple[float, float]] = {}
        """Time of the arrival of each active job, and the job-seconds until then."""

    def follow(self, changes: Sequence[Change], time_s: float) -> None:
        """Take in arrivals and ends until now."""
        for change in changes:
            if change.kind == "arrived" and change.job is not None:
                self._advance(change.time_s)
                self._begun[change.job.id] = (self._time_s, self._job_seconds)
            elif change.ended_job is not None:
                self._advance(change.time_s)
                self._begun.pop(change.ended_job.id, None)
        self._advance(time_s)

    def average(self, job_id: str) -> float:
        """Active jobs on average since the job arrived; those at present where no time has passed."""
        since_s, before = self._begun.get(job_id, (self._time_s, 0.0))
        if self._time_s <= since_s:
            return float(max(1, len(self._begun)))
        return (self._job_seconds - before) / (self._time_s - since_s)

    def stake(self, job: JobState, snapshot: Snapshot, least_s: float) -> Stake | None:
        """What its ρ depends on; None where it never runs.

        :param least_s: what is left counts as at least the samples of so long.
        """
        gpus = job.spec.gpus.requested
        rate = snapshot.speeds.rate(job, gpus)
        if rate <= 0:
            return None
        left = samples_to_go(job, snapshot, least_s)
        total = job.known_samples or job.samples_done(snapshot.time_s) + left
        share = min(1.0, snapshot.total_gpus / (self.average(job.id) * gpus)) or 1.0
        isolated_s = total / (rate * share)
        return Stake(max(0.0, snapshot.time_s - job.spec.submit_time), left, isolated_s)

    def dump(self) -> Any:
        """As JSON values."""
        return {"time_s": self._time_s, "job_seconds": self._job_seconds, "begun": self._begun}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Contention:
        """What :meth:`dump` gave."""
        found = cls()
        found._time_s, found._job_seconds = state["time_s"], state["job_seconds"]
        found._begun = {job_id: (since_s, before) for job_id, (since_s, before) in state["begun"].items()}
        return found

    def _advance(self, time_s: float) -> None:
        if time_s > self._time_s:
            self._job_seconds += len(self._begun) * (time_s - self._time_s)
            self._time_s = time_s
