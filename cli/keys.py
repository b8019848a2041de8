"""Single keys from the terminal, without Return and without showing them."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from contextlib import suppress
from typing import Any, Self

from pliant.cli.console import nothing_comes_in


class Keys:
    """While entered, keys come one by one. Where stdin is not a terminal, none ever does.

    Keys that were typed before count, too. Ctrl-C and the end of the terminal count as ``q``: all leave.
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
        """The next key, or nothing if none comes in time."""
        try:
            if self._terminal is None:
                time.sleep(seconds)
            elif select.select([self._terminal], [], [], seconds)[0]:
                # Not by way of sys.stdin: it reads ahead, and select() does not see what it holds.
                return os.read(self._terminal, 1).decode(errors="replace") or "q"
        except (KeyboardInterrupt, OSError):  # the terminal is gone: EIO
            return "q"
        return ""
