"""The jobs of a run for people: tables of them and of their teams, a line about all, their ends.

:class:`Screen` shows them on a terminal while ``pliant run`` works.
A column of ``pliant status`` gives the text of each cell, and the value to sort by and for programs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from pliant.schemas.cluster import OTHERS
from pliant.schemas.event import Event
from pliant.schemas.events import Failed, Rejected, Reloaded, Requeued, typed
from pliant.schemas.schedule import TeamStanding
from pliant.schemas.text import Column, between_text, clock_text, iso_time, text_table, when_text
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.watch.job_status import (
    EVERY_JOB,
    STATES,
    JobFilter,
    JobStatus,
    in_order,
    standing,
    statuses,
)
from pliant.tools.run.watch.status import Status

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live


_USUAL: Final[Mapping[str, Column]] = {
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
_AT_ONCE_S: Final = 0.5
_Value = str | float | None


def why(job: JobStatus, *, explain: bool = False) -> str:
    parts = [job.brief or job.why, f"policy: {job.policy_reason}" if explain and job.policy_reason else ""]
    return "; ".join(filter(None, parts))


def size(job: JobStatus) -> str:
    if not job.log.gpus:
        return "-"
    gpus, batch = job.log.held_gpus, job.log.global_batch
    return str(gpus) if batch is None or not gpus else f"{gpus}/{batch}"


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
    if starts_next(job, now_s):
        return "next turn"
    if not job.log.gpus and job.retry_s is None and job.expected.between_s is not None:
        return between_text(*job.expected.between_s, now_s)
    return when_text(max(job.until_s, now_s), now_s)


def starts_next(job: JobStatus, now_s: float) -> bool:
    """Whether a job that waits is to start as soon as somebody decides."""
    waits = not job.log.gpus and job.retry_s is None and job.until_s is not None
    return waits and (job.until_s or 0.0) <= now_s + _AT_ONCE_S


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
    value: Callable[[JobStatus], _Value]
    """Value of a cell; None if unknown; times are UTC seconds."""
    is_time: bool = False


CELLS: Final[Mapping[str, JobCell]] = {
    "job": JobCell(lambda job, _now_s: job.id, lambda job: job.id),
    "user": JobCell(lambda job, _now_s: job.log.job.user or "-", lambda job: job.log.job.user or None),
    "team": JobCell(lambda job, _now_s: job.team or "-", lambda job: job.team or None),
    "state": JobCell(lambda job, _now_s: job.state, lambda job: job.state),
    "gpus": JobCell(lambda job, _now_s: size(job), lambda job: job.log.held_gpus),
    "nodes": JobCell(lambda job, _now_s: nodes(job) or "-", lambda job: nodes(job) or None),
    "model": JobCell(lambda job, _now_s: job.log.job.model or "-", lambda job: job.log.job.model or None),
    "priority": JobCell(lambda job, _now_s: f"{job.log.job.priority:g}", lambda job: job.log.job.priority),
    "progress": JobCell(lambda job, _now_s: progress(job), lambda job: job.progress),
    "speed": JobCell(lambda job, _now_s: _rate(job), lambda job: job.samples_per_second),
    "loss": JobCell(
        lambda job, _now_s: "-" if job.log.loss is None else f"{job.log.loss:.4g}", lambda job: job.log.loss
    ),
    "failures": JobCell(lambda job, _now_s: str(job.log.retry.failures), lambda job: job.log.retry.failures),
    "submitted": JobCell(
        lambda job, now_s: clock_text(job.log.submitted_s, now_s),
        lambda job: job.log.submitted_s,
        is_time=True,
    ),
    "until": JobCell(until, _ends_s, is_time=True),
    "why": JobCell(lambda job, _now_s: why(job), lambda job: job.why or None),
}
"""Cells by the name that ``--columns`` and ``--sort`` take."""


def _usual_columns(jobs: Iterable[JobStatus]) -> list[str]:
    """The usual columns of a list, with users and teams if there is more than one."""
    users, teams = set(), set()
    for job in jobs:
        users.add(job.log.job.user)
        teams.add(job.team)
    left_out = {name for name, values in (("user", users), ("team", teams)) if len(values) < 2}
    return [name for name in _USUAL if name not in left_out]


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


def _for_programs(cell: JobCell, job: JobStatus) -> _Value:
    value = cell.value(job)
    if value is None or isinstance(value, str):
        return value
    if cell.is_time:
        return iso_time(value)
    return value if math.isfinite(value) else None


TEAM_COLUMNS: Final = (
    Column("team"),
    Column("held", 1, right=True),
    Column("entitled", 1, right=True),
    Column("own", 3, right=True),
    Column("borrowed", 2, right=True),
    Column("lent", 2, right=True),
    Column("waiting", 2, right=True),
    Column("GPU hours", 4, right=True),
)


def teams_text(teams: Sequence[TeamStanding], width: int | None = None) -> str:
    """A line for each team, in GPUs as of the last decision; empty where the cluster is one pool.

    :param width: of the terminal, in columns; None leaves out and cuts nothing.
    """
    rows = [
        (
            _name(each),
            str(each.held),
            str(each.entitled),
            f"{each.own:.3g}",
            _count(each.borrowed),
            _count(each.lent),
            f"{each.waiting_jobs} jobs" if each.waiting_jobs else "-",
            f"{each.usage_gpu_hours:.3g}",
        )
        for each in teams
    ]
    return text_table(TEAM_COLUMNS, rows, width) if rows else ""


def _name(standing: TeamStanding) -> str:
    team = "(no team)" if standing.team == OTHERS else standing.team
    return f"{team}/{standing.user}" if standing.user else team


def _count(gpus: float) -> str:
    return f"{gpus:.3g}" if gpus else "-"


SUMMARY: Final = (
    Column("job"),
    Column("end", 1),
    Column("waited", 3, right=True),
    Column("took", 2, right=True),
    Column("samples", 4, right=True),
    Column("loss", 5, right=True),
    Column("why", 6, least=16),
)

TABLE_S: Final = 0.5
LINE_S: Final = 10.0
_WORDS: Final = {Failed: "failed", Rejected: "is rejected", Requeued: "waits again"}


def status_text(
    status: Status,
    now_s: float,
    width: int | None = None,
    *,
    explain: bool = False,
    only: JobFilter = EVERY_JOB,
    columns: Sequence[str] | None = None,
    sort: str = "",
) -> str:
    """Jobs, one a line; ``now_s`` is UTC.

    :param width: of the terminal, in columns; None leaves out and cuts nothing.
    :param explain: add what the policy says.
    :param columns: names of :data:`~CELLS`; None for the usual ones.
    :param sort: the column to sort by, with a "-" before it from the largest on; empty for submission.
    """
    jobs = sorted_jobs(only.of(statuses(status, now_s)), sort)
    names = _usual_columns(jobs) if columns is None else columns
    shown = [_USUAL.get(name) or Column(name, 1) for name in names]
    rows = [
        tuple(why(job, explain=explain) if name == "why" else CELLS[name].text(job, now_s) for name in names)
        for job in jobs
    ]
    return text_table(shown, rows, width, wraps=True)


def line(log: RunLog) -> str:
    counts = Counter(map(standing, log.active.values())) + Counter(log.ends)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "no job yet"


def summary(log: RunLog, width: int | None = None) -> str:
    rows = [
        (
            job.job.id,
            standing(job),
            _seconds(job.started_s, job.submitted_s),
            _seconds(job.ended_s, job.submitted_s),
            f"{job.samples_done:.0f}" if job.samples_done else "-",
            "-" if job.loss is None else f"{job.loss:.4g}",
            job.reason if job.ended or not job.gpus else job.retry.trouble,
        )
        for job in in_order(log)
    ]
    return text_table(SUMMARY, rows, width, wraps=True)


def _seconds(to_s: float | None, from_s: float) -> str:
    return "-" if to_s is None else f"{to_s - from_s:.1f} s"


def trouble(events: Iterable[Event]) -> Iterator[str]:
    for event in map(typed, events):
        if isinstance(event, Failed | Rejected | Requeued) and event.job is not None and event.reason:
            words = "timed out" if event.timed_out else _WORDS[type(event)]
            yield f"job {event.job} {words}: {event.reason}"
        elif isinstance(event, Reloaded):
            yield from (f"cluster: {line}" for line in event.lines or ())


class Screen:
    """Shows the log from time to time, however often it is called. Falls silent once its reader is gone.

    :param headline: shown once, as soon as there is a log.
    :param launched: :attr:`Status.launched` of a log.
    """

    def __init__(
        self,
        console: Console,
        headline: str,
        launched: Callable[[RunLog], frozenset[str]] = lambda _log: frozenset(),
    ) -> None:
        self._console = console
        self._launched = launched
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

            shown = status_text(Status(log, launched=self._launched(log)), now_s, self._console.width)
            self._live.update(Text(shown, no_wrap=True), refresh=True)
        else:
            self._console.print(f"pliant: {line(log)}", soft_wrap=True, markup=False)

    def end(self, log: RunLog) -> None:
        with self._unseen():
            if self._live is not None:
                self._live.stop()
            width = self._console.width if self._console.is_terminal else None
            self._console.print(summary(log, width), end="", soft_wrap=True, markup=False)

    @contextmanager
    def _unseen(self) -> Iterator[None]:
        """Continue when writing fails; rich would end the process over a broken pipe."""
        try:
            yield
        except (OSError, SystemExit):
            self._console.quiet, self._live, self._due_s = True, None, float("inf")
