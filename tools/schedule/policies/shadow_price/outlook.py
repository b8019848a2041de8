"""What is ahead of a job: how fast it would train from here to its end, and in the time of a decision.

A job that trains on k GPUs advances through its work at g(k; φ), each at its best batch; φ, the gradient
noise scale, moves with progress. The mean rate over a stretch of work is the harmonic mean of g over it, so a
table of ∫ 1/g from each point of the work to its end answers for every stretch.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from pliant.tools.schedule.policies.shadow_price.curves import Curve, Floats, best
from pliant.tools.schedule.policies.shadow_price.noise import CELLS

_SAME: Final = 0.01
"""Relative change of a noise scale or a pace that changes nothing."""
_END: Final = 1.0 - 1e-9


class Outlook(NamedTuple):
    """Mean progress per second by size, 0 where infeasible."""

    whole: Floats
    """[size] F: over all the work that is left."""
    soon: Floats
    """[size] G: over the work of the time that a decision is taken to last, the same for all sizes."""


class Ahead:
    """Jobs of one curve whose noise scales are known by progress."""

    def __init__(self, curve: Curve) -> None:
        self._curve = curve
        self._runs = curve.rates.any(axis=1)
        self._noise = np.full(CELLS, np.nan)
        self._pace = np.full(CELLS, np.nan)
        self._slowness = np.ones((CELLS, len(curve.rates)))
        """[cell, size] 1/g; 1 where infeasible."""
        self._left = np.zeros((CELLS + 1, len(curve.rates)))
        """[bound, size] ∫ 1/g from the bound of a cell to the end, over the part of the work."""

    def update(self, noise: Floats, pace: Floats) -> None:
        """Take up other noise scales and paces; only those cells are computed that changed."""
        with np.errstate(invalid="ignore"):
            same = (np.abs(noise / self._noise - 1) <= _SAME) & (np.abs(pace / self._pace - 1) <= _SAME)
        if same.all():
            return
        stale = ~same
        self._noise[stale], self._pace[stale] = noise[stale], pace[stale]
        efficient = self._curve.efficiency(noise[stale])
        rates = best(efficient[:, None, :], self._curve.rates) * pace[stale][:, None]
        self._slowness[stale] = 1.0 / np.where(self._runs, rates, 1.0)
        self._left[:-1] = np.cumsum(self._slowness[::-1], axis=0)[::-1] / CELLS

    def whole(self, progress: float) -> Floats:
        """[size] mean progress per second from ``progress`` (0 to 1) to the end."""
        found: Floats = (1.0 - min(progress, _END)) / self._left_at(min(progress, _END)) * self._runs
        return found

    def at(self, progress: float, work: float, soon_s: float, size: int) -> Outlook:
        """The outlook of a job with ``work`` samples in all, ``progress`` (0 to 1) of them done.

        :param size: the position of a size: what it does in ``soon_s`` seconds is the stretch of ``soon``
            for all sizes, so that they differ by their speeds alone.
        """
        progress = min(progress, _END)
        left, whole = self._left_at(progress), self.whole(progress)
        until = left[size] - soon_s / work
        if until <= 0:
            return Outlook(whole, whole)
        column = self._left[:, size]
        cell = min(int(np.searchsorted(-column, -until, side="right")) - 1, CELLS - 1)
        end = cell / CELLS + float((column[cell] - until) / self._slowness[cell, size])
        soon = (end - progress) / (left - self._left_at(end)) * self._runs
        return Outlook(whole, soon)

    def _left_at(self, progress: float) -> Floats:
        """[size] ∫ 1/g from a point of the work to its end."""
        position = progress * CELLS
        cell = min(int(position), CELLS - 1)
        found: Floats = self._left[cell] - (position - cell) / CELLS * self._slowness[cell]
        return found
