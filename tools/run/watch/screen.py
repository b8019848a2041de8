"""Tables of a run for people: its jobs, what became of them, and what they use at this moment.

:class:`Screen` shows ``pliant run``'s jobs, one line about all of them, and what goes wrong. The second half
is ``pliant top``: uses of GPUs from the reports of workers (:class:`UseMeter`).
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from pliant.schemas.event import Event
from pliant.schemas.text import (
    Column,
    between_text,
    clock_text,
    counted,
    iso_time,
    span_text,
    text_table,
    when_text,
)
from pliant.tools.run.statedir.contract.plan import Progress, ProgressFile
from pliant.tools.run.statedir.directory import StateDir, check_job
from pliant.tools.run.statedir.log.fold import JobLog, RunLog
from pliant.tools.run.watch.job_status import JobStatus, in_order, standing, statuses
from pliant.tools.run.watch.status import Status, Watcher

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live


JOB_COLUMNS: Final = (
    Column("job"),
    Column("state", 1),
    Column("GPUs/batch", 5),
    Column("progress", 3),
    Column("until", 2),
    Column("why", 4, least=16),
)
SUMMARY: Final = (
    Column("job"),
    Column("end", 1),
    Column("waited", 3, right=True),
    Column("took", 2, right=True),
    Column("samples", 4, right=True),
    Column("loss", 5, right=True),
    Column("why", 6, least=16),
)

SCHEMA: Final = "pliant.top/1"
USE_COLUMNS: Final = (
    Column("job"),
    Column("user", 7),
    Column("GPUs", 2, right=True),
    Column("share", 6, right=True),
    Column("samples/s", 1, right=True),
    Column("per GPU", 5, right=True),
    Column("step", 3, right=True),
    Column("batch", 8, right=True),
    Column("memory", 5, right=True),
    Column("loss", 4, right=True),
    Column("plan", 9, right=True),
    Column("heard", 2, right=True),
)

By = Literal["gpus", "speed", "job", "heard"]
TABLE_S: Final = 0.5
LINE_S: Final = 10.0
_WORDS: Final[Mapping[str, str]] = {
    "fail": "failed",
    "reject": "is rejected",
    "requeue": "waits again",
}


def status_text(status: Status, now_s: float, width: int | None = None, *, explain: bool = False) -> str:
    """All jobs in order of submission, one a line; ``now_s`` is UTC.

    :param width: of the terminal, in columns; None leaves out and cuts nothing.
    :param explain: add what the policy says.
    """
    return text_table(
        JOB_COLUMNS, [row(job, now_s, explain=explain) for job in statuses(status, now_s)], width
    )


def row(job: JobStatus, now_s: float, *, explain: bool = False) -> tuple[str, ...]:
    """One job, by :data:`COLUMNS`."""
    parts = [job.brief or job.why, f"policy: {job.policy_says}" if explain and job.policy_says else ""]
    return job.id, job.state, size(job), progress(job), until(job, now_s), "; ".join(filter(None, parts))


def size(job: JobStatus) -> str:
    """GPUs and global batch."""
    if not job.log.gpus:
        return "-"
    return str(job.log.gpus) if job.log.global_batch is None else f"{job.log.gpus}/{job.log.global_batch}"


def progress(job: JobStatus) -> str:
    """Share of the work done, or samples where the work is unknown."""
    if job.progress is not None and (job.log.samples_done or job.log.gpus or job.state == "finished"):
        return f"{100 if job.state == 'finished' else min(99, int(100 * job.progress))} %"
    return f"{job.log.samples_done:.0f} samples" if job.log.samples_done else "-"


def until(job: JobStatus, now_s: float) -> str:
    """When the state ends: a job that runs, or one that waits and then starts; since when it has ended."""
    if job.log.ended_s is not None:
        return f"since {clock_text(job.log.ended_s, now_s)}"
    if job.until_s is None:
        return "-"
    if not job.log.gpus and job.retry_s is None and job.expected.between_s is not None:
        return between_text(*job.expected.between_s, now_s)
    return when_text(max(job.until_s, now_s), now_s)


def line(log: RunLog) -> str:
    """How many jobs are where."""
    found = Counter(map(standing, log.active.values())) + Counter(log.ends)
    return ", ".join(f"{count} {name}" for name, count in sorted(found.items())) or "no job yet"


def summary(log: RunLog, width: int | None = None) -> str:
    """What became of the jobs, with their times."""
    rows = [
        (
            job.job.id,
            standing(job),
            _seconds(job.started_s, job.submitted_s),
            _seconds(job.ended_s, job.submitted_s),
            f"{job.samples_done:.0f}" if job.samples_done else "-",
            "-" if job.loss is None else f"{job.loss:.4g}",
            job.reason if job.ended or not job.gpus else job.trouble,
        )
        for job in in_order(log)
    ]
    return text_table(SUMMARY, rows, width)


def _seconds(to_s: float | None, from_s: float) -> str:
    return "-" if to_s is None else f"{to_s - from_s:.1f} s"


def trouble(events: Iterable[Event]) -> Iterator[str]:
    """One line for each event that says why a job failed, is rejected or lost its GPUs."""
    for event in events:
        reason = (event.detail or {}).get("reason")
        if event.event in _WORDS and event.job is not None and reason:
            yield f"job {event.job} {_WORDS[event.event]}: {reason}"


class Screen:
    """Shows the log from time to time; call it as often as you like.

    A terminal that is gone, or a reader that has left, makes it fall silent.

    :param headline: shown once, as soon as there is a log.
    """

    def __init__(self, console: Console, headline: str) -> None:
        self._console = console
        self._headline: str | None = headline
        self._live: Live | None = None
        self._due_s = float("-inf")

    def __enter__(self) -> Self:
        is_dumb = self._console.is_dumb_terminal  # nothing on it can be replaced
        if self._console.is_terminal and not is_dumb and not self._console.quiet:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            with self._unseen():
                self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            with self._unseen():
                self._live.stop()

    def __call__(self, log: RunLog, now_s: float) -> None:
        """Show the log if its time has come; ``now_s`` is UTC."""
        if now_s >= self._due_s:
            self._due_s = now_s + (LINE_S if self._live is None else TABLE_S)
            with self._unseen():
                self._show(log, now_s)

    def _show(self, log: RunLog, now_s: float) -> None:
        if self._headline is not None:
            self._console.print(f"pliant: {self._headline}", soft_wrap=True, markup=False)
            self._headline = None
        if self._live is not None:
            from rich.text import Text

            shown = status_text(Status(log), now_s, self._console.width)
            self._live.update(Text(shown, no_wrap=True), refresh=True)
        else:
            self._console.print(f"pliant: {line(log)}", soft_wrap=True, markup=False)

    def end(self, log: RunLog) -> None:
        """Show what became of the jobs, as the last thing."""
        with self._unseen():
            if self._live is not None:
                self._live.stop()
            width = self._console.width if self._console.is_terminal else None
            self._console.print(summary(log, width), end="", soft_wrap=True, markup=False)

    @contextmanager
    def _unseen(self) -> Iterator[None]:
        """Go on where writing fails; rich ends the process over a broken pipe, which is not ours to end."""
        try:
            yield
        except (OSError, SystemExit):
            self._console.quiet, self._live, self._due_s = True, None, float("inf")


@dataclass(frozen=True, slots=True)
class Use:
    """One job that holds GPUs; a field is None if its workers have not reported it."""

    job: JobLog
    share: float
    """Of the GPUs of the cluster."""
    progress: Progress | None
    """The newest report of its present attempt."""
    heard_s: float | None
    """When that was written, UTC."""

    @property
    def id(self) -> str:
        return self.job.job.id

    @property
    def samples_per_second(self) -> float | None:
        return None if self.progress is None else self.progress.samples_per_second


class UseMeter:
    """Looks at the jobs of a state directory that hold GPUs, again and again."""

    def __init__(self, state: Path) -> None:
        """:raises UsageError: there is no log and no submission, or they are not this user's to see."""
        self._watcher = Watcher(state)
        self._files: dict[str, ProgressFile] = {}

    def look(self) -> tuple[RunLog, list[Use]]:
        """The log, and what the jobs use that hold GPUs.

        :raises BadInputError: the log is damaged.
        """
        log = self._watcher.look().log
        total = 0 if log.info is None else log.info.cluster.total_gpus
        holding = {job_id: job for job_id, job in log.active.items() if job.gpus}
        self._files = {job_id: self._file(job_id) for job_id in holding}
        return log, [self._use(job, total) for job in holding.values()]

    def _file(self, job_id: str) -> ProgressFile:
        if job_id in self._files:
            return self._files[job_id]
        dirs: StateDir = self._watcher.dirs
        check_job(dirs, job_id)
        return ProgressFile(dirs.job(job_id).progress)

    def _use(self, job: JobLog, total: int) -> Use:
        file = self._files[job.job.id]
        file.fresh()
        found = file.newest
        if found is not None and found.attempt < max(job.seen, default=0):
            found = None
        return Use(
            job, job.counted_gpus / total if total else 0.0, found, None if found is None else file.written_s
        )


def sorted_uses(uses: Sequence[Use], by: By) -> list[Use]:
    """Most GPUs first, fastest first, by id, or longest silent first."""

    def key(use: Use) -> tuple[float, str]:
        figures: dict[By, float] = {
            "gpus": -use.job.gpus,
            "speed": -(use.samples_per_second or 0.0),
            "job": 0.0,
            "heard": use.heard_s or 0.0,
        }
        return figures[by], use.id

    return sorted(uses, key=key)


def top_text(uses: Sequence[Use], now_s: float, width: int | None = None) -> str:
    """The table; ``now_s`` is UTC, ``width`` that of the terminal, None where there is none."""
    return text_table(USE_COLUMNS, [_row(use, now_s) for use in uses], width)


def summary_line(log: RunLog, uses: Sequence[Use]) -> str:
    """All of it in one line."""
    total = 0 if log.info is None else log.info.cluster.total_gpus
    held = round(sum(use.job.counted_gpus for use in uses))
    waiting = sum(not job.gpus for job in log.active.values())
    return f"{counted(len(uses), 'job')} on {held} of {total} GPUs, {waiting} without"


def top_document(log: RunLog, uses: Sequence[Use]) -> str:
    """For programs: docs/running-json.md lists the fields."""
    found = {
        "schema": SCHEMA,
        "time": iso_time(time.time()),
        "gpus": 0 if log.info is None else log.info.cluster.total_gpus,
        "jobs": [_fields(use) for use in uses],
    }
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _row(use: Use, now_s: float) -> tuple[str, ...]:
    report, speed = use.progress, use.samples_per_second
    step_s = None if report is None else report.step_seconds
    return (
        use.id,
        use.job.job.user or "-",
        str(use.job.gpus),
        f"{100 * use.share:.0f} %",
        _figures(speed),
        _figures(None if report is None or speed is None else speed / report.gpus),
        "-" if step_s is None else f"{_figures(step_s)} s",
        "-" if use.job.global_batch is None else str(use.job.global_batch),
        _memory(None if report is None else report.memory),
        _figures(None if report is None else report.loss),
        "-" if report is None else f"{report.attempt}.{report.generation}",
        "-" if use.heard_s is None else f"{span_text(max(0.0, now_s - use.heard_s))} ago",
    )


def _memory(held: int | None) -> str:
    return "-" if held is None else f"{held / 2**30:.1f} GiB"


def _figures(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _fields(use: Use) -> Mapping[str, Any]:
    """One job. Every field is always there; null: unknown."""
    report = use.progress
    names = ("attempt", "generation", "step", "epoch", "loss", "samples_per_second", "step_seconds", "memory")
    return {
        "id": use.id,
        "user": use.job.job.user or None,
        "gpus": use.job.gpus,
        "share": use.share,
        "placement": dict(use.job.placement),
        "beside": use.job.beside,
        "global_batch": use.job.global_batch,
        "samples_done": use.job.samples_done if report is None else report.samples_done,
        **{name: None if report is None else getattr(report, name) for name in names},
        "heard_at": iso_time(use.heard_s),
    }
