"""``pliant status``: where the jobs of a state directory stand."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pliant.cli.config import STATE_HELP, state_directory
from pliant.cli.console import is_screen, note, page_width, width_for
from pliant.cli.grammar import FORM, TO_FILE, Form, form_and_file, out_or_file
from pliant.cli.watching import EVERY, LOOK_S, Screen, check_every, refuse_watched, repeat, show
from pliant.schemas.errors import UsageError
from pliant.schemas.text import did_you_mean

if TYPE_CHECKING:
    from pliant.tools.run.door.asking import Looking
    from pliant.tools.run.watch.job_page import Happened
    from pliant.tools.run.watch.job_status import JobFilter, JobStatus
    from pliant.tools.run.watch.status import Status


def status(
    job: Annotated[
        str | None, typer.Argument(help="Describe this job.", show_default="a line for each job")
    ] = None,
    *,
    state: Annotated[
        Path | None, typer.Option("--state", help="State directory.", show_default=STATE_HELP, readable=False)
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Show changes as they come; q or Ctrl-C leaves. In a pipe: print at each change."
        ),
    ] = False,
    every: EVERY = None,
    explain: Annotated[bool, typer.Option("--explain", help="Add what the policy says.")] = False,
    user: Annotated[
        list[str] | None,
        typer.Option("--user", "-u", metavar="NAME,…", help="Only jobs of these users.", show_default=False),
    ] = None,
    team: Annotated[
        list[str] | None,
        typer.Option("--team", metavar="NAME,…", help="Only jobs of these teams.", show_default=False),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--state-is",
            "--only",
            metavar="STATE,…",
            help="Only jobs in these states, like running,waiting.",
            show_default=False,
        ),
    ] = None,
    pattern: Annotated[
        list[str] | None,
        typer.Option(
            "--job",
            metavar="PATTERN,…",
            help="Only jobs whose ids match, like 'sweep-*'.",
            show_default=False,
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="NAME,…",
            help="Columns to show, uncut in a pipe: job, user, team, state, gpus, nodes, model, priority, "
            "progress, speed, loss, failures, submitted, until, why.",
            show_default="job,state,gpus,progress,until,why",
        ),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            metavar="NAME",
            help="Sort by a column, with - before it from the largest on.",
            show_default="submission",
        ),
    ] = "",
    format: FORM = Form.table,
    output: TO_FILE = "-",
) -> None:
    """Show the jobs of a state directory and whether a run is in progress, or describe one job.

    For each job: state, GPUs and global batch, progress, until when (at its
    measured speed), and why. For one job also its history and its last error
    lines. Users and teams are shown where there is more than one. It only
    reads, so it works while a run holds the directory. A pipe gets lines of 80
    columns, or of $COLUMNS. With -f json the jobs have all fields, or those that
    --columns names.

    \b
    Examples:
      pliant status --state live --watch
      pliant status char-lm --state live
      pliant status --state live --user ada --state-is running,waiting --sort=-gpus
    """  # noqa: D301 - keeps the lines of the examples apart
    from pliant.schemas.file_io.limits import garbage_collection_paused

    form, output = form_and_file(format, output)
    check_every(every, watch=watch)
    directory = state_directory(state)
    if job is not None and (user or team or only or pattern or columns or sort):
        raise UsageError("options that choose or order jobs show a list of them: leave the job out")
    chosen, shown = _filter(user, team, only, pattern), _columns(columns)
    _check_sort(sort)

    def page() -> _Page:
        from pliant.tools.run.door.asking import looking

        return _Page(looking(directory), directory, job, chosen, shown, sort, explain=explain)

    if not watch:
        with garbage_collection_paused(to_the_end=True):
            _once(page(), form, output)
        return
    refuse_watched(form, output)
    _show(page(), every)


def _names(given: list[str] | None) -> list[str]:
    return [name for part in given or () for name in part.split(",") if name]


def _filter(*given: list[str] | None) -> JobFilter:
    """Of users, teams, states and patterns of ids."""
    from pliant.tools.run.watch.job_status import STATES, JobFilter

    users, teams, states, patterns = (frozenset(_names(each)) for each in given)
    _check("--state-is", sorted(states), STATES)
    return JobFilter(users, states, teams, patterns)


def _check_sort(sort: str) -> None:
    if sort:
        from pliant.tools.run.watch.columns import CELLS

        _check("--sort", [sort.removeprefix("-")], CELLS)


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    from pliant.tools.run.watch.columns import CELLS

    wanted = _names([text])
    _check("--columns", wanted, CELLS)
    if not wanted:
        raise UsageError("--columns names no column")
    return tuple(dict.fromkeys(wanted))


def _check(option: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"expected {', '.join(known)}"
            raise UsageError(f"{option} {name}: {hint}")


def _once(page: _Page, form: Form, output: str) -> None:
    from pliant.schemas.file_io.files import check_output
    from pliant.tools.run.watch.status import run_line

    check_output(output)
    found = page.look()
    if form is Form.json:
        out_or_file(page.document(found, time.time()), output)
        return
    width = page.width() if output == "-" else None
    out_or_file(page.text(found, time.time(), width), output)
    if page.job is None:
        note(run_line(found, page.state))
        for line in _trouble(found):
            note(line)


@dataclass(slots=True)
class _Page:
    """What is shown of a state directory."""

    watcher: Looking
    state: Path
    job: str | None
    only: JobFilter
    columns: tuple[str, ...] | None
    """None: the usual ones."""
    sort: str
    explain: bool
    _history: tuple[float, list[Happened]] = (-1.0, [])
    """The time of the log's last event, and what had happened to the job by then."""

    def look(self) -> Status:
        return self.watcher.look(ahead=True)

    def width(self) -> int | None:
        """Columns to fill. Returns None for columns that were asked for, in a pipe."""
        return width_for(sys.stdout) if self.columns else page_width(sys.stdout)

    def text(self, found: Status, now_s: float, width: int | None) -> str:
        from pliant.tools.run.watch.job_page import job_page
        from pliant.tools.run.watch.screen import status_text
        from pliant.tools.run.watch.teams import teams_text

        if self.job is None:
            table = status_text(
                *(found, now_s, width),
                explain=self.explain,
                only=self.only,
                columns=self.columns,
                sort=self.sort,
            )
            teams = teams_text(found.teams, width)
            return f"{teams}\n{table}" if teams else table
        job = self._one(self.job, found, now_s)
        happened, errors = self._happened(found, self.job), self.watcher.errors(job)
        return job_page(
            *(job, found, happened, errors, now_s),
            state=self.state,
            use=self.watcher.use(job),
            width=width,
            explain=self.explain,
        )

    def document(self, found: Status, now_s: float) -> str:
        from pliant.tools.run.watch.columns import column_fields, sorted_jobs
        from pliant.tools.run.watch.job_page import described_fields, job_fields, status_document
        from pliant.tools.run.watch.job_status import statuses

        if self.job is None:
            jobs = sorted_jobs(self.only.of(statuses(found, now_s)), self.sort)
            named = self.columns
            fields = (job_fields(each) if named is None else column_fields(each, named) for each in jobs)
            return status_document(found, fields, now_s)
        job = self._one(self.job, found, now_s)
        errors = self.watcher.errors(job)
        return status_document(found, [described_fields(job, self._happened(found, self.job), errors)], now_s)

    def mark(self, found: Status) -> list[tuple[object, ...]]:
        """A value that changes whenever a further table is worth printing."""
        from pliant.tools.run.watch.columns import progress
        from pliant.tools.run.watch.job_status import statuses

        return [
            (found.log.policy_error, tuple(found.log.drained), tuple(found.ordered)),
            *(
                (job.id, job.state, job.log.placement, job.log.global_batch, job.log.failures, progress(job))
                for job in self.only.of(statuses(found, found.log.last_s))
                if self.job in (None, job.id)
            ),
        ]

    def _happened(self, found: Status, job_id: str) -> list[Happened]:
        """Takes reading the whole log."""
        if self._history[0] != found.log.last_s:
            self._history = (found.log.last_s, self.watcher.history(job_id))
        return self._history[1]

    def _one(self, job_id: str, found: Status, now_s: float) -> JobStatus:
        from pliant.tools.run.statedir.state import no_such_job
        from pliant.tools.run.watch.job_status import known_ids, status_of

        job = status_of(found, job_id, now_s)
        if job is None:
            raise no_such_job(self.state, [job_id], known_ids(found))
        return job


def _trouble(found: Status) -> list[str]:
    """Nodes without work, and a policy that fails."""
    from pliant.tools.run.watch.status import clock_line, closed_lines, policy_line

    now_s = time.time()
    others = [policy_line(found), clock_line(found, now_s), found.hidden.words]
    return [*closed_lines(found, now_s), *filter(None, others)]


def _show(page: _Page, every_s: float | None) -> None:
    """Update the page on a screen; in a pipe print it when it changes."""
    from pliant.tools.run.watch.status import run_line

    def look(width: int | None) -> Screen:
        found = page.look()
        return page.text(found, time.time(), width), [*_trouble(found), run_line(found, page.state)]

    def changed() -> tuple[object, Callable[[], Screen]]:
        found = page.look()
        return page.mark(found), lambda: (page.text(found, time.time(), page.width()), _trouble(found))

    if is_screen(sys.stdout):
        show(look, every_s or LOOK_S)
    else:
        repeat(changed, every_s)
