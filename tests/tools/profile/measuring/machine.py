"""Launches that answer at once, for tests of what is asked and what rows come of it."""

from collections.abc import Callable, Iterator

from pliant.tools.profile.measuring.launch import Advance, LaunchEnd, Script
from pliant.tools.profile.measuring.request import (
    LaunchOutcome,
    MeasurementRequest,
    Point,
    PointSearch,
    Rounds,
)


class Machine:
    """Ten milliseconds a sample, five a synchronisation; batches above ``limit`` run out of memory.

    :param trouble: called before each point, with the script's name and the local batch.
    """

    def __init__(self, trouble: Callable[[str, int], None] | None = None, limit: int = 10**9) -> None:
        self.trouble = trouble
        self.limit = limit
        self.allreduce_s = 0.002
        self.disturbed: Callable[[int, int], tuple[float, float | None]] = lambda _workers, _local: (
            1.0,
            None,
        )
        self.launches: list[tuple[str, int, MeasurementRequest]] = []
        self.measured: list[tuple[str, int, int]] = []
        """(model, workers, local batch or weights) of every point."""

    def __call__(
        self, script: Script, workers: int, request: MeasurementRequest, advance: Advance
    ) -> LaunchEnd:
        self.launches.append((script.name, workers, request))
        outcome = LaunchOutcome(parameters=7, torch="2", device="cpu")
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
        return [workers for _, workers, request in self.launches if request.weights]

    def _points(self, request: MeasurementRequest, workers: int) -> Iterator[Point]:
        course, visited = PointSearch(request, workers), list[Point]()
        while (cut := course.next()) is not None:
            visited.append(self._visit(workers, *cut))
            yield visited[-1]
            course.record(cut, fits=cut[0] <= self.limit)
        known = {point.weights for point in request.known}
        for weights in request.weights:
            if weights not in known:
                visited.append(self._visit(workers, 0, 1, weights))
                yield visited[-1]
        rounds = Rounds(request)
        while due := rounds.next(visited):
            for point in due:
                visited.append(self._visit(workers, *point.key))
                yield visited[-1]

    def _visit(self, workers: int, local: int, accum: int, weights: int = 0) -> Point:
        """Its steps take longer by ``disturbed``, called with workers and local batch; busy by the second."""
        slower, busy_share = self.disturbed(workers, local)
        compute_s = 0.01 * local * accum * slower
        times = {"step_s": (compute_s,) * 3, "peak_memory": 100, "busy_share": busy_share}
        if weights:
            times = {"step_s": (self.allreduce_s * slower,)}
        elif workers > 1:
            times |= {"step_s": (compute_s + 0.005,) * 3, "compute_s": (compute_s,) * 3}
        return Point(local_batch=local, accum=accum, weights=weights, **times)  # type: ignore[arg-type]
