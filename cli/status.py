"""``pliant status`` and ``pliant top``: where the jobs of a state directory stand, and what they use.

With ``--watch`` their tables are shown repeatedly: in place on a screen, one after the other elsewhere.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

import typer

from pliant.cli.config import STATE_HELP, state_directory
from pliant.cli.console import LINES, is_screen, note, nothing_comes_in, out_text, reader_left, width_for
from pliant.cli.option_types import DURATION_SHOWN, FORM, TO_FILE, Form, duration, out_or_file
from pliant.schemas.errors import UsageError
from pliant.schemas.text import counted, did_you_mean, harmless

if TYPE_CHECKING:
    from pliant.tools.run.gateway.client import Client
    from pliant.tools.run.watch.job_page import Happened
    from pliant.tools.run.watch.job_status import JobFilter, JobStatus
    from pliant.tools.run.watch.status import Status


POLL_INTERVAL_S: Final = 0.5
_EVERY = Annotated[
    float | None,
    typer.Option(
        "--every",
        parser=duration(least=0.1, most=86400),
        metavar=DURATION_SHOWN,
        help="With --watch: look this often, and in a pipe print each time.",
        show_default="0.5",
    ),
]
Screen = tuple[str, Sequence[str]]
"""Table, and the lines below it."""


def _check_every(every_s: float | None, *, watch: bool) -> None:
    """:raises UsageError: ``--every`` without ``--watch``."""
    if every_s is not None and not watch:
        raise UsageError("--every goes with --watch")


def _refuse_watched(form: Form, output: str) -> None:
    """:raises UsageError: ``--watch`` with something else than a table on stdout."""
    if form is Form.json:
        raise UsageError("--watch shows a table: leave -f json out")
    if output != "-":
        raise UsageError(f"--watch shows a table here: leave -o {output} out")


_COLOURS: Final = {
    **dict.fromkeys(("running", "finished"), 32),
    **dict.fromkeys(("failed", "timed out", "rejected", "retrying"), 31),
    **dict.fromkeys(("submitted", "waiting", "held", "preempted", "cancelled", "cancelling"), 33),
    **dict.fromkeys(("starting", "resuming", "growing", "shrinking", "moving", "ending"), 36),
}
"""Colours of states, as terminals number them."""


def with_colours(text: str) -> str:
    """The states in a table of jobs, or in the page of one, in colour."""
    lines, at = [], None
    for whole in text.splitlines(keepends=True):
        line = whole
        if line.startswith("job ") and "  state" in line:
            at = line.index("  state") + 2
        place = len("state     ") if line.startswith("state     ") else at
        state = "" if place is None else line[place:].partition(" ")[0].rstrip()
        if place is not None and state in _COLOURS:
            line = f"{line[:place]}\x1b[{_COLOURS[state]}m{state}\x1b[0m{line[place + len(state) :]}"
        lines.append(line)
    return "".join(lines)


def show(look: Callable[[int | None], Screen], every_s: float) -> None:
    """Update a table on the terminal until q or Ctrl-C.

    :param look: the table now, for a terminal of that many columns.
    """
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    with Keys() as keys, Live(console=Console(highlight=False), auto_refresh=False) as live:
        pressed = ""
        while pressed not in ("q", "Q"):
            table, (*lines, last) = look(width_for(sys.stdout))
            below = [*map(Text, lines), Text(last, style="dim"), Text("q leaves", style="dim")]
            shown = Text.from_ansi(with_colours(harmless(table.rstrip("\n"), keeps=LINES)), no_wrap=True)
            live.update(Group(shown, *below), refresh=True)
            pressed = keys.wait(every_s)


def repeat(look: Callable[[], tuple[Any, Callable[[], Screen]]], every_s: float | None) -> None:
    """Print a table whenever something has changed; with ``every_s`` each time.

    :param look: a mark that differs if something has changed, and what to print then.
    :raises BrokenPipeError: the reader of the pipe has left.
    """
    before, is_first = None, True
    while not reader_left(sys.stdout):
        mark, shown = look()
        if is_first or every_s is not None or mark != before:
            table, lines = shown()
            out_text(table if is_first else f"\n{table}")
            for line in lines:
                note(line)
            before, is_first = mark, False
        time.sleep(POLL_INTERVAL_S if every_s is None else every_s)
    raise BrokenPipeError


class Keys:
    """While entered, gives single keys of the terminal, without Return and echo; none if stdin is not one.

    Keys typed before count. Ctrl-C and the end of the terminal count as ``q``.
    """

    def __init__(self) -> None:
        self._terminal = None if sys.stdin is None or not nothing_comes_in() else sys.stdin.fileno()
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        if self._terminal is not None:
            self._before = termios.tcgetattr(self._terminal)
            tty.setcbreak(self._terminal, termios.TCSADRAIN)  # the default throws away what was typed
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal is not None:
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """The next key, empty if none comes in time."""
        try:
            if self._terminal is None:
                time.sleep(seconds)
            elif select.select([self._terminal], [], [], seconds)[0]:
                # Not by way of sys.stdin: it reads ahead, and select() does not see what it holds.
                return os.read(self._terminal, 1).decode(errors="replace") or "q"
        except (KeyboardInterrupt, OSError):  # the terminal is gone: EIO
            return "q"
        return ""


_DAY_S: Final = 86_400.0


def status(
    job: Annotated[
        str | None,
        typer.Argument(
            help="Describe this job; of an array, or a pattern like 'sweep-*': a line for each of its jobs.",
            show_default="a line for each job",
        ),
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
    every: _EVERY = None,
    explain: Annotated[bool, typer.Option("--explain", help="Add the policy's reasons.")] = False,
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
    every_job: Annotated[
        bool, typer.Option("--all", help="Also jobs that ended more than a day before the last event.")
    ] = False,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="NAME,…",
            help="Columns to show: job, user, team, state, gpus, nodes, model, priority, "
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
    lines. Without options that choose jobs, those that ended more than a day
    before the last event are left out. Lines are broken on a terminal alone.
    With -f json all jobs have all fields, or those that --columns names. Of the
    nodes, pliant nodes says more.

    \b
    Examples:
      pliant status --state live --watch
      pliant status char-lm --state live
      pliant status --state live --user ada --state-is running,waiting --sort=-gpus
    """  # noqa: D301 - keeps the lines of the examples apart
    from pliant.schemas.file_io.limits import garbage_collection_paused
    from pliant.tools.run.gateway.client import id_of
    from pliant.tools.run.gateway.connect import client_for

    _check_every(every, watch=watch)
    directory = state_directory(state)
    if job is not None and (user or team or only or pattern or columns or sort):
        raise UsageError("options that choose or order jobs show a list of them: leave the job out")
    client = client_for(directory)
    if job is not None and (several := _several(client, job)):
        job, pattern = None, several
    chosen, shown = job_filter(user, team, only, pattern), _columns(columns)
    _check_sort(sort)

    def page() -> _Page:
        one = None if job is None else id_of(client, job)
        recent = not (user or team or only or pattern or every_job)
        is_all = every_job and one is None
        return _Page(client, one, chosen, shown, sort, explain=explain, recent=recent, every_job=is_all)

    if not watch:
        with garbage_collection_paused(to_the_end=True):
            _once(page(), format, output)
        return
    _refuse_watched(format, output)
    _show(page(), every)


def _several(client: Client, name: str) -> list[str]:
    """The ids of an array, or a pattern of ids. Returns none for a job."""
    from pliant.tools.run.gateway.client import PATTERN

    if PATTERN.search(name):
        return [name]
    known = client.names()
    return [] if name in known.ids or name in known.newest else list(known.arrays.get(name, ()))


def _names(given: list[str] | None) -> list[str]:
    return [name for part in given or () for name in part.split(",") if name]


def job_filter(*given: list[str] | None) -> JobFilter:
    """Of users, teams, states and patterns of ids."""
    from pliant.tools.run.statedir.directory import account_name
    from pliant.tools.run.watch.job_status import STATES, JobFilter

    users, teams, states, patterns = (frozenset(_names(each)) for each in given)
    _check("--state-is", sorted(states), STATES)
    if users and account_name(os.geteuid()) in users:
        users |= {""}  # jobs of a run of one account state none
    return JobFilter(users, states, teams, patterns)


def _check_sort(sort: str) -> None:
    if sort:
        from pliant.tools.run.watch.screen import CELLS

        _check("--sort", [sort.removeprefix("-")], CELLS)


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    from pliant.tools.run.watch.screen import CELLS

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
    current = page.look()
    if form is Form.json:
        out_or_file(page.document(current, time.time()), output)
        return
    width = width_for(sys.stdout) if output == "-" else None
    out_or_file(page.text(current, time.time(), width), output, with_colours)
    if page.job is None:
        note(run_line(current, page.client.state))
        for line in _trouble(current):
            note(line)


@dataclass(slots=True)
class _Page:
    """What is shown of a state directory."""

    client: Client
    job: str | None
    only: JobFilter
    columns: tuple[str, ...] | None
    """Columns to show; None for the default ones."""
    sort: str
    explain: bool
    recent: bool
    """Jobs that ended more than a day before the last event are left out of tables."""
    every_job: bool = False
    """Jobs of archives are there, too."""
    _history: tuple[float, list[Happened]] = (-1.0, [])
    """The time of the log's last event, and what had happened to the job by then."""

    def look(self) -> Status:
        named = () if self.job is None else (self.job,)
        return self.client.status(ahead=True, archived=("*",) if self.every_job else named)

    def text(self, found: Status, now_s: float, width: int | None) -> str:
        from pliant.tools.run.watch.job_page import job_page
        from pliant.tools.run.watch.screen import status_text, teams_text

        if self.job is None:
            since_s = found.log.last_s - _DAY_S
            table = status_text(
                *(found, now_s, width),
                explain=self.explain,
                only=replace(self.only, ended_after_s=since_s) if self.recent else self.only,
                columns=self.columns,
                sort=self.sort,
            )
            old = [
                job for job in found.log.jobs.values() if job.ended_s is not None and job.ended_s < since_s
            ]
            if self.recent and old:
                table += f"{counted(len(old), 'job')} ended more than a day before: --all\n"
            teams = teams_text(found.teams, width)
            return f"{teams}\n{table}" if teams else table
        job = self._one(self.job, found, now_s)
        happened, errors = self._happened(found, job.id), self.client.errors(job)
        return job_page(
            *(job, found, happened, errors, now_s),
            state=self.client.state,
            code=self.client.code(job.id),
            use=self.client.usage_of(job),
            width=width,
            explain=self.explain,
        )

    def document(self, found: Status, now_s: float) -> str:
        from pliant.tools.run.watch.job_page import described_fields, job_fields, status_document
        from pliant.tools.run.watch.job_status import statuses
        from pliant.tools.run.watch.screen import column_fields, sorted_jobs

        if self.job is None:
            jobs = sorted_jobs(self.only.of(statuses(found, now_s)), self.sort)
            named = self.columns
            fields = (
                job_fields(each, self.client.state) if named is None else column_fields(each, named)
                for each in jobs
            )
            return status_document(found, fields, now_s)
        job = self._one(self.job, found, now_s)
        errors = self.client.errors(job)
        about = self._happened(found, job.id), errors, self.client.code(job.id)
        return status_document(found, [described_fields(job, self.client.state, *about)], now_s)

    def mark(self, found: Status) -> list[tuple[object, ...]]:
        """A value that changes whenever a further table is worth printing."""
        from pliant.tools.run.watch.job_status import statuses
        from pliant.tools.run.watch.screen import progress

        return [
            (found.log.policy_error, tuple(found.log.drained), tuple(found.ordered)),
            *(
                (
                    job.id,
                    job.state,
                    job.log.placement,
                    job.log.global_batch,
                    job.log.retry.failures,
                    progress(job),
                )
                for job in self.only.of(statuses(found, found.log.last_s))
                if self.job in (None, job.id)
            ),
        ]

    def _happened(self, found: Status, job_id: str) -> list[Happened]:
        """Takes reading the whole log."""
        if self._history[0] != found.log.last_s:
            self._history = (found.log.last_s, self.client.history(job_id))
        return self._history[1]

    def _one(self, job_id: str, found: Status, now_s: float) -> JobStatus:
        from pliant.tools.run.statedir.state import no_such_job
        from pliant.tools.run.watch.job_status import known_ids, status_of

        job = status_of(found, job_id, now_s)
        if job is None:
            raise no_such_job(self.client.state, [job_id], known_ids(found))
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
        current = page.look()
        return page.text(current, time.time(), width), [
            *_trouble(current),
            run_line(current, page.client.state),
        ]

    def changed() -> tuple[object, Callable[[], Screen]]:
        current = page.look()
        return page.mark(current), lambda: (
            page.text(current, time.time(), width_for(sys.stdout)),
            _trouble(current),
        )

    if is_screen(sys.stdout):
        show(look, every_s or POLL_INTERVAL_S)
    else:
        repeat(changed, every_s)


def top(
    *,
    state: Annotated[
        Path | None, typer.Option("--state", help="State directory.", show_default=STATE_HELP, readable=False)
    ] = None,
    sort: Annotated[
        Literal["gpus", "speed", "job", "heard"],
        typer.Option("--sort", help="Most GPUs, fastest, by id, or longest silent first."),
    ] = "gpus",
    watch: Annotated[bool, typer.Option("--watch", help="Go on; q or Ctrl-C leaves.")] = False,
    every: _EVERY = None,
    format: FORM = Form.table,
    output: TO_FILE = "-",
) -> None:
    """Show what each running job uses: GPUs, speed, step time, batch, loss, last report.

    The figures are those that the job's workers report about once a second.
    It only reads, so it works while a run holds the directory. pliant nodes
    shows the same by node, and what is free.

    Example: pliant top --state live --watch
    """
    from pliant.schemas.file_io.files import check_output
    from pliant.tools.run.gateway.connect import client_for
    from pliant.tools.run.watch.top import sorted_uses, summary_line, top_document, top_text

    _check_every(every, watch=watch)
    if watch:
        _refuse_watched(format, output)
    by, client = sort, client_for(state_directory(state))
    if not watch:
        check_output(output)
        log, uses = client.usage()
        if format is Form.json:
            out_or_file(top_document(log, sorted_uses(uses, by)), output)
            return
        width = width_for(sys.stdout) if output == "-" else None
        out_or_file(top_text(sorted_uses(uses, by), time.time(), width), output)
        note(summary_line(log, uses))
        return

    def look(width: int | None) -> Screen:
        log, uses = client.usage()
        return top_text(sorted_uses(uses, by), time.time(), width), [summary_line(log, uses)]

    def changed() -> tuple[object, Callable[[], Screen]]:
        log, uses = client.usage()
        mark = [(use.id, use.job.placement, use.progress) for use in uses]
        return mark, lambda: (top_text(sorted_uses(uses, by), time.time()), [summary_line(log, uses)])

    if is_screen(sys.stdout):
        show(look, every or POLL_INTERVAL_S)
    else:
        repeat(changed, every)
