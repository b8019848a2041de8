"""What the files of a folder say, read again only when something in the folder has changed."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

T = TypeVar("T")
FRESH_S: Final = 2.0
"""File systems stamp changes with coarse clocks: a folder may change again under the same stamp."""
STALE_S: Final = 5.0
"""A file system of another host may show a change of a folder late: nothing is kept for longer."""


class FolderCache:
    """Answers that were read from files of one folder, for as long as nothing in it is created or replaced.

    That is seen by one ``stat`` of the folder, so it serves files that are renamed into the folder as a
    whole, and none that are changed in place.

    :param clock: seconds that never run backwards.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = str(folder)
        self._clock = clock
        self._answers: dict[str, Any] = {}
        self._mark: tuple[int, int] | None = None
        self._fresh_until_s = float("inf")
        self._read_s = float("-inf")
        self._stale_s = STALE_S * random.uniform(0.7, 1.0)  # noqa: S311 - it spreads looks, it hides nothing
        """Own to each, so that those of many folders are not read again all at the same moment."""

    def look(self) -> None:
        """Forget the answers if they may not hold any more."""
        now_s, mark = self._clock(), self._marked()
        changed = mark is None or mark != self._mark
        if changed:
            self._mark, self._fresh_until_s = mark, now_s + FRESH_S
        if changed or now_s < self._fresh_until_s or now_s - self._read_s >= self._stale_s:
            self._answers.clear()
            self._read_s = now_s

    def get(self, key: str, read: Callable[[], T]) -> T:
        """The answer that ``read`` gave since the last change; it is asked where there is none."""
        if key not in self._answers:
            self._answers[key] = read()
        answer: T = self._answers[key]
        return answer

    def _marked(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._folder)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino
