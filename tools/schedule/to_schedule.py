"""A session after a decision as a schedule: who holds what, who waits, who was rejected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from pydantic import ValidationError

from pliant.schemas.schedule import Allocation, PolicyState, PolicyUse, Reservation, Schedule, Verdict
from pliant.tools.schedule.explain import explanations, plain_explanations
from pliant.tools.schedule.jobs import JobState, gpus_of
from pliant.tools.schedule.policy import Explanation, Reserved
from pliant.tools.schedule.policy_error import PolicyError
from pliant.tools.schedule.prediction import Prediction, copy_of, predictions
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.session.transitions import Transition

T = TypeVar("T")


def schedule_of(
    session: Session,
    transitions: Iterable[Transition],
    time_s: float,
    *,
    explain: bool = False,
    measured: Mapping[str, float] | None = None,
    forgive: Callable[[Exception], object] | None = None,
) -> Schedule:
    """The schedule that a session has after a decision.

    :param explain: say what jobs that wait need, and when jobs are predicted to start and to end.
    :param measured: samples per second of jobs that run, for these predictions.
    :param forgive: takes errors of the policy in explaining its decision or saving its state: the schedule
        then says the plain facts, or has no state. None: they are raised.
    """
    expected = predictions(copy_of(session), time_s, measured or {}) if explain else {}
    ahead: Mapping[str, tuple[Reservation, ...]] = _forgiving(lambda: _ahead(session, time_s), dict, forgive)
    done = {transition.job.id: transition for transition in transitions}
    reasons = _forgiving(lambda: explanations(session, time_s), lambda: plain_explanations(session), forgive)
    active = sorted(session.jobs.values(), key=lambda job: job.arrival)
    reasons_out = {
        **{
            transition.job.id: transition.reason
            for transition in done.values()
            if transition.step == "reject"
        },
        **session.turned_away,
    }
    rejects = sorted((session.ended[job_id] for job_id in reasons_out), key=lambda job: job.arrival)
    return Schedule(
        time=time_s,
        policy=PolicyUse(
            name=session.policy.name, parameters=dict(session.policy.parameters), seed=session.seed
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
        rejected=tuple(Verdict(job=job.id, reason=reasons_out[job.id]) for job in rejects),
        cluster=session.cluster,
        jobs=tuple(job.spec for job in (*active, *rejects)),
        demand=session.demand,
        forecast=session.forecast_state(),
        policy_state=_forgiving(lambda: _storable(session.policy_state(), forgive), lambda: None, forgive),
    )


def _ahead(session: Session, time_s: float) -> dict[str, tuple[Reservation, ...]]:
    """What jobs are to hold later.

    :raises PolicyError: the policy planned what no schedule can hold.
    """
    planned = session.reserved(time_s)
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


def _storable(state: PolicyState, forgive: Callable[[Exception], object] | None) -> PolicyState:
    """The state, which can be written; where errors are not forgiven, writing it says so."""
    if forgive is not None:
        state.model_dump_json()
    return state


def _forgiving(
    ask: Callable[[], T], otherwise: Callable[[], T], forgive: Callable[[Exception], object] | None
) -> T:
    if forgive is None:
        return ask()
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - a policy may raise anything
        forgive(error)
        return otherwise()


def _waits(
    job: JobState,
    why: Explanation,
    expected: Prediction | None,
    *,
    explain: bool,
    reserved: tuple[Reservation, ...],
) -> Verdict:
    if not explain:
        return Verdict(job=job.id, reason=why.reason, reserved=reserved)
    return Verdict(
        job=job.id,
        reason=why.reason,
        needs_gpus=why.needs_gpus or job.spec.min_gpus,
        predicted_start=None if expected is None else expected.start_s,
        reserved=reserved,
    )


def _allocation(
    session: Session,
    job: JobState,
    transition: Transition | None,
    why: Explanation,
    expected: Prediction | None,
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
            "batch": session.speeds.batch_plan(job),
            "lr_scale": job.global_batch / job.reference_batch,
            "action": "keep" if step == "rebatch" else step,
            "reason": why.reason,
            "beside": job.beside,
            "predicted_end": None if expected is None else expected.end_s,
            "reserved": reserved,
        }
    )
