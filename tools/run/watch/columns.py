"""The columns of ``pliant status``: of each the text, and the value to sort by and for programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pliant.schemas.text import Column, between_text, clock_text, iso_time, when_text
from pliant.tools.run.watch.job_status import STATES, JobStatus

USUAL: Final[Mapping[str, Column]] = {
    "job": Column("job"),
    "user": Column("user", 2),
    "team": Column("team", 3),
    "state": Column("state", 1),
    "gpus": Column("GPUs/batch", 5),
    "progress": Column("progress", 3),
    "until": Column("until", 2),
    "why": Column("why", 4, least=16),
}
"""The columns that are shown unless others are named; user and team where there is more than one."""
Value = str | float | None


def why(job: JobStatus, *, explain: bool = False) -> str:
    parts = [job.brief or job.why, f"policy: {job.policy_says}" if explain and job.policy_says else ""]
    return "; ".join(filter(None, parts))


def size(job: JobStatus) -> str:
    if not job.log.gpus:
        return "-"
    return str(job.log.gpus) if job.log.global_batch is None else f"{job.log.gpus}/{job.log.global_batch}"


def progress(job: JobStatus) -> str:
    """Share of the work done, or samples where the work is unknown."""
    if job.progress is not None and (job.log.samples_done or job.log.gpus or job.state == "finished"):
        return f"{100 if job.state == 'finished' else min(99, int(100 * job.progress))} %"
    return f"{job.log.samples_done:.0f} samples" if job.log.samples_done else "-"


def until(job: JobStatus, now_s: float) -> str:
    """When the job's state is expected to end, or since when the job has ended."""
    if job.log.ended_s is not None:
        return f"since {clock_text(job.log.ended_s, now_s)}"
    if job.until_s is None:
        return "-"
    if not job.log.gpus and job.retry_s is None and job.expected.between_s is not None:
        return between_text(*job.expected.between_s, now_s)
    return when_text(max(job.until_s, now_s), now_s)


def nodes(job: JobStatus) -> str:
    return " ".join(f"{name}:{gpus}" for name, gpus in job.log.placement or ())


def _rate(job: JobStatus) -> str:
    return "-" if job.samples_per_second is None else f"{job.samples_per_second:.4g}/s"


def _ends_s(job: JobStatus) -> float | None:
    return job.until_s if job.log.ended_s is None else job.log.ended_s


@dataclass(frozen=True, slots=True)
class JobCell:
    """One column of a job."""

    text: Callable[[JobStatus, float], str]
    value: Callable[[JobStatus], Value]
    """None if it is unknown; times are UTC seconds."""
    is_time: bool = False


CELLS: Final[Mapping[str, JobCell]] = {
    "job": JobCell(lambda job, _now_s: job.id, lambda job: job.id),
    "user": JobCell(lambda job, _now_s: job.log.job.user or "-", lambda job: job.log.job.user or None),
    "team": JobCell(lambda job, _now_s: job.team or "-", lambda job: job.team or None),
    "state": JobCell(lambda job, _now_s: job.state, lambda job: job.state),
    "gpus": JobCell(lambda job, _now_s: size(job), lambda job: job.log.gpus),
    "nodes": JobCell(lambda job, _now_s: nodes(job) or "-", lambda job: nodes(job) or None),
    "model": JobCell(lambda job, _now_s: job.log.job.model or "-", lambda job: job.log.job.model or None),
    "priority": JobCell(lambda job, _now_s: f"{job.log.job.priority:g}", lambda job: job.log.job.priority),
    "progress": JobCell(lambda job, _now_s: progress(job), lambda job: job.progress),
    "speed": JobCell(lambda job, _now_s: _rate(job), lambda job: job.samples_per_second),
    "loss": JobCell(
        lambda job, _now_s: "-" if job.log.loss is None else f"{job.log.loss:.4g}", lambda job: job.log.loss
    ),
    "failures": JobCell(lambda job, _now_s: str(job.log.failures), lambda job: job.log.failures),
    "submitted": JobCell(
        lambda job, now_s: clock_text(job.log.submitted_s, now_s),
        lambda job: job.log.submitted_s,
        is_time=True,
    ),
    "until": JobCell(until, _ends_s, is_time=True),
    "why": JobCell(lambda job, _now_s: why(job), lambda job: job.why or None),
}
"""By the name that ``--columns`` and ``--sort`` take."""


def usual_columns(jobs: Iterable[JobStatus]) -> list[str]:
    """The usual columns of a list, with users and teams if there is more than one."""
    users, teams = set(), set()
    for job in jobs:
        users.add(job.log.job.user)
        teams.add(job.team)
    left_out = {name for name, found in (("user", users), ("team", teams)) if len(found) < 2}
    return [name for name in USUAL if name not in left_out]


def sorted_jobs(jobs: Sequence[JobStatus], sort: str) -> list[JobStatus]:
    """Jobs by a column, equal ones in the order given, those without a value last.

    :param sort: its name, with a "-" before it from the largest on; empty leaves them as they are.
    """
    if not sort:
        return [*jobs]
    name = sort.removeprefix("-")
    value = CELLS[name].value
    key: Callable[[JobStatus], Any] = value
    if name == "state":
        key = _place_of_state
    known = sorted((job for job in jobs if value(job) is not None), key=key, reverse=sort != name)
    return [*known, *(job for job in jobs if value(job) is None)]


def _place_of_state(job: JobStatus) -> int:
    return STATES.index(job.state)


def column_fields(job: JobStatus, columns: Iterable[str]) -> dict[str, Any]:
    """The values of these columns for programs; times are ISO 8601, what is unknown is null."""
    return {name: _for_programs(CELLS[name], job) for name in columns}


def _for_programs(cell: JobCell, job: JobStatus) -> Value:
    value = cell.value(job)
    if value is None or isinstance(value, str):
        return value
    if cell.is_time:
        return iso_time(value)
    return value if math.isfinite(value) else None
