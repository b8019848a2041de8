"""Which points one launch measures, one after the other; the same on every worker.

First comes the search for the largest local batch that fits: upwards through the wanted batches, then by
bisection. Then come the global batches, cut for the workers. Points that are known already are not measured
again.
"""

from __future__ import annotations

from collections.abc import Iterable

from pliant.tools.profile.batch import plan_batch
from pliant.tools.profile.measuring.request import MeasurementRequest

RESOLUTION = 8
"""Bisection ends when the gap is at most this fraction (one eighth) of the largest batch that fits."""
Cut = tuple[int, int]
"""Local batch and micro-steps of one optimizer step."""


class BatchSearch:
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


class PointSearch:
    """Which point of a request to measure next, given what came of those before.

    :param workers: how many each global batch is cut for.
    """

    def __init__(self, request: MeasurementRequest, workers: int) -> None:
        self._request = request
        self._workers = workers
        self._batches = BatchSearch(request.local_batches, fits=request.fits, misfit=request.misfit)
        self._known = {(point.local_batch, point.accum): point.feasible for point in request.known}
        self._cuts: list[Cut] | None = None

    def next(self) -> Cut | None:
        """The next point; None: everything is measured."""
        while (cut := self._next()) is not None:
            if cut not in self._known:
                return cut
            self._take(cut)
        return None

    def tell(self, cut: Cut, *, fits: bool) -> None:
        """Report what came of a point."""
        self._known[cut] = fits
        self._take(cut)

    def _next(self) -> Cut | None:
        if self._cuts is None:
            batch = self._batches.next() if self._request.local_batches else None
            if batch is not None:
                return (batch, 1)
            self._cuts = self._global_cuts()
        return self._cuts[0] if self._cuts else None

    def _take(self, cut: Cut) -> None:
        if self._cuts is None:
            self._batches.tell(cut[0], fits=self._known[cut])
        else:
            self._cuts.remove(cut)

    def _global_cuts(self) -> list[Cut]:
        """The wanted global batches, each cut once; none where no batch fits."""
        batches = self._batches
        below = None if batches.misfit is None else batches.misfit - 1
        limits = (self._request.per_gpu_max, batches.fits or None, below)
        known = [limit for limit in limits if limit is not None]
        if 0 in known:
            return []
        cap = min(known, default=None)
        sizes = [size for size in self._request.global_batches if size >= self._workers]
        plans = [plan_batch(size, self._workers, cap) for size in sizes]
        return list(dict.fromkeys((plan.local, plan.accum) for plan in plans))


def is_measured(request: MeasurementRequest, workers: int) -> bool:
    """Whether what is known already is all that a request asks for."""
    weights = {point.weights for point in request.known}
    return PointSearch(request, workers).next() is None and weights.issuperset(request.weights)
