"""``pliant priority``: say how important a job of a state directory is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def priority(
    job: Annotated[str, typer.Argument(metavar="ID", help="Job.", show_default=False)],
    value: Annotated[
        float,
        typer.Argument(
            metavar="N", help="Larger is more important; put -- before a negative one.", show_default=False
        ),
    ],
    state: Annotated[Path, typer.Option("--state", help="State directory.")],
) -> None:
    """Give a job another priority, whether it runs or waits.

    What priorities mean is the policy's to say: see pliant policies NAME. The
    policy is asked again at once; without a run in progress it takes effect
    with the next one.

    Example: pliant priority char-lm 10 --state live
    """
    from pliant.cli.ordering import check_priority, order, say_unheeded

    check_priority(value)
    order(state, "priority", [job], value)
    say_unheeded(state)
