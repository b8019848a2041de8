"""``pliant top``: what the jobs that hold GPUs use at this moment, by the reports of their workers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pliant.schemas.errors import BadInputError
from pliant.schemas.text import Column, counted, iso_time, rate_text, span_text, text_table
from pliant.tools.run.statedir.contract.as_user import files_of
from pliant.tools.run.statedir.contract.folders import UnreadableError, read_record
from pliant.tools.run.statedir.contract.liveness import use_of
from pliant.tools.run.statedir.contract.plan import Plan, Progress, ProgressFile
from pliant.tools.run.statedir.directory import StateDir, check_job
from pliant.tools.run.statedir.log.fold import JobLog, RunLog
from pliant.tools.run.watch.status import Watcher

SCHEMA: Final = "pliant.top/1.1"
COLUMNS: Final = (
    Column("job"),
    Column("user", 7),
    Column("GPUs", 2, right=True),
    Column("share", 6, right=True),
    Column("samples/s", 1, right=True),
    Column("per GPU", 5, right=True),
    Column("step", 3, right=True),
    Column("batch", 8, right=True),
    Column("busy", 4, right=True),
    Column("memory", 5, right=True),
    Column("loss", 4, right=True),
    Column("plan", 9, right=True),
    Column("heard", 2, right=True),
)

By = Literal["gpus", "speed", "job", "heard"]


@dataclass(frozen=True, slots=True)
class Use:
    """What one job uses; a field is None if its workers have not reported it."""

    job: JobLog
    share: float
    """Share of the GPUs of the cluster."""
    progress: Progress | None
    """The newest report of its current attempt."""
    reported_s: float | None
    """Time of writing, UTC."""
    busy: float | None = None
    """Part of its slots that was busy over the last minute, as the supervisors of its processes see it."""
    memory: int | None = None
    """Resident bytes of all its processes."""

    @property
    def id(self) -> str:
        return self.job.job.id

    @property
    def samples_per_second(self) -> float | None:
        return None if self.progress is None else self.progress.samples_per_second


class UseMeter:
    """Looks at the jobs of a state directory that hold GPUs, again and again.

    Jobs whose processes have all ended use nothing and are left out.

    :raises UsageError: there is no log and no submission, or they are not this user's to see.
    """

    def __init__(self, state: Path, *, watcher: Watcher | None = None) -> None:
        self._watcher = watcher or Watcher(state)
        self._files: dict[str, ProgressFile] = {}

    def look(self) -> tuple[RunLog, list[Use]]:
        """The log, and what the jobs use that hold GPUs.

        :raises BadInputError: the log is damaged.
        """
        status = self._watcher.look()
        log = status.log
        total = 0 if log.info is None else log.info.cluster.total_gpus
        holding = {
            job_id: job for job_id, job in log.active.items() if job.gpus and job_id not in status.over
        }
        self._files = {job_id: self._file(job_id) for job_id in holding}
        return log, [self._use(job, total) for job in holding.values()]

    def _file(self, job_id: str) -> ProgressFile:
        if job_id in self._files:
            return self._files[job_id]
        check_job(self._watcher.dirs, job_id)
        return ProgressFile(self._watcher.dirs.job(job_id).progress)

    def _use(self, job: JobLog, total: int) -> Use:
        file = self._files[job.job.id]
        with files_of(self._watcher.dirs.job(job.job.id)):
            file.fresh()
        newest = file.newest
        share = job.counted_gpus / total if total else 0.0
        busy, memory = measured(self._watcher.dirs, job)
        if newest is None or newest.attempt < max(job.attempt.seen, default=0):
            return Use(job, share, None, None, busy, memory)
        return Use(job, share, newest, file.written_s, busy, memory)


def measured(dirs: StateDir, job: JobLog) -> tuple[float | None, int | None]:
    """The part of its slots that a job uses, and the memory of its processes, as far as that is known."""
    folder = dirs.job(job.job.id)
    try:
        plan = read_record(folder.plan, "plan", Plan, tries=1)
    except (BadInputError, UnreadableError):
        return None, None
    if plan is None:
        return None, None
    units = plan.workers if job.job.changes_in_place else range(len({one.node for one in plan.members}))
    use = use_of(folder.attempt(plan.attempt), units)
    if use is None:
        return None, None
    gpus = any(member.device == "cuda" for member in plan.members)
    return use.of_slots(len(plan.members), gpus=gpus), use.memory


def sorted_uses(uses: Sequence[Use], by: By) -> list[Use]:
    """Most GPUs first, fastest first, by id, or longest silent first."""
    figures: dict[By, Callable[[Use], float]] = {
        "gpus": lambda use: -use.job.gpus,
        "speed": lambda use: -(use.samples_per_second or 0.0),
        "job": lambda _use: 0.0,
        "heard": lambda use: use.reported_s or 0.0,
    }
    return sorted(uses, key=lambda use: (figures[by](use), use.id))


def top_text(uses: Sequence[Use], now_s: float, width: int | None = None) -> str:
    return text_table(COLUMNS, [_row(use, now_s) for use in uses], width)


def summary_line(log: RunLog, uses: Sequence[Use]) -> str:
    total = 0 if log.info is None else log.info.cluster.total_gpus
    held = round(sum(use.job.counted_gpus for use in uses))
    waiting = sum(not job.gpus for job in log.active.values())
    ended = len(log.active) - waiting - len(uses)
    line = f"{counted(len(uses), 'job')} on {held} of {total} GPUs, {waiting} without"
    return f"{line}, {ended} ended, to be recorded" if ended else line


def top_document(log: RunLog, uses: Sequence[Use]) -> str:
    """For programs: docs/running-json.md lists the fields."""
    document = {
        "schema": SCHEMA,
        "time": iso_time(time.time()),
        "gpus": 0 if log.info is None else log.info.cluster.total_gpus,
        "jobs": [_fields(use) for use in uses],
    }
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _row(use: Use, now_s: float) -> tuple[str, ...]:
    report, speed = use.progress, use.samples_per_second
    step_s = None if report is None else report.step_seconds
    return (
        use.id,
        use.job.job.user or "-",
        str(use.job.held_gpus),
        f"{100 * use.share:.0f} %",
        "-" if speed is None else rate_text(speed),
        "-" if report is None or speed is None else rate_text(speed / report.gpus),
        "-" if step_s is None else f"{_figures(step_s)} s",
        "-" if use.job.global_batch is None else str(use.job.global_batch),
        "-" if use.busy is None else f"{100 * use.busy:.0f} %",
        memory_text(None if report is None else report.memory),
        _figures(None if report is None else report.loss),
        "-" if report is None else f"{report.attempt}.{report.generation}",
        "-" if use.reported_s is None else f"{span_text(max(0.0, now_s - use.reported_s))} ago",
    )


def memory_text(held: int | None) -> str:
    return "-" if held is None else f"{held / 2**30:.1f} GiB"


def _figures(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _fields(use: Use) -> Mapping[str, Any]:
    report = use.progress
    names = ("attempt", "generation", "step", "epoch", "loss", "samples_per_second", "step_seconds", "memory")
    return {
        "id": use.id,
        "user": use.job.job.user or None,
        "gpus": use.job.held_gpus,
        "share": use.share,
        "placement": dict(use.job.placement),
        "beside": use.job.beside,
        "global_batch": use.job.global_batch,
        "samples_done": use.job.samples_done if report is None else report.samples_done,
        **{name: None if report is None else getattr(report, name) for name in names},
        "heard_at": iso_time(use.reported_s),
        "busy": use.busy,
        "memory_of_all": use.memory,
    }
