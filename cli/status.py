"""``pliant status``: where the jobs of a state directory stand."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pliant.cli.console import is_terminal, note, out_text, reader_left

if TYPE_CHECKING:
    from pliant.tools.run.sight import Bystander

LOOK_S: Final = 0.5


def status(
    state: Annotated[Path, typer.Option("--state", help="State directory.")],
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Show it as it changes; q or Ctrl-C leaves. In a pipe: once a change."),
    ] = False,
) -> None:
    """Show the jobs of a state directory and whether anybody runs it.

    By job: phase, slots, global batch, progress, samples per second, what
    the last change of its slots cost, loss, time left, why it waits. Reads
    only, so it works while a run holds the directory.

    Example: pliant status --state live --watch
    """
    from pliant.tools.run.sight import Bystander, run_line
    from pliant.tools.run.view import status_text

    seen = Bystander(state)
    if not watch:
        sight = seen.look()
        out_text(status_text(sight, time.time()))
        note(run_line(sight, state))
    elif is_terminal(sys.stdout):
        _show(seen, state)
    else:
        _print(seen)


def _show(seen: Bystander, state: Path) -> None:
    """Keep a table up to date on the terminal until somebody leaves it."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from pliant.cli.keys import Keys
    from pliant.tools.run.sight import run_line
    from pliant.tools.run.view import table

    with Keys() as keys, Live(console=Console(highlight=False), auto_refresh=False) as live:
        pressed = ""
        while pressed not in ("q", "Q"):
            sight = seen.look()
            last = Text(f"{run_line(sight, state)}; q leaves", style="dim")
            live.update(Group(table(sight, time.time()), last), refresh=True)
            pressed = keys.wait(LOOK_S)


def _print(seen: Bystander) -> None:
    """Print the table whenever it has changed, the seconds that a change takes left aside."""
    from pliant.tools.run.view import status_text

    before = None
    while not reader_left(sys.stdout):
        sight = seen.look()
        shown = status_text(sight, sight.log.last_s)
        if shown != before:
            out_text(shown if before is None else f"\n{shown}")
            before = shown
        time.sleep(LOOK_S)
    raise BrokenPipeError
