"""Jobs that other jobs wait for: what a job still waits for, and whether it can ever start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pliant.schemas.event import End
from pliant.schemas.job import Job

Outcome = Callable[[str], End | None]
"""Outcome of a job; None while it has not ended."""
ArrayOf = Callable[[str], str | None]
"""Array of a job; None if it is of none."""
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


def wait_of(job: Job, outcome: Outcome, array_of: ArrayOf) -> Wait | None:
    """What a job waits for. Returns None if the jobs after which it starts have ended as they had to.

    As in Slurm, an array has failed once all of its jobs have ended and one has failed.
    """
    left: dict[str, list[str]] = {"ok": [], "any": [], "failed": []}
    arrays: dict[str, list[End | None]] = {}
    for other, awaited in job.after.items():
        ended = outcome(other)
        if awaited == "failed" and (array := array_of(other)) is not None:
            arrays.setdefault(array, []).append(ended)
        elif ended is None:
            left[awaited].append(other)
        elif awaited == "ok" and ended != "finished":
            return Wait(f"was to start after job {other}, which {_FELL[ended]}", is_unsatisfiable=True)
        elif awaited == "failed" and ended == "finished":
            return Wait(f"was to start if job {other} failed, which finished", is_unsatisfiable=True)
    for array, ends in arrays.items():
        if all(each == "finished" for each in ends):
            return Wait(f"was to start if a job of array {array} failed: none did", is_unsatisfiable=True)
    parts = [f"for {_named(left['ok'])} to finish"] if left["ok"] else []
    parts += [f"for {_named(left['any'])} to end"] if left["any"] else []
    parts += [f"for {_named(left['failed'])} to fail"] if left["failed"] else []
    parts += [f"for array {array} to end" for array, ends in arrays.items() if None in ends]
    return Wait(f"waits {' and '.join(parts)}") if parts else None


def _named(jobs: Sequence[str]) -> str:
    if len(jobs) == 1:
        return f"job {jobs[0]}"
    if len(jobs) > _NAMED:
        return f"jobs {', '.join(jobs[: _NAMED - 1])} and {len(jobs) - _NAMED + 1} more"
    return f"jobs {', '.join(jobs[:-1])} and {jobs[-1]}"
