"""UTC seconds that never run backwards, whatever happens to the system's clock meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pliant.schemas.text import EPOCH_LIKE_S
from pliant.tools.run.statedir.contract.presence import FileClock

SLEW: Final = 0.5
"""Speed of a clock that is ahead of the system's, until that has caught up."""


class Clock:
    """Seconds since the epoch, as the log has them.

    It follows the system's clock, also after a suspend or a step forward. After that was set back, this one
    goes on at half its speed until the other has caught up.

    :param wall: the system's clock.
    :param steady: a clock that cannot be set.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self.steady = steady
        """Seconds of the clock that cannot be set: deadlines are measured with it."""
        self._wall = wall
        self._shown_s = wall()
        self._looked_s = steady()

    def __call__(self) -> float:
        passed_s = self.steady() - self._looked_s
        self._looked_s += passed_s
        self._shown_s = max(self._wall(), self._shown_s + passed_s * SLEW)
        return self._shown_s

    def not_before(self, time_s: float, passed_s: float) -> None:
        """Go on from a log, unless the system's clock is past its last time already.

        :param time_s: its last time.
        :param passed_s: since that was written, by the file system's clock (see :func:`passed_since`).
        """
        now_s = self()
        if now_s < time_s:
            self._shown_s = time_s + max(0.0, passed_s) * SLEW


def passed_since(path: Path) -> float:
    """Seconds since a file was written; 0 if there is none, or its folder cannot be written to.

    By the clock of its file system, which the system's may differ from by days.
    """
    try:
        written_s = path.stat().st_mtime
    except OSError:
        return 0.0
    return max(0.0, FileClock().now_s(str(path)) - written_s)


def origin(schedule_time_s: float, now_s: float, known_s: float | None = None) -> float:
    """UTC seconds at which the clock of a schedule shows 0; ``known_s`` is that of the log, if it has one."""
    if schedule_time_s >= EPOCH_LIKE_S:
        return 0.0
    return now_s - schedule_time_s if known_s is None else known_s
