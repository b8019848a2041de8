"""Why a job is left when nothing can happen any more."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.schemas.wording import in_gpus
from pliant.tools.schedule.patience import why_left
from pliant.tools.schedule.session import Session
from pliant.tools.schedule.snapshot import JobState


@dataclass(frozen=True, slots=True)
class Unfinished:
    """One job that a replay did not finish, and why."""

    job: str
    reason: str


def unfinished(session: Session, *, stands_still: bool = False) -> list[Unfinished]:
    """All jobs left in a session that will not change any more, in order of arrival.

    :param stands_still: jobs come and go, but none gets done with being started or rescaled.
    """
    left = sorted(session.jobs.values(), key=lambda job: job.arrival)
    return [Unfinished(job.id, _reason(job, session, stands_still)) for job in left]


def _reason(job: JobState, session: Session, stands_still: bool) -> str:
    low = job.spec.min_gpus
    most = max(session.speeds.gpu_types.values(), default=0)
    if low > most:
        return f"needs at least {in_gpus(low)} of one type, the cluster has {most}"
    if stands_still:
        return (
            f'policy "{session.policy.name}" moves jobs more often than they can pay for starts and rescales'
        )
    if job.gpus:
        return f"holds {in_gpus(job.gpus)}, on which it never gets done"
    if low > session.up_gpus:
        return f"needs at least {in_gpus(low)}, {session.up_gpus} are left after node failures"
    if not any(session.speeds.rate(job, gpus) > 0 for gpus in {low, job.spec.gpus.requested}):
        return f"does not run on {in_gpus(low)}: batch {job.reference_batch} is infeasible there"
    return why_left(session.policy.name, job)
