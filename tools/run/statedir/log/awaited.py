"""Jobs that start after others, as the log tells: what each waits for, and which can never start."""

from __future__ import annotations

from typing import Final, get_args

from pliant.schemas.event import End
from pliant.schemas.job import Job
from pliant.tools.run.statedir.log.fold import JobPhase, RunLog
from pliant.tools.schedule.session.awaited import Wait, wait_of

_ENDS: Final[dict[JobPhase, End]] = {end: end for end in get_args(End)}


def awaited(job: Job, log: RunLog) -> Wait | None:
    """What an active job waits for. Returns None if it waits for no other job."""
    return wait_of(job, lambda other: _outcome(other, log)) if job.after else None


def hopeless_jobs(log: RunLog) -> dict[str, str]:
    """Active jobs that were to start after jobs which have not finished, and the reason of each."""
    waits = ((job_id, awaited(job.job, log)) for job_id, job in log.active.items() if not job.gpus)
    return {job_id: wait.words for job_id, wait in waits if wait is not None and wait.is_hopeless}


def _outcome(job_id: str, log: RunLog) -> End | None:
    job = log.jobs.get(job_id)
    return None if job is None else _ENDS.get(job.phase)
