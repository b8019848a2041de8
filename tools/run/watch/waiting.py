"""Why a job waits, in detail: what it needs, what is free, and which jobs hold the GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pliant.schemas.text import Column, counted, in_gpus, iso_time, text_table
from pliant.tools.run.watch.columns import until
from pliant.tools.run.watch.job_page import until_facts
from pliant.tools.run.watch.job_status import JobStatus
from pliant.tools.run.watch.status import Status

MOST_HOLDERS: Final = 10
"""Jobs that are named; of more it gives the number."""
_COLUMNS: Final = (
    Column("job"),
    Column("user", 2),
    Column("GPUs", 1, right=True),
    Column("until", 1),
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a waiting job waits for."""

    needs_gpus: int
    """What the policy wants to give it, or the fewest that it can run on."""
    total_gpus: int
    free_gpus: int
    """Without a job, and on nodes in service."""
    holders: tuple[JobStatus, ...]
    """The jobs that hold GPUs, those that end first come first; of its user alone if it waits for a limit."""
    by_limit: bool
    """Whether it waits for its user's limit, and not for GPUs."""


def waiting_for(job: JobStatus, everything: Sequence[JobStatus], status: Status) -> Waiting | None:
    """Returns None for a job that does not wait for others: it holds GPUs, is held, to be retried, or over.

    :param everything: all jobs, as of the same moment.
    """
    log = job.log
    if log.gpus or log.ended or log.held is not None or job.retry_s is not None:
        return None
    holders = [each for each in everything if each.log.gpus and not each.log.ended and each.id != job.id]
    by_limit = job.waits_for_limit
    total = 0 if status.log.info is None else status.log.info.cluster.total_gpus
    held = sum(each.log.counted_gpus for each in holders) + status.hidden.gpus
    free = max(0, round(total - held) - sum(status.closed_gpus.values()))
    if by_limit:
        holders = [each for each in holders if each.log.job.user == log.job.user]
    holders.sort(key=lambda each: (each.until_s is None, each.until_s, each.id))
    return Waiting(job.expected.needs_gpus or log.job.min_gpus, total, free, tuple(holders), by_limit)


def waiting_facts(
    job: JobStatus, found: Waiting | None, status: Status, now_s: float
) -> Iterator[tuple[str, str]]:
    """(label, text) of each thing to say."""
    if job.policy_says:
        yield "policy", job.policy_says
    if found is None:
        return
    yield "needs", _needs(job, found)
    if not found.by_limit:
        yield "free", f"{found.free_gpus:,} of {in_gpus(found.total_gpus)}"
    yield from until_facts(job, status, now_s)


def _needs(job: JobStatus, found: Waiting) -> str:
    gpus = job.log.job.gpus
    parts = [in_gpus(found.needs_gpus)]
    if job.log.job.min_gpus < found.needs_gpus:
        parts.append(f"at least {job.log.job.min_gpus}")
    if gpus.requested != found.needs_gpus:
        parts.append(f"{gpus.requested} requested")
    return ", ".join(parts)


def holder_lines(found: Waiting, now_s: float, width: int | None) -> list[str]:
    """A headline and a table of the jobs that it waits for."""
    if not found.holders:
        return []
    counts = "jobs of its user" if found.by_limit else "jobs that hold GPUs"
    rows = [
        (each.id, each.log.job.user or "-", str(each.log.gpus), until(each, now_s))
        for each in found.holders[:MOST_HOLDERS]
    ]
    table = text_table(_COLUMNS, rows, None if width is None else width - 2)
    rest = found.holders[MOST_HOLDERS:]
    more = f"and {counted(len(rest), 'job')} with {in_gpus(sum(each.log.gpus for each in rest))}"
    lines = [*table.splitlines(), *([more] if rest else [])]
    return [counts, *(f"  {line}".rstrip() for line in lines)]


def waiting_fields(found: Waiting) -> dict[str, Any]:
    return {
        "needs_gpus": found.needs_gpus,
        "total_gpus": found.total_gpus,
        "free_gpus": found.free_gpus,
        "by_limit": found.by_limit,
        "holders": [
            {
                "id": each.id,
                "user": each.log.job.user or None,
                "gpus": each.log.gpus,
                "predicted_end_at": iso_time(each.until_s),
            }
            for each in found.holders
        ],
    }
