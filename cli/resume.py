"""``pliant resume``: give nodes work again that were drained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def resume(
    nodes: Annotated[
        list[str], typer.Argument(metavar="NODE…", help="Nodes of the cluster.", show_default=False)
    ],
    state: Annotated[Path, typer.Option("--state", help="State directory.")],
) -> None:
    """Give nodes work again that pliant drain has taken out: all that are named, or none if one is unknown.

    Nothing happens to a node that is not drained.

    Example: pliant resume node7 --state live
    """
    from pliant.cli.ordering import say_when
    from pliant.tools.run.service.operate import order_nodes

    order_nodes(state, "resume", nodes)
    say_when(state)
