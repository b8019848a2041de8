"""``pliant status``: where the jobs of a state directory stand."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pliant.cli.config import STATE_HELP, state_directory
from pliant.cli.console import is_screen, note, width_for
from pliant.cli.grammar import FORM, TO_FILE, Form, form_and_file, out_or_file
from pliant.cli.watching import EVERY, LOOK_S, Shown, check_every, refuse_watched, repeat, show
from pliant.schemas.errors import UsageError

if TYPE_CHECKING:
    from pliant.tools.run.watch.job_page import Happened
    from pliant.tools.run.watch.job_status import JobStatus
    from pliant.tools.run.watch.status import Status, Watcher


def status(
    job: Annotated[
        str | None, typer.Argument(help="Describe this job.", show_default="a line for each job")
    ] = None,
    *,
    state: Annotated[
        Path | None, typer.Option("--state", help="State directory.", show_default=STATE_HELP)
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Show changes as they come; q or Ctrl-C leaves. In a pipe: print at each change."
        ),
    ] = False,
    every: EVERY = None,
    explain: Annotated[bool, typer.Option("--explain", help="Add what the policy says.")] = False,
    format: FORM = Form.table,
    output: TO_FILE = "-",
) -> None:
    """Show the jobs of a state directory and whether a run is in progress, or describe one job.

    For each job: state, GPUs and global batch, progress, until when (at its
    measured speed), and why. For one job also its history and its last error
    lines. It only reads, so it works while a run holds the directory.

    Example: pliant status --state live --watch, or pliant status char-lm --state live
    """
    from pliant.schemas.file_io.json_lines import garbage_collection_paused

    form, output = form_and_file(format, output)
    check_every(every, watch=watch)
    directory = state_directory(state)
    if not watch:
        with garbage_collection_paused(to_the_end=True):
            _once(directory, job, form, output, explain=explain)
        return
    refuse_watched(form, output)
    from pliant.tools.run.watch.status import Watcher

    page = _Page(Watcher(directory), directory, job, explain=explain)
    _show(page, every)


def _once(state: Path, job: str | None, form: Form, output: str, *, explain: bool) -> None:
    from pliant.schemas.file_io.files import check_output
    from pliant.tools.run.watch.status import Watcher, run_line

    check_output(output)
    page = _Page(Watcher(state), state, job, explain=explain)
    found = page.look()
    if form is Form.json:
        out_or_file(page.document(found, time.time()), output)
        return
    width = width_for(sys.stdout) if output == "-" else None
    out_or_file(page.text(found, time.time(), width), output)
    if job is None:
        note(run_line(found, state))
        for line in _trouble(found):
            note(line)


@dataclass(slots=True)
class _Page:
    """What is shown of a state directory."""

    watcher: Watcher
    state: Path
    job: str | None
    explain: bool
    _history: tuple[float, list[Happened]] = (-1.0, [])
    """The time of the log's last event, and what had happened to the job by then."""

    def look(self) -> Status:
        return self.watcher.look(ahead=True)

    def text(self, found: Status, now_s: float, width: int | None) -> str:
        from pliant.tools.run.watch.job_page import error_lines, job_page
        from pliant.tools.run.watch.screen import status_text

        if self.job is None:
            return status_text(found, now_s, width, explain=self.explain)
        job = self._one(self.job, found, now_s)
        happened, errors = self._happened(found, self.job), error_lines(self.watcher.dirs, job)
        return job_page(
            *(job, found, happened, errors, now_s), state=self.state, width=width, explain=self.explain
        )

    def document(self, found: Status, now_s: float) -> str:
        from pliant.tools.run.watch.job_page import described_fields, error_lines, job_fields, status_document
        from pliant.tools.run.watch.job_status import statuses

        if self.job is None:
            return status_document(found, map(job_fields, statuses(found, now_s)), now_s)
        job = self._one(self.job, found, now_s)
        errors = error_lines(self.watcher.dirs, job)
        return status_document(found, [described_fields(job, self._happened(found, self.job), errors)], now_s)

    def mark(self, found: Status) -> list[tuple[object, ...]]:
        """A value that changes whenever a further table is worth printing."""
        from pliant.tools.run.watch.job_status import statuses
        from pliant.tools.run.watch.screen import progress

        return [
            (found.log.policy_error, tuple(found.log.drained), tuple(found.ordered)),
            *(
                (job.id, job.state, job.log.placement, job.log.global_batch, job.log.failures, progress(job))
                for job in statuses(found, found.log.last_s)
                if self.job in (None, job.id)
            ),
        ]

    def _happened(self, found: Status, job_id: str) -> list[Happened]:
        """Takes reading the whole log."""
        from pliant.tools.run.watch.job_page import history

        if self._history[0] != found.log.last_s:
            self._history = (found.log.last_s, history(self.watcher.dirs, job_id))
        return self._history[1]

    def _one(self, job_id: str, found: Status, now_s: float) -> JobStatus:
        from pliant.tools.run.watch.job_status import known_ids, status_of

        job = status_of(found, job_id, now_s)
        if job is None:
            known = ", ".join(known_ids(found)) or "none"
            raise UsageError(f"{self.state} has no job {job_id}; it has: {known}")
        return job


def _trouble(found: Status) -> list[str]:
    """Nodes without work, and a policy that fails."""
    from pliant.tools.run.watch.status import clock_line, closed_lines, policy_line

    now_s = time.time()
    return [*closed_lines(found, now_s), *filter(None, [policy_line(found), clock_line(found, now_s)])]


def _show(page: _Page, every_s: float | None) -> None:
    """Update the page on a screen; in a pipe print it when it changes."""
    from pliant.tools.run.watch.status import run_line

    def look(width: int | None) -> Shown:
        found = page.look()
        return page.text(found, time.time(), width), [*_trouble(found), run_line(found, page.state)]

    def changed() -> tuple[object, Callable[[], Shown]]:
        found = page.look()
        return page.mark(found), lambda: (page.text(found, time.time(), None), _trouble(found))

    if is_screen(sys.stdout):
        show(look, every_s or LOOK_S)
    else:
        repeat(changed, every_s)
