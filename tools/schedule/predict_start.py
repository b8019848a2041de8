"""When jobs start and end, if nothing else arrives: the one prediction that every command shows.

:func:`predictions` looks ahead in a copy of a session. :func:`advance` is its event loop, also for others
that hold a session without an engine.
"""

from __future__ import annotations

import copy
import math
import signal
import threading
import time
from collections import ChainMap, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean
from types import MappingProxyType
from typing import Final, Literal

from pliant.schemas.job import GpuTimeWork, Job
from pliant.tools.schedule.explain import explanations, plain_explanations
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.session.allocations import Transition
from pliant.tools.schedule.session.session import Session

DECISIONS_AHEAD: Final = 1000
"""Decisions that are looked ahead for a predicted start."""
DOUBT: Final = 0.3
"""The part by which a predicted speed, or one measured only once, may be off."""
LEAST_DOUBT: Final = 0.05
"""The same for a speed measured again and again: what is to come may differ."""
MOST_DOUBT: Final = 0.5
"""No more than this part of a speed is doubted: one slow second says little about hours."""
Source = Literal["measured", "profile", "stated"]
"""Where the speeds of a prediction come from: the least certain of those that it rests on."""
_CERTAINTY: Final[Sequence[Source]] = ("measured", "stated", "profile")
_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StartPrediction:
    """What is to come for one job; times on the session's clock."""

    start_s: float | None = None
    """Time at which a waiting job gets GPUs; None: unknown, or it has some."""
    end_s: float | None = None
    """Time at which a running job ends at its present size and speed; None: unknown, or it waits."""
    jobs_ahead: int | None = None
    """Waiting jobs that get GPUs before this one; None: unknown, or it has some."""
    needs_gpus: int | None = None
    """GPUs that a job waits for, if the policy was asked."""
    between_s: tuple[float, float] | None = field(default=None, compare=False)
    """``start_s`` if all running jobs are as fast, and as slow, as can be."""
    source: Source | None = field(default=None, compare=False)
    """Where the speeds behind ``start_s`` or ``end_s`` come from; None: neither is known."""


def predictions(
    session: Session,
    time_s: float,
    measured: Mapping[str, float] = _NOTHING,
    *,
    decides_now: bool = False,
    within_s: float | None = None,
    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> dict[str, StartPrediction]:
    """What is to come for every active job. The session is used up: hand in a :func:`copy_of` one in use.

    Ends follow from the work left and the measured speed, else the predicted one. Starts are what the policy
    decides when it is asked ahead while jobs end. A measured job keeps its ratio to the predicted speed on
    other sizes; unmeasured jobs take the mean ratio of their model.

    :param measured: samples per second of running jobs, at their present size.
    :param decides_now: ask the policy at ``time_s`` first, because it has not just decided. It then also says
    how many GPUs jobs wait for, and their order where no job has a known end (running jobs are then
    assumed to end in order of arrival).
    :param within_s: real seconds that this may take; starts not found by then stay unknown. In the main
    thread a longer decision is interrupted.
    :param ranges: the least and the most samples per second measured of jobs.
    """
    speeds = CorrectedSpeeds(session, time_s, measured)
    ends = {job.id: end for job in session.jobs.values() if (end := speeds.end_s(job)) is not None}
    sources = {job_id: speeds.source(session.jobs[job_id]) for job_id in ends}
    slow, fast = speeds.doubt(ends, measured, ranges)
    starts = _Starts(session, speeds, time_s, decides_now=decides_now)
    with _time_limit(within_s):
        starts.find(math.inf if within_s is None else time.monotonic() + within_s)
    predicted = {
        job_id: StartPrediction(end_s=end_s, source=sources[job_id]) for job_id, end_s in ends.items()
    }
    rests_on = max(sources.values(), key=_CERTAINTY.index, default=None)
    predicted |= {job_id: StartPrediction(needs_gpus=gpus) for job_id, gpus in starts.needs.items()}
    known = ChainMap(session.jobs, session.book.ended)
    order = {job_id: (at, known[job_id].arrival) for job_id, (at, _) in starts.found.items()}
    for place, job_id in enumerate(sorted(order, key=order.__getitem__)):
        start_s = starts.found[job_id][1]
        predicted[job_id] = StartPrediction(start_s, None, place, starts.needs.get(job_id))
        if start_s is not None:
            between_s = (time_s + (start_s - time_s) / fast, time_s + (start_s - time_s) / slow)
            predicted[job_id] = replace(predicted[job_id], between_s=between_s, source=rests_on)
    return predicted


def copy_of(session: Session) -> Session:
    """A copy to look ahead in; it shares what never changes (specifications, speeds)."""
    jobs = (*session.jobs.values(), *session.book.ended.values())
    shared = [session.cluster.spec, session.cluster.speeds, *(job.spec for job in jobs)]
    copied = copy.deepcopy(session, {id(thing): thing for thing in shared})
    copied.policy_host.look_ahead()
    copied.policy_host.forecast.learn_no_more()
    return copied


@dataclass(slots=True)
class _Starts:
    """When each waiting job gets GPUs; without jobs of unknown work or too far ahead."""

    session: Session
    speeds: CorrectedSpeeds
    time_s: float
    decides_now: bool
    found: dict[str, tuple[int, float | None]] = field(default_factory=dict)
    """Number of the decision that gives a job GPUs, and its time, if known."""
    needs: dict[str, int] = field(default_factory=dict)
    """GPUs that waiting jobs need, if the policy was asked."""

    def find(self, until_s: float) -> None:
        """Ask the policy while jobs end, until every job has started or the time is up."""
        jobs = self.session.jobs.values()
        never = self.session.hidden.held.keys() | self.session.hidden.unsatisfiable.keys()
        waiting = {job.id for job in jobs if not job.gpus and job.id not in never}
        dated = True
        for number in range(DECISIONS_AHEAD):
            if not waiting or time.monotonic() > until_s:
                return
            asked_first = self.decides_now and number == 0
            next_s = self.time_s if asked_first else self._next_s()
            if next_s is None:
                if not (self.decides_now and self._end_the_first()):
                    return
                dated, next_s = False, self.time_s + _round_s(self.session.policy)
            self.time_s = next_s
            started = self._decide()
            if asked_first:
                needs = {**_needs(self.session, next_s), **started}
                self.needs = {job_id: gpus for job_id, gpus in needs.items() if job_id in waiting}
            self.found |= dict.fromkeys(waiting & started.keys(), (number, next_s if dated else None))
            waiting -= started.keys()

    def _next_s(self) -> float | None:
        return next_moment_s(self.session, self.time_s, end_of=self.speeds.end_s)

    def _decide(self) -> dict[str, int]:
        """End the jobs that are due and ask the policy; returns the GPUs of jobs that it starts."""
        happen(self.session, self.time_s, end_of=self.speeds.end_s)
        transitions = self.session.decide(self.time_s)
        self.speeds.correct(transitions)
        return {each.job.id: each.job.gpus for each in transitions if each.step in ("start", "resume")}

    def _end_the_first(self) -> bool:
        """Assume that a job of unknown end finishes; False if none runs."""
        running = [job for job in self.session.jobs.values() if job.gpus]
        if running:
            self.session.end(min(running, key=lambda job: job.arrival).id, self.time_s)
        return bool(running)


def _needs(session: Session, time_s: float) -> dict[str, int]:
    """GPUs that waiting jobs need, as the policy says; it may fail to say."""
    try:
        why = explanations(session, time_s)
    except Exception:  # noqa: BLE001 - a policy may raise anything, and has decided all the same
        why = plain_explanations(session)
    waiting = [job for job in session.jobs.values() if not job.gpus]
    return {job.id: why[job.id].needs_gpus or job.spec.min_gpus for job in waiting}


def _round_s(policy: Policy) -> float:
    own = (
        None
        if policy.traits.interval_parameter is None
        else getattr(policy, policy.traits.interval_parameter)
    )
    return float(policy.traits.default_interval_s or own or 0.0)


class _TimeIsUpError(BaseException):
    """Not an :class:`Exception`, so that it passes through the code of a policy."""


@contextmanager
def _time_limit(seconds: float | None) -> Iterator[None]:
    """Interrupt the block after that many real seconds; only the main thread can."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def break_off(*_: object) -> None:
        raise _TimeIsUpError

    before = signal.signal(signal.SIGALRM, break_off)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    except _TimeIsUpError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


class CorrectedSpeeds:
    """How fast jobs train: measured speeds correct the predicted ones."""

    def __init__(self, session: Session, time_s: float, measured: Mapping[str, float]) -> None:
        self._profiled = bool(session.cluster.speeds.throughput.profile_rows())
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
        # Jobs that still run although they should have ended.
        self._overdue = {job.id for job in unmeasured if job.remaining_samples(time_s) == 0}

    def _ratio(self, job: JobState) -> float:
        return self._ratios.get(job.id) or self._by_model.get(job.spec.model, 1.0)

    def source(self, job: JobState) -> Source:
        if job.id in self._ratios:
            return "measured"
        return "profile" if self._profiled or job.spec.model in self._by_model else "stated"

    def doubt(
        self,
        job_ids: Iterable[str],
        measured: Mapping[str, float],
        ranges: Mapping[str, tuple[float, float]],
    ) -> tuple[float, float]:
        """How much slower, and faster, jobs may be than assumed: the extremes over all, as factors."""
        slow, fast = 1.0 - LEAST_DOUBT, 1.0 + LEAST_DOUBT
        for job_id in job_ids:
            least, most = 1.0 - DOUBT, 1.0 + DOUBT
            if job_id in self._ratios and job_id in ranges:
                least, most = (speed / measured[job_id] for speed in ranges[job_id])
            slow, fast = min(slow, least), max(fast, most)
        return max(slow, 1.0 - MOST_DOUBT), min(fast, 1.0 + MOST_DOUBT)

    def correct(self, transitions: Iterable[Transition]) -> None:
        """Correct the predicted speeds of jobs whose GPUs changed."""
        for transition in transitions:
            if transition.job.gpus:
                transition.job.samples_per_second *= self._ratio(transition.job)

    def is_known(self, job: JobState) -> bool:
        """Whether its speed is known: without measurements only that of GPU time is."""
        if job.id in self._overdue:
            return False
        if self._profiled or isinstance(job.spec.work, GpuTimeWork):
            return True
        return job.id in self._ratios or job.spec.model in self._by_model

    def end_s(self, job: JobState) -> float | None:
        """When a job ends at its speed. Returns None if that is not known."""
        return job.finish_time_s() if self.is_known(job) else None


Coming = deque[Job]
"""Jobs yet to arrive, in order; those that arrive are removed."""
EndOf = Callable[[JobState], float | None]
"""Time at which a job ends as things are; None: unknown, or it holds no GPU."""


def in_order_of_arrival(jobs: Iterable[Job]) -> Coming:
    return deque(sorted(jobs, key=lambda job: (job.submit_time, job.id)))


def advance(session: Session, time_s: float, coming: Coming | None = None) -> float | None:
    """Go to the next moment and apply what is due; the caller then asks the policy.

    Returns that moment; None if nothing is to come.
    """
    next_s = next_moment_s(session, time_s, coming)
    if next_s is not None:
        happen(session, next_s, coming)
    return next_s


def next_moment_s(
    session: Session, time_s: float, coming: Coming | None = None, end_of: EndOf = JobState.finish_time_s
) -> float | None:
    """When to ask the policy next; None if nothing is to come.

    That is the next end or arrival, or the time at which the policy wants to be asked again; for a policy
    that decides in rounds, the next round.
    """
    moments = [end for job in session.jobs.values() if (end := end_of(job)) is not None]
    if coming:
        moments.append(coming[0].submit_time)
    if session.decided.due_s is not None and session.decided.due_s > time_s:
        moments.append(session.decided.due_s)
    if not moments:
        return None
    interval_s = session.policy.traits.default_interval_s
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
