"""The events that ``run`` writes, as pure functions of what happened; ``fold.py`` says what they mean.

Those of the workers are in ``service/reports.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pliant import __version__
from pliant.schemas.event import RESCALES, Event
from pliant.schemas.io import profile_hash
from pliant.schemas.job import Job
from pliant.schemas.runinfo import PromisedBounds, RunInfo
from pliant.schemas.schedule import Schedule, TeamStanding
from pliant.tools.run.statedir.directory import Account
from pliant.tools.run.statedir.failures import BELIEVED, Fault, given_up, wait_s
from pliant.tools.run.statedir.log.fold import JobLog, RunLog
from pliant.tools.schedule.registry import label_of

_LOSES: Final = RESCALES | {"preempt", "requeue"}


def run_event(
    schedule: Schedule,
    trace_hash: str,
    time_s: float,
    interval_s: float | None = None,
    bounds: PromisedBounds | None = None,
) -> Event:
    """The first event of a log: which run it is.

    :param trace_hash: of the jobs as they were stated.
    :param bounds: what the policy promises.
    """
    info = RunInfo(
        policy=label_of(schedule.policy.name),
        parameters=schedule.policy.parameters,
        seed=schedule.policy.seed,
        simulated=False,
        demand=schedule.demand,
        preemptible=schedule.cluster.preemptible or "stated",
        trace_hash=trace_hash,
        cluster=schedule.cluster,
        profile_hash=None if schedule.profile is None else profile_hash(schedule.profile),
        pliant_version=__version__,
        interval_s=interval_s,
        bounds=bounds,
    )
    return Event(time_s, "decision", detail=info.model_dump(mode="json", by_alias=True, exclude_none=True))


def decision_event(
    time_s: float,
    origin_s: float,
    policy: str,
    decision_seconds: float | None,
    *,
    error: str = "",
    once: bool = False,
    forecasts: Mapping[str, Any] | None = None,
    admissions: Mapping[str, Any] | None = None,
    teams: Sequence[TeamStanding] = (),
) -> Event:
    """The policy was asked, or a schedule was read.

    :param error: why the policy has decided nothing.
    :param once: the call that writes it does not stay, such as one from cron.
    :param forecasts: predictions by job id.
    :param admissions: by id, what the policy said of jobs that it admitted or that are to wait.
    :param teams: how the teams stand, where they share the cluster.
    """
    detail: dict[str, Any] = {"origin_s": origin_s, "policy": policy}
    if decision_seconds is not None:
        detail["decision_seconds"] = decision_seconds
    if error:
        detail["error"] = error
    if once:
        detail["once"] = True
    if forecasts:
        detail["forecasts"] = dict(forecasts)
    if admissions:
        detail["admissions"] = dict(admissions)
    if teams:
        detail["teams"] = [each.model_dump(exclude_defaults=True) for each in teams]
    return Event(time_s, "decision", detail=detail)


def submit_event(job: Job, time_s: float, detail: Mapping[str, Any] | None = None) -> Event:
    """A job arrived; its submit_time becomes UTC. ``detail``: what else a SubmitDetail holds."""
    moved = {**job.model_dump(mode="json", exclude_defaults=True), "submit_time": time_s}
    return Event(time_s, "submit", job.id, detail={**(detail or {}), "job": moved})


def give_up_event(job_id: str, time_s: float, reason: str) -> Event:
    return Event(time_s, "fail", job_id, gpus=0, placement=(), detail={"reason": reason})


def timeout_event(job_id: str, time_s: float, reason: str) -> Event:
    """A limit of its own ends a job."""
    detail = {"reason": reason, "timed_out": True}
    return Event(time_s, "fail", job_id, gpus=0, placement=(), detail=detail)


def reject_event(
    job_id: str, time_s: float, reason: str, admission: Mapping[str, Any] | None = None
) -> Event:
    """A job is turned away. ``admission``: what the policy says of it beside the reason."""
    detail = {"reason": reason} | ({"admission": dict(admission)} if admission else {})
    return Event(time_s, "reject", job_id, gpus=0, placement=(), detail=detail)


def cancel_event(job_id: str, time_s: float, reason: str = "", *, by: Account | None = None) -> Event:
    """:param by: who asked for it, if several accounts share the run."""
    detail: dict[str, Any] | None = {"reason": reason} if reason else None
    if by is not None:
        detail = {**(detail or {}), "user": by.name, "uid": by.uid}
    return Event(time_s, "cancel", job_id, gpus=0, placement=(), detail=detail)


def release_event(job_id: str, time_s: float) -> Event:
    return Event(time_s, "release", job_id)


def node_event(name: str, time_s: float, down: str | None) -> Event:
    """A node came up, or is ``down`` for a reason."""
    if down is None:
        return Event(time_s, "node_up", detail={"node": name})
    return Event(time_s, "node_down", detail={"node": name, "reason": down})


def finish_event(job_id: str, time_s: float, attempt: int, samples_done: float | None) -> Event:
    detail = {"attempt": attempt}
    return Event(time_s, "finish", job_id, gpus=0, placement=(), samples_done=samples_done, detail=detail)


def failure_event(
    job: JobLog, time_s: float, attempt: int, reason: str, *, retries: int, fault: Fault | None = None
) -> Event:
    """An attempt failed: the job waits again, or is given up.

    :param fault: what the script did, if that is known.
    """
    record = job.next_failure(time_s)
    detail: dict[str, Any] = {"attempt": attempt, "reason": reason, "failures": record.failures}
    retries = retries if job.job.retries is None else job.job.retries
    why = given_up(record, retries)
    if fault is not None:
        code, is_asked_for = fault.exit_code, fault.exit_code in job.job.retry_on
        if code is not None:
            detail["exit_code"] = code
        if why is None and (code in job.job.no_retry_on or (job.job.retry_on and not is_asked_for)):
            why = "not retried, as the job says"
        if fault.by_itself and job.would_tell(time_s, fault):
            detail["at_samples"] = fault.at_samples
            certain = record.failures > 1 and job.repeats(reason, fault)
            if why is None and certain and not is_asked_for:
                why = "failed twice in the same way"
        if why is None and fault.is_final and not is_asked_for:
            why = ""
    if why is not None:
        detail["reason"] = f"{why}: {reason}" if why else reason
        return Event(time_s, "fail", job.job.id, gpus=0, placement=(), detail=detail)
    detail |= {"retries": retries, "wait_seconds": wait_s(record.failures)}
    return Event(time_s, "requeue", job.job.id, gpus=0, placement=(), detail=detail)


def displaced_event(job: JobLog, time_s: float, attempt: int, reason: str, *, retries: int) -> Event:
    """An attempt is over because its place was taken away, and the job waits again.

    It counts as failed once that happens again and again without progress: see ``retries.py``.
    """
    row = job.next_displacement(time_s)
    detail: dict[str, Any]
    if row <= BELIEVED:
        detail = {"over": attempt, "reason": reason, "displacements": row, "wait_seconds": wait_s(row)}
        return Event(time_s, "requeue", job.job.id, gpus=0, placement=(), detail=detail)
    why = f"{reason} (or its script, which signals its whole process group), {row} times without progress"
    failure = failure_event(job, time_s, attempt, why, retries=retries)
    detail = {**(failure.detail or {}), "displacements": row}
    if failure.event == "requeue":
        detail["wait_seconds"] = max(detail["wait_seconds"], wait_s(row))
    return replace(failure, detail=detail)


def with_loss(event: Event, log: RunLog) -> Event:
    """An event that stops or changes a running job, with the GPU hours that are lost by it.

    A failure of its own is no such stop.
    """
    job, detail = log.active.get(event.job or ""), event.detail or {}
    if job is None or event.event not in _LOSES or event.gpus is None or "attempt" in detail:
        return event
    lost = job.unsaved_gpu_s(event.time) / 3600.0
    return replace(event, detail={**detail, "lost_gpu_hours": lost}) if lost else event


def missing_place_event(job_id: str, time_s: float, attempt: int, reason: str) -> Event:
    """Nothing starts in the place of an attempt; the job waits again."""
    detail = {"over": attempt, "reason": reason}
    return Event(time_s, "requeue", job_id, gpus=0, placement=(), detail=detail)


def interruption_event(job_id: str, time_s: float, reason: str) -> Event:
    return Event(time_s, "requeue", job_id, gpus=0, placement=(), detail={"reason": reason})


def on_clock(events: Iterable[Event], origin_s: float) -> list[Event]:
    """Events with their times, and the submit times of their jobs, on the clock of the schedule."""
    return [_shifted(event, origin_s) for event in events] if origin_s else list(events)


def _shifted(event: Event, origin_s: float) -> Event:
    time_s = max(0.0, event.time - origin_s)
    if event.event != "submit":
        return replace(event, time=time_s)
    detail = dict(event.detail or {})
    detail["job"] = {**detail["job"], "submit_time": time_s}
    return replace(event, time=time_s, detail=detail)
