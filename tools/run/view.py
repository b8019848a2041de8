"""A run for people: a table of its jobs, and one line about all of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pliant.schemas.bulk import garbage_collection_paused
from pliant.schemas.job import Job
from pliant.tools.run.clock import EPOCH_LIKE_S
from pliant.tools.run.fold import JobLog, RunLog
from pliant.tools.run.refine import refined
from pliant.tools.run.sight import Sight

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("job", "phase", "slots", "batch", "progress", "speed", "stall", "loss", "left", "why")


def table(sight: Sight, now_s: float) -> Table:
    """All jobs in order of submission; ``now_s`` is UTC."""
    from rich.markup import escape
    from rich.table import Table

    made = Table(*COLUMNS, box=None, pad_edge=False)
    for cells in rows(sight, now_s):
        made.add_row(*map(escape, cells))
    return made


def status_text(sight: Sight, now_s: float) -> str:
    """The table as plain text, one job a line."""
    lines = [COLUMNS, *rows(sight, now_s)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(text.ljust(width) for text, width in zip(cells, widths, strict=True)).rstrip() + "\n"
        for cells in lines
    )


@garbage_collection_paused()
def rows(sight: Sight, now_s: float) -> list[tuple[str, ...]]:
    """All jobs, those that no run has taken up last."""
    taken_up = [row(job, now_s, sight) for job in in_order(sight.log)]
    return [*taken_up, *(submitted_row(job, now_s, sight.asked_s.get(job.id)) for job in sight.submitted)]


def submitted_row(job: Job, now_s: float, asked_s: float | None) -> tuple[str, ...]:
    """A job that no run has taken up; ``asked_s``: when it was submitted."""
    why = "" if asked_s is None else _why_not_yet(job, now_s, asked_s)
    return (job.id, "submitted", *["-"] * (len(COLUMNS) - 3), why)


def _why_not_yet(job: Job, now_s: float, asked_s: float) -> str:
    left_s = min(job.submit_time - now_s, job.submit_time - asked_s)
    if left_s < 1 or now_s < EPOCH_LIKE_S:
        return ""
    set_back = f" (the clock was set back by {asked_s - now_s:.0f} s)" if asked_s - now_s > 1 else ""
    return f"submit_time is in {left_s:.0f} s{set_back}"


def in_order(log: RunLog) -> list[JobLog]:
    """The jobs in order of (submission, id), each with the newest that its workers report."""
    jobs = (refined(job, log.newest.get(job_id)) for job_id, job in log.jobs.items())
    return sorted(jobs, key=lambda job: (job.submitted_s, job.job.id))


def row(job: JobLog, now_s: float, sight: Sight) -> tuple[str, ...]:
    """One job, by :data:`COLUMNS`."""
    speed = job.samples_per_second if job.gpus else None
    waits = not job.gpus and not job.ended
    return (
        job.job.id,
        "cancelling" if job.job.id in sight.cancelled and not job.ended else phase(job, now_s),
        " ".join(f"{node}:{count}" for node, count in job.placement) or "-",
        "-" if job.global_batch is None else str(job.global_batch),
        progress(job),
        "-" if speed is None else f"{speed:.4g}/s",
        "-" if job.stall_s is None else f"{job.stall_s:.2g} s",
        "-" if job.loss is None else f"{job.loss:.4g}",
        left(job),
        retry(job, now_s) or job.reason or (sight.reasons.get(job.job.id, "") if waits else ""),
    )


def phase(job: JobLog, now_s: float) -> str:
    """Where it stands; a change of its GPUs by name until the first step after it."""
    if job.change is None or job.ended:
        return standing(job)
    name, since_s = job.change
    return f"{name} ({max(0.0, now_s - since_s):.0f} s)"


def standing(job: JobLog) -> str:
    """Its phase in words: the policy has not preempted a job that failed and waits for its retry."""
    return "waiting to retry" if job.phase == "preempted" and job.retry_s is not None else job.phase


def retry(job: JobLog, now_s: float) -> str:
    """When a job that failed is started once more; empty where there is nothing to say of that."""
    if job.retry_s is None or job.gpus or job.ended:
        return ""
    left_s = max(0.0, job.retry_s - now_s)
    when = f" in {left_s:.0f} s" if left_s else ""
    return f"retry {job.failures} of {job.retries}{when}: {job.reason}"


def progress(job: JobLog) -> str:
    """Share of the work done, or samples where the work is unknown."""
    if job.phase == "finished":
        return "100 %"
    if job.total_samples:
        return f"{min(1.0, job.samples_done / job.total_samples):.0%}".replace("%", " %")
    return f"{job.samples_done:.0f} samples" if job.samples_done else "-"


def left(job: JobLog) -> str:
    """Time left at the measured speed."""
    speed = job.samples_per_second
    if job.ended or not job.gpus or not speed or job.total_samples is None:
        return "-"
    return f"{max(0.0, job.total_samples - job.samples_done) / speed:.0f} s"


def line(log: RunLog) -> str:
    """How many jobs are where."""
    found = Counter(map(standing, log.jobs.values()))
    return ", ".join(f"{count} {name}" for name, count in sorted(found.items())) or "no job yet"


def summary(log: RunLog) -> Table:
    """What became of the jobs, with their times."""
    from rich.markup import escape
    from rich.table import Table

    made = Table("job", "end", "waited", "took", "samples", "loss", "why", box=None, pad_edge=False)
    for job in in_order(log):
        cells = (
            job.job.id,
            standing(job),
            _seconds(job.started_s, job.submitted_s),
            _seconds(job.ended_s, job.submitted_s),
            f"{job.samples_done:.0f}" if job.samples_done else "-",
            "-" if job.loss is None else f"{job.loss:.4g}",
            job.reason,
        )
        made.add_row(*map(escape, cells))
    return made


def _seconds(to_s: float | None, from_s: float) -> str:
    return "-" if to_s is None else f"{to_s - from_s:.1f} s"
