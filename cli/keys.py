"""Single keys from the terminal, without Return and without showing them."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
from typing import Any, Self

from pliant.cli.console import nothing_comes_in


class Keys:
    """While entered, keys come one by one. Where stdin is not a terminal, none ever does.

    Ctrl-C counts as ``q``: both leave.
    """

    def __init__(self) -> None:
        self._terminal = None if sys.stdin is None or not nothing_comes_in() else sys.stdin.fileno()
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        if self._terminal is not None:
            self._before = termios.tcgetattr(self._terminal)
            tty.setcbreak(self._terminal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal is not None:
            termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """The next key, or nothing if none comes in time."""
        try:
            if self._terminal is None:
                time.sleep(seconds)
            elif select.select([self._terminal], [], [], seconds)[0]:
                return sys.stdin.read(1)
        except KeyboardInterrupt:
            return "q"
        return ""
