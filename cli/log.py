"""``pliant log``: what a job printed, or the log of a state directory. ``pliant wait``: how jobs ended."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.config import STATE_HELP, state_directory
from pliant.cli.console import Escaping, is_terminal, out_text, reader_left
from pliant.schemas.errors import UsageError
from pliant.schemas.file_io.files import write_stdout


def log(
    job: Annotated[str | None, typer.Argument(metavar="ID", help="Job.", show_default=False)] = None,
    *,
    state: Annotated[
        Path | None, typer.Option("--state", help="State directory.", show_default=STATE_HELP, readable=False)
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow new output until the job ends.")
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail",
            metavar="N",
            min=0,
            help="Begin with the last N lines of each file; without a job: the last N events.",
            show_default=False,
        ),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Drop damaged lines from the event log, and write back lost ones."),
    ] = False,
) -> None:
    """Print the output of the newest attempt of a job, file by file.

    With -f it goes on over all workers and further attempts; it waits for a job
    that was submitted and has not started. On a terminal control characters are
    shown, not obeyed; a pipe gets every byte as it was printed.

    With --tail N, and without a job, it prints the last N events of the
    state directory as JSON Lines; with -f each event as it is written, until
    Ctrl-C.

    With --repair, and without a job, it repairs the event log: it drops damaged
    lines, says which, writes back what the snapshot knows of lines that are
    lost, and keeps a copy of the log as it was beside it.

    Example: pliant log char-lm --state pliant-state -f

    Example: pliant log --repair --state pliant-state
    """
    directory = state_directory(state)
    if repair:
        if job is not None or follow or tail is not None:
            text = "--repair mends the log of the state directory: name no job, and leave -f and --tail out"
            raise UsageError(text)
        from pliant.tools.run.statedir.log.repair import repair as repaired

        out_text("".join(f"{line}\n" for line in repaired(directory)))
        return
    from pliant.tools.run.door.asking import events_to_come, job_output, last_events

    shown = Escaping(sys.stdout.encoding) if is_terminal(sys.stdout) else None
    if job is None and tail is not None and not follow:
        for line in last_events(directory, tail):
            write_stdout(line if shown is None else shown.of(line))
        return
    if job is None and not follow:
        raise UsageError("name the job whose output to print, or give --tail N, -f or --repair")
    if job is None:
        chunks = events_to_come(directory, tail or 0)
    else:
        chunks = job_output(directory, job, follow=follow, lines=tail)
    for chunk in chunks:
        if chunk:
            write_stdout(chunk if shown is None else shown.of(chunk))
        elif reader_left(sys.stdout):
            raise BrokenPipeError


def wait(
    jobs: Annotated[list[str], typer.Argument(metavar="ID…", help="Jobs to wait for.", show_default=False)],
    state: Annotated[
        Path | None, typer.Option("--state", help="State directory.", show_default=STATE_HELP, readable=False)
    ] = None,
) -> None:
    """Wait until jobs have ended, and say how: a line for each, as it ends.

    It says finished, failed or cancelled, and why. The exit code is 5 unless
    all have finished. A job that failed and is tried again has not ended. With
    coreutils' timeout it waits for so long at most.

    Example: pliant submit jobs.jsonl | xargs pliant wait
    """
    from pliant.schemas.errors import JobsFailedError
    from pliant.schemas.text import counted, one_line
    from pliant.tools.run.door.asking import ends_of

    failed = total = 0
    for job in ends_of(state_directory(state), jobs):
        if job is None:
            if reader_left(sys.stdout):
                raise BrokenPipeError
            continue
        why = f": {one_line(job.reason)}" if job.reason and job.phase != "finished" else ""
        out_text(f"{job.id} {job.phase}{why}\n")
        total += 1
        failed += job.phase != "finished"
    if failed:
        raise JobsFailedError(f"{failed} of {counted(total, 'job')} did not finish")
