"""``pliant status``: where the jobs of a state directory stand."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pliant.cli.console import is_terminal, note, out_text, reader_left, width_for
from pliant.schemas.errors import UsageError

if TYPE_CHECKING:
    from pliant.tools.run.watch.job_page import Happened
    from pliant.tools.run.watch.job_status import JobStatus
    from pliant.tools.run.watch.sight import Bystander, Sight

LOOK_S: Final = 0.5


class Form(StrEnum):
    """For whom it is written."""

    table = "table"
    json = "json"


def status(
    job: Annotated[
        str | None, typer.Argument(help="Describe this job.", show_default="a line for each job")
    ] = None,
    *,
    state: Annotated[Path, typer.Option("--state", help="State directory.")],
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Show it as it changes; q or Ctrl-C leaves. In a pipe: once a change."),
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Add what the policy says.")] = False,
    output: Annotated[Form, typer.Option("--output", "-o", help="For people, or for programs.")] = Form.table,
) -> None:
    """Show the jobs of a state directory and whether anybody runs it, or describe one job.

    By job: state, GPUs and global batch, progress, until when (at the speed
    that it was measured at), and why. Of one job also what happened to it, and
    its last error lines. Reads only, so it works while a run holds the directory.

    Example: pliant status --state live --watch, or pliant status char-lm --state live
    """
    from pliant.tools.run.watch.sight import Bystander, run_line

    seen, page = Bystander(state), _Page(state, job, explain=explain)
    if output is Form.json:
        if watch:
            raise UsageError("--watch shows a table: leave -o json out")
        out_text(page.document(seen, seen.look(ahead=True), time.time()))
    elif not watch:
        sight = seen.look(ahead=True)
        out_text(page.text(seen, sight, time.time(), width_for(sys.stdout)))
        if job is None:
            note(run_line(sight, state))
    elif is_terminal(sys.stdout):
        _show(seen, page)
    else:
        _print(seen, page)


@dataclass(slots=True)
class _Page:
    """What is shown of a state directory."""

    state: Path
    job: str | None
    explain: bool
    _history: tuple[float, list[Happened]] = (-1.0, [])
    """What happened to the job, and the time of the last event of the log by then."""

    def text(self, seen: Bystander, sight: Sight, now_s: float, width: int | None) -> str:
        """For people."""
        if self.job is None:
            from pliant.tools.run.watch.status import status_text

            return status_text(sight, now_s, width, explain=self.explain)
        from pliant.tools.run.watch.job_page import error_lines, job_page

        found = self._one(self.job, sight, now_s)
        happened, errors = self._happened(seen, sight, self.job), error_lines(seen.dirs, found)
        return job_page(
            *(found, sight, happened, errors, now_s),
            state=self.state,
            width=width,
            explain=self.explain,
        )

    def _happened(self, seen: Bystander, sight: Sight, job_id: str) -> list[Happened]:
        """The history, which takes reading the whole log."""
        from pliant.tools.run.watch.job_page import history

        if self._history[0] != sight.log.last_s:
            self._history = (sight.log.last_s, history(seen.dirs, job_id))
        return self._history[1]

    def mark(self, sight: Sight) -> list[tuple[object, ...]]:
        """What is another one when something has changed that is worth a further table."""
        from pliant.tools.run.watch.job_status import statuses
        from pliant.tools.run.watch.status import progress

        jobs = statuses(sight, sight.log.last_s)
        return [
            (job.id, job.state, job.placement, job.global_batch, job.failures, progress(job))
            for job in jobs
            if self.job in (None, job.id)
        ]

    def document(self, seen: Bystander, sight: Sight, now_s: float) -> str:
        """For programs."""
        from pliant.tools.run.watch.job_page import error_lines
        from pliant.tools.run.watch.job_status import statuses
        from pliant.tools.run.watch.status_document import described_fields, job_fields, status_document

        if self.job is None:
            return status_document(sight, map(job_fields, statuses(sight, now_s)), now_s)
        found = self._one(self.job, sight, now_s)
        happened = self._happened(seen, sight, self.job)
        described = described_fields(found, happened, error_lines(seen.dirs, found))
        return status_document(sight, [described], now_s)

    def _one(self, job_id: str, sight: Sight, now_s: float) -> JobStatus:
        from pliant.tools.run.watch.job_status import known_ids, status_of

        found = status_of(sight, job_id, now_s)
        if found is None:
            known = ", ".join(known_ids(sight)) or "none"
            raise UsageError(f"{self.state} has no job {job_id}; it has: {known}")
        return found


def _show(seen: Bystander, page: _Page) -> None:
    """Keep a table up to date on the terminal until somebody leaves it."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from pliant.cli.keys import Keys
    from pliant.tools.run.watch.sight import run_line

    with Keys() as keys, Live(console=Console(highlight=False), auto_refresh=False) as live:
        pressed = ""
        while pressed not in ("q", "Q"):
            sight = seen.look(ahead=True)
            shown = page.text(seen, sight, time.time(), width_for(sys.stdout))
            last = Text(f"{run_line(sight, page.state)}; q leaves", style="dim")
            live.update(Group(Text(shown.rstrip("\n"), no_wrap=True), last), refresh=True)
            pressed = keys.wait(LOOK_S)


def _print(seen: Bystander, page: _Page) -> None:
    """Print the table whenever a job has another state, size or progress than before."""
    before = None
    while not reader_left(sys.stdout):
        sight = seen.look(ahead=True)
        mark = page.mark(sight)
        if mark != before:
            shown = page.text(seen, sight, time.time(), None)
            out_text(shown if before is None else f"\n{shown}")
            before = mark
        time.sleep(LOOK_S)
    raise BrokenPipeError
