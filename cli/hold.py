"""``pliant hold``: keep jobs of a state directory from running for a while."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def hold(
    jobs: Annotated[list[str], typer.Argument(metavar="ID…", help="Jobs to hold.", show_default=False)],
    state: Annotated[Path, typer.Option("--state", help="State directory.")],
) -> None:
    """Keep jobs from running until pliant release: all that are named, or none if one is unknown.

    A running job stops with a checkpoint at the next decision and keeps its
    work. A job that is held gets no GPUs and counts in no share. Without a run
    in progress it takes effect with the next one.

    Example: pliant hold char-lm --state live
    """
    from pliant.cli.ordering import order

    order(state, "hold", jobs)
