"""Jobs that other jobs wait for: what a job still waits for, and whether it can ever start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pliant.schemas.event import End
from pliant.schemas.job import Job

Outcome = Callable[[str], End | None]
"""Outcome of a job; None while it has not ended."""
_NAMED: Final = 3
"""Jobs that the reason of a waiting job names; of more it gives the number."""
_FELL: Final[dict[End, str]] = {
    "failed": "failed",
    "cancelled": "was cancelled",
    "rejected": "was rejected",
}


class Wait(NamedTuple):
    """Why a job does not start yet."""

    words: str
    is_unsatisfiable: bool = False
    """Whether it never will."""


def wait_of(job: Job, outcome: Outcome) -> Wait | None:
    """What a job waits for. Returns None if the jobs after which it starts have ended as they had to."""
    left: dict[str, list[str]] = {"ok": [], "any": [], "failed": []}
    for other, awaited in job.after.items():
        ended = outcome(other)
        if ended is None:
            left[awaited].append(other)
        elif awaited == "ok" and ended != "finished":
            return Wait(f"was to start after job {other}, which {_FELL[ended]}", is_unsatisfiable=True)
        elif awaited == "failed" and ended == "finished":
            return Wait(f"was to start if job {other} failed, which finished", is_unsatisfiable=True)
    parts = [f"for {_named(left['ok'])} to finish"] if left["ok"] else []
    parts += [f"for {_named(left['any'])} to end"] if left["any"] else []
    parts += [f"for {_named(left['failed'])} to fail"] if left["failed"] else []
    return Wait(f"waits {' and '.join(parts)}") if parts else None


def _named(jobs: Sequence[str]) -> str:
    if len(jobs) == 1:
        return f"job {jobs[0]}"
    if len(jobs) > _NAMED:
        return f"jobs {', '.join(jobs[: _NAMED - 1])} and {len(jobs) - _NAMED + 1} more"
    return f"jobs {', '.join(jobs[:-1])} and {jobs[-1]}"
