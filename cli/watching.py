"""Tables that are shown repeatedly: in place on a screen, one after the other elsewhere."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, Self

import typer

from pliant.cli.console import note, nothing_comes_in, out_text, reader_left, width_for
from pliant.cli.grammar import DURATION_SHOWN, Form, duration
from pliant.schemas.errors import UsageError

LOOK_S: Final = 0.5
EVERY = Annotated[
    float | None,
    typer.Option(
        "--every",
        parser=duration(least=0.1, most=86400),
        metavar=DURATION_SHOWN,
        help="With --watch: look this often, and in a pipe print each time.",
        show_default="0.5",
    ),
]
Screen = tuple[str, Sequence[str]]
"""A table, and lines below it."""


def check_every(every_s: float | None, *, watch: bool) -> None:
    """:raises UsageError: ``--every`` without ``--watch``."""
    if every_s is not None and not watch:
        raise UsageError("--every goes with --watch")


def refuse_watched(form: Form, output: str) -> None:
    """:raises UsageError: ``--watch`` with something else than a table on stdout."""
    if form is Form.json:
        raise UsageError("--watch shows a table: leave -f json out")
    if output != "-":
        raise UsageError(f"--watch shows a table here: leave -o {output} out")


def show(look: Callable[[int | None], Screen], every_s: float) -> None:
    """Update a table on the terminal until q or Ctrl-C.

    :param look: the table now, for a terminal of that many columns.
    """
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    with Keys() as keys, Live(console=Console(highlight=False), auto_refresh=False) as live:
        pressed = ""
        while pressed not in ("q", "Q"):
            table, (*lines, last) = look(width_for(sys.stdout))
            below = [*map(Text, lines), Text(last, style="dim"), Text("q leaves", style="dim")]
            live.update(Group(Text(table.rstrip("\n"), no_wrap=True), *below), refresh=True)
            pressed = keys.wait(every_s)


def repeat(look: Callable[[], tuple[Any, Callable[[], Screen]]], every_s: float | None) -> None:
    """Print a table whenever something has changed; with ``every_s`` each time.

    :param look: a mark that differs if something has changed, and what to print then.
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


class Keys:
    """While entered, gives single keys of the terminal, without Return and echo; none if stdin is not one.

    Keys typed before count. Ctrl-C and the end of the terminal count as ``q``.
    """

    def __init__(self) -> None:
        self._terminal = None if sys.stdin is None or not nothing_comes_in() else sys.stdin.fileno()
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        if self._terminal is not None:
            self._before = termios.tcgetattr(self._terminal)
            tty.setcbreak(self._terminal, termios.TCSADRAIN)  # the default throws away what was typed
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal is not None:
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """The next key, empty if none comes in time."""
        try:
            if self._terminal is None:
                time.sleep(seconds)
            elif select.select([self._terminal], [], [], seconds)[0]:
                # Not by way of sys.stdin: it reads ahead, and select() does not see what it holds.
                return os.read(self._terminal, 1).decode(errors="replace") or "q"
        except (KeyboardInterrupt, OSError):  # the terminal is gone: EIO
            return "q"
        return ""
