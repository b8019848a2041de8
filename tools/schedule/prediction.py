"""When jobs start and end, if nothing else arrives: the one prediction that every command shows."""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType
from typing import Final

from pliant.schemas.job import GpuTimeWork
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.session.transitions import Transition

DECISIONS_AHEAD: Final = 1000
"""A predicted start is looked for this many decisions ahead and no further."""
_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is to come of one job; times on the session's clock."""

    start_s: float | None = None
    """When a job that waits gets GPUs; None: it holds some, or that cannot be predicted."""
    end_s: float | None = None
    """When a job that runs ends at its present size and speed; None: it waits, or that is unknown."""
    jobs_ahead: int | None = None
    """Jobs that wait and get GPUs before this one; None where ``start_s`` is."""


def predictions(
    session: Session,
    time_s: float,
    measured: Mapping[str, float] = _NOTHING,
    *,
    asks_now: bool = False,
    within_s: float | None = None,
) -> dict[str, Prediction]:
    """What is to come of every active job. The session is used up: hand in a :func:`copy_of` one in use.

    Ends follow from the work that is left and the speed: that which was measured, else that which the
    profile predicts. Starts are those that the policy decides when it is asked ahead while jobs end so. A job
    whose speed was measured keeps its ratio to the predicted one on other sizes; jobs of a model that were
    not measured have the ratio of those that were.

    :param measured: samples per second of jobs that run, at their present size.
    :param asks_now: the policy is asked at ``time_s`` first; otherwise it has just been.
    :param within_s: real seconds that this may take; starts that are not found by then stay unknown.
    """
    speeds = _Speeds(session, time_s, measured)
    ends = {job.id: end for job in session.jobs.values() if (end := speeds.end_s(job)) is not None}
    starts = _starts(session, time_s, speeds, asks_now=asks_now, within_s=within_s)
    waiting = sorted(starts, key=lambda job_id: (starts[job_id], session_arrival(session, job_id)))
    found = {job_id: Prediction(end_s=end_s) for job_id, end_s in ends.items()}
    for place, job_id in enumerate(waiting):
        found[job_id] = Prediction(start_s=starts[job_id], jobs_ahead=place)
    return found


def session_arrival(session: Session, job_id: str) -> tuple[float, str]:
    """The place of a job in order of arrival, whether it has ended or not."""
    return (session.jobs.get(job_id) or session.ended[job_id]).arrival


def copy_of(session: Session) -> Session:
    """A session of its own; what never changes (specifications, speeds) is shared."""
    jobs = (*session.jobs.values(), *session.ended.values())
    shared = [session.cluster, session.speeds, *(job.spec for job in jobs)]
    return copy.deepcopy(session, {id(thing): thing for thing in shared})


def _starts(
    session: Session, time_s: float, speeds: _Speeds, *, asks_now: bool, within_s: float | None
) -> dict[str, float]:
    """When each waiting job gets GPUs. A job is left out where work is unknown, or it is too far ahead."""
    waiting = {job.id for job in session.jobs.values() if not job.gpus}
    starts: dict[str, float] = {}
    until_s = None if within_s is None else time.monotonic() + within_s
    for number in range(DECISIONS_AHEAD):
        next_s = time_s if asks_now and number == 0 else _next_event_s(session, time_s, speeds)
        if not waiting or next_s is None or (until_s is not None and time.monotonic() > until_s):
            break
        time_s = next_s
        for job in sorted(session.jobs.values(), key=lambda job: job.id):
            end_s = speeds.end_s(job)
            if end_s is not None and end_s <= time_s:
                session.end(job.id, time_s)
        transitions = session.decide(time_s)
        speeds.correct(transitions)
        for transition in transitions:
            if transition.step in ("start", "resume") and transition.job.id in waiting:
                waiting.remove(transition.job.id)
                starts[transition.job.id] = time_s
    return starts


def _next_event_s(session: Session, time_s: float, speeds: _Speeds) -> float | None:
    """The next moment at which the policy would be asked: a job ends, a round, or its own wish."""
    ends = [end for job in session.jobs.values() if (end := speeds.end_s(job)) is not None]
    moments = [max(end, time_s) for end in ends]
    if session.ask_again_s is not None and session.ask_again_s > time_s:
        moments.append(session.ask_again_s)
    if moments and session.policy.default_interval_s is not None:
        return time_s + session.policy.default_interval_s
    return min(moments, default=None)


class _Speeds:
    """How fast jobs train, as far as that is known: what was measured corrects what is predicted."""

    def __init__(self, session: Session, time_s: float, measured: Mapping[str, float]) -> None:
        self._profiled = bool(session.speeds.throughput.models())
        self._ratios: dict[str, float] = {}
        by_model: dict[str, list[float]] = defaultdict(list)
        for job in session.jobs.values():
            if not job.gpus:
                continue
            job.settle(time_s)
            speed = measured.get(job.id, 0.0)
            if speed > 0 and job.samples_per_second > 0:
                self._ratios[job.id] = speed / job.samples_per_second
                by_model[job.spec.model].append(self._ratios[job.id])
        self._by_model = {model: fmean(ratios) for model, ratios in by_model.items()}
        for job in session.jobs.values():
            job.samples_per_second *= self._ratio(job)
        unmeasured = [job for job in session.jobs.values() if job.gpus and job.id not in self._ratios]
        self._overdue = {job.id for job in unmeasured if job.remaining_samples(time_s) == 0}
        """Jobs that still run although they should have ended, as far as is known."""

    def _ratio(self, job: JobState) -> float:
        return self._ratios.get(job.id) or self._by_model.get(job.spec.model, 1.0)

    def correct(self, transitions: Iterable[Transition]) -> None:
        """Take up changes of GPUs, after which the session has predicted speeds."""
        for transition in transitions:
            if transition.job.gpus:
                transition.job.samples_per_second *= self._ratio(transition.job)

    def end_s(self, job: JobState) -> float | None:
        """When a job ends at its speed; without any speed that was measured, only GPU time is known."""
        known = self._profiled or job.id in self._ratios or job.spec.model in self._by_model
        if job.id in self._overdue:
            return None
        if known or isinstance(job.spec.work, GpuTimeWork):
            return job.finish_time_s()
        return None
