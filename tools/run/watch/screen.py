"""The jobs of a run for people: a table of them, one line about all of them, and what became of each.

:class:`Screen` shows them on a terminal while ``pliant run`` works.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

from pliant.schemas.event import Event
from pliant.schemas.text import Column, text_table
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.watch.columns import CELLS, USUAL, sorted_jobs, usual_columns, why
from pliant.tools.run.watch.job_status import EVERY_JOB, JobFilter, in_order, standing, statuses
from pliant.tools.run.watch.status import Status

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

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
_WORDS: Final[Mapping[str, str]] = {
    "fail": "failed",
    "reject": "is rejected",
    "requeue": "waits again",
}


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
    :param columns: names of :data:`~pliant.tools.run.watch.columns.CELLS`; None for the usual ones.
    :param sort: the column to sort by, with a "-" before it from the largest on; empty for submission.
    """
    jobs = sorted_jobs(only.of(statuses(status, now_s)), sort)
    names = usual_columns(jobs) if columns is None else columns
    shown = [USUAL.get(name) or Column(name, 1) for name in names]
    rows = [
        tuple(why(job, explain=explain) if name == "why" else CELLS[name].text(job, now_s) for name in names)
        for job in jobs
    ]
    return text_table(shown, rows, width)


def line(log: RunLog) -> str:
    found = Counter(map(standing, log.active.values())) + Counter(log.ends)
    return ", ".join(f"{count} {name}" for name, count in sorted(found.items())) or "no job yet"


def summary(log: RunLog, width: int | None = None) -> str:
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
    for event in events:
        reason = (event.detail or {}).get("reason")
        if event.event in _WORDS and event.job is not None and reason:
            yield f"job {event.job} {_WORDS[event.event]}: {reason}"


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
