"""UTC seconds that never run backwards, whatever happens to the system's clock meanwhile."""

from __future__ import annotations

import time


class Clock:
    """Seconds since the epoch."""

    def __init__(self) -> None:
        self._base_s = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Now."""
        return self._base_s + time.monotonic()

    def not_before(self, time_s: float) -> None:
        """Something was written down at this time, by whatever clock: show at least that."""
        self._base_s += max(0.0, time_s - self())


EPOCH_LIKE_S = 1e9
"""Schedule times above this (September 2001) are UTC already; below, they count from the start of the run."""


def origin(schedule_time_s: float, now_s: float, known_s: float | None = None) -> float:
    """UTC seconds at which the clock of a schedule shows 0.

    :param known_s: what it was for the schedules before in the same log; without any, the decision takes
        effect now.
    """
    if schedule_time_s >= EPOCH_LIKE_S:
        return 0.0
    return now_s - schedule_time_s if known_s is None else known_s
