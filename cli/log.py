"""``pliant log``: what a job printed; or the log of the state directory, repaired."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.console import is_terminal, out_bytes, out_text, reader_left
from pliant.cli.shown import Shown
from pliant.schemas.errors import UsageError


def log(
    job: Annotated[str | None, typer.Argument(metavar="ID", help="Job.", show_default=False)] = None,
    *,
    state: Annotated[Path, typer.Option("--state", help="State directory.")],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what it prints from now on, until it ends.")
    ] = False,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Drop what is damaged from the event log of the state directory."),
    ] = False,
) -> None:
    """Print the output of the newest attempt of a job, file by file.

    With -f it goes on over all workers and further attempts; a job that was
    submitted and waits is waited for. On a terminal control characters are
    shown, not obeyed; a pipe gets every byte as it was printed.

    With --repair, and without a job, it mends the event log that all state
    is read from: damaged lines are dropped, it says which, and the log as
    it was is kept beside it.

    Example: pliant log char-lm --state pliant-state -f

    Example: pliant log --repair --state pliant-state
    """
    if repair:
        if job is not None or follow:
            raise UsageError("--repair mends the log of the state directory: name no job, and leave -f out")
        _repair(state)
        return
    if job is None:
        raise UsageError("name the job whose output to print, or give --repair")
    from pliant.tools.run.logs import job_output

    shown = Shown(sys.stdout.encoding) if is_terminal(sys.stdout) else None
    for chunk in job_output(state, job, follow=follow):
        if chunk:
            out_bytes(chunk if shown is None else shown.of(chunk))
        elif sys.stdout is not None and reader_left(sys.stdout):
            raise BrokenPipeError


def _repair(state: Path) -> None:
    from pliant.tools.run.repair import repair

    out_text("".join(f"{line}\n" for line in repair(state)))
