"""What the log says about jobs, refined by the newest that their workers report.

Reports lie in one small file a job (``contract/progress.py``), not in the log. The loop, or a bystander, lays
them over what was folded. They say how far a job is, never what it holds or whether it has ended.
"""

from __future__ import annotations

from dataclasses import replace

from pliant.schemas.event import Event
from pliant.tools.run.statedir.contract.progress import Progress, ProgressFile
from pliant.tools.run.statedir.layout import StateDir
from pliant.tools.run.statedir.log.fold import JobLog, RunLog
from pliant.tools.run.statedir.private import check_job


def refined(job: JobLog, progress: Progress | None) -> JobLog:
    """A job with its newest progress, where it runs and the report is from its newest attempt."""
    if progress is None or job.ended or not job.gpus or progress.attempt < max(job.seen, default=0):
        return job
    done, speed = progress.samples_done, progress.samples_per_second
    return replace(
        job,
        samples_done=done,
        furthest=max(job.furthest, done),
        loss=job.loss if progress.loss is None else progress.loss,
        points=job.points if speed is None or job.change is not None else ((0.0, done - speed), (1.0, done)),
    )


def with_progress(event: Event, log: RunLog) -> Event:
    """An event of a job that runs, with how far it is: history has it where something happens to a job."""
    job, progress = log.jobs.get(event.job or ""), log.newest.get(event.job or "")
    if job is None or progress is None or event.gpus is None or event.samples_done is not None:
        return event
    found = refined(job, progress)
    return replace(event, samples_done=found.samples_done, loss=found.loss) if found.gpus else event


def measured_speeds(log: RunLog) -> dict[str, float]:
    """Samples per second of the jobs that run, as far as their workers have measured it at this size."""
    jobs = (refined(job, log.newest.get(job_id)) for job_id, job in log.active.items() if job.gpus)
    found = ((job.job.id, job.samples_per_second) for job in jobs)
    return {job_id: speed for job_id, speed in found if speed}


class Reports:
    """The newest reports on all jobs of a state directory, read again when they were replaced."""

    def __init__(self, dirs: StateDir) -> None:
        self._dirs = dirs
        self._files: dict[str, ProgressFile] = {}

    def lay_over(self, log: RunLog) -> None:
        """Let the log know them.

        :raises UsageError: a job's folder is not a plain one of the state directory's owner.
        """
        for job_id, job in log.active.items():
            if not job.gpus:
                continue
            if job_id not in self._files:
                check_job(self._dirs, job_id)
                self._files[job_id] = ProgressFile(self._dirs.job(job_id).progress)
            file = self._files[job_id]
            file.fresh()
            if file.newest is not None:
                log.newest[job_id] = file.newest


def reported(dirs: StateDir, log: RunLog, now_s: float) -> list[Event]:
    """The newest reports as events after those of the log, for who decides from them."""
    Reports(dirs).lay_over(log)
    return [
        Event(
            now_s,
            "progress",
            job_id,
            samples_done=refined(log.jobs[job_id], progress).samples_done,
            detail={} if progress.noise_scale is None else {"noise_scale": progress.noise_scale},
        )
        for job_id, progress in log.newest.items()
    ]
