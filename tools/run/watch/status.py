"""A run for people: a table of its jobs, and one line about all of them."""

from __future__ import annotations

from collections import Counter
from typing import Final

from pliant.schemas.text.table import Column, text_table
from pliant.schemas.text.times import clock_text, when_text
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.watch.job_status import JobStatus, in_order, standing, statuses
from pliant.tools.run.watch.sight import Sight

COLUMNS: Final = (
    Column("job"),
    Column("state", 1),
    Column("GPUs/batch", 5),
    Column("progress", 3),
    Column("until", 2),
    Column("why", 4, least=16),
)
SUMMARY: Final = (
    Column("job"),
    Column("end", 1),
    Column("waited", 3, right=True),
    Column("took", 2, right=True),
    Column("samples", 4, right=True),
    Column("loss", 5, right=True),
    Column("why", 6, least=16),
)


def status_text(sight: Sight, now_s: float, width: int | None = None, *, explain: bool = False) -> str:
    """All jobs in order of submission, one a line; ``now_s`` is UTC.

    :param width: of the terminal, in columns; None: there is none, so nothing is left out or cut.
    :param explain: add what the policy says.
    """
    return text_table(COLUMNS, [row(job, now_s, explain=explain) for job in statuses(sight, now_s)], width)


def row(job: JobStatus, now_s: float, *, explain: bool = False) -> tuple[str, ...]:
    """One job, by :data:`COLUMNS`."""
    parts = [job.brief or job.why, f"policy: {job.policy_says}" if explain and job.policy_says else ""]
    return job.id, job.state, size(job), progress(job), until(job, now_s), "; ".join(filter(None, parts))


def size(job: JobStatus) -> str:
    """GPUs and global batch."""
    if not job.gpus:
        return "-"
    return str(job.gpus) if job.global_batch is None else f"{job.gpus}/{job.global_batch}"


def progress(job: JobStatus) -> str:
    """Share of the work done, or samples where the work is unknown."""
    if job.progress is not None and (job.samples_done or job.gpus or job.state == "finished"):
        return f"{100 * job.progress:.0f} %"
    return f"{job.samples_done:.0f} samples" if job.samples_done else "-"


def until(job: JobStatus, now_s: float) -> str:
    """When the state ends: a job that runs, or one that waits and then starts; since when it has ended."""
    if job.ended_s is not None:
        return f"since {clock_text(job.ended_s, now_s)}"
    return "-" if job.until_s is None else when_text(max(job.until_s, now_s), now_s)


def line(log: RunLog) -> str:
    """How many jobs are where."""
    found = Counter(map(standing, log.jobs.values()))
    return ", ".join(f"{count} {name}" for name, count in sorted(found.items())) or "no job yet"


def summary(log: RunLog, width: int | None = None) -> str:
    """What became of the jobs, with their times."""
    rows = [
        (
            job.job.id,
            standing(job),
            _seconds(job.started_s, job.submitted_s),
            _seconds(job.ended_s, job.submitted_s),
            f"{job.samples_done:.0f}" if job.samples_done else "-",
            "-" if job.loss is None else f"{job.loss:.4g}",
            job.reason if job.ended or not job.gpus else job.trouble,
        )
        for job in in_order(log)
    ]
    return text_table(SUMMARY, rows, width)


def _seconds(to_s: float | None, from_s: float) -> str:
    return "-" if to_s is None else f"{to_s - from_s:.1f} s"
