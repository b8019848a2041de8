"""Step times by the number of GPUs: what was measured, and the additive model in between.

With b samples a GPU and micro-step on k GPUs, one optimizer step takes

    t(b, k, accum) = (accum - 1) · t_proc(b) + S(b, k)
    S(b, k) = t_proc(b) + t_comm(b, k)

after the job scalability analyzer of "Effective Elastic Scaling of Deep Learning Workloads" (Saxena et al.,
2020, section III-B; there accum is 1). A measured row wins over all of it; several rows of one placement and
local batch (rings in another order, repeated imports) are one, of their plain mean. Else, in this order:

- t_proc: linear between the local batches measured on one GPU; below the smallest no faster than there.
- S at a measured size: linear between its local batches; beyond them t_proc plus the overhead at the nearest.
- S between two measured sizes: linear in k at equal b (t_comm(b, 1) = 0).
- S beyond the largest measured size: t_proc plus a measured all-reduce of the model's weights; without
  one nothing is known, and nothing is claimed.

Departures from the paper: overhead is what measured steps took beyond computing (the neighbours'
interference included), an all-reduce only where there are none; shares beyond the largest probed batch are
accumulated rather than infeasible (Ares, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal

from pliant.schemas.profile import Profile, ProfileRow
from pliant.schemas.schedule import BatchPlan
from pliant.tools.profile.batch import plan_batch
from pliant.tools.profile.curve import Curve, between
from pliant.tools.profile.profiled import ProfiledThroughput
from pliant.tools.profile.rows import Key, key, shape
from pliant.tools.profile.throughput import Placement

Query = tuple[str, str, Placement, int, int | None]


class ThroughputBySize(ProfiledThroughput["SizeTable"]):
    """Answers from a profile, largely by the number of GPUs."""

    def __init__(self, profile: Profile, speeds: Mapping[str, float] | None = None) -> None:
        """:raises BadInputError: the profile has no training row."""
        super().__init__(profile, speeds, profile.rows)
        self._allreduce = allreduces(profile.rows)
        self._seconds: dict[Query, float | None] = {}

    def max_local_batch(self, model: str, gpu_type: str) -> int:
        """Largest number of samples known to fit one GPU of the type; 0: nothing was found to fit."""
        return self.table(model, gpu_type)[0].max_local

    def sizes(self, model: str, gpu_type: str) -> Sequence[int]:
        """Numbers of GPUs that were measured and fit a batch, ascending."""
        return sorted({row.gpus for row in self.rows_for(model, gpu_type)[0] if row.feasible})

    def step_seconds(
        self, model: str, gpu_type: str, placement: Placement, global_batch: int, per_gpu_max: int | None
    ) -> float | None:
        """Seconds of one optimizer step; see :class:`Throughput`."""
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
        """Where ``step_seconds`` has its answer from: a row of this very type and size, or the model.

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

    def _make(self, model: str, gpu_type: str, rows: Sequence[ProfileRow]) -> SizeTable:
        del model
        return SizeTable(rows, self._allreduce.get(gpu_type, AllReduce(())))


class AllReduce:
    """Seconds of an all-reduce by placement and weights."""

    def __init__(self, rows: Iterable[ProfileRow]) -> None:
        points: dict[Placement, dict[int, float]] = {}
        for row in _averaged(row for row in rows if row.feasible and row.step_seconds is not None):
            if row.step_seconds is not None and row.parameters:
                points.setdefault(shape(row), {})[row.parameters] = row.step_seconds
        self._curves = {place: Curve(by.items()) for place, by in points.items()}

    def seconds(self, place: Placement, weights: int) -> float | None:
        """Seconds for ``weights`` weights; None beyond the largest size that was measured."""
        return over_sizes(self._curves, place, lambda found: self._curves[found].costly(weights), alone=0.0)


def allreduces(rows: Iterable[ProfileRow]) -> dict[str, AllReduce]:
    """Those of all GPU types that have some."""
    by_type: dict[str, list[ProfileRow]] = {}
    for row in rows:
        if row.kind == "allreduce":
            by_type.setdefault(row.gpu_type, []).append(row)
    return {gpu_type: AllReduce(found) for gpu_type, found in by_type.items()}


class SizeTable:
    """What one model does on one GPU type, from its training rows."""

    def __init__(self, rows: Collection[ProfileRow], allreduce: AllReduce) -> None:
        good = _averaged(row for row in rows if row.feasible and row.step_seconds is not None)
        self.max_local = _largest_safe(rows)
        """Largest local batch that fits; 0: none does."""
        self._exact = {(shape(row), row.local_batch, row.accum_steps): row for row in good}
        self._compute = _compute_curve(good)
        self._curves = _curves(good, self._compute)
        self._allreduce = allreduce
        self._weights = max((row.parameters or 0 for row in rows), default=0)

    @property
    def local_batches(self) -> list[int]:
        """Local batches that were measured, ascending."""
        return sorted({local for _, local, _ in self._exact})

    def cut(self, place: Placement, global_batch: int, per_gpu_max: int | None) -> BatchPlan | None:
        """The batch as the workers get it; None: there is no such cut."""
        gpus = sum(place)
        cap = min(self.max_local, per_gpu_max or self.max_local)
        return plan_batch(global_batch, gpus, cap) if 0 < gpus <= global_batch and cap else None

    def measured(self, place: Placement, plan: BatchPlan) -> ProfileRow | None:
        """The row that says how long this takes, of the same placement or else the most similar."""
        found = _most_alike(self._curves, place).get(sum(place))
        return None if found is None else self._exact.get((found, plan.local, plan.accum))

    def seconds(self, place: Placement, plan: BatchPlan) -> float | None:
        """Seconds of one optimizer step; None where nothing is known."""
        row = self.measured(place, plan)
        if row is not None:
            return row.step_seconds
        last = self._last_micro_step(place, plan.local)
        if last is None or plan.accum == 1:
            return last
        return last + (plan.accum - 1) * (self._compute.costly(plan.local) if self._compute else last)

    def _last_micro_step(self, place: Placement, local: int) -> float | None:
        """S(b, k): one micro-step with synchronisation."""
        alone = self._compute.costly(local) if self._compute else None
        known = over_sizes(self._curves, place, lambda found: self._at(found, local), alone=alone)
        if known is not None or alone is None:
            return known
        sync = self._allreduce.seconds(place, self._weights) if self._weights else None
        return None if sync is None else alone + sync

    def _at(self, place: Placement, local: int) -> float:
        """S at a measured placement: within its local batches, or the overhead of the nearest beyond."""
        curve = self._curves[place]
        if self._compute is None:
            return curve.costly(local)
        if curve.low <= local <= curve.high:
            return curve.inside(local)
        edge = min(max(local, curve.low), curve.high)
        overhead = max(0.0, curve.inside(edge) - self._compute.costly(edge))
        return self._compute.costly(local) + overhead


def over_sizes(
    known: Iterable[Placement], place: Placement, at: Callable[[Placement], float], alone: float | None
) -> float | None:
    """A value at a placement: at the most similar one of the size, else linear between the sizes around it.

    :param known: placements that have a value.
    :param alone: the value on one GPU, where that is known without a placement of that size.
    :returns: None beyond what is known.
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
    """By number of GPUs, the placement most like the wanted one: of as many nodes first, else of more."""

    def unlike(place: Placement) -> tuple[int, int, Placement]:
        return abs(len(place) - len(wanted)), -len(place), place

    return {sum(place): place for place in sorted(known, key=unlike, reverse=True)}


def _averaged(rows: Iterable[ProfileRow]) -> list[ProfileRow]:
    """Rows that measure the same as one, of their mean times.

    Each counts once, however many iterations it is of; modelled ones only where there is nothing else.
    """
    groups: dict[Key, list[ProfileRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [found[0] if len(found) == 1 else _mean(found) for found in groups.values()]


def _mean(rows: Sequence[ProfileRow]) -> ProfileRow:
    rows = [row for row in rows if row.source != "modelled"] or rows
    compute = [row.compute_seconds for row in rows if row.compute_seconds is not None]
    return replace(
        rows[0],
        step_seconds=fmean(row.step_seconds or 0.0 for row in rows),
        compute_seconds=fmean(compute) if compute else None,
    )


def _largest_safe(rows: Iterable[ProfileRow]) -> int:
    fits = {row.local_batch for row in rows if row.feasible}
    misfits = [row.local_batch for row in rows if not row.feasible]
    ceiling = min(misfits, default=None)
    return max((batch for batch in fits if ceiling is None or batch < ceiling), default=0)


def _compute_curve(rows: Sequence[ProfileRow]) -> Curve | None:
    """t_proc: from rows of one GPU, else from the share of computing in rows of several."""
    alone = [row for row in rows if row.gpus == 1]
    points: dict[int, float] = {}
    for row in sorted(alone, key=lambda row: -row.accum_steps):
        points[row.local_batch] = (row.step_seconds or 0.0) / row.accum_steps
    if not points:
        shares: dict[int, list[float]] = {}
        for row in rows:
            if row.compute_seconds:
                shares.setdefault(row.local_batch, []).append(row.compute_seconds / row.accum_steps)
        points = {batch: sum(found) / len(found) for batch, found in shares.items()}
    return Curve(points.items()) if points else None


def _curves(rows: Sequence[ProfileRow], compute: Curve | None) -> Mapping[Placement, Curve]:
    """S by placement; of rows with accumulation the micro-steps before the last are taken off."""
    points: dict[Placement, dict[int, float]] = {}
    for row in sorted(rows, key=lambda row: -row.accum_steps):
        step_s, accum = row.step_seconds or 0.0, row.accum_steps
        before = (accum - 1) * (compute.costly(row.local_batch) if compute else step_s / accum)
        points.setdefault(shape(row), {})[row.local_batch] = max(step_s / accum, step_s - before)
    return {place: Curve(by.items()) for place, by in points.items()}
