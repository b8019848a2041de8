"""What jobs of a model have shown by progress, for the others: gradient noise scale, and pace.

Pace is how fast a job really advanced over what its curve promised: 1 where samples are all that counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from pliant.tools.schedule.policies.shadow_price.curves import Floats

CELLS: Final = 64
"""Parts of a job's work in which both count as constant."""
_RANGE: Final = (1e-6, 1e15)
"""Samples; beyond these a noise scale changes nothing."""
_PACES: Final = (0.1, 10.0)


class ByProgress:
    """The last value seen in each part of the work, from all jobs that share a key."""

    def __init__(self, low: float, high: float) -> None:
        self._range = low, high
        self._log: dict[str, list[float | None]] = {}
        """Logarithms by cell."""
        self._lines: dict[str, Floats] = {}

    def observe(self, key: str, progress: float, value: float) -> None:
        """A job shows ``value`` at ``progress`` (0 to 1)."""
        low, high = self._range
        cells = self._log.get(key)
        if cells is None:
            cells = self._log[key] = [None] * CELLS
        cell, log = min(int(progress * CELLS), CELLS - 1), math.log(min(max(value, low), high))
        if cells[cell] != log:
            cells[cell] = log
            self._lines.pop(key, None)

    def line(self, key: str) -> Floats | None:
        """[cell] values, between those seen on a line of their logarithms; None: none was seen."""
        found = self._lines.get(key)
        cells = self._log.get(key)
        if found is None and cells is not None:
            seen = np.array([[cell, log] for cell, log in enumerate(cells) if log is not None])
            found = np.exp(np.interp(np.arange(CELLS, dtype=float), seen[:, 0], seen[:, 1]))
            self._lines[key] = found
        return found

    def at(self, key: str, progress: float) -> float | None:
        """The value at one point; None: none was seen."""
        line = self.line(key)
        return None if line is None else float(line[min(max(int(progress * CELLS), 0), CELLS - 1)])

    def dump(self) -> dict[str, list[list[float]]]:
        """As JSON values: cells and logarithms by key."""
        return {
            key: [[cell, log] for cell, log in enumerate(cells) if log is not None]
            for key, cells in sorted(self._log.items())
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`dump`."""
        self._lines = {}
        self._log = {key: [None] * CELLS for key in state}
        for key, pairs in state.items():
            for cell, log in pairs:
                self._log[key][int(cell)] = log


def noise_scales() -> ByProgress:
    """For noise scales, by model."""
    return ByProgress(*_RANGE)


def paces() -> ByProgress:
    """For paces, by model and batch of the author: the batch in which its samples are counted."""
    return ByProgress(*_PACES)
