"""What one launch has measured, however often it had to be started for that."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from pliant.schemas.profile import ProfileRow
from pliant.tools.profile.measuring.launch import Ended
from pliant.tools.profile.measuring.points import Measured, PointsFile
from pliant.tools.profile.measuring.request import MeasurementRequest, Outcome, Point, best_visits
from pliant.tools.profile.measuring.search import is_measured


class LaunchLog:
    """The points of one launch: those kept from an earlier command and those measured now.

    :param key: of the launch, as :func:`~pliant.tools.profile.measuring.points.launch_key` makes it.
    :param clock: UTC seconds.
    """

    def __init__(self, kept: PointsFile, key: str, clock: Callable[[], float]) -> None:
        self._kept = kept
        self._key = key
        self._clock = clock
        self._points: list[tuple[Measured, Point]] = []
        self._costs: Measured | None = None
        for found in kept.of(key):
            self._remember(found)

    def __len__(self) -> int:
        """How many points there are."""
        return len(self._points)

    def rest(self, request: MeasurementRequest, workers: int) -> MeasurementRequest | None:
        """What is left of a request; None: nothing is.

        Costs are measured at the end of a launch, after a step: where they alone are left, one point is
        measured once more.
        """
        known = tuple(point for _, point in self._points)
        rest = below(request, known).model_copy(update={"known": known})
        if not is_measured(rest, workers):
            return rest
        fitting = [point for point in known if point.feasible]
        if not request.costs or self._costs is not None or not fitting:
            return None
        others = tuple(point for point in known if point is not fitting[0])
        return request.model_copy(update={"known": others})

    def take(self, outcome: Outcome, before: int) -> None:
        """Take up what a launch has measured since it was looked at last.

        :param before: how many points there were when it was started.
        """
        for point in outcome.points[len(self) - before :]:
            self._add(outcome, point=point)

    def misfit(self, outcome: Outcome) -> None:
        """The point under way ran out of memory."""
        if outcome.current is not None:
            self._add(outcome, point=outcome.current.model_copy(update={"feasible": False}))

    def end(self, ended: Ended) -> None:
        """The launch is through; its costs belong to all its points."""
        start_s, relaunch_s, rescale_s = ended.start_s, ended.relaunch_s, ended.outcome.rescale_s
        if (start_s, relaunch_s, rescale_s) != (None, None, None):
            self._add(ended.outcome, start_s=start_s, relaunch_s=relaunch_s, rescale_s=rescale_s)

    @property
    def facts(self) -> Mapping[str, str]:
        """What the workers reported of their machine; empty: nothing was measured."""
        last = self._points[-1:]
        return {name: getattr(found, name) for found, _ in last for name in ("torch", "device", "driver")}

    def rows(self, model: str, gpu_type: str, workers: int) -> list[ProfileRow]:
        """The profile rows of all points; those of training steps that fit have the costs of the launch."""
        best = {id(point) for point in best_visits(point for _, point in self._points)}
        rows = [
            _row(found, point, model, gpu_type, workers) for found, point in self._points if id(point) in best
        ]
        if (costs := self._costs) is None:
            return rows
        with_costs = partial(
            replace,
            start_seconds=costs.start_s,
            relaunch_seconds=costs.relaunch_s,
            rescale_seconds=costs.rescale_s,
        )
        return [with_costs(row) if row.kind == "train" and row.feasible else row for row in rows]

    def _add(self, outcome: Outcome, **fields: object) -> None:
        facts = {name: getattr(outcome, name) for name in ("parameters", "torch", "device", "driver")}
        found = Measured(launch=self._key, measured_at=self._clock(), **facts, **fields)  # type: ignore[arg-type]
        self._remember(found)
        self._kept.add(found)

    def _remember(self, found: Measured) -> None:
        if found.point is None:
            self._costs = found
        else:
            self._points.append((found, found.point))


def below(request: MeasurementRequest, points: Iterable[Point]) -> MeasurementRequest:
    """The rest of a request, given what has been measured and what did not fit."""
    seen = tuple(points)
    misfits = [point.local_batch for point in seen if not point.feasible]
    if not misfits:
        return request
    fits = max((point.local_batch for point in seen if point.feasible), default=0)
    misfit = min(misfits)
    return request.model_copy(update={"fits": min(max(fits, request.fits), misfit - 1), "misfit": misfit})


def _row(found: Measured, point: Point, model: str, gpu_type: str, workers: int) -> ProfileRow:
    row = ProfileRow(
        kind="train",
        model=model,
        gpu_type=gpu_type,
        nodes=1,
        gpus=workers,
        placement=str(workers),
        local_batch=point.local_batch,
        accum_steps=point.accum,
        step_seconds=statistics.fmean(point.step_s) if point.feasible else None,
        stdev_seconds=statistics.pstdev(point.step_s) if point.feasible else None,
        iterations=len(point.step_s),
        peak_memory=point.peak_memory if point.feasible else None,
        parameters=found.parameters,
        feasible=point.feasible,
        measured_at=found.measured_at,
        busy_share=point.busy_share if point.feasible else None,
    )
    if point.weights:
        return replace(row, kind="allreduce", model="", parameters=point.weights)
    if row.step_seconds is None:
        return row
    step_s, compute_s = row.step_seconds, None
    if workers == 1:
        compute_s = step_s
    elif point.compute_s:
        compute_s = min(step_s, statistics.fmean(point.compute_s))
    return replace(
        row,
        compute_seconds=compute_s,
        sync_seconds=None if compute_s is None else step_s - compute_s,
        samples_per_second=workers * point.local_batch * point.accum / step_s,
    )
