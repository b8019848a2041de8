"""What an executor reports of its gangs, and the events that the log gets for it: pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace
from typing import Final

from pliant.schemas.event import Event
from pliant.schemas.events import (
    Checkpointed,
    Grown,
    Moved,
    Null,
    Observed,
    Placed,
    Preempted,
    Progressed,
    Requeued,
    Resumed,
    Shrunk,
    SlotCleared,
    SlotQuarantined,
    Slowness,
    Started,
    Trained,
    row_of,
    typed,
)  # fmt: skip
from pliant.schemas.file_io.events import event_lines
from pliant.schemas.schedule import Allocation
from pliant.tools.run.service.allocation import Assignment, Slot
from pliant.tools.run.service.endings import Ending
from pliant.tools.run.service.members import WorkerFailure
from pliant.tools.run.service.rules import IdleJob, Straggler
from pliant.tools.run.statedir.contract.plan import Progress
from pliant.tools.run.statedir.log.events import (
    displaced_event,
    failure_event,
    finish_event,
    missing_place_event,
)
from pliant.tools.run.statedir.log.fold import JobLog, RunLog
from pliant.tools.run.statedir.log.worker_reports import refined
from pliant.tools.run.statedir.slot_faults import UNTIL_RESUMED_S, Fault, SlotFaults
from pliant.tools.schedule.session.quarantine import node_of

MARKED_S: Final = 3600.0
"""For how long no job gets a slot on which a worker straggled, at least."""
_OF_SERVICE: Final = frozenset({"observed", "lost_workers", "idle", "straggler", "after"})
"""Fields of a worker's event that only this process can know."""
_NUMBERS: Final = frozenset({"noise_scale", "step_seconds"})
"""Fields of a worker's event that are left out if they are no positive numbers."""


@dataclass(frozen=True, slots=True)
class WorkerEvents:
    """Events of an attempt's workers since the last tick."""

    job_id: str
    attempt: int
    events: tuple[Event, ...]
    settled: bool
    """The job's last change was in force: the attempt is neither stopping nor under an older plan."""


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt is over, and nothing of it is left."""

    job_id: str
    attempt: int
    verdict: Ending


@dataclass(frozen=True, slots=True)
class StartFailed:
    """New workers of an attempt died on some slots; the others train on without these."""

    job_id: str
    attempt: int
    setback: WorkerFailure
    left: Allocation
    """What the job has now. With fewer GPUs than it can run on it stops, with a checkpoint."""
    held: Set[Slot] = frozenset()
    """Those of its slots that other jobs shall have."""


@dataclass(frozen=True, slots=True)
class Displaced:
    """A node of a job went down; the job goes on without it."""

    job_id: str
    reason: str
    left: Allocation
    """What the job has now. With fewer GPUs than it can run on it stops, if it can with a checkpoint."""


@dataclass(frozen=True, slots=True)
class Proven:
    """Workers have trained long enough on these slots, although others died there."""

    job_id: str
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class NewProgress:
    """The newest progress of an attempt."""

    job_id: str
    progress: Progress
    settled: bool
    """It was measured while the job's last change was in force."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Workers that trained are gone; the others train on, and replacements start."""

    job_id: str
    attempt: int
    slots: tuple[Slot, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Idled:
    """A job hardly uses its slots, and gives up some of them for a while."""

    job_id: str
    reason: str
    left: Allocation
    wait_s: float


@dataclass(frozen=True, slots=True)
class MovedOff:
    """A job leaves the slot of a straggling worker for another one."""

    job_id: str
    slot: str
    reason: str
    left: Allocation
    """What it has now, as many slots as before."""


Report = (
    WorkerEvents | NewProgress | AttemptEnded | StartFailed | Displaced | Proven | Lost | Idled | MovedOff
)


def in_turns(reports: Iterable[Report]) -> Iterator[list[Report]]:
    """The first report of each job, then the second, and so on: later ones may depend on earlier ones."""
    by_job: dict[str, list[Report]] = {}
    for report in reports:
        by_job.setdefault(report.job_id, []).append(report)
    for turn in range(max(map(len, by_job.values()), default=0)):
        yield [of_job[turn] for of_job in by_job.values() if turn < len(of_job)]


def report_events(
    report: WorkerEvents | AttemptEnded | StartFailed | Displaced | Proven | Lost | Idled | MovedOff,
    log: RunLog,
    time_s: float,
    retries: int,
    since_s: float = 0.0,
) -> list[Event]:
    """The events of a report; none about jobs that are not active by the log.

    :param since_s: when this process looked before, 0 if it has not.
    :raises ValueError: workers report what no log can hold.
    """
    job = log.jobs.get(report.job_id)
    if job is None or job.ended:
        return []
    if isinstance(report, WorkerEvents):
        own = replace(report, events=tuple(stamped(each, job, since_s, time_s) for each in report.events))
        events = worker_events(own, job)
        event_lines(events)  # what no log can hold is refused before one is asked to
        return events
    if isinstance(report, StartFailed):
        return hindrance_events(report, job, log, time_s)
    if isinstance(report, Displaced | Idled):
        wait_s = report.wait_s if isinstance(report, Idled) else None
        return [_without(report, job, time_s, report.reason, wait_s)]
    if isinstance(report, MovedOff):
        return _leaves_slot(report, log, time_s)
    if isinstance(report, Proven):
        return [row_of(SlotCleared(time_s, report.job_id, slot=str(slot))) for slot in report.slots]
    if isinstance(report, Lost):
        slots = [str(slot) for slot in report.slots]
        loss = Progressed(
            *(time_s, report.job_id), attempt=report.attempt, reason=report.reason, lost_workers=slots
        )
        return [row_of(loss)]
    job = refined(job, log.newest.get(report.job_id))
    match report.verdict.end:
        case "done":
            return [finish_event(report.job_id, time_s, report.attempt, report.verdict.samples_done)]
        case "failed":
            reason, fault = report.verdict.message, _fault(report, job, log.newest.get(report.job_id))
            return [failure_event(job, time_s, report.attempt, reason, retries=retries, fault=fault)]
        case "displaced" if not report.verdict.began:  # a place that never existed was not taken away
            return [missing_place_event(report.job_id, time_s, report.attempt, report.verdict.message)]
        case "displaced":
            return [displaced_event(job, time_s, report.attempt, report.verdict.message, retries=retries)]
        case "stopped":
            return []


REPORT_S: Final = 2.0
"""For how long a script may have trained since its last report, at most."""


def _fault(report: AttemptEnded, job: JobLog, newest: Progress | None) -> Fault:
    verdict, within = report.verdict, None
    if newest is not None and newest.attempt == report.attempt:
        within = REPORT_S * newest.samples_per_second if newest.samples_per_second else math.inf
    return Fault(verdict.exit_code, verdict.by_itself, verdict.is_final, job.samples_done, within)


def change_event(
    job_id: str,
    before: Assignment | None,
    after: Assignment | None,
    log: RunLog,
    time_s: float,
    *,
    reason: str = "",
) -> Event:
    """The event of a change: what a job shall hold from now on.

    A change of the batch alone is a ``move`` to the same place.

    :param before: None: it holds nothing.
    :param after: None: it gives up all.
    """
    if after is None:
        return row_of(Preempted(time_s, job_id, 0, (), reason=reason))
    known = log.active.get(job_id)
    kind: type[Placed] = Started if known is None or known.started_s is None else Resumed
    if before is not None:
        added = len(after.slots) - len(before.slots)
        kind = Grown if added > 0 else Shrunk if added < 0 else Moved
    event = _placed(kind, time_s, after.allocation, reason)
    return row_of(replace(event, gpus=0) if after.job.on_cpus else event)


def _placed(kind: type[Placed], time_s: float, held: Allocation, reason: str) -> Placed:
    batch, accum, lr_scale = held.cut
    return kind(
        *(time_s, held.job, held.gpus, held.placement, batch),
        accum=accum,
        lr_scale=lr_scale,
        reason=reason,
        beside=held.beside,
    )


def hindrance_events(report: StartFailed, job: JobLog, log: RunLog, time_s: float) -> list[Event]:
    """New workers died: the job goes on without their slots, or waits if the rest are too few.

    A slot that another job has stays with that job.
    """
    setback = report.setback
    slots = [str(slot) for slot in setback.slots]
    wait_s = log.slot_faults.wait_s(report.job_id, slots)
    held = set(slots) if job.beside is not None else {str(slot) for slot in report.held}
    downs = [_slot_down(report, slot, log.slot_faults, time_s, held=slot in held) for slot in slots]
    left_out = [f"{down.slot} is left out {_until(down.seconds, down.slot)}" for down in downs]
    waits = [] if wait_s is None else [f"it keeps its size for {wait_s:g} s"]
    reason = "; ".join([setback.reason, *left_out, *waits])
    rows = [row_of(down) for down in downs]
    if report.left.gpus == job.gpus and job.job.can_train_on(job.gpus):
        return rows
    return [_without(report, job, time_s, reason, wait_s), *rows]


def _without(
    report: StartFailed | Displaced | Idled, job: JobLog, time_s: float, reason: str, wait_s: float | None
) -> Event:
    """The job trains on with what it has left, or waits if that is too little."""
    if not job.job.can_train_on(report.left.gpus):
        return row_of(Requeued(time_s, report.job_id, 0, (), reason=reason, wait_seconds=wait_s))
    event = _placed(Shrunk, time_s, report.left, reason)
    return row_of(replace(event, setback=True, wait_seconds=wait_s, keys=("reason", "wait_seconds")))


def idle_event(job_id: str, time_s: float, idle: IdleJob) -> Event:
    """A job hardly uses its slots, or does so again."""
    if not idle.for_s:
        return row_of(Progressed(time_s, job_id, idle=Null.NULL))
    return row_of(Progressed(time_s, job_id, warning=idle.words, idle=idle.used))


def straggler_event(time_s: float, straggler: Straggler) -> Event:
    """A worker of a job is slower than others, or no longer."""
    slowness: Slowness = {"slot": straggler.slot, "times": straggler.times if straggler.for_s else None}
    warning = straggler.words if straggler.for_s else None
    return row_of(Progressed(time_s, straggler.job_id, warning=warning, straggler=slowness))


def _leaves_slot(report: MovedOff, log: RunLog, time_s: float) -> list[Event]:
    """The job has another slot, and no job gets the one that it left for a while."""
    moved = replace(_placed(Moved, time_s, report.left, report.reason), straggled=report.slot)
    follows = log.slot_faults.next_death(report.job_id, report.slot)
    down = SlotQuarantined(
        time_s,
        slot=report.slot,
        seconds=max(follows.seconds, MARKED_S),
        by=report.job_id,
        reason=report.reason,
    )
    return [row_of(moved), row_of(down)]


def _slot_down(
    report: StartFailed, slot: str, slot_faults: SlotFaults, time_s: float, *, held: bool
) -> SlotQuarantined:
    job_id, reason = report.job_id, report.setback.reason
    follows = slot_faults.next_death(job_id, slot)
    if follows.is_sick:
        reason = f"new workers of {follows.jobs} jobs died there, last of {job_id}: {reason}"
    job = None if follows.for_all and not held else job_id
    return SlotQuarantined(time_s, job, slot=slot, seconds=follows.seconds, by=job_id, reason=reason)


def _until(seconds: float, slot: str) -> str:
    if seconds >= UNTIL_RESUMED_S:
        return f"until pliant resume {node_of(slot)}"
    return f"for {seconds:g} s"


def stamped(event: Event, job: JobLog, since_s: float, now_s: float) -> Event:
    """A worker's event at a possible time: after the last look, and not after now.

    Its machine may have another clock. If no launcher has looked at the job so far, the time is not before
    what the log knows of the job.
    """
    told_s = [since_s, job.submitted_s, *(time_s for time_s, _ in job.use.points)]
    if job.attempt.change is not None:
        told_s.append(job.attempt.change[1])
    return replace(event, time=min(now_s, max(event.time, *told_s)))


def worker_events(report: WorkerEvents, job: JobLog) -> list[Event]:
    """What workers reported, as the log has it: with the attempt, and with the cost of the last change.

    For a change in place the workers say the cost: until then they trained on the former GPUs. The cost of a
    checkpoint counts only while training goes on, as for those that workers ``count``; for a stopping gang
    it is part of the cost of the change.
    """
    change = job.attempt.change if report.settled else None
    events: list[Event] = []
    for event in map(typed, report.events):
        if not isinstance(event, Trained):
            continue
        in_place, other = event.mechanism == "in place", event.other or {}
        is_save = isinstance(event, Checkpointed) and (report.settled or event.count is not None)
        is_measured = report.settled and change is None
        step_s = _number(event.step_seconds) if is_measured else None
        known = replace(
            event,
            job=report.job_id,
            gpus=None,
            placement=None,
            overhead_seconds=event.overhead_seconds if in_place or is_save else None,
            attempt=report.attempt,
            observed=_observed(job, event.gpus, step_s),
            noise_scale=_number(event.noise_scale),
            step_seconds=None,
            other={key: value for key, value in other.items() if key not in _OF_SERVICE | _NUMBERS},
        )
        if isinstance(known, Progressed):
            known = replace(known, lost_workers=None, idle=None, straggler=None, after=None)
            if change is not None:
                cost_s = known.overhead_seconds if in_place else max(0.0, event.time - change[1])
                known, change = replace(known, after=change[0], overhead_seconds=cost_s), None
        events.append(row_of(known))
    return events


def _number(value: float | None) -> float | None:
    """A positive number that a script reported. Returns None for anything else."""
    return float(value) if value is not None and 0 < value < math.inf else None


def progress_event(report: NewProgress, job: JobLog, time_s: float) -> Event:
    """What workers measured last, for the policy alone, on its clock."""
    progress = report.progress
    step_s = progress.step_seconds if report.settled and job.attempt.change is None else None
    return row_of(
        Progressed(
            *(time_s, job.job.id),
            samples_done=progress.samples_done,
            loss=progress.loss,
            noise_scale=progress.noise_scale,
            observed=_observed(job, progress.gpus, step_s),
        )
    )


def _observed(job: JobLog, gpus: int | None, step_seconds: float | None) -> Observed | None:
    """The configuration that a step was measured in, for policies; None if it is not the job's."""
    if step_seconds is None or gpus != job.gpus or job.global_batch is None:
        return None
    return {
        "placement": sorted((count for _, count in job.placement), reverse=True),
        "local_batch": -(-job.global_batch // (job.job.gpus.replicas(job.gpus) * job.attempt.accum)),
        "accum": job.attempt.accum,
        "step_seconds": step_seconds,
    }
