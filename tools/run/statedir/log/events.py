"""The events that ``run`` writes, as pure functions of what happened; ``fold.py`` says what they mean."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from pliant.schemas.event import Event
from pliant.schemas.formats.events import event_lines
from pliant.schemas.io import profile_hash
from pliant.schemas.job import Job
from pliant.schemas.runinfo import RunInfo
from pliant.schemas.schedule import Schedule
from pliant.tools.run.service.reports import Hindered, Progressed, Proven, Report, Said
from pliant.tools.run.service.steps import Step, StopJob
from pliant.tools.run.statedir.contract.outcome import Verdict
from pliant.tools.run.statedir.log.fold import JobLog, RunLog
from pliant.tools.run.statedir.log.refine import refined
from pliant.tools.run.statedir.log.retries import given_up, wait_s
from pliant.tools.run.statedir.log.suspects import Suspects


def run_event(schedule: Schedule, trace_hash: str, time_s: float, interval_s: float | None = None) -> Event:
    """The first event of a log: which run it is. ``trace_hash`` is that of the jobs as they were stated."""
    info = RunInfo(
        policy=schedule.policy.name,
        parameters=schedule.policy.parameters,
        seed=schedule.policy.seed,
        simulated=False,
        trace_hash=trace_hash,
        cluster=schedule.cluster,
        profile_hash=None if schedule.profile is None else profile_hash(schedule.profile),
        pliant_version=version("pliant"),
        interval_s=interval_s,
    )
    return Event(time_s, "decision", detail=info.model_dump(mode="json", by_alias=True, exclude_none=True))


def decision_event(
    time_s: float, origin_s: float, policy: str, decision_seconds: float | None, *, error: str = ""
) -> Event:
    """A policy was asked, or a schedule was read.

    :param error: why the policy has decided nothing.
    """
    detail: dict[str, Any] = {"origin_s": origin_s, "policy": policy}
    if decision_seconds is not None:
        detail["decision_seconds"] = decision_seconds
    if error:
        detail["error"] = error
    return Event(time_s, "decision", detail=detail)


def submit_event(job: Job, time_s: float, detail: Mapping[str, Any] | None = None) -> Event:
    """A job arrived; in the log its submit_time is UTC, as all times are.

    :param detail: what else a SubmitDetail holds.
    """
    moved = {**job.model_dump(mode="json", exclude_defaults=True), "submit_time": time_s}
    return Event(time_s, "submit", job.id, detail={**(detail or {}), "job": moved})


def change_event(step: Step, time_s: float, reason: str = "") -> Event:
    """What a job shall hold from now on."""
    if isinstance(step, StopJob):
        return Event(time_s, "preempt", step.job_id, gpus=0, placement=(), detail={"reason": reason})
    share = step.after.share
    return Event(
        time_s,
        step.event,
        step.job_id,
        gpus=share.gpus,
        placement=share.placement,
        global_batch=share.global_batch,
        detail={"accum": share.accum, "lr_scale": share.lr_scale, "reason": reason},
    )


def give_up_event(job_id: str, time_s: float, reason: str) -> Event:
    """A job ends for an error in the work for it."""
    return Event(time_s, "fail", job_id, gpus=0, placement=(), detail={"reason": reason})


def reject_event(job_id: str, time_s: float, reason: str) -> Event:
    """A job is turned away, by the policy or because it cannot be served at all."""
    return Event(time_s, "reject", job_id, gpus=0, placement=(), detail={"reason": reason})


def cancel_event(job_id: str, time_s: float) -> Event:
    """Somebody asked for the job to be ended."""
    return Event(time_s, "cancel", job_id, gpus=0, placement=())


def release_event(job_id: str, time_s: float) -> Event:
    """Nothing is left of a job that was ended while something of it might run."""
    return Event(time_s, "release", job_id)


def finish_event(job_id: str, time_s: float, attempt: int, samples_done: float | None) -> Event:
    """A job is done."""
    detail = {"attempt": attempt}
    return Event(time_s, "finish", job_id, gpus=0, placement=(), samples_done=samples_done, detail=detail)


def failure_event(job: JobLog, time_s: float, attempt: int, verdict: Verdict, *, retries: int) -> Event:
    """An attempt failed: the job waits again, or is given up after too many failures without progress."""
    record = job.next_failure(time_s)
    detail: dict[str, Any] = {"attempt": attempt, "reason": verdict.message, "failures": record.failures}
    why = given_up(record, retries)
    if why is not None:
        detail["reason"] = f"{why}: {verdict.message}" if why else verdict.message
        return Event(time_s, "fail", job.job.id, gpus=0, placement=(), detail=detail)
    detail |= {"retries": retries, "wait_seconds": wait_s(record.failures)}
    return Event(time_s, "requeue", job.job.id, gpus=0, placement=(), detail=detail)


def interruption_event(job_id: str, time_s: float, reason: str) -> Event:
    """The run was interrupted; the job goes on when the run does."""
    return Event(time_s, "requeue", job_id, gpus=0, placement=(), detail={"reason": reason})


def hindrance_events(report: Hindered, job: JobLog, log: RunLog, time_s: float) -> list[Event]:
    """New workers died: the job goes on without their slots, or waits where the rest are too few for it."""
    share, setback = report.share, report.setback
    slots = [str(slot) for slot in setback.slots]
    wait_s = log.suspects.wait_s(report.job_id, slots)
    downs = [_slot_down(report.job_id, slot, log.suspects, time_s, setback.reason) for slot in slots]
    left_out = [
        f"{slot} is left out for {(down.detail or {})['seconds']:g} s"
        for slot, down in zip(slots, downs, strict=True)
    ]
    told = [setback.reason, *left_out, *([] if wait_s is None else [f"it keeps its size for {wait_s:g} s"])]
    detail: dict[str, Any] = {"reason": "; ".join(told)}
    if wait_s is not None:
        detail["wait_seconds"] = wait_s
    if share.gpus < job.job.min_gpus:
        return [Event(time_s, "requeue", report.job_id, gpus=0, placement=(), detail=detail), *downs]
    if share.gpus == job.gpus:
        return downs
    detail |= {"accum": share.accum, "lr_scale": share.lr_scale, "setback": True}
    return [
        Event(
            time_s,
            "shrink",
            report.job_id,
            gpus=share.gpus,
            placement=share.placement,
            global_batch=share.global_batch,
            detail=detail,
        ),
        *downs,
    ]


def _slot_down(job_id: str, slot: str, suspects: Suspects, time_s: float, reason: str) -> Event:
    follows = suspects.next_death(job_id, slot)
    detail = {"slot": slot, "seconds": follows.seconds, "by": job_id, "reason": reason}
    return Event(time_s, "slot_down", None if follows.everybody else job_id, detail=detail)


def proof_events(report: Proven, time_s: float) -> list[Event]:
    """Slots are beyond doubt again."""
    return [Event(time_s, "slot_up", report.job_id, detail={"slot": str(slot)}) for slot in report.slots]


def stamped(event: Event, job: JobLog, since_s: float, now_s: float) -> Event:
    """A worker's event at a time that can be: after the last look, and not after now.

    Its machine may have another clock. Where no launcher has looked at the job so far, it is not before what
    the log knows of it.
    """
    told_s = [since_s, job.submitted_s, *(time_s for time_s, _ in job.points)]
    if job.change is not None:
        told_s.append(job.change[1])
    return replace(event, time=min(now_s, max(event.time, *told_s)))


def worker_events(said: Said, job: JobLog) -> list[Event]:
    """What workers reported, as it goes into the log: with the attempt, and with what the change cost.

    What a change cost that training went on over is what the workers say: until then they trained on the
    GPUs of before. A checkpoint's own cost counts only while training goes on, as that of those that workers
    ``count`` does: that of a gang on its way out is part of what the change costs.
    """
    change = job.change if said.settled else None
    events: list[Event] = []
    for event in said.events:
        detail = {**(event.detail or {}), "attempt": said.attempt}
        in_place = detail.get("mechanism") == "in place"
        costs = in_place or (event.event == "checkpoint" and (said.settled or "count" in detail))
        overhead = event.overhead_seconds if costs else None
        step_seconds = _number(detail.pop("step_seconds", None))
        detail.pop("observed", None)
        if _number(detail.get("noise_scale")) is None:
            detail.pop("noise_scale", None)
        own = said.settled and change is None and event.gpus == job.gpus
        if step_seconds is not None and own and job.global_batch is not None:
            detail["observed"] = observed(job, job.global_batch, step_seconds)
        if event.event == "progress" and change is not None:
            detail["after"] = change[0]
            overhead = overhead if in_place else max(0.0, event.time - change[1])
            change = None
        events.append(
            replace(
                event, job=said.job_id, gpus=None, placement=None, overhead_seconds=overhead, detail=detail
            )
        )
    return events


def _number(value: object) -> float | None:
    """A positive number that a script reported; what else it reports in its place is left out."""
    known = isinstance(value, int | float) and 0 < value < math.inf
    return float(value) if known else None  # type: ignore[arg-type]


def progress_event(report: Progressed, job: JobLog, time_s: float) -> Event:
    """What workers measured last, for the policy: no log gets to hold it.

    :param time_s: when it was read, by the launcher's clock.
    """
    found, detail = report.progress, dict[str, Any]()
    if found.noise_scale is not None:
        detail["noise_scale"] = found.noise_scale
    own = report.settled and job.change is None and found.gpus == job.gpus
    if found.step_seconds is not None and own and job.global_batch is not None:
        detail["observed"] = observed(job, job.global_batch, found.step_seconds)
    return Event(
        time_s, "progress", job.job.id, samples_done=found.samples_done, loss=found.loss, detail=detail
    )


def observed(job: JobLog, global_batch: int, step_seconds: float) -> dict[str, Any]:
    """The configuration that a step was measured in, as the policies' observations have it."""
    return {
        "placement": sorted((count for _, count in job.placement), reverse=True),
        "local_batch": -(-global_batch // (job.gpus * job.accum)),
        "accum": job.accum,
        "step_seconds": step_seconds,
    }


def report_events(
    report: Report, log: RunLog, time_s: float, retries: int, since_s: float = 0.0
) -> list[Event]:
    """What the log gets to hold of a report; nothing about jobs that it does not know as active.

    :param since_s: when this process looked before; 0: it has not.
    :raises ValueError: workers report what no log can hold.
    """
    job = log.jobs.get(report.job_id)
    if job is None or job.ended:
        return []
    if isinstance(report, Progressed):
        return []
    if isinstance(report, Said):
        own = replace(report, events=tuple(stamped(each, job, since_s, time_s) for each in report.events))
        events = worker_events(own, job)
        event_lines(events)  # what no log can hold is refused before one is asked to
        return events
    if isinstance(report, Hindered):
        return hindrance_events(report, job, log, time_s)
    if isinstance(report, Proven):
        return proof_events(report, time_s)
    job = refined(job, log.newest.get(report.job_id))
    match report.verdict.end:
        case "done":
            return [finish_event(report.job_id, time_s, report.attempt, report.verdict.samples_done)]
        case "failed":
            return [failure_event(job, time_s, report.attempt, report.verdict, retries=retries)]
        case "stopped":
            return []


def on_clock(events: Iterable[Event], origin_s: float) -> list[Event]:
    """Events with their times, and the submit times of their jobs, on the clock of the schedule."""
    return [_shifted(event, origin_s) for event in events]


def _shifted(event: Event, origin_s: float) -> Event:
    time_s = max(0.0, event.time - origin_s)
    if event.event != "submit":
        return replace(event, time=time_s)
    detail = dict(event.detail or {})
    detail["job"] = {**detail["job"], "submit_time": time_s}
    return replace(event, time=time_s, detail=detail)
