"""The events that ``run`` writes, as pure functions of what happened; ``fold.py`` says what they mean.

Those of the workers are in ``service/reports.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pliant import __version__
from pliant.schemas.event import Event
from pliant.schemas.events import (
    Cancelled,
    Decided,
    Ended,
    Failed,
    Finished,
    Moved,
    NodeDown,
    NodeUp,
    Preempted,
    Rejected,
    Released,
    Requeued,
    Resized,
    RunBegan,
    Submitted,
    row_of,
    typed,
)  # fmt: skip
from pliant.schemas.io import profile_hash
from pliant.schemas.job import Job
from pliant.schemas.runinfo import PromisedBounds, RunInfo
from pliant.schemas.schedule import Schedule, TeamStanding
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.liveness import whole_use_of
from pliant.tools.run.statedir.directory import Account
from pliant.tools.run.statedir.log.fold import JobLog, RunLog
from pliant.tools.run.statedir.slot_faults import BELIEVED, Fault, reason_to_stop, wait_s
from pliant.tools.schedule.registry import label_of


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
    return row_of(RunBegan(time_s, stated=info.model_dump(mode="json", by_alias=True, exclude_none=True)))


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
    return row_of(
        Decided(
            time_s,
            origin_s=origin_s,
            policy=policy,
            decision_seconds=decision_seconds,
            error=error or None,
            once=once or None,
            forecasts=dict(forecasts) if forecasts else None,
            admissions=dict(admissions) if admissions else None,
            teams=[each.model_dump(exclude_defaults=True) for each in teams] or None,
        )
    )


def submit_event(job: Job, time_s: float, detail: Mapping[str, Any] | None = None) -> Event:
    """A job arrived; its submit_time becomes UTC. ``detail``: what else a SubmitDetail holds."""
    moved = {**job.model_dump(mode="json", exclude_defaults=True), "submit_time": time_s}
    return row_of(Submitted(time_s, job.id, stated={**(detail or {}), "job": moved}))


def abort_event(job_id: str, time_s: float, reason: str) -> Event:
    return row_of(Failed(time_s, job_id, 0, (), reason=reason))


def timeout_event(job_id: str, time_s: float, reason: str) -> Event:
    """A limit of its own ends a job."""
    return row_of(Failed(time_s, job_id, 0, (), reason=reason, timed_out=True))


def reject_event(
    job_id: str, time_s: float, reason: str, admission: Mapping[str, Any] | None = None
) -> Event:
    """A job is turned away. ``admission``: what the policy says of it beside the reason."""
    statement = dict(admission) if admission else None
    return row_of(Rejected(time_s, job_id, 0, (), reason=reason, admission=statement))


def cancel_event(job_id: str, time_s: float, reason: str = "", *, by: Account | None = None) -> Event:
    """:param by: who asked for it, if several accounts share the run."""
    user, uid = (None, None) if by is None else (by.name, by.uid)
    return row_of(Cancelled(time_s, job_id, 0, (), reason=reason or None, user=user, uid=uid))


def release_event(job_id: str, time_s: float) -> Event:
    return row_of(Released(time_s, job_id))


def node_event(name: str, time_s: float, down: str | None) -> Event:
    """A node came up, or is ``down`` for a reason."""
    if down is None:
        return row_of(NodeUp(time_s, node=name))
    return row_of(NodeDown(time_s, node=name, reason=down))


def finish_event(job_id: str, time_s: float, attempt: int, samples_done: float | None) -> Event:
    return row_of(Finished(time_s, job_id, 0, (), samples_done=samples_done, attempt=attempt))


def failure_event(
    job: JobLog, time_s: float, attempt: int, reason: str, *, retries: int, fault: Fault | None = None
) -> Event:
    """An attempt failed: the job waits again, or is given up.

    :param fault: what the script did, if that is known.
    """
    return row_of(_failure(job, time_s, attempt, reason, retries=retries, fault=fault))


def _failure(
    job: JobLog, time_s: float, attempt: int, reason: str, *, retries: int, fault: Fault | None = None
) -> Failed | Requeued:
    record = job.next_failure(time_s)
    retries = retries if job.job.retries is None else job.job.retries
    why, code, at_samples = reason_to_stop(record, retries), None, None
    if fault is not None:
        code, is_asked_for = fault.exit_code, fault.exit_code in job.job.retry_on
        refused = code in job.job.no_retry_on or (job.job.retry_on and not is_asked_for)
        if why is None and code is not None and refused:
            why = "not retried, as the job says"
        if fault.by_itself and job.shows_cause(time_s, fault):
            at_samples = fault.at_samples
            certain = record.failures > 1 and job.retry.repeats(reason, fault)
            if why is None and certain and not is_asked_for:
                why = "failed twice in the same way"
        if why is None and fault.is_final and not is_asked_for:
            why = ""
    known = Requeued(
        *(time_s, job.job.id, 0, ()),
        attempt=attempt,
        reason=reason,
        failures=record.failures,
        exit_code=code,
        at_samples=at_samples,
    )
    if why is None:
        return replace(known, retries=retries, wait_seconds=wait_s(record.failures))
    return Failed(
        *(time_s, job.job.id, 0, ()),
        attempt=attempt,
        reason=f"{why}: {reason}" if why else reason,
        failures=record.failures,
        exit_code=code,
        at_samples=at_samples,
    )


def displaced_event(job: JobLog, time_s: float, attempt: int, reason: str, *, retries: int) -> Event:
    """An attempt is over because its place was taken away, and the job waits again.

    It counts as failed once that happens again and again without progress: see ``retries.py``.
    """
    row = job.next_displacement(time_s)
    if row <= BELIEVED:
        waits_s = wait_s(row)
        return row_of(
            Requeued(
                *(time_s, job.job.id, 0, ()),
                over=attempt,
                reason=reason,
                displacements=row,
                wait_seconds=waits_s,
            )
        )
    why = f"{reason} (or its script, which signals its whole process group), {row} times without progress"
    failure = replace(_failure(job, time_s, attempt, why, retries=retries), displacements=row)
    if isinstance(failure, Requeued):
        failure = replace(failure, wait_seconds=max(failure.wait_seconds or 0.0, wait_s(row)))
    return row_of(failure)


def with_loss(row: Event, log: RunLog) -> Event:
    """An event that stops or changes a running job, with the GPU hours that are lost by it.

    A failure of its own is no such stop.
    """
    event, job = typed(row), log.active.get(row.job or "")
    if job is None or row.gpus is None or not isinstance(event, Resized | Moved | Preempted | Requeued):
        return row
    lost = job.unsaved_gpu_s(event.time) / 3600.0
    if not lost or (isinstance(event, Requeued) and event.attempt is not None):
        return row
    return row_of(replace(event, lost_gpu_hours=lost))


def with_use(row: Event, log: RunLog, job_of: Callable[[str], JobDir]) -> Event:
    """The end of a job, with what it has used of its slots, where its supervisors say so."""
    event, job = typed(row), log.active.get(row.job or "")
    if job is None or not isinstance(event, Ended) or job.started_s is None or job.job.on_cpus:
        return row
    used = whole_use_of(job_of(event.job))
    on_gpus = log.info is None or log.info.cluster.slots == "gpu"
    busy = [each.gpu_s if on_gpus else each.cpu_s for each in used]
    full = [each.gpu_memory_s for each in used]
    if not used or None in busy:
        return row
    memory_s = None if None in full else round(sum(filter(None, full)), 1)
    return row_of(
        replace(event, used_gpu_seconds=round(sum(filter(None, busy)), 1), memory_gpu_seconds=memory_s)
    )


def missing_place_event(job_id: str, time_s: float, attempt: int, reason: str) -> Event:
    """Nothing starts in the place of an attempt; the job waits again."""
    return row_of(Requeued(time_s, job_id, 0, (), over=attempt, reason=reason))


def interruption_event(job_id: str, time_s: float, reason: str) -> Event:
    return row_of(Requeued(time_s, job_id, 0, (), reason=reason))


def on_clock(events: Iterable[Event], origin_s: float) -> list[Event]:
    """Events with their times, and the submit times of their jobs, on the clock of the schedule."""
    return [_shifted(event, origin_s) for event in events] if origin_s else list(events)


def _shifted(row: Event, origin_s: float) -> Event:
    time_s = max(0.0, row.time - origin_s)
    event = typed(row) if row.event == Submitted.name else None
    if not isinstance(event, Submitted):
        return replace(row, time=time_s)
    spec = {**event.spec, "submit_time": time_s}
    return row_of(replace(event, time=time_s, stated={**(event.stated or {}), "job": spec}))
