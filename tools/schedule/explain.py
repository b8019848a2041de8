"""Why each job got what it got, and when those that wait will start."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Final

from pliant.schemas.schedule import Schedule
from pliant.schemas.wording import in_gpus
from pliant.tools.schedule.protocol import Explanation
from pliant.tools.schedule.session import Session
from pliant.tools.schedule.snapshot import JobState, Phase

if TYPE_CHECKING:
    from rich.table import Table

DECISIONS_AHEAD: Final = 1000
"""A predicted start is looked for this many decisions ahead and no further."""


def explanations(session: Session, time_s: float) -> dict[str, Explanation]:
    """Why every active job holds what it holds: in the policy's words, in plain ones where it has none."""
    told = session.explain(time_s)
    return {job.id: told.get(job.id) or _plain(job) for job in session.jobs.values()}


def _plain(job: JobState) -> Explanation:
    if job.gpus:
        return Explanation(f"runs on {in_gpus(job.gpus)}")
    again = "again " if job.phase is Phase.PREEMPTED else ""
    return Explanation(f"waits {again}for at least {in_gpus(job.spec.min_gpus)}", job.spec.min_gpus)


def predicted_starts(session: Session, time_s: float) -> dict[str, float]:
    """When each waiting job would get GPUs if nothing else arrived: the policy itself, asked ahead on a copy.

    Jobs end when their stated work is done at the predicted speed. A job is left out where that does not
    lead to its start: work unknown, or too far ahead.
    """
    ahead = _copy(session)
    waiting = {job.id for job in ahead.jobs.values() if not job.gpus}
    starts: dict[str, float] = {}
    for _ in range(DECISIONS_AHEAD):
        next_s = _next_event_s(ahead, time_s)
        if not waiting or next_s is None:
            break
        time_s = next_s
        for job in sorted(ahead.jobs.values(), key=lambda job: job.id):
            end_s = job.finish_time_s()
            if end_s is not None and end_s <= time_s:
                ahead.end(job.id, time_s)
        for effect in ahead.decide(time_s):
            if effect.step in ("start", "resume") and effect.job.id in waiting:
                waiting.remove(effect.job.id)
                starts[effect.job.id] = time_s
    return starts


def _copy(session: Session) -> Session:
    """A session of its own; what never changes (specifications, speeds) is shared."""
    jobs = (*session.jobs.values(), *session.ended.values())
    shared = [session.cluster, session.speeds, *(job.spec for job in jobs)]
    return copy.deepcopy(session, {id(thing): thing for thing in shared})


def _next_event_s(session: Session, time_s: float) -> float | None:
    """The next moment at which the policy would be asked: a job ends, a round, or its own wish."""
    ends = [end for job in session.jobs.values() if (end := job.finish_time_s()) is not None]
    moments = [max(end, time_s) for end in ends]
    if session.ask_again_s is not None and session.ask_again_s > time_s:
        moments.append(session.ask_again_s)
    if moments and session.policy.default_interval_s is not None:
        return time_s + session.policy.default_interval_s
    return min(moments, default=None)


def table(schedule: Schedule) -> Table:
    """The schedule for people: one line a job, what it holds or what it waits for, and why."""
    from rich.table import Table

    shown = Table("job", "GPUs", "where", "batch", "action", "why", box=None, header_style="bold")
    for given in schedule.allocations:
        where = " ".join(f"{node}:{count}" for node, count in given.placement)
        batch = str(given.batch.global_) if given.batch is not None else ""
        shown.add_row(given.job, str(given.gpus), where, batch, given.action, given.reason)
    for verdict in schedule.waiting:
        needs = "" if verdict.needs_gpus is None else f"needs {verdict.needs_gpus}"
        start = "" if verdict.predicted_start is None else f" (starts at {verdict.predicted_start:.0f} s)"
        shown.add_row(verdict.job, needs, "", "", "wait", verdict.reason + start)
    for verdict in schedule.rejected:
        shown.add_row(verdict.job, "", "", "", "reject", verdict.reason)
    return shown
