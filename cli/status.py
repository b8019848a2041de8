"""``pliant status``: where the jobs of a state directory stand."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from pliant.cli.console import out_text


def status(
    state: Annotated[Path, typer.Option("--state", help="State directory.")],
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds.")] = False,
) -> None:
    """Show the jobs of a state directory: phase, slots, progress, loss, time left.

    Reads the log only, so it works while a run holds the directory.

    Example: pliant status --state pliant-state
    """
    from pliant.tools.run.state import read_log
    from pliant.tools.run.view import status_text

    out_text(status_text(read_log(state), time.time()))
    while watch:
        time.sleep(2.0)
        out_text("\n" + status_text(read_log(state), time.time()))
