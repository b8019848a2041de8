"""Units that live on although they have nothing to do any more: since when, and for how long they may."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

LOOK_S: Final = 1.0
"""Between two looks."""


class Lingering:
    """One attempt's units that are through, as one launcher has seen them."""

    def __init__(self) -> None:
        self._since_s: dict[int, float] = {}
        self._looked_s = float("-inf")

    def overdue(self, limits_s: Callable[[], Mapping[int, float]], now_s: float) -> list[int]:
        """Units that have had nothing to do for longer than each may.

        :param limits_s: of those that have nothing to do; asked once in :data:`LOOK_S`.
        """
        if 0 <= now_s - self._looked_s < LOOK_S:
            return []
        self._looked_s = now_s
        limits = limits_s()
        self._since_s = {unit: self._since_s.get(unit, now_s) for unit in limits}
        return [unit for unit, since_s in self._since_s.items() if now_s - since_s >= limits[unit]]
