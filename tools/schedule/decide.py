"""One decision, from files or from a state directory's log, as a schedule that can be executed.

:func:`decide` and :func:`decide_from_history` open a session and ask its policy; :func:`schedule_of` writes
what the session then holds down: who has which GPUs, who waits, who was rejected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from pliant.schemas.checks import check_after, check_profiled, oversized
from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, InfeasibleError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import profile_from_columns, profile_to_columns
from pliant.schemas.job import Job
from pliant.schemas.predictor import Predictor
from pliant.schemas.schedule import (
    Allocation,
    ForecastState,
    PolicyState,
    PolicyUse,
    Reservation,
    Schedule,
    Verdict,
)
from pliant.tools.schedule.demand import JobCheck, check_demand
from pliant.tools.schedule.explain import explanations, plain_explanations
from pliant.tools.schedule.forecast import Demand
from pliant.tools.schedule.from_log import CarriedOver, arrivals_until, session_for_run, session_from_events
from pliant.tools.schedule.jobs import JobState, gpus_of
from pliant.tools.schedule.policy import Explanation, Policy, PolicyError, Reserved
from pliant.tools.schedule.predict_start import StartPrediction, copy_of, predictions
from pliant.tools.schedule.rates import throughput_for
from pliant.tools.schedule.registry import make_policy, name_of
from pliant.tools.schedule.session.allocations import Transition
from pliant.tools.schedule.session.session import Session

if TYPE_CHECKING:
    from pliant.schemas.profile import Profile
    from pliant.schemas.runinfo import RunInfo
    from pliant.tools.schedule.session.saved import Basis, SavedSession

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question:
    """What a policy is asked, and how much it is to explain."""

    policy: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Values, or the text of ``--param KEY=VALUE``."""
    seed: int = 0
    explain: bool = False
    """Add what waiting jobs need and when they are predicted to start."""
    timing: bool = True
    """Add ``decision_seconds``, which alone differs between equal calls."""
    demand: Demand | None = None
    """Demand that policies see of jobs without stated work; None: as in the last schedule, else "stated"."""
    predictor: Predictor | None = None
    """Where predictions begin; None: as in the last schedule, else untrained."""

    def predicts(self, previous: Schedule | None = None) -> tuple[Demand, ForecastState | None]:
        """The demand that the policy sees, and the state of its predictor.

        :raises UsageError: a predictor is named, and nothing is to be predicted.
        """
        demand = self.demand or (previous.demand if previous is not None else "stated")
        if self.predictor is None:
            return demand, None if previous is None else previous.forecast
        if demand != "predicted":
            raise UsageError("--predictor predicts with --demand predicted only")
        return demand, ForecastState(predictor=self.predictor)


def decide(
    jobs: Iterable[Job],
    cluster: Cluster,
    profile: Profile | None,
    question: Question,
    *,
    now_s: float | None = None,
    source: str = "jobs",
) -> Schedule:
    """The decision on an idle cluster at ``now_s``, by default when the first job arrives.

    Without a profile, speed is assumed to grow in proportion to the GPUs, and jobs whose work is not stated
    in GPU-seconds are taken in order of submission. A job that is larger than the cluster is rejected, even
    if it arrives later. ``source`` is what messages call the jobs.

    :raises BadInputError: the model of a job is not profiled, or it states no work and the policy needs that.
    :raises InfeasibleError: every job is rejected.
    :raises UsageError: the policy or a parameter is unknown, or the policy needs a profile.
    """
    jobs = tuple(jobs)
    throughput = throughput_for(profile, cluster)
    too_large = _too_large(jobs, cluster, source)
    check_after(jobs, (), source)
    fitting = [job for job in jobs if job.id not in too_large]
    if throughput.models():
        check_profiled(fitting, throughput.models(), source)
    if now_s is None:
        now_s = min((job.submit_time for job in jobs), default=0.0)
    policy = policy_for(question, profile)
    session = session_for_run(policy, cluster, throughput, question.seed)
    session.policy_host.predict(*question.predicts())
    check_demand(fitting, policy, source, session.policy_host.demand)
    with _naming(source):
        for job in arrivals_until(jobs, now_s, too_large):
            if job.id not in too_large:
                session.submit(job, now_s)
            else:
                if session.submit_accepted(job, now_s) is not None:
                    session.end(job.id, now_s, "rejected")
                session.book.rejections[job.id] = too_large[job.id]
    session.book.rejections.update(session.end_unsatisfiable(now_s, "rejected"))
    future = [job for job in fitting if job.submit_time > now_s]
    schedule = _ask(session, now_s, question, future, profile)
    if jobs and len(schedule.rejected) == len(jobs):
        raise _none_is_left(source, {verdict.job: verdict.reason for verdict in schedule.rejected})
    return schedule


def _too_large(jobs: Sequence[Job], cluster: Cluster, source: str) -> dict[str, str]:
    """Jobs to reject at once, with reasons.

    :raises InfeasibleError: they are all jobs.
    """
    reasons = oversized(jobs, cluster)
    if reasons and len(reasons) == len(jobs):
        raise _none_is_left(source, reasons)
    return reasons


def _none_is_left(source: str, reasons: Mapping[str, str]) -> InfeasibleError:
    job_id, reason = next(iter(reasons.items()))
    others = f"; of {len(reasons)} jobs none fits" if len(reasons) > 1 else ""
    return InfeasibleError(f'{source}: job "{job_id}" {reason}{others}')


@contextmanager
def _naming(source: str) -> Iterator[None]:
    """Prefix errors about a job with the file that it is from."""
    try:
        yield
    except BadInputError as error:
        raise error if error.problems else BadInputError.one(source, str(error)) from error


@dataclass(frozen=True, slots=True)
class LogHistory:
    """What happened before a decision: an event log, and the last schedule."""

    info: RunInfo | None
    """The run that wrote it."""
    origin_s: float
    """Seconds by which the clock of its schedules is behind that of the log, by its last decision."""
    since: Callable[[Basis], tuple[SavedSession | None, Iterable[Event]]]
    """A saved session of this basis and the events after it; without one, all events."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Samples per second of running jobs, as last measured."""
    previous: Schedule | None = None
    """The policy resumes from its state if policy and parameters are the same."""
    source: str = "events"
    """Name of the log in messages."""


def decide_from_history(
    history: LogHistory,
    question: Question,
    *,
    now_s: float,
    cluster: Cluster | None = None,
    profile: Profile | None = None,
    new: Iterable[str] = (),
) -> Schedule:
    """The next decision where a log ends. Cluster and profile default to those that the log names.

    :param new: jobs that no run has taken up yet; one that cannot be served is rejected.
    :raises BadInputError: the log contradicts itself or the cluster.
    :raises UsageError: the policy or a parameter is unknown, or the policy needs a profile.
    """
    session, profile = session_from_history(history, question, now_s=now_s, cluster=cluster, profile=profile)
    reject_unfit(session, new, now_s)
    jobs = [job.spec for job in session.jobs.values()]
    check_demand(jobs, session.policy, history.source, session.policy_host.demand)
    return _ask(session, now_s, question, [], profile, measured=history.measured)


def session_from_history(
    history: LogHistory,
    question: Question,
    *,
    now_s: float,
    cluster: Cluster | None = None,
    profile: Profile | None = None,
) -> tuple[Session, Profile | None]:
    """The session where a log ends, before its next decision, and its profile.

    Raises as :func:`decide_from_history`.
    """
    from pliant.tools.schedule.session.saved import Basis

    info, previous = history.info, history.previous
    if info is not None and previous is not None and info.cluster.nodes != previous.cluster.nodes:
        changed = {"cluster": info.cluster, "policy_state": None, "forecast": None}  # by a reload since
        previous = previous.model_copy(update=changed)
    if info is not None and profile is None:
        profile = _profile_of(info, previous, history.source)
    recorded = previous or info
    cluster = cluster or (None if recorded is None else recorded.cluster)
    if cluster is None:
        raise BadInputError.one(history.source, "does not name a cluster in its first event")
    policy = policy_for(question, profile)
    carried = CarriedOver(_state_for(policy, previous, history.origin_s), *question.predicts(previous))
    saved, events = history.since(Basis.of(cluster, profile))
    session = session_from_events(
        events,
        policy,
        cluster,
        throughput_for(profile, cluster),
        carried,
        now_s=now_s,
        seed=question.seed,
        source=history.source,
        saved=saved,
    )
    return session, profile


def reject_unfit(session: Session, new: Iterable[str], now_s: float) -> None:
    """Reject those new jobs that this policy cannot serve on this cluster."""
    check = JobCheck(session.cluster.spec, session.cluster.speeds, session.policy, session.policy_host.demand)
    for job in [session.jobs[job_id] for job_id in new if job_id in session.jobs]:
        if (reason := check.refusal(job.spec)) is not None:
            session.reject(job.id, now_s, reason)


def policy_for(question: Question, profile: Profile | None) -> Policy:
    """:raises UsageError: the policy or a parameter is unknown, or the policy needs a profile."""
    policy = make_policy(question.policy, question.parameters)
    if profile is None and "profile" in policy.traits.needs:
        raise UsageError(
            f'policy "{question.policy}" needs a profile: name one with --profile, or pipe one in'
        )
    return policy


def _ask(
    session: Session,
    now_s: float,
    question: Question,
    future: Iterable[Job],
    profile: Profile | None,
    *,
    measured: Mapping[str, float] | None = None,
) -> Schedule:
    started = time.perf_counter()
    transitions = session.decide(now_s)
    seconds = time.perf_counter() - started
    schedule = schedule_of(session, transitions, now_s, explain=question.explain, measured=measured)
    ahead = sorted(future, key=lambda job: (job.submit_time, job.id))
    arriving = tuple(Verdict(job=job.id, reason=f"arrives at {job.submit_time:.10g} s") for job in ahead)
    return schedule.model_copy(
        update={
            "waiting": (*schedule.waiting, *arriving),
            "jobs": (*schedule.jobs, *ahead),
            "profile": profile_to_columns(profile.rows) if profile is not None else None,
            "decision_seconds": seconds if question.timing else None,
        }
    )


def _state_for(policy: Policy, previous: Schedule | None, origin_s: float) -> PolicyState | None:
    """The state in a schedule of the same parameters; the session checks the rest.

    A state on another clock than the log's (``origin_s``) is ignored.
    """
    if previous is None or previous.policy.parameters != dict(policy.parameters):
        return None
    return None if origin_s else previous.policy_state


def _profile_of(info: RunInfo, previous: Schedule | None, source: str) -> Profile | None:
    """A run's profile: its rows are in its schedules, or in the log itself.

    :raises BadInputError: the log names a profile whose rows are elsewhere.
    """
    rows = info.profile or (previous.profile if previous is not None else None)
    if rows is not None:
        from pliant.schemas.profile import Profile

        return Profile(profile_from_columns(rows, source))
    if info.profile_hash is not None:
        text = "the run began with a profile, expected its profile.parquet or schedule.json beside it"
        raise BadInputError.one(source, text)
    return None


def schedule_of(
    session: Session,
    transitions: Iterable[Transition],
    time_s: float,
    *,
    explain: bool = False,
    measured: Mapping[str, float] | None = None,
    on_error: Callable[[Exception], object] | None = None,
) -> Schedule:
    """The schedule that a session has after a decision.

    :param explain: add what waiting jobs need, and when jobs are predicted to start and to end.
    :param measured: samples per second of running jobs, for these predictions.
    :param on_error: receives the policy's errors while it explains or dumps its state; the schedule then has
    plain reasons, or no state. None: they are raised.
    """
    expected = predictions(copy_of(session), time_s, measured or {}) if explain else {}
    ahead: Mapping[str, tuple[Reservation, ...]] = _attempt(lambda: _ahead(session, time_s), dict, on_error)
    done = {transition.job.id: transition for transition in transitions}
    reasons = _attempt(lambda: explanations(session, time_s), lambda: plain_explanations(session), on_error)
    active = sorted(session.jobs.values(), key=lambda job: job.arrival)
    out = {job_id: each.reason for job_id, each in done.items() if each.step == "reject"}
    out |= session.book.rejections
    rejects = sorted((session.book.ended[job_id] for job_id in out), key=lambda job: job.arrival)
    return Schedule(
        time=time_s,
        policy=PolicyUse(
            name=name_of(type(session.policy)), parameters=dict(session.policy.parameters), seed=session.seed
        ),
        allocations=tuple(
            _allocation(
                *(session, job, done.get(job.id), reasons[job.id], expected.get(job.id)),
                reserved=ahead.get(job.id, ()),
            )
            for job in active
            if job.gpus or job.id in done
        ),
        waiting=tuple(
            _waits(
                *(job, reasons[job.id], expected.get(job.id)),
                explain=explain,
                reserved=ahead.get(job.id, ()),
            )
            for job in active
            if not job.gpus
        ),
        rejected=tuple(Verdict(job=job.id, reason=out[job.id]) for job in rejects),
        cluster=session.cluster.spec,
        jobs=tuple(job.spec for job in (*active, *rejects)),
        demand=session.policy_host.demand,
        forecast=session.policy_host.forecast_state(),
        teams=session.policy_host.standings(time_s),
        policy_state=_attempt(
            lambda: _storable(session.policy_host.policy_state(), on_error), lambda: None, on_error
        ),
    )


def _ahead(session: Session, time_s: float) -> dict[str, tuple[Reservation, ...]]:
    """:raises PolicyError: the policy planned what no schedule can hold."""
    planned = session.policy_host.reserved(time_s)
    try:
        return {job_id: _reserved(spans) for job_id, spans in planned.items()}
    except ValidationError as error:
        raise PolicyError.broke_rule(session.policy.name, "planned what no schedule can hold") from error


def _reserved(spans: Iterable[Reserved]) -> tuple[Reservation, ...]:
    return tuple(
        Reservation.model_validate(
            {
                "from": span.from_s,
                "until": span.until_s,
                "gpus": gpus_of(span.placement),
                "placement": span.placement,
                "servers": span.servers,
            }
        )
        for span in spans
    )


def _storable(state: PolicyState, on_error: Callable[[Exception], object] | None) -> PolicyState:
    """The state, checked to be JSON where errors are reported; elsewhere writing it fails."""
    if on_error is not None:
        state.model_dump_json()
    return state


def _attempt(
    action: Callable[[], T], otherwise: Callable[[], T], on_error: Callable[[Exception], object] | None
) -> T:
    if on_error is None:
        return action()
    try:
        return action()
    except Exception as error:  # noqa: BLE001 - a policy may raise anything
        on_error(error)
        return otherwise()


def _waits(
    job: JobState,
    why: Explanation,
    expected: StartPrediction | None,
    *,
    explain: bool,
    reserved: tuple[Reservation, ...],
) -> Verdict:
    if not explain:
        return Verdict(job=job.id, reason=why.reason, reserved=reserved)
    return Verdict(
        job=job.id,
        reason=why.reason,
        needs_gpus=why.needs_gpus or job.spec.min_gpus or None,
        predicted_start=None if expected is None else expected.start_s,
        reserved=reserved,
    )


def _allocation(
    session: Session,
    job: JobState,
    transition: Transition | None,
    why: Explanation,
    expected: StartPrediction | None,
    *,
    reserved: tuple[Reservation, ...],
) -> Allocation:
    step = transition.step if transition is not None else "keep"
    return Allocation.model_validate(
        {
            "job": job.id,
            "gpus": job.gpus,
            "placement": job.placement,
            "servers": job.servers,
            "batch": session.cluster.speeds.batch_plan(job) if job.requested else None,
            "lr_scale": job.global_batch / job.reference_batch,
            "action": "keep" if step == "rebatch" else step,
            "reason": why.reason,
            "beside": job.beside,
            "predicted_end": None if expected is None else expected.end_s,
            "reserved": reserved,
        }
    )
