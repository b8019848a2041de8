"""Launches that answer at once, for tests of what is asked and what rows come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pliant.tools.profile.measuring.launch import Advance, LaunchEnd, Script
from pliant.tools.profile.measuring.request import MeasurementRequest, Outcome, Point, PointSearch


class Machine:
    """Ten milliseconds a sample, five a synchronisation; batches above ``limit`` run out of memory.

    :param trouble: called before each point, with the script's name and the local batch.
    """

    def __init__(self, trouble: Callable[[str, int], None] | None = None, limit: int = 10**9) -> None:
        self.trouble = trouble
        self.limit = limit
        self.allreduce_s = 0.002
        self.launches: list[tuple[str, int, MeasurementRequest]] = []
        self.measured: list[tuple[str, int, int]] = []
        """(model, workers, local batch or weights) of every point."""

    def __call__(
        self, script: Script, workers: int, request: MeasurementRequest, advance: Advance
    ) -> LaunchEnd:
        self.launches.append((script.name, workers, request))
        outcome = Outcome(parameters=7, torch="2", device="cpu")
        try:
            for point in self._points(request, workers):
                if self.trouble:
                    self.trouble(script.name, point.local_batch)
                self.measured.append((script.name, workers, point.local_batch or point.weights))
                if point.local_batch > self.limit:
                    return LaunchEnd(outcome.model_copy(update={"current": point}), out_of_memory=True)
                outcome = outcome.model_copy(update={"points": (*outcome.points, point)})
                advance(outcome)
        finally:
            advance(outcome)
        costs = (1.0, 2.0) if request.costs and outcome.points else (None, None)
        return LaunchEnd(outcome.model_copy(update={"done": True}), False, *costs)

    @property
    def reduced_on(self) -> list[int]:
        """Workers of the launches that measured all-reduces."""
        return [workers for _, workers, request in self.launches if request.weights]

    def _points(self, request: MeasurementRequest, workers: int) -> Iterator[Point]:
        course, alone = PointSearch(request, workers), workers == 1
        while (cut := course.next()) is not None:
            local, accum = cut
            compute_s = 0.01 * local * accum
            times = {"step_s": (compute_s,) * 3, "peak_memory": 100}
            if not alone:
                times = {"step_s": (compute_s + 0.005,) * 3, "compute_s": (compute_s,) * 3}
            yield Point(local_batch=local, accum=accum, **times)  # type: ignore[arg-type]
            course.tell(cut, fits=local <= self.limit)
        known = {point.weights for point in request.known}
        for weights in request.weights:
            if weights not in known:
                yield Point(local_batch=0, weights=weights, step_s=(self.allreduce_s,))
