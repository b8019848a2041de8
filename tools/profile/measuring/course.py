"""The points of one launch in the order in which they are measured; the same on every worker.

First the search for the largest local batch that fits, then the global batches cut for the workers. What is
known already is taken into account and not measured again.
"""

from __future__ import annotations

from pliant.tools.profile.batch import plan_batch
from pliant.tools.profile.measuring.bracket import Bracket
from pliant.tools.profile.measuring.request import Order

Cut = tuple[int, int]
"""Local batch and micro-steps of one optimizer step."""


class Course:
    """Which point of an order to measure next, given what came of those before.

    :param workers: how many each global batch is cut for.
    """

    def __init__(self, order: Order, workers: int) -> None:
        self._order = order
        self._workers = workers
        self._bracket = Bracket(order.local_batches, fits=order.fits, misfit=order.misfit)
        self._known = {(point.local_batch, point.accum): point.feasible for point in order.known}
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
            batch = self._bracket.next() if self._order.local_batches else None
            if batch is not None:
                return (batch, 1)
            self._cuts = self._global_cuts()
        return self._cuts[0] if self._cuts else None

    def _take(self, cut: Cut) -> None:
        if self._cuts is None:
            self._bracket.tell(cut[0], fits=self._known[cut])
        else:
            self._cuts.remove(cut)

    def _global_cuts(self) -> list[Cut]:
        """The wanted global batches, each cut once; none where no batch fits."""
        bracket = self._bracket
        below = None if bracket.misfit is None else bracket.misfit - 1
        limits = (self._order.per_gpu_max, bracket.fits or None, below)
        known = [limit for limit in limits if limit is not None]
        if 0 in known:
            return []
        cap = min(known, default=None)
        sizes = [size for size in self._order.global_batches if size >= self._workers]
        plans = [plan_batch(size, self._workers, cap) for size in sizes]
        return list(dict.fromkeys((plan.local, plan.accum) for plan in plans))


def is_measured(order: Order, workers: int) -> bool:
    """Whether what is known already is all that an order asks for."""
    weights = {point.weights for point in order.known}
    return Course(order, workers).next() is None and weights.issuperset(order.weights)
