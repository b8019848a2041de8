"""What came of a replay: counts, times, and why jobs are left."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from pliant.schemas.event import EVENT_NAMES
from pliant.schemas.text.wording import counted, in_gpus
from pliant.tools.replay.engine.log import EventLog
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.session.idle_limit import why_left
from pliant.tools.schedule.session.session import Session

_REJECT: Final = EVENT_NAMES.index("reject")
_NAMED: Final = 5
"""Jobs that are named where several are left for one reason."""
_LINES: Final = 10
"""Reasons that get a line of their own."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """One job that a replay did not finish, and why."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class Summary:
    """What the engine counted. Times are seconds."""

    policy: str
    trace_hash: str
    seed: int
    jobs: int
    finished: int
    rejected: int
    unfinished: tuple[Unfinished, ...]
    """Jobs that were left when nothing could happen any more."""
    rejections: tuple[Unfinished, ...]
    """Jobs that the policy turned away for good."""
    end_s: float
    """Simulated time of the last event."""
    events: int
    decisions: int
    decision_seconds: float | None
    """Time that all decisions took on this machine; null in a summary without timing."""
    mean_decision_seconds: float | None
    wall_seconds: float | None
    """Time that the engine took on this machine, reading and writing left out."""
    cpu_seconds: float | None = None
    """The part of it that this process had a core for."""
    moves: int = 0
    """Changes of jobs to other GPUs, as many as before and with the same batch."""
    assumptions: tuple[str, ...] = ()
    """What was taken for granted because no input said it."""

    def lines(self) -> list[str]:
        """The outcome in words, jobs that are left and why included."""
        parts = [f"{self.finished} of {counted(self.jobs, 'job')} finished"]
        parts += [f"{self.rejected} rejected"] if self.rejected else []
        spent = (
            "" if self.mean_decision_seconds is None else f", {1000 * self.mean_decision_seconds:.3g} ms each"
        )
        parts += [f"ends at {self.end_s:.10g} s", f"{counted(self.decisions, 'decision')}{spent}"]
        parts += [counted(self.moves, "move")] if self.moves else []
        listed = [f"{self.policy}: {', '.join(parts)}"]
        left = [*in_words(self.rejections, "rejected"), *in_words(self.unfinished, "left")]
        return [*listed, *(f"{self.policy}: {words}" for words in left)]

    def without_timing(self) -> Summary:
        """The part that is the same on every machine."""
        return replace(
            self, decision_seconds=None, mean_decision_seconds=None, wall_seconds=None, cpu_seconds=None
        )


def unfinished(session: Session, *, stands_still: bool = False) -> list[Unfinished]:
    """All jobs left in a session that will not change any more, in order of arrival.

    :param stands_still: jobs come and go, but none gets done with being started or rescaled.
    """
    left = sorted(session.jobs.values(), key=lambda job: job.arrival)
    return [Unfinished(job.id, _reason(job, session, stands_still)) for job in left]


def rejections(log: EventLog) -> list[Unfinished]:
    """All jobs that the policy turned away for good, in the order in which it did."""
    rows = [row for row, code in enumerate(log.event) if code == _REJECT]
    return [Unfinished(log.jobs[log.job[row]], json.loads(log.detail(row) or "{}")["reason"]) for row in rows]


def in_words(jobs: Iterable[Unfinished], what: str) -> Iterator[str]:
    """One line for each reason, with the number of jobs and the names of the first; ``what`` they are."""
    by_reason: dict[str, list[str]] = {}
    for each in jobs:
        by_reason.setdefault(each.reason, []).append(each.job)
    for reason, names in list(by_reason.items())[:_LINES]:
        named = ", ".join([f'"{name}"' for name in names[:_NAMED]] + ["…"] * (len(names) > _NAMED))
        who = f"job {named} is" if len(names) == 1 else f"{len(names)} jobs ({named}) are"
        yield f"{who} {what}: {reason}"
    more = sum(len(names) for names in list(by_reason.values())[_LINES:])
    if more:
        yield f"… and {more} more {what} for other reasons"


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
    if not session.up_gpus:
        return "no GPU is left after node failures"
    if low > session.up_gpus:
        return f"needs at least {in_gpus(low)}, {session.up_gpus} are left after node failures"
    if not any(session.speeds.rate(job, gpus) > 0 for gpus in {low, job.spec.gpus.requested}):
        return f"does not run on {in_gpus(low)}: batch {job.reference_batch} is infeasible there"
    return why_left(session.policy.name, job)
