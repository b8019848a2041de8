"""``pliant release``: let jobs of a state directory run again that were held."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def release(
    jobs: Annotated[list[str], typer.Argument(metavar="ID…", help="Jobs to let go.", show_default=False)],
    state: Annotated[Path, typer.Option("--state", help="State directory.")],
) -> None:
    """Let jobs run again that pliant hold stopped: all that are named, or none if one is unknown.

    They wait for GPUs again and go on from their last checkpoint. Nothing
    happens to a job that is not held.

    Example: pliant release char-lm --state live
    """
    from pliant.cli.ordering import order

    order(state, "release", jobs)
