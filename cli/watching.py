"""Something that is shown again and again: in place on a screen, one after the other elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from pliant.cli.console import note, out_text, reader_left, width_for
from pliant.schemas.errors import UsageError

LOOK_S: Final = 0.5
EVERY = Annotated[
    float | None,
    typer.Option(
        "--every",
        metavar="SECONDS",
        min=0.1,
        max=86400,
        help="With --watch: look this often, and in a pipe print each time.",
        show_default="0.5",
    ),
]
Shown = tuple[str, Sequence[str]]
"""A table, and lines below it."""


def check_every(every_s: float | None, *, watch: bool) -> None:
    """Refuse an interval where nothing is repeated.

    :raises UsageError: ``--every`` without ``--watch``.
    """
    if every_s is not None and not watch:
        raise UsageError("--every goes with --watch")


def show(look: Callable[[int | None], Shown], every_s: float) -> None:
    """Keep a table up to date on the terminal until its user leaves it; Ctrl-C leaves as q does.

    :param look: what there is to see now, for a terminal of that many columns.
    """
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from pliant.cli.keys import Keys

    with Keys() as keys, Live(console=Console(highlight=False), auto_refresh=False) as live:
        pressed = ""
        while pressed not in ("q", "Q"):
            table, (*lines, last) = look(width_for(sys.stdout))
            below = [*map(Text, lines), Text(last, style="dim"), Text("q leaves", style="dim")]
            live.update(Group(Text(table.rstrip("\n"), no_wrap=True), *below), refresh=True)
            pressed = keys.wait(every_s)


def repeat(look: Callable[[], tuple[Any, Callable[[], Shown]]], every_s: float | None) -> None:
    """Print a table whenever something has changed; with ``every_s`` each time.

    :param look: a mark that is another one where something has changed, and what to print then.
    :raises BrokenPipeError: the reader of the pipe has left.
    """
    before, is_first = None, True
    while not reader_left(sys.stdout):
        mark, shown = look()
        if is_first or every_s is not None or mark != before:
            table, lines = shown()
            out_text(table if is_first else f"\n{table}")
            for line in lines:
                note(line)
            before, is_first = mark, False
        time.sleep(LOOK_S if every_s is None else every_s)
    raise BrokenPipeError
