"""Workers that an attempt has lost: where one after the other dies, another one would fare no better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pliant.tools.run.slots import Slot

YOUNG_S: Final = 5.0
"""A worker that is lost before it has trained for so long has died young."""
TOO_MANY: Final = 5
"""So many in a row on one slot make the attempt fail."""


class Losses:
    """How old workers get, by slot; what one launcher has seen of one attempt."""

    def __init__(self) -> None:
        self.blame = ""
        """Why there should be no further worker; empty: there may be."""
        self._since_s: dict[int, float] = {}
        self._young: dict[Slot, int] = {}

    def train(self, workers: Mapping[int, Slot], now_s: float) -> None:
        """Workers are seen to train, each on its slot; one that grows old clears it."""
        for worker, slot in workers.items():
            if now_s - self._since_s.setdefault(worker, now_s) >= YOUNG_S:
                self._young[slot] = 0

    def lose(self, worker: int, slot: Slot, now_s: float) -> None:
        """Count a worker that is lost; how old it got is known where it was seen to train."""
        if now_s - self._since_s.get(worker, now_s) < YOUNG_S:
            self._young[slot] = self._young.get(slot, 0) + 1
        else:
            self._young[slot] = 0
        if self._young[slot] >= TOO_MANY:
            self.blame = f"lost {self._young[slot]} workers in a row on {slot}"
