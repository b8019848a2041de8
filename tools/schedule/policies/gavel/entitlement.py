"""What each job was entitled to and what it received, in seconds on each GPU type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.gavel.fractions import Fractions


@dataclass(slots=True)
class Account:
    """One job. Lists go by GPU type."""

    since_s: float
    """Until when it is kept."""
    fractions: Fractions
    """Parts of the time that it is entitled to since then."""
    entitled_s: list[float]
    received_s: list[float]
    attained_gpu_s: float
    """All service of the job until then."""

    def priority(self, index: int, round_s: float) -> float:
        """Seconds that it is entitled to by the end of the coming round, over those received.

        Half a round counts as received beforehand, as otherwise all that received nothing were level.
        """
        entitled_s = self.entitled_s[index] + round_s * self.fractions[index]
        return entitled_s / (self.received_s[index] + round_s / 2)


class Accounts:
    """Those of all active jobs."""

    def __init__(self, gpu_types: Sequence[str]) -> None:
        self.gpu_types = tuple(gpu_types)
        self.by_job: dict[str, Account] = {}

    def follow(self, jobs: Iterable[JobState], fractions: Mapping[str, Fractions], time_s: float) -> None:
        """Keep the accounts until now; from now on jobs are entitled to these ``fractions``."""
        kept = {}
        for job in jobs:
            account = self.by_job.get(job.id) or self._opened(job, time_s)
            self._keep(account, job, time_s)
            account.fractions = fractions[job.id]
            kept[job.id] = account
        self.by_job = kept

    def _opened(self, job: JobState, time_s: float) -> Account:
        """Of a job that is new, or that a policy without its state finds running."""
        zeros = [0.0] * len(self.gpu_types)
        return Account(time_s, tuple(zeros), list(zeros), list(zeros), job.attained_service_s(time_s))

    def _keep(self, account: Account, job: JobState, time_s: float) -> None:
        for index, part in enumerate(account.fractions):
            account.entitled_s[index] += part * (time_s - account.since_s)
        attained = job.attained_service_s(time_s)
        if job.gpu_type in self.gpu_types and job.gpus:
            received_s = (attained - account.attained_gpu_s) / job.gpus
            account.received_s[self.gpu_types.index(job.gpu_type)] += received_s
        account.since_s, account.attained_gpu_s = time_s, attained

    def dump(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "gpu_types": list(self.gpu_types),
            "jobs": {
                job_id: [
                    account.since_s, list(account.fractions), account.entitled_s, account.received_s,
                    account.attained_gpu_s,
                ]
                for job_id, account in self.by_job.items()
            },
        }  # fmt: skip

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Accounts:
        """What :meth:`dump` gave."""
        found = cls(state["gpu_types"])
        found.by_job = {
            job_id: Account(since_s, tuple(fractions), list(entitled_s), list(received_s), attained)
            for job_id, (since_s, fractions, entitled_s, received_s, attained) in state["jobs"].items()
        }
        return found
