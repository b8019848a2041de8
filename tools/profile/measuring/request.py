"""What the workers of one launch measure: the request, its outcome, and the order of the points.

One request is one launch of torchrun: several batches on one number of workers. The launcher writes it to a
file that the workers' environment names; ``worker.py`` and ``allreduce.py`` carry it out and write an
:class:`LaunchOutcome`. All workers pick the same points: first they search for the largest local batch that
fits, upwards through the wanted batches, then by bisection; then the global batches, split over the workers.

Every point is visited at least twice, round by round over all points, so that a short disturbance meets one
visit of a point and not the others. Other processes only slow a step down: the fastest undisturbed visit
counts, and a second one must confirm it (:func:`is_settled`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

from pliant.schemas.file_io.record import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Record
from pliant.tools.profile.throughput import APART, BUSY, plan_batch

ENV_PROFILE: Final = "PLIANT_PROFILE"
"""Environment variable with the path of the request; the elastic library then serves the sweep."""
MOST: Final = 20
"""Short steps are measured at most this many times as often as requested."""
LEAST_VISITS: Final = 2
"""How often every point is measured: one visit alone does not show whether it was disturbed."""
VISITS: Final = 4
"""How often a point is measured at most in one launch."""
RESOLUTION = 8
"""Bisection ends at a gap of one eighth of the largest batch that fits."""
Cut = tuple[int, int]
"""Local batch and micro-steps of one optimizer step."""


class Point(Record):
    """One configuration as measured: step times are the largest over the workers."""

    local_batch: NonNegativeInt
    accum: PositiveInt = 1
    weights: NonNegativeInt = 0
    feasible: bool = True
    step_s: tuple[NonNegativeFloat, ...] = ()
    """Seconds of whole steps (or of all-reduces)."""
    compute_s: tuple[NonNegativeFloat, ...] = ()
    """Seconds of the same steps without gradient synchronisation; empty for one worker."""
    peak_memory: NonNegativeInt | None = None
    """Bytes, the largest over the workers."""
    busy_share: NonNegativeFloat | None = None
    """Part of the time in which other processes kept a worker from a core; null if unknown."""
    own_share: PositiveFloat = 1.0
    """Part of the times that is left without that. On a GPU it is 1: there a worker that waits for a core
    does not always wait for its step."""

    @property
    def key(self) -> tuple[int, int, int]:
        """The configuration, which all its visits share."""
        return self.local_batch, self.accum, self.weights

    @property
    def mean_s(self) -> float:
        """Seconds of a step, without those in which others held the workers' cores."""
        return self.own_share * fmean(self.step_s) if self.step_s else 0.0

    @property
    def mean_compute_s(self) -> float | None:
        """The same without gradient synchronisation; None where that was not timed."""
        return self.own_share * fmean(self.compute_s) if self.compute_s else None


class MeasurementRequest(Record):
    """What to measure in one launch: first the local batches, then the global ones."""

    result: str
    """File for the :class:`LaunchOutcome`, written by rank 0 after every point."""
    launcher_pid: PositiveInt | None = None
    """Process that waits for the result; once it is gone, the workers end."""
    local_batches: tuple[PositiveInt, ...] = ()
    """Samples per worker and micro-step; if one does not fit, bisection finds the limit."""
    global_batches: tuple[PositiveInt, ...] = ()
    """Samples per optimizer step, split over the workers; accumulated if a share does not fit."""
    weights: tuple[PositiveInt, ...] = ()
    """Sizes of all-reduces, in weights (``allreduce.py`` only)."""
    per_gpu_max: PositiveInt | None = None
    """Largest local batch of a split; None: no known limit."""
    fits: NonNegativeInt = 0
    """Largest local batch known to fit, from an earlier launch."""
    misfit: PositiveInt | None = None
    """Smallest local batch known not to fit, from an earlier launch."""
    known: tuple[Point, ...] = ()
    """Visits made before."""
    visits: PositiveInt = VISITS
    """How often a point is measured at most, known visits counted in."""
    iterations: PositiveInt = 10
    """Steps measured per point, at least."""
    warmup: NonNegativeInt = 3
    """Steps dropped per point; the first step is always dropped."""
    least_seconds: NonNegativeFloat = 0.25
    """Short steps are repeated until a point was measured for about this long."""
    memory_limit: PositiveInt | None = None
    """Bytes that one worker may use; None: all that the device has."""
    seed: NonNegativeInt = 0
    """Seed of the choice of samples."""
    costs: bool = False
    """Also time the parts of a change of workers: a checkpoint's saving and loading, and one in place."""

    def rounds(self, last_s: float) -> int:
        """Steps to measure: ``iterations``, or more if noise would show because steps are short.

        :param last_s: seconds of one step.
        """
        wanted = self.least_seconds / last_s if last_s else 0.0
        return max(self.iterations, min(int(wanted), MOST * self.iterations))


class LaunchOutcome(Record):
    """What a launch has measured so far."""

    parameters: NonNegativeInt = 0
    """Weights that are synchronised."""
    torch: str = ""
    device: str = ""
    driver: str = ""
    points: tuple[Point, ...] = ()
    current: Point | None = None
    """The current point; if the workers ran out of memory, the one that did not fit."""
    done: bool = False
    first_step_s: NonNegativeFloat | None = None
    """When the first step ended, UTC seconds."""
    left_s: NonNegativeFloat | None = None
    """When the workers were asked to leave, UTC seconds."""
    checkpoint_s: NonNegativeFloat | None = None
    """Seconds to save a checkpoint and to load it; null if not asked for."""
    rehearsing: bool = False
    """Everything else is measured; if a worker ends now, only ``rescale_s`` is lost."""
    rescale_s: NonNegativeFloat | None = None
    """Seconds in which no worker trains when the last one joins the others; null if not asked for, or for one
    worker."""


def out_of_memory_mark(result: str | Path) -> Path:
    """A file that exists if a worker ran out of memory at the current point."""
    return Path(f"{result}.out-of-memory")


def is_disturbed(point: Point) -> bool:
    """Whether other processes kept the workers from cores too long to trust the times."""
    return point.busy_share is not None and point.busy_share > BUSY


def by_configuration(points: Iterable[Point]) -> dict[tuple[int, int, int], list[Point]]:
    """The visits of each configuration, in order of first visits."""
    points_by_key: dict[tuple[int, int, int], list[Point]] = {}
    for point in points:
        points_by_key.setdefault(point.key, []).append(point)
    return points_by_key


def best_visits(points: Iterable[Point]) -> list[Point]:
    """The visit of each configuration that counts, in order of first visits."""
    return [best_visit(visits) for visits in by_configuration(points).values()]


def best_visit(visits: Sequence[Point]) -> Point:
    """The fastest undisturbed visit, else the fastest: others only make a step slower.

    A configuration that did not fit once does not fit.
    """
    for point in visits:
        if not point.feasible:
            return point
    quiet = [point for point in visits if not is_disturbed(point)]
    if quiet:
        return min(quiet, key=lambda point: point.mean_s)
    return min(visits, key=lambda point: (point.mean_s, point.busy_share or 0.0))


def spread(visits: Iterable[Point]) -> float | None:
    """How much longer a step took in the second fastest visit than in the fastest, as a fraction.

    Disturbed visits count only where there are no two others. Returns None for a single visit.
    """
    fitting = [point for point in visits if point.feasible]
    quiet = [point for point in fitting if not is_disturbed(point)]
    means = sorted(point.mean_s for point in (quiet if len(quiet) > 1 else fitting))
    return means[1] / means[0] - 1.0 if len(means) > 1 and means[0] > 0 else None


def is_settled(visits: Sequence[Point]) -> bool:
    """Whether two undisturbed visits agree, or the configuration does not fit."""
    if not all(point.feasible for point in visits):
        return True
    apart = spread(visits)
    quiet = sum(not is_disturbed(point) for point in visits)
    return quiet >= LEAST_VISITS and apart is not None and apart <= APART


def unsettled(points: Iterable[Point], visits: int) -> list[Point]:
    """A point of each configuration to measure again: not settled, and visited less often than ``visits``."""
    groups = by_configuration(points).values()
    return [each[0] for each in groups if len(each) < visits and not is_settled(each)]


def is_measured(request: MeasurementRequest, workers: int) -> bool:
    """Whether the known visits are all that a request asks for."""
    weights = {point.weights for point in request.known}
    if PointSearch(request, workers).next() is not None or not weights.issuperset(request.weights):
        return False
    return not unsettled(request.known, request.visits)


class Rounds:
    """Which points to visit again, round by round, after all were visited once.

    The last round is one in which no point is left or every visit was disturbed: the machine is busy then,
    and more of the same would not help.
    """

    def __init__(self, request: MeasurementRequest) -> None:
        self._request = request
        self._due: list[Point] | None = None

    def next(self, visited: Sequence[Point]) -> list[Point]:
        """The points of the next round; empty when it is over.

        :param visited: the visits of this launch so far.
        """
        last = visited[len(visited) - len(self._due) :] if self._due else []
        if last and all(map(is_disturbed, last)):
            return []
        self._due = unsettled([*self._request.known, *visited], self._request.visits)
        return self._due


class PointSearch:
    """Which point of a request to measure next, given the results so far.

    :param workers: over how many each global batch is split.
    """

    def __init__(self, request: MeasurementRequest, workers: int) -> None:
        self._request = request
        self._workers = workers
        self._batches = BatchSearch(request.local_batches, fits=request.fits, misfit=request.misfit)
        self._known = {(point.local_batch, point.accum): point.feasible for point in request.known}
        self._cuts: list[Cut] | None = None

    def next(self) -> Cut | None:
        """None when everything is measured."""
        while (cut := self._next()) is not None:
            if cut not in self._known:
                return cut
            self._take(cut)
        return None

    def record(self, cut: Cut, *, fits: bool) -> None:
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
            self._batches.record(cut[0], fits=self._known[cut])
        else:
            self._cuts.remove(cut)

    def _global_cuts(self) -> list[Cut]:
        """How the wanted global batches are split, each way once; empty if no batch fits."""
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


class BatchSearch:
    """Which local batch to try next, given what fitted so far.

    ``fits`` and ``misfit`` carry over the results of an interrupted search.
    """

    def __init__(self, wanted: Iterable[int], *, fits: int = 0, misfit: int | None = None) -> None:
        self._wanted = sorted({batch for batch in wanted if batch > fits}, reverse=True)
        # Largest batch known to fit; 0 if none is.
        self.fits = fits
        # Smallest batch known not to fit.
        self.misfit = misfit

    def next(self) -> int | None:
        """None when the search is over."""
        while self._wanted and self.misfit is not None and self._wanted[-1] >= self.misfit:
            self._wanted.pop()
        if self._wanted:
            return self._wanted[-1]
        if self.misfit is None or self.misfit - self.fits <= max(1, self.fits // RESOLUTION):
            return None
        return (self.fits + self.misfit) // 2

    def record(self, batch: int, *, fits: bool) -> None:
        if fits:
            self.fits = max(self.fits, batch)
        else:
            self.misfit = batch if self.misfit is None else min(self.misfit, batch)
        self._wanted = [other for other in self._wanted if other != batch]
