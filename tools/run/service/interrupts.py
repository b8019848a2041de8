"""SIGINT and SIGTERM, counted instead of raised, so that the loop decides where it stops."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final, Self

_CAUGHT: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While entered, signals only add up here; one that is ignored (in a script's background job) stays so.

    Enter it in the main thread.
    """

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        heeded = [number for number in _CAUGHT if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._note) for number in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(signal.Signals(number))
