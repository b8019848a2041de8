"""A run while it goes: a live table on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.watch.sight import Sight
from pliant.tools.run.watch.status import line, status_text, summary

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

TABLE_S: Final = 0.5
LINE_S: Final = 10.0


class Screen:
    """Shows the log from time to time; call it as often as you like.

    Nobody has to look: a terminal that is gone, or a reader that has had enough, makes it fall silent.

    :param headline: said once, as soon as there is a log.
    """

    def __init__(self, console: Console, headline: str) -> None:
        self._console = console
        self._headline: str | None = headline
        self._live: Live | None = None
        self._due_s = float("-inf")

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.quiet:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            with self._unseen():
                self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            with self._unseen():
                self._live.stop()

    def __call__(self, log: RunLog, now_s: float) -> None:
        """Show the log if its time has come; ``now_s`` is UTC."""
        if now_s >= self._due_s:
            self._due_s = now_s + (LINE_S if self._live is None else TABLE_S)
            with self._unseen():
                self._show(log, now_s)

    def _show(self, log: RunLog, now_s: float) -> None:
        if self._headline is not None:
            self._console.print(f"pliant: {self._headline}", soft_wrap=True, markup=False)
            self._headline = None
        if self._live is not None:
            from rich.text import Text

            shown = status_text(Sight(log), now_s, self._console.width)
            self._live.update(Text(shown, no_wrap=True), refresh=True)
        else:
            self._console.print(f"pliant: {line(log)}", soft_wrap=True, markup=False)

    def end(self, log: RunLog) -> None:
        """Show what became of the jobs, as the last thing."""
        with self._unseen():
            if self._live is not None:
                self._live.stop()
            width = self._console.width if self._console.is_terminal else None
            self._console.print(summary(log, width), end="", soft_wrap=True, markup=False)

    @contextmanager
    def _unseen(self) -> Iterator[None]:
        """Go on where writing fails; rich ends the process over a broken pipe, which is not ours to end."""
        try:
            yield
        except (OSError, SystemExit):
            self._console.quiet, self._live, self._due_s = True, None, float("inf")
