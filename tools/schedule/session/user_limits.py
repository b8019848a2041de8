"""The limit of a user or of an array: which of its waiting jobs it has room for.

What a job requests counts from its arrival, so no decision can exceed a limit. No job overtakes one that must
wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pliant.schemas.cluster import UserLimit
from pliant.schemas.text import counted, in_gpus
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.session.hidden import HiddenJobs

OVER_LIMIT: Final = "beyond the limit of"
"""Beginning of the reason of a job that waits for a limit."""


class UserLimits:
    """The limits of users and arrays over the active jobs of a session."""

    def __init__(self, jobs: Mapping[str, JobState], hidden: HiddenJobs) -> None:
        self._jobs = jobs
        self._hidden = hidden

    def next_of_array(self, name: str) -> list[JobState]:
        """The jobs in line that the limit of their array has room for, in order of priority and arrival."""
        hidden = self._hidden
        own = [job for job in self._jobs.values() if job.spec.array and job.spec.array.name == name]
        own = [job for job in own if job.id not in hidden.held and job.id not in hidden.awaiting]
        count, admitted = sum(job.id not in hidden.in_line for job in own), []
        for job in sorted((job for job in own if job.id in hidden.in_line), key=lambda job: job.turn):
            limit = None if job.spec.array is None else job.spec.array.limit
            if limit is not None and count >= limit:
                break
            count += 1
            admitted.append(job)
        return admitted

    def next_of_user(self, user: str, limit: UserLimit) -> list[JobState]:
        """The waiting jobs of a user that the limit has room for, in order of priority and arrival."""
        own = [job for job in self._jobs.values() if job.spec.user == user]
        count, gpus = self._admitted(own)
        admitted = []
        for job in sorted((job for job in own if job.id in self._hidden.limited), key=lambda job: job.turn):
            count, gpus = count + 1, gpus + job.spec.gpus.requested
            if count > (limit.jobs or count) or gpus > (limit.gpus or gpus):
                break
            admitted.append(job)
        return admitted

    def is_exceeded(self, user: str, limit: UserLimit) -> bool:
        """Whether those jobs of a user that do not wait are more than its limit allows."""
        count, gpus = self._admitted(job for job in self._jobs.values() if job.spec.user == user)
        return count > (limit.jobs or count) or gpus > (limit.gpus or gpus)

    def _admitted(self, own: Iterable[JobState]) -> tuple[int, int]:
        """How many of these jobs neither wait nor are held, and their GPUs."""
        hidden = self._hidden
        waiting = (hidden.held, hidden.awaiting, hidden.in_line, hidden.limited)
        admitted = [job for job in own if not any(job.id in jobs for jobs in waiting)]
        return len(admitted), sum(max(job.log_gpus, job.spec.gpus.requested) for job in admitted)


def limit_in_words(user: str, limit: UserLimit) -> str:
    """Why a job of the user waits."""
    who = f"user {user}" if user else "jobs that name no user"
    parts = [in_gpus(limit.gpus)] if limit.gpus is not None else []
    parts += [counted(limit.jobs, "job")] if limit.jobs is not None else []
    return f"{OVER_LIMIT} {who}: {', '.join(parts)}"
