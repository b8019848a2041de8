"""What a schedule gives to jobs, on top of what a log says of them: pure functions."""

from __future__ import annotations

from pliant.schemas.schedule import Schedule
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.share import Share, shares_of


def startable(log: RunLog, schedule: Schedule, now_s: float) -> dict[str, Share]:
    """What a schedule gives to jobs, on top of a log.

    Jobs that have ended stay ended, and those that failed lately are left out until their time has come, as
    are those that are held, and those that would come to a node that was drained since, or went down. One
    that would grow there keeps what it holds.
    """
    waiting = {job_id for job_id, job in log.active.items() if job.held or (job.retry_s or 0.0) > now_s}
    out = (log.jobs.keys() - log.active.keys()) | waiting
    given = {job_id: share for job_id, share in shares_of(schedule).items() if job_id not in out}
    found = {job_id: _on_open_nodes(share, log) for job_id, share in given.items()}
    return {job_id: share for job_id, share in found.items() if share is not None}


def _on_open_nodes(share: Share, log: RunLog) -> Share | None:
    """A share, or as much of it as its job has already where the rest is on nodes that get no work now."""
    job = log.active.get(share.job.id)
    held, wanted = {} if job is None else dict(job.placement), dict(share.placement)
    if not any(
        name in log.down or (name in log.drained and count > held.get(name, 0))
        for name, count in wanted.items()
    ):
        return share
    grows = all(name not in log.down and count <= wanted.get(name, 0) for name, count in held.items())
    return job.share if job is not None and held and grows else None
