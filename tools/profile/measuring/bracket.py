"""The search for the largest batch that fits: upwards through the wanted batches, then bisection.

Pure and the same on every worker: each asks :meth:`Bracket.next`, tells what came of it, and goes on.
"""

from __future__ import annotations

from collections.abc import Iterable

RESOLUTION = 8
"""Bisection ends when the gap is at most this fraction (one eighth) of the largest batch that fits."""


class Bracket:
    """Which local batch to try next, given what fitted so far.

    ``fits`` and ``misfit`` carry over what an earlier, interrupted search has found out.
    """

    def __init__(self, wanted: Iterable[int], *, fits: int = 0, misfit: int | None = None) -> None:
        self._wanted = sorted({batch for batch in wanted if batch > fits}, reverse=True)
        self.fits = fits
        """Largest batch known to fit; 0: none yet."""
        self.misfit = misfit
        """Smallest batch known not to fit."""

    def next(self) -> int | None:
        """The next batch to try; None: the search is over."""
        while self._wanted and self.misfit is not None and self._wanted[-1] >= self.misfit:
            self._wanted.pop()
        if self._wanted:
            return self._wanted[-1]
        if self.misfit is None or self.misfit - self.fits <= max(1, self.fits // RESOLUTION):
            return None
        return (self.fits + self.misfit) // 2

    def tell(self, batch: int, *, fits: bool) -> None:
        """Report what came of trying ``batch``."""
        if fits:
            self.fits = max(self.fits, batch)
        else:
            self.misfit = batch if self.misfit is None else min(self.misfit, batch)
        self._wanted = [other for other in self._wanted if other != batch]
