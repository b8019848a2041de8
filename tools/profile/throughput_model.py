"""The throughput model: seconds of an optimizer step, from the rows of a profile.

With b samples a GPU and micro-step on k GPUs, and a micro-steps, one optimizer step takes

    t(b, k, a) = (a - 1) · t_proc(b) + S(b, k)
    S(b, k) = t_proc(b) + t_comm(b, k)

where t_proc is computing, S a step with synchronisation and t_comm what S takes beyond t_proc. A GPU type
that was not measured answers as another one, its times scaled by the relative speeds. Two classes fill in
the formula: :class:`ThroughputBySize` by the number of GPUs, :class:`ThroughputByPlacement` by GPUs per node.
Both answer None if nothing is known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from math import fsum
from operator import itemgetter
from statistics import fmean
from typing import TYPE_CHECKING, Final, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

from pliant.schemas.errors import BadInputError
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.throughput import (
    Key,
    Placement,
    key,
    local_limit,
    micro_steps,
    plan_batch,
    rescales,
    rows_across,
    shape,
    stand_in,
    training_rows,
)

if TYPE_CHECKING:
    from scipy.spatial import Delaunay

    from pliant.schemas.schedule import BatchPlan

T = TypeVar("T")
_X: Final = itemgetter(0)
MOST_NODES: Final = 16
"""Larger node counts are clamped to this value."""
Query = tuple[str, str, Placement, int, int | None]
Point = tuple[int, int, int]


class ModelTable(Protocol):
    """What one model does on one GPU type."""

    @property
    def local_batches(self) -> Sequence[int]: ...


AnyTable = TypeVar("AnyTable", bound=ModelTable)


class ProfiledThroughput(ABC, Generic[AnyTable]):
    """Answers from tables, one for each model and GPU type, made when first needed.

    A GPU type on which a model was not measured answers as the type with most rows of that model, its times
    multiplied by the ratio of the relative speeds (1 if none is given).
    """

    def __init__(
        self, profile: Profile, speeds: Mapping[str, float] | None, rows: Iterable[ProfileRow]
    ) -> None:
        """:param rows: those of the profile that count.
        :raises BadInputError: none of them is a training row.
        """
        self._speeds = dict(speeds or {})
        self._profile = profile
        self._rows = training_rows(rows_across(rows))
        if not self._rows:
            raise BadInputError.one(
                profile.source, "has no training rows; measure some with `pliant profile`"
            )
        self._tables: dict[tuple[str, str], tuple[AnyTable, float]] = {}

    def models(self) -> Collection[str]:
        return self._rows.keys()

    def local_batches(self, model: str, gpu_type: str) -> Sequence[int]:
        return self.table(model, gpu_type)[0].local_batches

    def rescale_seconds(self, model: str) -> float | None:
        known = self._rescales.get(model) or [seconds for each in self._rescales.values() for seconds in each]
        return fmean(known) if known else None

    @cached_property
    def _rescales(self) -> Mapping[str, Sequence[float]]:
        """By model, all that was measured."""
        return rescales(row for by_type in self._rows.values() for rows in by_type.values() for row in rows)

    def profile_rows(self) -> Collection[ProfileRow]:
        return self._profile.rows

    def across(self, levels: Sequence[str]) -> Self:
        rows, source = self._profile.rows, self._profile.source
        across_rows = rows_across(rows, levels)
        if {id(row) for row in across_rows} == {id(row) for row in rows_across(rows)}:
            return self
        return self._with(Profile(tuple(replace(row, across=None) for row in across_rows), source=source))

    @abstractmethod
    def _with(self, profile: Profile) -> Self:
        """The same over another profile."""

    def table(self, model: str, gpu_type: str) -> tuple[AnyTable, float]:
        """The table that answers for a GPU type, and the factor on its times.

        :raises BadInputError: the model is not profiled.
        """
        table = self._tables.get((model, gpu_type))
        if table is None:
            rows, known = self.rows_for(model, gpu_type)
            factor = self._speeds.get(known, 1.0) / self._speeds.get(gpu_type, 1.0)
            table = self._tables[model, gpu_type] = self._make(model, known, rows), factor
        return table

    def rows_for(self, model: str, gpu_type: str) -> tuple[Sequence[ProfileRow], str]:
        """The rows that answer for a GPU type, and the type on which they were measured.

        :raises BadInputError: the model is not profiled.
        """
        by_type = self._rows.get(model)
        if by_type is None:
            raise BadInputError(_unprofiled(model, self._rows))
        known = stand_in({name: len(rows) for name, rows in by_type.items()}, gpu_type)
        return by_type[known], known

    @abstractmethod
    def _make(self, model: str, gpu_type: str, rows: Sequence[ProfileRow]) -> AnyTable:
        """The table of a model's rows on a type on which it was measured."""


def _unprofiled(model: str, known: Collection[str]) -> str:
    names = sorted(known)
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return f"model '{model}' is not in the profile (it has: {shown}); measure it with `pliant profile`"


class ThroughputBySize(ProfiledThroughput["SizeTable"]):
    """Answers largely by the number of GPUs, interpolating between measured sizes and batches.

    After the job scalability analyzer of "Effective Elastic Scaling of Deep Learning Workloads" (Saxena et
    al., 2020, section III-B; there a is 1). A measured row wins over the model. Several rows of one placement
    and local batch (rings in another order, repeated imports) count as one, with their plain mean. Else, in
    this order:

    - t_proc: linear between the local batches measured on one GPU; below the smallest no faster than there.
    - S at a measured size: linear between its local batches; beyond them t_proc plus the overhead at the
      nearest.
    - S between two measured sizes: linear in k at equal b (t_comm(b, 1) = 0).
    - S beyond the largest measured size: t_proc plus a measured all-reduce of the model's weights; None
      without one.

    Departures from the paper: overhead is what measured steps took beyond computing (neighbours' interference
    included), an all-reduce only where there are none. Shares beyond the largest probed batch are accumulated
    rather than infeasible (Ares, section 4).
    """

    def __init__(self, profile: Profile, speeds: Mapping[str, float] | None = None) -> None:
        """:raises BadInputError: the profile has no training row."""
        super().__init__(profile, speeds, profile.rows)
        self._allreduce = allreduces(rows_across(profile.rows))
        self._seconds: dict[Query, float | None] = {}

    def max_local_batch(self, model: str, gpu_type: str) -> int:
        return self.table(model, gpu_type)[0].max_local

    def sizes(self, model: str, gpu_type: str) -> Sequence[int]:
        """Numbers of GPUs that were measured and fit a batch, ascending."""
        return sorted({row.gpus for row in self.rows_for(model, gpu_type)[0] if row.feasible})

    def step_seconds(
        self, model: str, gpu_type: str, placement: Placement, global_batch: int, per_gpu_max: int | None
    ) -> float | None:
        query = (model, gpu_type, placement, global_batch, per_gpu_max)
        try:
            return self._seconds[query]
        except KeyError:
            answer = self._seconds[query] = self._answer(query)
            return answer

    def source(
        self,
        model: str,
        gpu_type: str,
        placement: Placement,
        global_batch: int,
        per_gpu_max: int | None = None,
    ) -> Literal["measured", "modelled"]:
        """Where the answer of ``step_seconds`` comes from: a row of this type and placement, or the model.

        :raises BadInputError: the model is not profiled.
        """
        table = self.table(model, gpu_type)[0]
        plan = table.cut(placement, global_batch, per_gpu_max)
        row = None if plan is None else table.measured(placement, plan)
        same = row is not None and row.gpu_type == gpu_type and shape(row) == placement
        return "measured" if same and row is not None and row.source != "modelled" else "modelled"

    def _answer(self, query: Query) -> float | None:
        model, gpu_type, placement, global_batch, per_gpu_max = query
        table, factor = self.table(model, gpu_type)
        plan = table.cut(placement, global_batch, per_gpu_max)
        seconds = None if plan is None else table.seconds(placement, plan)
        return None if seconds is None else seconds * factor

    def _with(self, profile: Profile) -> Self:
        return type(self)(profile, self._speeds)

    def _make(self, model: str, gpu_type: str, rows: Sequence[ProfileRow]) -> SizeTable:
        del model
        return SizeTable(rows, self._allreduce.get(gpu_type, AllReduce(())))


class SizeTable:
    """What one model does on one GPU type, from its training rows."""

    def __init__(self, rows: Collection[ProfileRow], allreduce: AllReduce) -> None:
        good = _averaged(row for row in rows if row.feasible and row.step_seconds is not None)
        # Largest local batch that fits; 0 if none does.
        self.max_local = _largest_safe(rows)
        self._exact = {(shape(row), row.local_batch, row.accum_steps): row for row in good}
        self._compute = _compute_curve(good)
        self._curves = _curves(good, self._compute)
        self._allreduce = allreduce
        self._weights = max((row.parameters or 0 for row in rows), default=0)

    @property
    def local_batches(self) -> list[int]:
        return sorted({local for _, local, _ in self._exact})

    def cut(self, place: Placement, global_batch: int, per_gpu_max: int | None) -> BatchPlan | None:
        """How the batch is split over the workers; None if it cannot be."""
        gpus = sum(place)
        cap = min(self.max_local, per_gpu_max or self.max_local)
        return plan_batch(global_batch, gpus, cap) if 0 < gpus <= global_batch and cap else None

    def measured(self, place: Placement, plan: BatchPlan) -> ProfileRow | None:
        """The row that measured this, on the same placement or else the most similar one."""
        curve = _most_alike(self._curves, place).get(sum(place))
        return None if curve is None else self._exact.get((curve, plan.local, plan.accum))

    def seconds(self, place: Placement, plan: BatchPlan) -> float | None:
        """t(b, k, a): seconds of one optimizer step; None if unknown."""
        row = self.measured(place, plan)
        if row is not None:
            return row.step_seconds
        last = self._last_micro_step(place, plan.local)
        if last is None or plan.accum == 1:
            return last
        return last + (plan.accum - 1) * (self._compute.extended(plan.local) if self._compute else last)

    def _last_micro_step(self, place: Placement, local: int) -> float | None:
        """S(b, k): one micro-step with synchronisation."""
        alone = self._compute.extended(local) if self._compute else None
        known = over_sizes(self._curves, place, lambda found: self._at(found, local), alone=alone)
        if known is not None or alone is None:
            return known
        sync = self._allreduce.seconds(place, self._weights) if self._weights else None
        return None if sync is None else alone + sync

    def _at(self, place: Placement, local: int) -> float:
        """S at a measured placement: between its local batches, else with the overhead of the nearest."""
        curve = self._curves[place]
        if self._compute is None:
            return curve.extended(local)
        if curve.low <= local <= curve.high:
            return curve.inside(local)
        edge = min(max(local, curve.low), curve.high)
        overhead = max(0.0, curve.inside(edge) - self._compute.extended(edge))
        return self._compute.extended(local) + overhead


def _largest_safe(rows: Iterable[ProfileRow]) -> int:
    fits = {row.local_batch for row in rows if row.feasible}
    misfits = [row.local_batch for row in rows if not row.feasible]
    ceiling = min(misfits, default=None)
    return max((batch for batch in fits if ceiling is None or batch < ceiling), default=0)


def _compute_curve(rows: Sequence[ProfileRow]) -> MeasuredCurve | None:
    """t_proc: from rows of one GPU, else from the computing part of rows of several."""
    alone = [row for row in rows if row.gpus == 1]
    points: dict[int, float] = {}
    for row in sorted(alone, key=lambda row: -row.accum_steps):
        points[row.local_batch] = (row.step_seconds or 0.0) / row.accum_steps
    if not points:
        shares: dict[int, list[float]] = {}
        for row in rows:
            if row.compute_seconds:
                shares.setdefault(row.local_batch, []).append(row.compute_seconds / row.accum_steps)
        points = {batch: sum(times) / len(times) for batch, times in shares.items()}
    return MeasuredCurve(points.items()) if points else None


def _curves(rows: Sequence[ProfileRow], compute: MeasuredCurve | None) -> Mapping[Placement, MeasuredCurve]:
    """S by placement; in rows with accumulation, less the micro-steps before the last."""
    points: dict[Placement, dict[int, float]] = {}
    for row in sorted(rows, key=lambda row: -row.accum_steps):
        step_s, accum = row.step_seconds or 0.0, row.accum_steps
        before = (accum - 1) * (compute.extended(row.local_batch) if compute else step_s / accum)
        points.setdefault(shape(row), {})[row.local_batch] = max(step_s / accum, step_s - before)
    return {place: MeasuredCurve(by.items()) for place, by in points.items()}


class AllReduce:
    """Seconds of an all-reduce by placement and weights."""

    def __init__(self, rows: Iterable[ProfileRow]) -> None:
        points: dict[Placement, dict[int, float]] = {}
        for row in _averaged(row for row in rows if row.feasible and row.step_seconds is not None):
            if row.step_seconds is not None and row.parameters:
                points.setdefault(shape(row), {})[row.parameters] = row.step_seconds
        self._curves = {place: MeasuredCurve(by.items()) for place, by in points.items()}

    def seconds(self, place: Placement, weights: int) -> float | None:
        """None beyond the largest measured size."""
        return over_sizes(self._curves, place, lambda found: self._curves[found].extended(weights), alone=0.0)


def allreduces(rows: Iterable[ProfileRow]) -> dict[str, AllReduce]:
    by_type: dict[str, list[ProfileRow]] = {}
    for row in rows:
        if row.kind == "allreduce":
            by_type.setdefault(row.gpu_type, []).append(row)
    return {gpu_type: AllReduce(of_type) for gpu_type, of_type in by_type.items()}


def over_sizes(
    known: Iterable[Placement], place: Placement, at: Callable[[Placement], float], alone: float | None
) -> float | None:
    """A value at a placement: that of the most similar one of its size, else linear between sizes.

    :param known: placements that have a value.
    :param alone: the value on one GPU, if known without a placement of that size.
    :returns: None beyond the known sizes.
    """
    gpus, alike = sum(place), _most_alike(known, place)
    if gpus in alike:
        return at(alike[gpus])
    if gpus == 1:
        return alone
    left = max((size for size in alike if size < gpus), default=None)
    right = min((size for size in alike if size > gpus), default=None)
    if right is None or (left is None and alone is None):
        return None
    at_right = at(alike[right])
    if left is None:
        return between(gpus, 1, alone or 0.0, right, at_right)
    return between(gpus, left, at(alike[left]), right, at_right)


def _most_alike(known: Iterable[Placement], wanted: Placement) -> dict[int, Placement]:
    """By number of GPUs, the placement most like the wanted one: nearest in nodes, of equals with more."""

    def unlike(place: Placement) -> tuple[int, int, Placement]:
        return abs(len(place) - len(wanted)), -len(place), place

    return {sum(place): place for place in sorted(known, key=unlike, reverse=True)}


def _averaged(rows: Iterable[ProfileRow]) -> list[ProfileRow]:
    """One row of mean times for all rows that measure the same.

    Each row counts once, whatever its iterations; modelled rows count only if there are no others.
    """
    groups: dict[Key, list[ProfileRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [group[0] if len(group) == 1 else _mean_row(group) for group in groups.values()]


def _mean_row(rows: Sequence[ProfileRow]) -> ProfileRow:
    rows = [row for row in rows if row.source != "modelled"] or rows
    compute = [row.compute_seconds for row in rows if row.compute_seconds is not None]
    return replace(
        rows[0],
        step_seconds=fmean(row.step_seconds or 0.0 for row in rows),
        compute_seconds=fmean(compute) if compute else None,
    )


class ThroughputByPlacement(ProfiledThroughput["PlacementTable"]):
    """Answers by placement and local batch, interpolating between measured placements.

    After how the Pollux simulator reads its measurements (replay.md, the semantics of the Pollux simulator):

    - A placement is the GPUs per node in the order of the ring. Its rotations are the same; the smallest
      stands for all. A measured one answers linearly between its local batches.
    - Any other is interpolated linearly over (nodes, GPUs, local batch) on the Delaunay triangulation of the
      measured points: the means of the measured placements with as many nodes and GPUs, and the rows that
      state those numbers alone. Larger node counts are clamped to :data:`MOST_NODES`.
    - (a - 1) · t_proc is ``accum - 1`` times the part of the measured step without synchronisation.

    Local batches beyond the measured ones answer as the nearest one; outside the triangulation, None.
    """

    def __init__(
        self,
        profile: Profile,
        speeds: Mapping[str, float] | None = None,
        most_local: Mapping[str, int] | None = None,
        rescales_s: Mapping[str, float] | None = None,
    ) -> None:
        """:param most_local: largest local batches by model, below the measured ones.
        :param rescales_s: what a change of workers costs by model, instead of what was measured.
        :raises BadInputError: the profile has no training row.
        """
        super().__init__(profile, speeds, (row for row in profile.rows if row.feasible))
        self._most_local = dict(most_local or {})
        self._rescales_s = dict(rescales_s or {})
        # Largest local batches, by model and GPU type.
        self._limits: dict[tuple[str, str], int | None] = {}

    def rescale_seconds(self, model: str) -> float | None:
        seconds = self._rescales_s.get(model)
        return super().rescale_seconds(model) if seconds is None else seconds

    def load(self, models: Iterable[str], gpu_types: Iterable[str]) -> None:
        """Compile the tables of some models, so that the first question is as fast as later ones."""
        kinds = list(gpu_types)
        for model in sorted(set(models) & set(self.models())):
            for gpu_type in kinds:
                self.table(model, gpu_type)[0].load()

    def max_local_batch(self, model: str, gpu_type: str) -> int | None:
        key = model, gpu_type
        if key not in self._limits:
            limits = (*self.local_batches(model, gpu_type)[-1:], self._most_local.get(model))
            self._limits[key] = min((limit for limit in limits if limit is not None), default=None)
        return self._limits[key]

    def times(self, model: str, gpu_type: str, ring: Placement, local_batch: int) -> StepTimes | None:
        """Times of one micro-batch on the GPUs of ``ring``, in its order; None if unknown.

        :raises BadInputError: the model is not profiled.
        """
        table, factor = self.table(model, gpu_type)
        times = table.times(ring, local_batch)
        return times if times is None or factor == 1.0 else times.times(factor)

    def step_seconds(
        self, model: str, gpu_type: str, placement: Placement, global_batch: int, per_gpu_max: int | None
    ) -> float | None:
        gpus = sum(placement)
        if global_batch < gpus:
            return None
        local, accum = micro_steps(global_batch, gpus, local_limit(self, model, gpu_type, per_gpu_max))
        times = self.times(model, gpu_type, placement, local)
        return None if times is None else times.accumulated(accum)

    def _with(self, profile: Profile) -> Self:
        return type(self)(profile, self._speeds, self._most_local)

    def _make(self, model: str, gpu_type: str, rows: Sequence[ProfileRow]) -> PlacementTable:
        return PlacementTable(rows)


class PlacementTable:
    """Times of one model on one GPU type."""

    def __init__(self, rows: Iterable[ProfileRow]) -> None:
        self._rings: dict[Placement, Samples] = {}
        self._by_text: dict[str, Samples] = {}
        counted: list[tuple[Point, StepTimes]] = []
        grouped: dict[Point, list[StepTimes]] = {}
        local_batches: set[int] = set()
        for row in rows:
            if row.step_seconds is None or row.accum_steps != 1:
                continue
            times = StepTimes(row.step_seconds, row.sync_seconds or 0.0)
            point = (row.nodes, row.gpus, row.local_batch)
            if row.node_order is None and row.source == "imported":
                counted.append((point, times))
                continue
            self._samples_of(row.node_order or row.placement).append((row.local_batch, times))
            grouped.setdefault(point, []).append(times)
            local_batches.add(row.local_batch)
        # Of measured placements, ascending.
        self.local_batches: Sequence[int] = sorted(local_batches)
        for samples in self._rings.values():
            samples.sort()
        means = [(point, _mean_times(grouped[point])) for point in sorted(grouped)]
        self._scattered = [*means, *counted]
        self._known: dict[tuple[Placement, int], StepTimes | None] = {}
        # At points between the measured ones: many placements and local batches come to one point.
        self._interpolated: dict[Point, StepTimes | None] = {}

    def load(self) -> None:
        _ = self._triangulation

    @cached_property
    def _triangulation(self) -> Delaunay | None:
        """The triangulation of the measured points; None where they span no volume."""
        points = [point for point, _ in self._scattered]
        if len(points) < 5 or any(len(set(axis)) < 2 for axis in zip(*points, strict=True)):
            return None
        import numpy as np
        from scipy.spatial import Delaunay, QhullError

        try:
            return Delaunay(np.array(points, float))
        except QhullError:  # all on one plane
            return None

    def _samples_of(self, text: str) -> Samples:
        """The list for a placement as profiles write it."""
        samples = self._by_text.get(text)
        if samples is None:
            ring = smallest_rotation(tuple(map(int, text.split(","))))
            samples = self._by_text[text] = self._rings.setdefault(ring, [])
        return samples

    def times(self, ring: Placement, local_batch: int) -> StepTimes | None:
        """Times of one micro-batch of ``local_batch`` samples a GPU; None if unknown."""
        key = (ring, local_batch)
        if key not in self._known:
            self._known[key] = self._interpolate(smallest_rotation(ring), local_batch)
        return self._known[key]

    def _interpolate(self, ring: Placement, local_batch: int) -> StepTimes | None:
        samples = self._rings.get(ring)
        if samples is not None:
            return _between(samples, local_batch)
        local = local_batch
        if self.local_batches:
            local = min(max(local, self.local_batches[0]), self.local_batches[-1])
        point = min(len(ring), MOST_NODES), sum(ring), local
        if point not in self._interpolated:
            self._interpolated[point] = self._at(point)
        return self._interpolated[point]

    def _at(self, point: Point) -> StepTimes | None:
        """Times between the measured points; None outside of their hull.

        One point at a time: on a grid simplices overlap, and the search begins where the one before ended.
        """
        simplex = -1 if self._triangulation is None else int(self._triangulation.find_simplex(point))
        if self._triangulation is None or simplex < 0:
            return None
        corners = [self._scattered[corner] for corner in self._triangulation.simplices[simplex].tolist()]
        a, b, c, d = _weights(point, *(corner for corner, _ in corners))
        columns = zip(*(times for _, times in corners), strict=True)
        return StepTimes(*(a * p + b * q + c * r + d * s for p, q, r, s in columns))


def _weights(point: Point, p: Point, q: Point, r: Point, s: Point) -> tuple[float, float, float, float]:
    """Barycentric coordinates by Cramer's rule: unlike LAPACK's, the same digits on every machine."""
    a, b, c, (x, y, z) = (_minus(corner, s) for corner in (p, q, r, point))
    rows = _cross(b, c), _cross(c, a), _cross(a, b)
    volume = sum(u * v for u, v in zip(a, rows[0], strict=True))
    first, second, third = (u / volume * x + v / volume * y + w / volume * z for u, v, w in rows)
    return first, second, third, 1.0 - fsum((first, second, third))


def _minus(u: Point, v: Point) -> Point:
    return u[0] - v[0], u[1] - v[1], u[2] - v[2]


def _cross(u: Point, v: Point) -> Point:
    return u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0]


class StepTimes(NamedTuple):
    """Seconds of one step of one micro-batch."""

    step_seconds: float
    sync_seconds: float
    """The part that waits for the all-reduce."""

    def accumulated(self, micro_steps: int) -> float:
        """Seconds of an optimizer step of this many micro-steps."""
        return self.step_seconds + (self.step_seconds - self.sync_seconds) * (micro_steps - 1)

    def times(self, factor: float) -> StepTimes:
        return StepTimes(self.step_seconds * factor, self.sync_seconds * factor)


Samples = list[tuple[int, StepTimes]]
"""(local batch, times), ascending."""


@lru_cache(maxsize=4096)
def smallest_rotation(ring: Placement) -> Placement:
    """The rotation of a placement that stands for all its rotations."""
    return min(ring[turn:] + ring[:turn] for turn in range(len(ring)))


def _mean_times(all_times: list[StepTimes]) -> StepTimes:
    count = len(all_times)
    if count == 1:
        return all_times[0]
    return StepTimes(
        sum([times.step_seconds for times in all_times]) / count,
        sum([times.sync_seconds for times in all_times]) / count,
    )


def _between(samples: Samples, local_batch: int) -> StepTimes:
    (left, low), (right, high) = around(samples, local_batch)
    if left == right:
        return low
    return StepTimes(*(between(local_batch, left, a, right, b) for a, b in zip(low, high, strict=True)))


class MeasuredCurve:
    """Seconds by batch or by weights: linear between the points, which it goes through exactly."""

    def __init__(self, points: Iterable[tuple[int, float]]) -> None:
        self._points = sorted(points)

    @property
    def low(self) -> int:
        return self._points[0][0]

    @property
    def high(self) -> int:
        return self._points[-1][0]

    def inside(self, x: int) -> float:
        """The value at ``x``; outside the points, that of the nearest end."""
        (left, at_left), (right, at_right) = around(self._points, x)
        return at_left if left == right else between(x, left, at_left, right, at_right)

    def extended(self, x: int) -> float:
        """As :meth:`inside`; above the points in proportion to ``x``."""
        return self.inside(x) * max(1.0, x / self.high)


def around(points: Sequence[tuple[int, T]], x: int) -> tuple[tuple[int, T], tuple[int, T]]:
    """The neighbours of ``x`` among points of ascending x.

    At a point, and beyond the ends, both are the same. Of several points at one x the first counts.
    """
    after = bisect_left(points, x, key=_X)
    if after == len(points):
        return points[-1], points[-1]
    if after == 0 or points[after][0] == x:
        return points[after], points[after]
    return points[after - 1], points[after]


def between(x: float, left: float, at_left: float, right: float, at_right: float) -> float:
    """The line through two points at ``x``, clamped to their values against rounding."""
    value = at_left + (at_right - at_left) * ((x - left) / (right - left))
    return min(max(value, min(at_left, at_right)), max(at_left, at_right))
