"""``pliant cancel``: end jobs of a state directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def cancel(
    jobs: Annotated[list[str], typer.Argument(metavar="ID…", help="Jobs to end.", show_default=False)],
    state: Annotated[Path, typer.Option("--state", help="State directory.")],
) -> None:
    """End jobs, running or waiting: all that are named, or none if one is unknown.

    Workers stop at a step boundary with a checkpoint. Without a run in progress
    it takes effect with the next one. A job that has ended stays as it is.

    Example: pliant cancel char-lm --state live
    """
    from pliant.cli.ordering import say_when
    from pliant.tools.run.service.submit import cancel as ask

    ask(state, jobs)
    say_when(state)
