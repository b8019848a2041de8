"""One job described, for people and for programs: why it waits or runs, until when, and what happened to it.

docs/running-json.md lists the fields of :func:`status_document`, which is ``pliant status -f json``.
:class:`Waiting` says in detail why a job waits: what it needs, what is free, and which jobs hold the GPUs.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pliant.schemas.checks import amount_text
from pliant.schemas.events import (
    Cancelled,
    Checkpointed,
    Ended,
    EpochEnded,
    Failed,
    Finished,
    Grown,
    Held,
    Moved,
    Placed,
    Preempted,
    Prioritized,
    Progressed,
    Rejected,
    Requeued,
    Resized,
    Resumed,
    Shrunk,
    SlotQuarantined,
    Started,
    Submitted,
    TypedEvent,
    Unheld,
    Updated,
    typed,
)  # fmt: skip
from pliant.schemas.text import (
    Column,
    between_text,
    clock_text,
    counted,
    fitted,
    in_gpu_hours,
    in_gpus,
    iso_time,
    one_line,
    rate_text,
    text_table,
    when_text,
    wrapped,
)
from pliant.tools.profile.torchrun.start import last_lines
from pliant.tools.run.statedir.contract.as_user import files_of
from pliant.tools.run.statedir.contract.folders import LATEST, MOST_NAMES
from pliant.tools.run.statedir.directory import StateDir, account_name
from pliant.tools.run.statedir.log.archive import events_about
from pliant.tools.run.statedir.log.fold import JobLog
from pliant.tools.run.statedir.output_paths import output_file
from pliant.tools.run.watch.attempt_code import CodeRecord, code_facts, code_fields
from pliant.tools.run.watch.job_status import JobStatus
from pliant.tools.run.watch.output import Shown, seen_of
from pliant.tools.run.watch.screen import progress, starts_next, until
from pliant.tools.run.watch.status import Status, run_line
from pliant.tools.run.watch.top import measured, memory_text
from pliant.tools.schedule.jobs import gpus_of
from pliant.tools.schedule.policy import Reserved
from pliant.tools.schedule.predict_start import Source

ERROR_LINES: Final = 10
_CHANGES: Final[Mapping[str, str]] = {
    Started.name: "started on",
    Resumed.name: "resumed on",
    Grown.name: "grown to",
    Shrunk.name: "shrunk to",
    Moved.name: "moved to",
}
_STOPS: Final[Mapping[str, str]] = {
    Preempted.name: "preempted",
    Requeued.name: "stopped",
    Finished.name: "finished",
    Failed.name: "failed",
    Cancelled.name: "cancelled",
    Rejected.name: "rejected",
}
GPU_CHANGES: Final = frozenset({*_CHANGES, Preempted.name, Requeued.name, "lost", "replaced"})
"""Things that happen to the GPUs of a job."""
_ORDERS: Final[Mapping[str, str]] = {
    Held.name: "held",
    Unheld.name: "let go",
    Prioritized.name: "given priority {priority:g}",
    Updated.name: "updated",
}
SOURCES: Final[Mapping[Source, str]] = {
    "measured": "at measured speeds",
    "profile": "at speeds of the profile",
    "stated": "by the GPU time that jobs state",
}
_LABEL: Final = 10
SCHEMA: Final = "pliant.status/1.6"
"""1.1 adds what jobs are to hold later (``reserved``); 1.2 how certain predictions are, and how far the log
is ahead of the clock; 1.3 the state ``ending``; 1.4 the ``exit_code``;
1.5 the ``signal``, and the state ``timed out``; 1.6 the ``name``, ``lost_gpu_hours``, ``output``, ``error``,
and of one job its ``code``."""


@dataclass(frozen=True, slots=True)
class Happened:
    """One thing that happened to a job."""

    time_s: float
    event: str
    words: str
    reason: str
    """Without what the policy says."""
    policy_reason: str
    gpus: int | None
    workers: int = 0
    """Number of workers lost or replaced."""


def history(dirs: StateDir, job_id: str, *, shown: Shown | None = None) -> list[Happened]:
    """What happened to a job, in order. Reads the whole log.

    :param shown: what the reader sees of each event; None: all of it.
    :raises BadInputError: the log is damaged.
    """
    if not dirs.events.exists():
        return []
    events = (event for block in events_about(dirs, job_id) for event in seen_of(block, shown))
    rows: list[Happened] = []
    missing: list[str] = []
    for row in events:
        if row.job != job_id:
            continue
        event = typed(row)
        if isinstance(event, Placed | Preempted | Requeued | Ended):
            missing = []
        elif isinstance(event, Progressed) and event.lost_workers is not None:
            missing += map(str, event.lost_workers)
        elif missing and _joined(event):
            words = f"replaced the worker{'s' if len(missing) > 1 else ''} on {', '.join(missing)}"
            rows.append(Happened(event.time, "replaced", words, "", "", event.gpus, len(missing)))
            missing = []
        if (happened := _happened(event)) is not None:
            rows.append(happened)
    return rows


def _joined(event: TypedEvent) -> bool:
    """Whether it is the first step after workers joined, and none was lost at that."""
    if not isinstance(event, Progressed) or event.mechanism != "in place":
        return False
    return event.lost is None and event.after is None


def _happened(event: TypedEvent) -> Happened | None:
    match event:
        case Started() | Resized() | Moved():
            words, reason = f"{_CHANGES[event.name]} {_held(event)}", event.reason or ""
            is_policys = event.setback is None
            return _of(event, words, "" if is_policys else reason, reason if is_policys else "")
        case Preempted() | Requeued() | Finished() | Failed() | Cancelled() | Rejected():
            words, reason = _STOPS[event.name], event.reason or ""
            if event.lost_gpu_hours is not None:
                words += f", {in_gpu_hours(3600 * event.lost_gpu_hours)} lost"
            return (
                _of(event, words, "", reason) if isinstance(event, Preempted) else _of(event, words, reason)
            )
        case Submitted():
            return _of(event, "submitted")
        case Held() | Unheld() | Prioritized() | Updated():
            priority = event.priority if isinstance(event, Prioritized) else 0.0
            words = f"{_ORDERS[event.name].format(priority=priority)} by {event.user}"
            return _of(event, words, event.reason or "")
        case Progressed(lost_workers=lost) if lost is not None:
            on = ", ".join(map(str, lost))
            words = f"lost the worker{'s' if len(lost) > 1 else ''} on {on}, the others train on"
            return Happened(event.time, "lost", words, event.reason or "", "", event.gpus, len(lost))
        case Checkpointed(lost_samples=lost) if lost is not None:
            words = f"went back to its save after step {event.step}, {lost:g} samples lost"
            return _of(event, words, event.reason or "")
        case Progressed(warning=warning) | Checkpointed(warning=warning) | EpochEnded(warning=warning):
            if warning is None:
                return None
            return Happened(event.time, "warning", warning, "", "", event.gpus)
        case SlotQuarantined():
            words = f"slot {event.slot} left out for {event.seconds} s"
            return _of(event, words, event.reason or "")
    return None


def _of(event: TypedEvent, words: str, reason: str = "", policy_reason: str = "") -> Happened:
    return Happened(event.time, event.name, words, reason, policy_reason, event.gpus)


def _held(at: Placed | JobLog) -> str:
    where = " ".join(f"{node}:{count}" for node, count in at.placement or ())
    batch = "" if at.global_batch is None else f", batch {at.global_batch}"
    gpus = at.held_gpus if isinstance(at, JobLog) else at.gpus or 0
    return f"{'no GPU' if where and not gpus else in_gpus(gpus)} ({where}){batch}"


def error_lines(dirs: StateDir, job: JobStatus) -> list[str]:
    """The last lines on stderr of the last failed attempt, fit for a terminal."""
    if not job.log.retry.failed_attempt and job.state != "failed":
        return []
    folder = dirs.job(job.id)
    attempt = folder.attempt(job.log.retry.failed_attempt or max(1, folder.newest_attempt()))
    with files_of(attempt):
        launchers = attempt.launcher_logs()
        workers = (path for unit in range(len(launchers) or 1) for path in attempt.worker_errors(unit))
        return last_lines(islice(workers, MOST_NAMES), *launchers, most=ERROR_LINES)


def job_page(
    job: JobStatus,
    status: Status,
    happened: Sequence[Happened],
    errors: Iterable[str],
    now_s: float,
    *,
    state: Path,
    code: Sequence[CodeRecord] = (),
    use: tuple[float | None, int | None] | None = None,
    width: int | None = None,
    explain: bool = False,
) -> str:
    """A job for its owner; ``now_s`` is UTC.

    :param state: the state directory, as the user names it.
    :param code: what was recorded of its attempts.
    :param use: what :func:`measured` says of it; None: it is measured there.
    :param width: of the terminal, in columns; None breaks no line.
    :param explain: add what the policy says.
    """
    lines: list[str] = []
    if use is None:
        use = measured(StateDir(state), job.log) if job.log.gpus else (None, None)
    facts = [*_facts(job, status, now_s, state, use, explain=explain), ("workers", _losses(happened))]
    if code or job.log.job.output or job.log.job.error:
        facts += output_paths(job, state, code[-1].attempt if code else None).items()
    facts += code_facts(code)
    lines += fact_lines(facts, width)
    if happened:
        lines += ["", "history", *history_lines(happened, now_s, width, explain=explain)]
    last = list(errors)
    if last:
        lines += ["", "last error lines", *fitted((f"  {line}" for line in last), width)]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def output_paths(job: JobStatus, state: Path, attempt: int | None = None) -> dict[str, str]:
    """The files that its output goes to, or the folder of them, with ``*`` for what is not one alone."""
    log, paths = job.log, dict[str, str]()
    for kind, pattern in (("output", log.job.output), ("error", log.job.error)):
        if pattern is not None:
            user = account_name(os.geteuid() if log.uid is None else log.uid)
            number = attempt or "*"
            paths[kind] = output_file(pattern, log.job, attempt=number, node="*", rank="*", user=user)
    return paths or {"output": str(StateDir(state).jobs / job.id / LATEST / "logs")}


def fact_lines(facts: Iterable[tuple[str, str]], width: int | None) -> list[str]:
    """A line for each (label, text), broken between words; facts without a text are left out."""
    return [
        line for label, text in facts if text for line in _hanging(f"{label:{_LABEL}}", one_line(text), width)
    ]


def _used(busy: float | None, memory: int | None) -> str:
    """What a running job uses; empty if that is not known."""
    if busy is None:
        return ""
    return f"{100 * busy:.0f} % of its slots over the last minute, {memory_text(memory)} of main memory"


def _facts(
    job: JobStatus,
    status: Status,
    now_s: float,
    state: Path,
    use: tuple[float | None, int | None],
    *,
    explain: bool,
) -> Iterable[tuple[str, str]]:
    yield "job", job.id
    yield "state", job.state
    yield "uses", _used(*use)
    yield "why", job.why
    yield from _until_facts(job, status, now_s, more="(--explain)")
    if job.log.gpus:
        yield "holds", _held(job.log) + (f", beside {job.log.beside}" if job.log.beside else "")
    yield "progress", _progress(job)
    loss, stall_s = job.log.loss, job.log.attempt.stall_s
    yield "loss", "" if loss is None else f"{loss:.4g}"
    yield "stall", "" if stall_s is None else f"the last change of its GPUs took {stall_s:.2g} s"
    yield "policy", job.policy_reason if explain else ""
    if job.log.ended_s is None and status.holder is None:
        yield "run", run_line(status, state)


def _until_facts(
    job: JobStatus, status: Status, now_s: float, *, more: str = ""
) -> Iterable[tuple[str, str]]:
    """Until when its state lasts, and why others come first.

    :param more: where the policy's reason is to be found.
    """
    overtaken = _overtaken(job, status)
    yield "order", f"{overtaken} {more}".rstrip() if overtaken else ""
    yield _until_label(job), _until(job, now_s)


def _overtaken(job: JobStatus, status: Status) -> str:
    """Why a job waits although later ones hold GPUs; empty if none does."""
    if job.log.gpus or job.log.ended or job.log.held or job.retry_s is not None:
        return ""
    later = [
        other.job.id
        for other in status.log.active.values()
        if other.gpus and other.submitted_s > job.log.submitted_s
    ]
    info = status.log.info
    if not later or info is None:
        return ""
    who = f"job {later[0]}, submitted later, holds" if len(later) == 1 else f"{len(later)} later jobs hold"
    blind = info.profile_hash is None and not info.profile
    knows = "; without a profile it knows of their length only the GPU time that jobs state" if blind else ""
    return f"{who} GPUs: policy {info.policy} does not go by submission alone{knows}"


def _losses(happened: Sequence[Happened]) -> str:
    """How many workers were lost while the others trained on, and how many of them were replaced."""
    lost, replaced = (
        sum(each.workers for each in happened if each.event == name) for name in ("lost", "replaced")
    )
    return f"{lost} lost, {replaced} replaced" if lost else ""


def _until_label(job: JobStatus) -> str:
    if job.log.ended_s is not None:
        return "ended"
    return "ends" if job.log.gpus else "retried" if job.retry_s is not None else "starts"


def _until(job: JobStatus, now_s: float) -> str:
    if job.log.ended_s is not None:
        return when_text(job.log.ended_s, now_s)
    if job.until_s is None:
        return "unknown"
    if job.retry_s is not None:
        return when_text(max(job.until_s, now_s), now_s)
    if starts_next(job, now_s):
        return "at the next turn, when pliant run decides"
    expected = job.expected
    by = "" if expected.source is None else f", {SOURCES[expected.source]}"
    if job.log.gpus or expected.between_s is None:
        return when_text(max(job.until_s, now_s), now_s) + by
    first_s, last_s = (max(at_s, now_s) for at_s in expected.between_s)
    likely = clock_text(max(job.until_s, now_s), now_s)
    return f"{between_text(first_s, last_s, now_s)} ({likely}){by}"


def _progress(job: JobStatus) -> str:
    samples, total = job.log.samples_done, job.log.total_samples
    if total and math.isfinite(total):
        done = f"{min(samples, total):,.0f} of {total:,.0f} samples"
        parts = [f"{progress(job)} ({done})" if samples else done]
    else:
        parts = [progress(job)]
    if job.samples_per_second is not None:
        parts.append(f"{rate_text(job.samples_per_second)} samples/s")
    return ", ".join(parts)


def history_lines(
    happened: Iterable[Happened], now_s: float, width: int | None, *, explain: bool = False
) -> list[str]:
    return [line for each in happened for line in _entry(each, now_s, width, explain=explain)]


def _entry(each: Happened, now_s: float, width: int | None, *, explain: bool) -> list[str]:
    said = f"policy: {each.policy_reason}" if explain and each.policy_reason else ""
    text = ": ".join(filter(None, [each.words, "; ".join(filter(None, [each.reason, said]))]))
    return _hanging(f"  {clock_text(each.time_s, now_s)}  ", one_line(text), width)


def _hanging(begins: str, text: str, width: int | None) -> list[str]:
    if width is None:
        return [begins + text]
    indent = " " * len(begins)
    first, *rest = wrapped(text, width - len(begins))
    return [begins + first, *(indent + line for line in rest)]


def status_document(status: Status, jobs: Iterable[Mapping[str, Any]], now_s: float) -> str:
    document = {
        "schema": SCHEMA,
        "time": iso_time(now_s),
        "run_in_progress": status.holder is not None,
        "run_process": status.holder or None,
        "log_ahead_seconds": max(0.0, status.log.last_s - now_s),
        "policy_error": status.log.policy_error or None,
        "down_nodes": [{"node": name, "reason": why} for name, why in sorted(status.log.down.items())],
        "drained_nodes": [
            {
                "node": name,
                "user": drain.user,
                "at": iso_time(drain.since_s),
                "reason": drain.reason,
                "now": drain.now,
                "jobs": sorted(
                    job.job.id for job in status.log.active.values() if name in dict(job.placement)
                ),
            }
            for name, drain in sorted(status.log.drained.items())
        ],
        **({"teams": [each.model_dump(mode="json") for each in status.teams]} if status.teams else {}),
        "jobs": list(jobs),
    }
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def job_fields(job: JobStatus, state: Path) -> dict[str, Any]:
    """One job. Every field is always present; null means unknown or not applicable.

    :param state: the state directory, as the user names it.
    """
    log, between, files = job.log, job.expected.between_s, output_paths(job, state)
    return {
        "id": job.id,
        "name": log.job.name or job.id,
        "state": job.state,
        "why": job.why,
        "gpus": log.held_gpus,
        "min_gpus": log.job.min_gpus,
        "needs_gpus": job.expected.needs_gpus,
        "placement": dict(log.placement),
        "beside": log.beside,
        "global_batch": log.global_batch,
        "samples_done": _number(log.samples_done),
        "total_samples": _number(log.total_samples),
        "progress": _number(job.progress),
        "samples_per_second": _number(job.samples_per_second),
        "loss": _number(log.loss),
        "stall_seconds": _number(log.attempt.stall_s),
        "submitted_at": iso_time(log.submitted_s),
        "started_at": iso_time(log.started_s),
        "ended_at": iso_time(log.ended_s),
        "priority": log.job.priority,
        "held_by": None if log.held is None else log.held[0],
        "held_at": None if log.held is None else iso_time(log.held[1]),
        "retry_at": iso_time(job.retry_s),
        "predicted_start_at": iso_time(job.expected.start_s),
        "predicted_start_between": None if between is None else [iso_time(at_s) for at_s in between],
        "predicted_end_at": iso_time(job.expected.end_s),
        "predicted_from": job.expected.source,
        "jobs_ahead": job.expected.jobs_ahead,
        "reserved": [_span(span) for span in job.reserved],
        "failures": log.retry.failures,
        "lost_gpu_hours": log.use.lost_gpu_s / 3600,
        "retries": log.retry.retries,
        "exit_code": log.attempt.exit_code,
        "signal": signal_name(log.attempt.exit_code),
        "policy_says": job.policy_reason,
        "output": files.get("output"),
        "error": files.get("error"),
    }


def signal_name(code: int | None) -> str | None:
    """What ended a process, like SIGKILL. Returns None if no signal did."""
    if code is None or code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _span(span: Reserved) -> dict[str, Any]:
    return {
        "from_at": iso_time(span.from_s),
        "until_at": iso_time(span.until_s),
        "gpus": gpus_of(span.placement),
        "placement": dict(span.placement),
        "servers": dict(span.servers),
    }


def described_fields(
    job: JobStatus,
    state: Path,
    happened: Iterable[Happened],
    errors: Sequence[str],
    code: Sequence[CodeRecord] = (),
) -> dict[str, Any]:
    paths = output_paths(job, state, code[-1].attempt) if code else {}
    about = {"history": history_fields(happened), "error_lines": list(errors), **code_fields(code)}
    return {**job_fields(job, state), **paths, **about}


def history_fields(happened: Iterable[Happened]) -> list[dict[str, Any]]:
    return [
        {
            "at": iso_time(each.time_s),
            "event": each.event,
            "gpus": each.gpus,
            "reason": each.reason,
            "policy_says": each.policy_reason,
        }
        for each in happened
    ]


def _number(value: float | None) -> float | None:
    """JSON has no infinities."""
    return None if value is None or not math.isfinite(value) else value


MOST_HOLDERS: Final = 10
"""Jobs that are named; of more it gives the number."""
_COLUMNS: Final = (
    Column("job"),
    Column("user", 2),
    Column("team", 3),
    Column("GPUs", 1, right=True),
    Column("until", 1),
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a waiting job waits for."""

    needs_gpus: int
    """GPUs that the policy plans for it, or the fewest that it can run on."""
    total_gpus: int
    free_gpus: int
    """Without a job, and on nodes in service."""
    holders: tuple[JobStatus, ...]
    """The jobs that hold GPUs, or cores if it needs no GPU, those that end first come first; of those of
    its user alone if it waits for a limit.
    """
    by_limit: bool
    """Whether it waits for its user's limit, and not for GPUs."""


def waiting_for(job: JobStatus, everything: Sequence[JobStatus], status: Status) -> Waiting | None:
    """Returns None for a job that does not wait for others: it holds GPUs, is held, to be retried, or over.

    :param everything: all jobs, as of the same moment.
    """
    log = job.log
    if log.gpus or log.ended or log.held is not None or job.retry_s is not None:
        return None
    others = (each for each in everything if each.log.gpus and not each.log.ended and each.id != job.id)
    holders = [
        each for each in others if (each.log.job.takes_room if log.job.on_cpus else each.log.held_gpus)
    ]
    by_limit = job.waits_for_limit
    total = 0 if status.log.info is None else status.log.info.cluster.total_gpus
    held = sum(each.log.counted_gpus for each in holders) + status.hidden.gpus
    free = max(0, round(total - held) - sum(status.closed_gpus.values()))
    if by_limit:
        holders = [each for each in holders if each.log.job.user == log.job.user]
    holders.sort(key=lambda each: (each.until_s is None, each.until_s, each.id))
    return Waiting(job.expected.needs_gpus or log.job.min_gpus, total, free, tuple(holders), by_limit)


def waiting_facts(
    job: JobStatus, found: Waiting | None, status: Status, now_s: float
) -> Iterator[tuple[str, str]]:
    """(label, text) of each thing to say."""
    if job.policy_reason:
        yield "policy", job.policy_reason
    if found is None:
        return
    yield "needs", _needs(job, found)
    if not found.by_limit and not job.log.job.on_cpus:
        yield "free", f"{found.free_gpus:,} of {in_gpus(found.total_gpus)}"
    yield from _until_facts(job, status, now_s)


def _needs(job: JobStatus, found: Waiting) -> str:
    gpus = job.log.job.gpus
    if job.log.job.on_cpus:
        return " and ".join(amount_text(*each) for each in sorted(job.log.job.resources.worker.items()))
    parts = [in_gpus(found.needs_gpus)]
    if job.log.job.min_gpus < found.needs_gpus:
        parts.append(f"at least {job.log.job.min_gpus}")
    if gpus.requested != found.needs_gpus:
        parts.append(f"{gpus.requested} requested")
    return ", ".join(parts)


def holder_lines(found: Waiting, now_s: float, width: int | None) -> list[str]:
    """A headline and a table of the jobs that it waits for."""
    if not found.holders:
        return []
    counts = "jobs of its user" if found.by_limit else "jobs that hold GPUs"
    if not (found.by_limit or any(each.log.held_gpus for each in found.holders)):
        counts = "jobs that hold cores or memory"
    columns: Sequence[Column] = _COLUMNS
    rows: list[tuple[str, ...]] = [
        (each.id, each.log.job.user or "-", each.team or "-", str(each.log.held_gpus), until(each, now_s))
        for each in found.holders[:MOST_HOLDERS]
    ]
    if not any(each.team for each in found.holders):
        columns, rows = (*_COLUMNS[:2], *_COLUMNS[3:]), [(*row[:2], *row[3:]) for row in rows]
    table = text_table(columns, rows, None if width is None else width - 2)
    rest = found.holders[MOST_HOLDERS:]
    more = f"and {counted(len(rest), 'job')} with {in_gpus(sum(each.log.held_gpus for each in rest))}"
    lines = [*table.splitlines(), *([more] if rest else [])]
    return [counts, *(f"  {line}".rstrip() for line in lines)]


def waiting_fields(found: Waiting) -> dict[str, Any]:
    return {
        "needs_gpus": found.needs_gpus,
        "total_gpus": found.total_gpus,
        "free_gpus": found.free_gpus,
        "by_limit": found.by_limit,
        "holders": [
            {
                "id": each.id,
                "user": each.log.job.user or None,
                "gpus": each.log.held_gpus,
                "predicted_end_at": iso_time(each.until_s),
            }
            for each in found.holders
        ],
    }
