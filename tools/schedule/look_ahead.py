"""The event loop around a session: what happens next if nothing comes in from outside."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from pliant.schemas.job import Job
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.session.session import Session

Coming = deque[Job]
"""Jobs yet to arrive, in order of arrival; those that arrive are taken off."""
EndOf = Callable[[JobState], float | None]
"""When a job ends as things are; None: unknown, or it holds no GPU."""


def in_order_of_arrival(jobs: Iterable[Job]) -> Coming:
    """Jobs by (submit_time, id)."""
    return deque(sorted(jobs, key=lambda job: (job.submit_time, job.id)))


def advance(session: Session, time_s: float, coming: Coming | None = None) -> float | None:
    """Go to the next moment, and let happen what is due by then; the caller then asks the policy.

    Returns that moment; None: nothing is to come.
    """
    next_s = next_moment_s(session, time_s, coming)
    if next_s is not None:
        happen(session, next_s, coming)
    return next_s


def next_moment_s(
    session: Session, time_s: float, coming: Coming | None = None, end_of: EndOf = JobState.finish_time_s
) -> float | None:
    """The next moment at which the policy is to be asked; None: nothing is to come.

    That is the next end or arrival, or the time at which the policy wants to be asked again; for a policy
    that decides in rounds, the next round.
    """
    moments = [end for job in session.jobs.values() if (end := end_of(job)) is not None]
    if coming:
        moments.append(coming[0].submit_time)
    if session.ask_again_s is not None and session.ask_again_s > time_s:
        moments.append(session.ask_again_s)
    if not moments:
        return None
    interval_s = session.policy.default_interval_s
    return max(min(moments), time_s) if interval_s is None else time_s + interval_s


def happen(
    session: Session, time_s: float, coming: Coming | None = None, end_of: EndOf = JobState.finish_time_s
) -> None:
    """Jobs that end by ``time_s`` end, then those that arrive by then arrive."""
    for job in sorted(session.jobs.values(), key=lambda job: job.id):
        end_s = end_of(job)
        if end_s is not None and end_s <= time_s:
            session.end(job.id, time_s)
    while coming and coming[0].submit_time <= time_s:
        session.submit(coming.popleft(), time_s)
