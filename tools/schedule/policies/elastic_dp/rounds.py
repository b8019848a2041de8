"""When elastic-dp scales: at multiples of the interval, and earlier when a part of the jobs has ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from pliant.tools.schedule.snapshot import Change

_ENDED: Final = frozenset({"finished", "cancelled", "failed"})


class ScalingTimes:
    """The times at which sizes may change; a change belongs to the first scaling time that is not before it.

    They follow from the times of the changes, so that an object that sees the whole history at once knows
    them as well as one that was there all along. It takes the latest changes for those that are not answered
    yet.
    """

    def __init__(self, interval_s: float, ended_part: float | None) -> None:
        """``ended_part``: of the active jobs and those that have ended, one a GPU at most; None: never."""
        self._interval_s = interval_s
        self._ended_part = ended_part
        self._seen_s: float | None = None
        """Time of the last change seen."""
        self._held_s: float | None = None
        """When sizes were last looked at."""
        self._early_s = -math.inf
        """The last scaling time that came because jobs had ended."""
        self._active = 0
        self._ended = 0
        """Jobs that have ended since the last scaling time."""

    def due(self, changes: Sequence[Change], now_s: float, gpus: int) -> bool:
        """Take in what happened; whether a scaling time came since the last look, or with a new change.

        :param gpus: GPUs of the cluster, up or down.
        """
        new = list(changes)
        if self._seen_s is None and self._held_s is None and new:
            latest_s = new[-1].time_s
            while new[0].time_s < latest_s:
                self._take(new.pop(0), gpus)
        known_s = max(-math.inf if at_s is None else at_s for at_s in (self._seen_s, self._held_s))
        for change in new:
            self._take(change, gpus)
        moment_s = max(self._early_s, self._last_s(now_s))
        unanswered = (change.time_s for change in new if change.kind != "rejected")
        return moment_s > known_s or moment_s >= next(unanswered, math.inf)

    def hold(self, now_s: float) -> None:
        """Sizes are looked at now."""
        self._held_s = now_s

    def next_s(self, now_s: float) -> float:
        """The next multiple of the interval; without an interval, now."""
        if not self._interval_s:
            return now_s
        next_s = (self._number(now_s) + 1) * self._interval_s
        while self._last_s(next_s) <= now_s:  # rounding
            next_s = math.nextafter(next_s, math.inf)
        return next_s

    def dump(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "told_s": self._seen_s,
            "held_s": self._held_s,
            "early_s": None if self._early_s == -math.inf else self._early_s,
            "active": self._active,
            "ended": self._ended,
        }

    def load(self, state: Any) -> None:
        """The inverse of :meth:`dump`."""
        self._seen_s, self._held_s = state["told_s"], state["held_s"]
        self._early_s = -math.inf if state["early_s"] is None else state["early_s"]
        self._active, self._ended = state["active"], state["ended"]

    def _take(self, change: Change, gpus: int) -> None:
        if self._seen_s is not None and self._last_s(change.time_s) > self._seen_s:
            self._ended = 0
        self._seen_s = change.time_s
        if change.kind == "arrived":
            self._active += 1
        elif change.ended_job is not None:
            self._active -= 1
        if change.kind in _ENDED and self._ended_part is not None:
            self._ended += 1
            if self._ended >= self._ended_part * min(self._active + self._ended, gpus):
                self._early_s, self._ended = change.time_s, 0

    def _number(self, time_s: float) -> int:
        return math.floor(time_s / self._interval_s)

    def _last_s(self, now_s: float) -> float:
        """The last multiple of the interval that is not after ``now_s``."""
        return self._number(now_s) * self._interval_s if self._interval_s else now_s
