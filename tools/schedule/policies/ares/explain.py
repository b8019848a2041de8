"""Why Ares gives each job what it gives."""

from __future__ import annotations

from collections.abc import Iterable

from pliant.schemas.text.wording import in_gpus
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.ares.allocation_pass import Entry, Queue
from pliant.tools.schedule.policy import Explanation


def explain_queue(queue: Queue) -> dict[str, Explanation]:
    """One explanation for each job of known demand."""
    count = len(queue.entries)
    return {
        entry.job.id: _explain(entry, f"F = {entry.key[0]:.6g} ({_ordinal(rank)} of {count})")
        for rank, entry in enumerate(queue.entries, start=1)
    }


def explain_unknown(jobs: Iterable[JobState]) -> dict[str, Explanation]:
    """One explanation for each job of unknown demand."""
    return {
        job.id: Explanation("unknown demand: an equal share of the pool")
        if job.gpus
        else Explanation(
            f"unknown demand: needs {in_gpus(job.spec.min_gpus)}, the pool has too few left",
            job.spec.min_gpus,
        )
        for job in jobs
    }


def _explain(entry: Entry, rank: str) -> Explanation:
    if not any(allowed.sizes for allowed in entry.allowed_by_type):
        reason = "; ".join(allowed.reason for allowed in entry.allowed_by_type)
        return Explanation(reason or "the cluster has no GPUs")
    free = max(entry.before or (0,))
    if entry.gpus:
        allowed = entry.allowed
        short = f", {free} free after the jobs before it" if entry.gpus < allowed.ceiling else ""
        return Explanation(f"{rank}, ceiling {allowed.ceiling} by {allowed.reason}{short}")
    least = min(allowed.sizes[0] for allowed in entry.allowed_by_type if allowed.sizes)
    reason = f"{rank}, needs {in_gpus(least)}, {free} free after the jobs before it"
    return Explanation(reason, least)


def _ordinal(rank: int) -> str:
    if rank % 100 in (11, 12, 13):
        return f"{rank}th"
    return f"{rank}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(rank % 10, 'th') }"
