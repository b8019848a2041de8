"""``pliant log``: what a job printed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.console import out_bytes, reader_left


def log(
    job: Annotated[str, typer.Argument(metavar="ID", help="Job.", show_default=False)],
    state: Annotated[Path, typer.Option("--state", help="State directory.")],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what it prints from now on, until it ends.")
    ] = False,
) -> None:
    """Print the output of the newest attempt of a job, file by file.

    With -f it goes on over all workers and further attempts; a job that was
    submitted and waits is waited for.

    Example: pliant log char-lm --state pliant-state -f
    """
    from pliant.tools.run.logs import job_output

    for chunk in job_output(state, job, follow=follow):
        if chunk:
            out_bytes(chunk)
        elif sys.stdout is not None and reader_left(sys.stdout):
            raise BrokenPipeError
