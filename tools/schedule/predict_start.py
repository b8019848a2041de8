"""When jobs start and end, if nothing else arrives: the one prediction that every command shows.

:func:`predictions` looks ahead in a copy of a session. :func:`advance` is the event loop for that, and for
others that hold a session without an engine: what happens next if nothing comes in from outside.
"""

from __future__ import annotations

import copy
import math
import signal
import threading
import time
from collections import defaultdict, deque
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
from pliant.tools.schedule.session.holdings import Transition
from pliant.tools.schedule.session.session import Session

DECISIONS_AHEAD: Final = 1000
"""A predicted start is looked for this many decisions ahead and no further."""
DOUBT: Final = 0.3
"""A speed that a profile predicts, or that was measured only once, may be off by this part of it."""
LEAST_DOUBT: Final = 0.05
"""So may one that was measured again and again: what is to come may differ."""
MOST_DOUBT: Final = 0.5
"""What a job takes in one slow second says little of hours: no more than this part of a speed is doubted."""
Source = Literal["measured", "profile", "stated"]
"""Where the speeds of a prediction come from; the least certain one of those that it rests on."""
_CERTAINTY: Final[Sequence[Source]] = ("measured", "stated", "profile")
_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StartPrediction:
    """What is to come of one job; times on the session's clock."""

    start_s: float | None = None
    """When a job that waits gets GPUs; None: it holds some, or that cannot be predicted."""
    end_s: float | None = None
    """When a job that runs ends at its present size and speed; None: it waits, or that is unknown."""
    jobs_ahead: int | None = None
    """Jobs that wait and get GPUs before this one; None: it holds some, or that is unknown."""
    needs_gpus: int | None = None
    """GPUs that a job waits for, where the policy was asked for them."""
    between_s: tuple[float, float] | None = field(default=None, compare=False)
    """Around ``start_s``: when it starts where all jobs that run are as fast, or as slow, as can be."""
    source: Source | None = field(default=None, compare=False)
    """Where the speeds come from that ``start_s`` or ``end_s`` rests on; None: neither is known."""


def predictions(
    session: Session,
    time_s: float,
    measured: Mapping[str, float] = _NOTHING,
    *,
    asks_now: bool = False,
    within_s: float | None = None,
    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> dict[str, StartPrediction]:
    """What is to come of every active job. The session is used up: hand in a :func:`copy_of` one in use.

    Ends follow from the work that is left and the speed: that which was measured, else that which the
    profile predicts. Starts are those that the policy decides when it is asked ahead while jobs end so. A job
    whose speed was measured keeps its ratio to the predicted one on other sizes; jobs of a model that were
    not measured have the ratio of those that were.

    :param measured: samples per second of jobs that run, at their present size.
    :param asks_now: the policy is asked at ``time_s`` first; otherwise it has just been. It then also says
        how many GPUs jobs wait for, and in which order they get them where no job has a known end: jobs that
        run are taken to end in order of arrival.
    :param within_s: real seconds that this may take; starts that are not found by then stay unknown. In the
        main thread a decision that takes longer is broken off.
    :param ranges: the least and the most samples per second that jobs were measured at.
    """
    speeds = _Speeds(session, time_s, measured)
    ends = {job.id: end for job in session.jobs.values() if (end := speeds.end_s(job)) is not None}
    sources = {job_id: speeds.source(session.jobs[job_id]) for job_id in ends}
    slow, fast = speeds.doubt(ends, measured, ranges)
    starts = _Starts(session, speeds, time_s, asks_now=asks_now)
    with _time_limit(within_s):
        starts.find(math.inf if within_s is None else time.monotonic() + within_s)
    found = {job_id: StartPrediction(end_s=end_s, source=sources[job_id]) for job_id, end_s in ends.items()}
    rests_on = max(sources.values(), key=_CERTAINTY.index, default=None)
    found |= {job_id: StartPrediction(needs_gpus=gpus) for job_id, gpus in starts.needs.items()}
    order = {job_id: (at, session_arrival(session, job_id)) for job_id, (at, _) in starts.found.items()}
    for place, job_id in enumerate(sorted(order, key=order.__getitem__)):
        start_s = starts.found[job_id][1]
        found[job_id] = StartPrediction(start_s, None, place, starts.needs.get(job_id))
        if start_s is not None:
            between_s = (time_s + (start_s - time_s) / fast, time_s + (start_s - time_s) / slow)
            found[job_id] = replace(found[job_id], between_s=between_s, source=rests_on)
    return found


def session_arrival(session: Session, job_id: str) -> tuple[float, str]:
    """The place of a job in order of arrival, whether it has ended or not."""
    return (session.jobs.get(job_id) or session.ended[job_id]).arrival


def copy_of(session: Session) -> Session:
    """A session of its own to look ahead in; what never changes (specifications, speeds) is shared."""
    jobs = (*session.jobs.values(), *session.ended.values())
    shared = [session.cluster, session.speeds, *(job.spec for job in jobs)]
    copied = copy.deepcopy(session, {id(thing): thing for thing in shared})
    copied.policy.look_ahead()
    copied.forecast.learn_no_more()
    return copied


@dataclass(slots=True)
class _Starts:
    """When each waiting job gets GPUs. A job is left out where work is unknown, or it is too far ahead."""

    session: Session
    speeds: _Speeds
    time_s: float
    asks_now: bool
    found: dict[str, tuple[int, float | None]] = field(default_factory=dict)
    """By job: which decision gives it GPUs, and when that is, if it is known."""
    needs: dict[str, int] = field(default_factory=dict)
    """GPUs that jobs wait for, where the policy was asked for them."""

    def find(self, until_s: float) -> None:
        """Ask the policy while jobs end, until every job has started, or the real time is up."""
        jobs = self.session.jobs.values()
        waiting = {job.id for job in jobs if not job.gpus and job.id not in self.session.commands.held}
        dated = True
        for number in range(DECISIONS_AHEAD):
            if not waiting or time.monotonic() > until_s:
                return
            asked_first = self.asks_now and number == 0
            next_s = self.time_s if asked_first else self._next_s()
            if next_s is None:
                if not (self.asks_now and self._end_the_first()):
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
        """End the jobs whose time has come and ask the policy; returns the GPUs of jobs that it starts."""
        happen(self.session, self.time_s, end_of=self.speeds.end_s)
        transitions = self.session.decide(self.time_s)
        self.speeds.correct(transitions)
        return {each.job.id: each.job.gpus for each in transitions if each.step in ("start", "resume")}

    def _end_the_first(self) -> bool:
        """Suppose that a job ends of which it is not known when; False: none runs."""
        running = [job for job in self.session.jobs.values() if job.gpus]
        if running:
            self.session.end(min(running, key=lambda job: job.arrival).id, self.time_s)
        return bool(running)


def _needs(session: Session, time_s: float) -> dict[str, int]:
    """GPUs that the waiting jobs wait for, as the policy says; in plain words where it cannot."""
    try:
        why = explanations(session, time_s)
    except Exception:  # noqa: BLE001 - a policy may raise anything, and has decided all the same
        why = plain_explanations(session)
    waiting = [job for job in session.jobs.values() if not job.gpus]
    return {job.id: why[job.id].needs_gpus or job.spec.min_gpus for job in waiting}


def _round_s(policy: Policy) -> float:
    """How long the policy waits between two decisions at least."""
    own = None if policy.interval_parameter is None else getattr(policy, policy.interval_parameter)
    return float(policy.default_interval_s or own or 0.0)


class _TimeIsUpError(BaseException):
    """No :class:`Exception`, so that it passes through the code of a policy."""


@contextmanager
def _time_limit(seconds: float | None) -> Iterator[None]:
    """Leave the block after that many real seconds, whatever it does; only the main thread can."""
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

    def source(self, job: JobState) -> Source:
        """Where the speed of a running job comes from."""
        if job.id in self._ratios:
            return "measured"
        return "profile" if self._profiled or job.spec.model in self._by_model else "stated"

    def doubt(
        self,
        job_ids: Iterable[str],
        measured: Mapping[str, float],
        ranges: Mapping[str, tuple[float, float]],
    ) -> tuple[float, float]:
        """How much slower, and faster, jobs may be than is taken: the most of all of them, as factors."""
        slow, fast = 1.0 - LEAST_DOUBT, 1.0 + LEAST_DOUBT
        for job_id in job_ids:
            least, most = 1.0 - DOUBT, 1.0 + DOUBT
            if job_id in self._ratios and job_id in ranges:
                least, most = (speed / measured[job_id] for speed in ranges[job_id])
            slow, fast = min(slow, least), max(fast, most)
        return max(slow, 1.0 - MOST_DOUBT), min(fast, 1.0 + MOST_DOUBT)

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
