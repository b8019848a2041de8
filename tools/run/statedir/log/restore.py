"""Write back into a log what it has lost, from the snapshot that was made of it before.

A log that ends before the place of its snapshot was cut, by a file system after a crash or by an older copy.
What happened in between is gone; what it led to is in the snapshot. So the log gets events that lead there:
submissions and ends at their own times, then, at the last time that the snapshot knows, who holds which GPUs,
which nodes are down or drained, what is held, and how far jobs are. One last ``decision`` brings the fields
that no other event says. What all of it folds to is what the snapshot holds, to the last field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from pliant.schemas.event import Event, EventName
from pliant.tools.run.statedir.log.events import decision_event, interruption_event, submit_event
from pliant.tools.run.statedir.log.fold import (
    JOB_RECORD,
    RESTORED,
    RUN_RECORD,
    Drain,
    JobLog,
    JobPhase,
    RunLog,
    fold,
)

_ENDS: Final[Mapping[JobPhase, EventName]] = {
    "finished": "finish",
    "failed": "fail",
    "cancelled": "cancel",
    "rejected": "reject",
}
_AS_SUBMITTED: Final = frozenset({"job", "submitted_s"})


def is_past_of(log: RunLog, known: RunLog) -> bool:
    """Whether a log may be what another one was earlier: nothing in it is later, or of another run."""
    return (
        log.last_s <= known.last_s
        and log.info in (None, known.info)
        and all(
            job_id in known.jobs and known.jobs[job_id].submitted_s == job.submitted_s
            for job_id, job in log.jobs.items()
        )
    )


def restoring(events: Iterable[Event], known: RunLog) -> list[Event]:
    """The events that lead a log of these events to what is known of it; empty: they lead there.

    :param known: a log that this one is a past of (see :func:`is_past_of`).
    """
    before = [*events]
    log, at_s = fold(before), known.last_s
    found: list[Event] = []
    for part in (_begin, _come_and_end, _take_away, _open, _give, _close, _order, _report):
        more = list(part(log, known, at_s))
        for event in more:
            log.add(event)
        found += more
    if (rest := _rest(log, known)) is not None:
        found.append(rest)
    return found


def _begin(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    """The first event, which names the run."""
    if log.info is None and known.info is not None:
        began_s = min([at_s, *(job.submitted_s for job in known.jobs.values())])
        detail = known.info.model_dump(mode="json", by_alias=True, exclude_none=True)
        yield Event(began_s, "decision", detail=detail)


def _come_and_end(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    """Jobs that the log does not know, and ends of jobs."""
    for job_id, job in known.jobs.items():
        if job_id not in log.jobs:
            work = job.total_samples
            known_work = work is not None and math.isfinite(work)
            yield submit_event(job.job, job.submitted_s, {"samples": work} if known_work else None)
    ended = (job for job_id, job in known.jobs.items() if job.ended and not _ended(log, job_id))
    for job in sorted(ended, key=lambda job: (job.ended_s or 0.0, job.job.id)):
        samples = job.samples_done or None
        yield Event(
            *(job.ended_s if job.ended_s is not None else at_s, _ENDS.get(job.phase, "fail"), job.job.id),
            gpus=0,
            placement=(),
            samples_done=samples,
            loss=job.loss,
            detail={"reason": job.reason},
        )


def _ended(log: RunLog, job_id: str) -> bool:
    return job_id in log.jobs and log.jobs[job_id].ended


def _take_away(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    """Jobs that have lost their GPUs, or have others now: those are free first."""
    for job_id, job in sorted(known.active.items()):
        if log.jobs[job_id].gpus and not job.gpus:
            yield interruption_event(job_id, at_s, job.reason)


def _open(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    """Nodes and slots that can be used again."""
    for node in sorted(log.down.keys() - known.down.keys()):
        yield Event(at_s, "node_up", detail={"node": node})
    for node in sorted(log.drained.keys() - known.drained.keys()):
        yield Event(at_s, "undrain", detail={"node": node})
    for slot in sorted(log.suspects.slots):
        yield Event(at_s, "slot_up", detail={"slot": slot})


def _give(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    """Who holds what, all of it decided together."""
    for job_id, job in sorted(known.active.items()):
        before = log.jobs[job_id]
        if not job.gpus or (before.share == job.share and not before.ended):
            continue
        name: EventName = "resume" if before.started_s is not None else "start"
        if before.gpus:
            name = "grow" if job.gpus > before.gpus else "shrink" if job.gpus < before.gpus else "move"
        detail: dict[str, Any] = {"accum": job.accum, "lr_scale": job.lr_scale, "reason": job.reason}
        if job.beside is not None:
            detail["beside"] = job.beside
        yield Event(at_s, name, job_id, job.gpus, job.placement, job.global_batch, detail=detail)


def _close(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    """Nodes that are down or get no work."""
    for node, why in sorted(known.down.items()):
        if node not in log.down:
            yield Event(at_s, "node_down", detail={"node": node, "reason": why})
    for node, drain in sorted(known.drained.items()):
        if _words(log.drained.get(node)) != _words(drain):
            detail = {"node": node, "user": drain.user, "reason": drain.reason, "now": drain.now}
            yield Event(at_s, "drain", detail=detail)


def _words(drain: Drain | None) -> tuple[object, ...] | None:
    return None if drain is None else (drain.user, drain.reason, drain.now)


def _order(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    """What the owner has ordered of jobs."""
    for job_id, job in sorted(known.active.items()):
        before = log.jobs[job_id]
        if before.job.priority != job.job.priority:
            yield Event(at_s, "priority", job_id, detail={"priority": job.job.priority})
        if job.held is not None and before.held is None:
            yield Event(at_s, "hold", job_id, detail={"user": job.held[0]})
        elif job.held is None and before.held is not None:
            yield Event(at_s, "unhold", job_id)


def _report(log: RunLog, known: RunLog, at_s: float) -> Iterator[Event]:
    """How far jobs are."""
    for job_id, job in sorted(known.active.items()):
        before = log.jobs[job_id]
        if (before.samples_done, before.loss) != (job.samples_done, job.loss):
            yield Event(at_s, "progress", job_id, samples_done=job.samples_done, loss=job.loss)


def _rest(log: RunLog, known: RunLog) -> Event | None:
    """What no event has said; None: nothing is left."""
    own = _differing(RUN_RECORD.dump_python, log, known, RESTORED)
    jobs = {
        job_id: found
        for job_id, job in known.jobs.items()
        if (found := _differing(JOB_RECORD.dump_python, log.jobs[job_id], job, _FIELDS))
    }
    if not own and not jobs:
        return None
    info = known.info
    event = decision_event(
        known.last_s,
        known.origin_s if known.origin_s is not None else 0.0,
        "" if info is None else info.policy,
        None,
        error=known.policy_error,
    )
    detail = dict(event.detail or {})
    if known.origin_s is None:
        del detail["origin_s"]
    return Event(event.time, event.event, detail={**detail, "restored": {**own, "jobs": jobs}})


_FIELDS: Final = frozenset(each.name for each in fields(JobLog)) - _AS_SUBMITTED


def _differing(dump: Any, log: object, known: object, names: Iterable[str]) -> dict[str, Any]:
    """Fields in which one record is not as the other, with what that one says, as JSON."""
    wanted = {name for name in names if getattr(log, name) != getattr(known, name)}
    if not wanted:
        return {}
    found: dict[str, Any] = dump(known, mode="json", include=wanted)
    return {name: value for name, value in sorted(found.items()) if _can_be_logged(value)}


def _can_be_logged(value: object) -> bool:
    """No log holds what is infinite."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return not isinstance(value, float) or math.isfinite(value)
