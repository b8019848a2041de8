"""``pliant status -o json``: where jobs stand, for programs. docs/running.md lists the fields."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pliant.schemas.text.times import iso_time
from pliant.tools.run.watch.job_page import Happened
from pliant.tools.run.watch.job_status import JobStatus
from pliant.tools.run.watch.status import Status
from pliant.tools.schedule.jobs import gpus_of
from pliant.tools.schedule.policy import Reserved

SCHEMA: Final = "pliant.status/1.2"
"""1.1 has what jobs are to hold later (``reserved``); 1.2 how certain predictions are, and how far the log is
ahead of the clock."""


def status_document(status: Status, jobs: Iterable[Mapping[str, Any]], now_s: float) -> str:
    """The document; ``now_s`` is UTC."""
    found = {
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
        "jobs": list(jobs),
    }
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def job_fields(job: JobStatus) -> dict[str, Any]:
    """One job. Every field is always there; null is unknown, or does not apply. Times are ISO 8601, UTC."""
    log, between = job.log, job.expected.between_s
    return {
        "id": job.id,
        "state": job.state,
        "why": job.why,
        "gpus": log.gpus,
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
        "stall_seconds": _number(log.stall_s),
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
        "failures": log.failures,
        "retries": log.retries,
        "policy_says": job.policy_says,
    }


def _span(span: Reserved) -> dict[str, Any]:
    return {
        "from_at": iso_time(span.from_s),
        "until_at": iso_time(span.until_s),
        "gpus": gpus_of(span.placement),
        "placement": dict(span.placement),
        "servers": dict(span.servers),
    }


def described_fields(job: JobStatus, happened: Iterable[Happened], errors: Sequence[str]) -> dict[str, Any]:
    """One job with what happened to it."""
    history = [
        {
            "at": iso_time(each.time_s),
            "event": each.event,
            "gpus": each.gpus,
            "reason": each.reason,
            "policy_says": each.policy_says,
        }
        for each in happened
    ]
    return {**job_fields(job), "history": history, "error_lines": list(errors)}


def _number(value: float | None) -> float | None:
    """JSON has no infinities."""
    return None if value is None or not math.isfinite(value) else value
