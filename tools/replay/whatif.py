"""What is to come for the jobs of a live session, from the replay's own engine.

:func:`predict_jobs` replays on from where a session stands: what its jobs cost when they change, how fast
they train and what the policy decides is as in any replay. Measured speeds correct those of the profile, as
they do in :mod:`pliant.tools.schedule.predict_start`. :class:`WhatIfComparison` holds two such looks.

:class:`PredictionErrors` say how wrong predictions were: looks from past moments of a run, held against what
came. An error is the ratio of the time that something took, seen from the moment of the prediction, to the
time that was predicted. Jobs that arrived later are part of it, as they are part of the errors to come. What
has not come yet counts as coming now, and what was predicted for later as predicted for now.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from pliant.schemas.event import ENDS, RESCALES, STARTS, End, Event
from pliant.schemas.events import Finished
from pliant.schemas.file_io.limits import garbage_collection_paused
from pliant.schemas.job import Job
from pliant.schemas.profile import Profile
from pliant.tools.replay.engine.costs import DEFAULT, costs_from_events, unstated_costs
from pliant.tools.replay.engine.engine import Engine
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.progress import SampleProgress
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.predict_start import CorrectedSpeeds
from pliant.tools.schedule.session.session import Session

_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})
_EXACT: Final = 0.3
"""The part of the time after which the policy is asked more rarely."""
_USED: Final = 0.7
"""The part of the time left that decisions are planned for: they differ."""
_TICK_S: Final = 1e-4
_STOPS: Final = RESCALES | {"preempt", "requeue"}
_SOON_S: Final = 1.0
"""Differences below this are none."""


@dataclass(frozen=True, slots=True)
class JobPrediction:
    """What is to come for one job; times on the session's clock."""

    submitted_s: float
    gpus: int = 0
    """What it holds, or is given first."""
    runs: bool = False
    """Whether it holds what it runs on, be it the cores of a node alone."""
    start_s: float | None = None
    """When it starts; None: it runs, or that is not known."""
    end_s: float | None = None
    """None: not known."""
    end: End | None = None
    """How it ends, if that is known."""
    why: str = ""
    """Why its end is not known."""
    can_end: bool = True
    """Whether its work and its speed are known."""
    lost_gpu_s: float = 0.0
    """GPU seconds that stops and changes lose, as it cannot save."""

    @property
    def jct_s(self) -> float | None:
        """From its submission to its end; None unless it is known to finish."""
        return self.end_s - self.submitted_s if self.end == "finished" and self.end_s is not None else None


@dataclass(frozen=True, slots=True)
class JobPredictions:
    """What is to come for all jobs of a session."""

    jobs: Mapping[str, JobPrediction]
    """By id: active jobs, then those yet to arrive."""
    gpu_use: float | None
    """The part of the GPUs in service that jobs hold until the last known end; None: no end is known."""
    decisions: int
    exact_until_s: float | None
    """After this time the policy was asked more rarely than it would be; None: never."""
    reached_s: float
    """What lies behind this time was not looked at."""


def world_of(events: Iterable[Event], profile: Profile | None) -> SimulatedCluster:
    """What changes cost: as the events of a run measured, else as its profile says, else as in a replay."""
    costs = costs_from_events(events)
    if not (costs.start.by_model or costs.rescale.by_model):
        measured = unstated_costs(profile)
        if measured is None:
            return SimulatedCluster(DEFAULT, DEFAULT)
        costs = measured
    return SimulatedCluster(costs.start, costs.rescale, costs.resume)


@garbage_collection_paused()
def predict_jobs(
    session: Session,
    time_s: float,
    world: SimulatedCluster,
    measured: Mapping[str, float] = _NOTHING,
    *,
    coming: Sequence[Job] = (),
    within_s: float | None = None,
    until_s: float = math.inf,
) -> JobPredictions:
    """Replay on from ``time_s``. The session is used up: hand in a copy of one in use.

    :param world: what changes cost.
    :param measured: samples per second of running jobs, at their present size.
    :param coming: jobs that arrive later.
    :param within_s: seconds of the processor that this may take (see :class:`_Effort`).
    :param until_s: look no further than this time of the session.
    """
    speeds = CorrectedSpeeds(session, time_s, measured)
    before = {
        job.id: JobPrediction(job.spec.submit_time, job.log_gpus, runs=job.gpus > 0)
        for job in session.jobs.values()
    }
    before |= {job.id: JobPrediction(job.submit_time) for job in coming}
    unsaved = {job.id: 0.0 for job in coming if not job.can_save}
    unsaved |= {job.id: job.changed_s for job in session.jobs.values() if not job.spec.can_save}
    engine = Engine(
        session,
        coming,
        replace(world, progress=lambda: _KnownEnds(speeds)),
        interval_s=session.policy.traits.default_interval_s,
        correct=speeds.correct,
    )
    engine.carry_on(time_s)
    effort = _Effort(engine, math.inf if within_s is None else within_s, until_s)
    engine.run(effort.goes_on)
    return _outcome(engine, before, effort, speeds, unsaved)


class _Effort:
    """Keeps a look ahead within its time: the policy is asked more rarely the further ahead that is.

    Near decisions are exact. Once a part of the time is used, the ends to come are spread over as many
    decisions as there is time for, again at each of them. The time is that of the processor, which other
    processes do not change.
    """

    def __init__(self, engine: Engine, within_s: float, until_s: float) -> None:
        self._engine = engine
        self._within_s = within_s
        self._until_s = until_s
        self._began_s = time.process_time()
        # Decisions when they were spread last, and the time used by then.
        self._seen = (0, 0.0)
        # After this moment the policy is asked more rarely.
        self.exact_until_s = math.inf
        # The look goes up to this moment.
        self.reached_s = math.inf

    def goes_on(self, next_s: float) -> bool:
        spent_s = time.process_time() - self._began_s
        if next_s > self._until_s or spent_s > self._within_s:
            self.reached_s = min(next_s, self._until_s)
            return False
        decisions = self._engine.counters.decisions
        if spent_s > _EXACT * self._within_s and decisions > self._seen[0]:
            since, used_s = decisions - self._seen[0], spent_s - self._seen[1]
            self._seen = (decisions, spent_s)
            self._spread(next_s, _USED * (self._within_s - spent_s) * since / max(used_s, _TICK_S))
        return True

    def _spread(self, next_s: float, decisions: float) -> None:
        """:param decisions: for which there is time."""
        ends = len(self._engine.session.in_play)
        self._engine.decide_after(max(1, math.ceil(ends / max(1.0, decisions))))
        self.exact_until_s = min(self.exact_until_s, next_s)


@dataclass(frozen=True, slots=True)
class _KnownEnds(SampleProgress):
    """Jobs end where their work does, if their speed is known; others hold what they have."""

    speeds: CorrectedSpeeds

    def end_samples(self, job: JobState, samples_done: float) -> float | None:
        del samples_done
        return job.work_samples if self.speeds.is_known(job) else None


def _outcome(
    engine: Engine,
    before: Mapping[str, JobPrediction],
    effort: _Effort,
    speeds: CorrectedSpeeds,
    unsaved: Mapping[str, float],
) -> JobPredictions:
    """:param unsaved: jobs that cannot save, and since when they hold what they hold at first."""
    jobs, events = dict(before), list(engine.log.events())
    for event in events:
        known = jobs.get(event.job or "")
        if event.job is None or known is None:
            continue
        if event.event in STARTS and not known.runs and known.start_s is None:
            jobs[event.job] = replace(known, gpus=event.gpus or 0, start_s=event.time)
        elif (end := ENDS.get(event.event)) is not None:
            jobs[event.job] = replace(known, end_s=event.time, end=end)
    for job_id, state in engine.session.jobs.items():
        why = _why(state, engine.session, speeds, is_cut=effort.reached_s < math.inf)
        knows = state.work_samples is not None and speeds.is_known(state)
        jobs[job_id] = replace(jobs[job_id], why=why, can_end=knows)
    for job_id, lost_gpu_s in _lost(events, unsaved, before).items():
        jobs[job_id] = replace(jobs[job_id], lost_gpu_s=lost_gpu_s)
    use = _gpu_use(events, engine.session.cluster.up_gpus)
    exact_s = effort.exact_until_s if effort.exact_until_s < math.inf else None
    return JobPredictions(jobs, use, engine.counters.decisions, exact_s, effort.reached_s)


def _lost(
    events: Iterable[Event], unsaved: Mapping[str, float], before: Mapping[str, JobPrediction]
) -> dict[str, float]:
    """GPU seconds that jobs lose to stops and changes, by their ids."""
    held = {job_id: (before[job_id].gpus, since_s) for job_id, since_s in unsaved.items()}
    gpu_seconds: dict[str, float] = {}
    for event in events:
        job_id = event.job or ""
        if job_id not in held or event.gpus is None:
            continue
        gpus, since_s = held[job_id]
        if gpus and event.event in _STOPS:
            gpu_seconds[job_id] = gpu_seconds.get(job_id, 0.0) + gpus * (event.time - since_s)
        if not gpus or event.event in _STOPS:
            held[job_id] = (event.gpus, event.time)
    return gpu_seconds


def _why(job: JobState, session: Session, speeds: CorrectedSpeeds, *, is_cut: bool) -> str:
    """Why the end of a job is not known."""
    if job.id in session.hidden.held:
        return "it is held"
    if job.id in session.hidden.awaiting:
        return session.hidden.awaiting[job.id]
    if job.gpus and job.work_samples is None:
        return "its work is not known"
    if job.gpus and not speeds.is_known(job):
        return "its speed is not known"
    return "it lies further ahead than was looked" if is_cut else "it waits for jobs of unknown end"


def _gpu_use(events: Sequence[Event], up_gpus: int) -> float | None:
    """:param events: first what jobs hold, then what changes."""
    ends = [event.time for event in events if event.event == Finished.name]
    first_s, last_s = (events[0].time, max(ends)) if ends else (0.0, 0.0)
    if last_s <= first_s or not up_gpus:
        return None
    held: dict[str, int] = {}
    since_s, gpu_s = first_s, 0.0
    for event in events:
        if event.time > last_s:
            break
        if event.gpus is None or event.job is None:
            continue
        gpu_s += min(up_gpus, sum(held.values())) * (event.time - since_s) if event.time > since_s else 0.0
        since_s = event.time
        held[event.job] = event.gpus
        if not event.gpus:
            del held[event.job]
    return gpu_s / (up_gpus * (last_s - first_s))


@dataclass(frozen=True, slots=True)
class JobChange:
    """What becomes of one job in one case and in the other."""

    job: str
    now: JobPrediction | None
    """None: it is there in the other case only."""
    then: JobPrediction | None

    @property
    def delay_s(self) -> float | None:
        """By how much it ends later, or if no end is known starts later; None: not comparable."""
        if self.now is None or self.then is None:
            return None
        if self.now.jct_s is not None and self.then.jct_s is not None:
            return self.then.jct_s - self.now.jct_s
        if self.now.start_s is not None and self.then.start_s is not None:
            return self.then.start_s - self.now.start_s
        return None

    @property
    def is_one(self) -> bool:
        """Whether the two cases differ for this job."""
        late_s = self.delay_s
        if late_s is None:
            return (self.now is None) != (self.then is None) or _known(self.now) != _known(self.then)
        return abs(late_s) >= _SOON_S


def _known(job: JobPrediction | None) -> tuple[bool, bool]:
    return (job is not None and job.start_s is not None, job is not None and job.end_s is not None)


@dataclass(frozen=True, slots=True)
class WhatIfComparison:
    """What is to come as things are, and what would be to come otherwise."""

    now: JobPredictions
    then: JobPredictions
    changes: tuple[JobChange, ...] = field(init=False)
    """All jobs, in the order of the first look, then those of the second one."""

    def __post_init__(self) -> None:
        ids: Iterable[str] = dict.fromkeys((*self.now.jobs, *self.then.jobs))
        changes = (JobChange(job_id, self.now.jobs.get(job_id), self.then.jobs.get(job_id)) for job_id in ids)
        object.__setattr__(self, "changes", tuple(changes))

    @property
    def mean_jct_s(self) -> tuple[float, float] | None:
        """Over the jobs that are known to finish in both cases; None: there are none."""
        both = [
            (each.now.jct_s, each.then.jct_s)
            for each in self.changes
            if each.now is not None and each.then is not None
        ]
        pairs = [(now, then) for now, then in both if now is not None and then is not None]
        return (fmean(now for now, _ in pairs), fmean(then for _, then in pairs)) if pairs else None


LEAST: Final = 5
"""Comparisons without which nothing is said."""
BAND: Final = 0.8
"""The part of the past errors that lies inside the range."""
_SHORT_S: Final = 1.0
"""Predictions of less are not compared: their ratio says nothing."""


class Moment(Protocol):
    """What was known at one moment."""

    @property
    def time_s(self) -> float: ...
    @property
    def session(self) -> Session: ...
    @property
    def measured(self) -> Mapping[str, float]: ...


class ActualTimes(NamedTuple):
    """What became of a job; None: it has not happened yet."""

    start_s: float | None
    end_s: float | None


@dataclass(frozen=True, slots=True)
class PredictionErrors:
    """The range of past errors, as factors of the time that is predicted."""

    comparisons: int
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, ratios: Iterable[float]) -> PredictionErrors:
        ordered = sorted(ratios)
        if len(ordered) < LEAST:
            return cls(len(ordered))
        last = len(ordered) - 1
        cut = (1.0 - BAND) / 2
        return cls(len(ordered), ordered[round(cut * last)], ordered[round((1.0 - cut) * last)])

    def between_s(self, at_s: float | None, now_s: float) -> tuple[float, float] | None:
        """The range of a predicted time. Returns None if it, or its error, is not known."""
        if at_s is None or self.low is None or self.high is None:
            return None
        return now_s + self.low * (at_s - now_s), now_s + self.high * (at_s - now_s)

    def words(self, what: str) -> str:
        """What the ranges rest on, or why there are none; ``what``: "starts" or "ends"."""
        if self.low is None or self.high is None:
            return f"no ranges of {what}: {self.comparisons} of {LEAST} past predictions to compare with"
        times = f"{self.low:.2g} to {self.high:.2g} times as long as predicted"
        return f"of {self.comparisons} past predictions of {what}, {BAND:.0%} took {times}"


def prediction_errors(
    moments: Iterable[Moment],
    came: Mapping[str, ActualTimes],
    now_s: float,
    world: SimulatedCluster,
    *,
    each_s: float,
) -> tuple[PredictionErrors, PredictionErrors]:
    """Errors of starts and of ends.

    :param came: what became of the jobs, those left out that a person held or cancelled.
    :param each_s: seconds of the processor that each look may take.
    """
    starts: list[float] = []
    ends: list[float] = []
    for moment in moments:
        waiting = {job.id for job in moment.session.jobs.values() if not job.gpus}
        predicted = predict_jobs(
            *(moment.session, moment.time_s, world, moment.measured), within_s=each_s, until_s=now_s
        )
        until_s = min(now_s, predicted.reached_s)
        starts += _ratios(predicted, came, (moment.time_s, until_s), waiting, starts=True)
        ends += _ratios(predicted, came, (moment.time_s, until_s), came.keys(), starts=False)
    return PredictionErrors.of(starts), PredictionErrors.of(ends)


def _ratios(
    predicted: JobPredictions,
    came: Mapping[str, ActualTimes],
    span_s: tuple[float, float],
    of: Iterable[str],
    *,
    starts: bool,
) -> Iterable[float]:
    """:param span_s: when it was predicted, and up to when it was looked."""
    at_s, until_s = span_s
    for job_id in sorted(of):
        job, truth = predicted.jobs.get(job_id), came.get(job_id)
        if job is None or truth is None or (job.end_s is None and not job.can_end):
            continue
        predicted_s, came_s = (job.start_s, truth.start_s) if starts else (job.end_s, truth.end_s)
        ends_s = until_s if came_s is None else min(came_s, until_s)
        expected_s = until_s if predicted_s is None else min(predicted_s, until_s)
        if min(ends_s, expected_s) < until_s and expected_s - at_s >= _SHORT_S and ends_s >= at_s:
            yield (ends_s - at_s) / (expected_s - at_s)
