"""``pliant drain``: give nodes no further work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def drain(
    nodes: Annotated[
        list[str], typer.Argument(metavar="NODE…", help="Nodes of the cluster.", show_default=False)
    ],
    state: Annotated[Path, typer.Option("--state", help="State directory.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; status shows it.", show_default=False)] = "",
    now: Annotated[
        bool, typer.Option("--now", help="Let the jobs that run there leave at the next decision.")
    ] = False,
) -> None:
    """Give nodes no further work until pliant resume: all that are named, or none if one is unknown.

    Jobs that run there finish there, at the size that they have. With --now
    they leave: elastic jobs shrink to what they hold on other nodes, or move
    there, the others stop with a checkpoint and wait. Without a run in progress
    it takes effect with the next one.

    Example: pliant drain node7 --state live --reason "new power supply" --now
    """
    from pliant.cli.ordering import say_when
    from pliant.tools.run.service.operate import order_nodes

    order_nodes(state, "drain", nodes, reason=reason, now=now)
    say_when(state)
