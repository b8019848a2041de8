"""``pliant stack``: where the workers of a running job are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.config import STATE_HELP, state_directory
from pliant.cli.console import page_width
from pliant.cli.grammar import DURATION_SHOWN, FORM, TO_FILE, Form, duration, out_or_file


def stack(
    job: Annotated[str, typer.Argument(metavar="ID", help="Job.", show_default=False)],
    *,
    state: Annotated[
        Path | None, typer.Option("--state", help="State directory.", show_default=STATE_HELP, readable=False)
    ] = None,
    threads: Annotated[bool, typer.Option("--threads", help="Show all threads, not the main one only.")] = (
        False
    ),
    within: Annotated[
        float,
        typer.Option(
            "--within",
            parser=duration(least=0.1, most=86400),
            metavar=DURATION_SHOWN,
            help="How long to wait for answers.",
            show_default="20s",
        ),
    ] = 20.0,
    format: FORM = Form.table,
    output: TO_FILE = "-",
) -> None:
    """Show the Python stacks of all workers of a running job, equal ones once, the newest call first.

    Workers of the elastic library answer within a second or two, on any node,
    also where they wait for each other, sleep or compute. One whose interpreter
    is held up by a single long call answers in 15 seconds. Jobs without the
    library are shown by py-spy, on this machine, if it is installed.

    Example: pliant stack char-lm --state live
    """
    from pliant.schemas.file_io.files import check_output
    from pliant.tools.run.door import asking
    from pliant.tools.run.service.stacks import stacks_text
    from pliant.tools.run.watch.stacks import stacks_document

    check_output(output)
    found = asking.stacks(state_directory(state), job, within)
    if format is Form.json:
        out_or_file(stacks_document(job, found), output)
    else:
        width = page_width(sys.stdout) if output == "-" else None
        out_or_file(stacks_text(found, width, threads=threads), output)
