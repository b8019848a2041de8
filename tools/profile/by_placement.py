"""Step times by placement and local batch, interpolated from measurements: :class:`ThroughputByPlacement`.

After how the Pollux simulator reads its measurements (replay.md, the semantics of the Pollux simulator):

- A placement is the GPUs per node in the order of the ring; rotations of it are the same, the smallest stands
  for all. A measured one answers linearly between its local batches.
- Any other is interpolated linearly over (nodes, GPUs, local batch), between the means of the measured
  placements with as many nodes and GPUs and the rows that state those numbers alone, on the Delaunay
  triangulation of these points. Beyond :data:`MOST_NODES` nodes are counted as so many.
- A step with ``accum`` micro-steps takes the measured step and ``accum - 1`` times its part without sync.

Local batches beyond the measured ones are answered as the nearest measured one. Outside of the triangulation
nothing is known, and nothing is claimed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from pliant.schemas.errors import BadInputError
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.batch import plan_batch
from pliant.tools.profile.costs import mean_rescale
from pliant.tools.profile.simplices import Point, Simplices
from pliant.tools.profile.stand_in import stand_in
from pliant.tools.profile.throughput import Placement

MOST_NODES: Final = 16
"""More nodes than that are counted as so many."""


class StepTimes(NamedTuple):
    """One measured step of one micro-batch, seconds."""

    step_seconds: float
    sync_seconds: float
    """The part that waits for the all-reduce."""

    def accumulated(self, micro_steps: int) -> float:
        """Seconds of an optimizer step of so many micro-steps, 1 without accumulation."""
        return self.step_seconds + (self.step_seconds - self.sync_seconds) * (micro_steps - 1)

    def times(self, factor: float) -> StepTimes:
        """On a type of GPU that takes ``factor`` times as long."""
        return StepTimes(self.step_seconds * factor, self.sync_seconds * factor)


Samples = list[tuple[int, StepTimes]]
"""(local batch, times), ascending."""


def smallest_rotation(ring: Placement) -> Placement:
    """The rotation of a placement that stands for all of them."""
    return min(ring[turn:] + ring[:turn] for turn in range(len(ring)))


class PlacementTable:
    """Times of one model on one GPU type."""

    def __init__(self, rows: Iterable[ProfileRow], triangulation: str = "") -> None:
        """``triangulation``: what :attr:`triangulation` was for the same rows."""
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
        self.local_batches: Sequence[int] = sorted(local_batches)
        """Local batches of measured placements, ascending."""
        for samples in self._rings.values():
            samples.sort()
        means = [(point, _mean(grouped[point])) for point in sorted(grouped)]
        points, values = zip(*means, *counted, strict=True) if means or counted else ((), ())
        self._simplices = Simplices(points, values, triangulation)
        self._known: dict[tuple[Placement, int], StepTimes | None] = {}

    def load(self) -> None:
        """Make ready all that is between the measured placements."""
        self._simplices.load()

    @property
    def triangulation(self) -> str:
        """The triangulation between the rows, as text."""
        return self._simplices.text()

    def _samples_of(self, text: str) -> Samples:
        """The list for a placement as profiles write it."""
        found = self._by_text.get(text)
        if found is None:
            ring = smallest_rotation(tuple(map(int, text.split(","))))
            found = self._by_text[text] = self._rings.setdefault(ring, [])
        return found

    def times(self, ring: Placement, local_batch: int) -> StepTimes | None:
        """Of one micro-batch of ``local_batch`` samples a GPU; None: nothing is known."""
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
        found = self._simplices.at((min(len(ring), MOST_NODES), sum(ring), local))
        return None if found is None else StepTimes(*found)


class ThroughputByPlacement:
    """The throughput model that tells placements apart; what it answers is said in ``throughput.py``.

    A GPU type that a model was not measured on answers as the type with most rows of that model does, its
    times multiplied by the ratio of the relative speeds (1 where none is given).
    """

    def __init__(
        self,
        profile: Profile,
        speeds: Mapping[str, float] | None = None,
        most_local: Mapping[str, int] | None = None,
    ) -> None:
        """``most_local``: largest local batches by model, smaller than the measured ones.

        :raises BadInputError: the profile has no training row.
        """
        self._speeds = dict(speeds or {})
        self._most_local = dict(most_local or {})
        self._rows: dict[str, dict[str, list[ProfileRow]]] = {}
        for row in profile.rows:
            if row.kind == "train" and row.feasible:
                self._rows.setdefault(row.model, {}).setdefault(row.gpu_type, []).append(row)
        if not self._rows:
            raise BadInputError.one(
                profile.source, "has no training rows; measure some with `pliant profile`"
            )
        self._metadata = dict(profile.metadata)
        self._tables: dict[tuple[str, str], tuple[PlacementTable, float]] = {}

    def load(self, models: Iterable[str], gpu_types: Iterable[str]) -> None:
        """Compile the tables of some models, so that the first question costs what others do."""
        kinds = list(gpu_types)
        for model in sorted(set(models) & self._rows.keys()):
            for gpu_type in kinds:
                self._table(model, gpu_type)[0].load()

    def models(self) -> Collection[str]:
        """Models with training rows."""
        return self._rows.keys()

    def max_local_batch(self, model: str, gpu_type: str) -> int | None:
        """Largest number of samples known to fit one GPU of the type."""
        limits = (*self.local_batches(model, gpu_type)[-1:], self._most_local.get(model))
        return min((limit for limit in limits if limit is not None), default=None)

    def local_batches(self, model: str, gpu_type: str) -> Sequence[int]:
        """Local batches of measured placements, ascending."""
        return self._table(model, gpu_type)[0].local_batches

    def times(self, model: str, gpu_type: str, ring: Placement, local_batch: int) -> StepTimes | None:
        """Of one micro-batch on the GPUs of ``ring``, a placement in the order of the ring.

        None: nothing is known. Raises ``BadInputError`` for a model that is not known.
        """
        table, factor = self._table(model, gpu_type)
        found = table.times(ring, local_batch)
        return found if found is None or factor == 1.0 else found.times(factor)

    def step_seconds(
        self, model: str, gpu_type: str, placement: Placement, global_batch: int, per_gpu_max: int | None
    ) -> float | None:
        """Seconds of one optimizer step, the batch cut evenly; None: infeasible or not known."""
        gpus = sum(placement)
        if global_batch < gpus:
            return None
        limits = (self.max_local_batch(model, gpu_type), per_gpu_max)
        most = min((limit for limit in limits if limit is not None), default=None)
        plan = plan_batch(global_batch, gpus, most)
        found = self.times(model, gpu_type, placement, plan.local)
        return None if found is None else found.accumulated(plan.accum)

    def rescale_seconds(self, model: str) -> float | None:
        """The mean of the model's rows, or of all rows where none of the model tells; None: none tells."""
        return mean_rescale(self._rows, model)

    def _table(self, model: str, gpu_type: str) -> tuple[PlacementTable, float]:
        found = self._tables.get((model, gpu_type))
        if found is None:
            found = self._tables[model, gpu_type] = self._make(model, gpu_type)
        return found

    def _make(self, model: str, gpu_type: str) -> tuple[PlacementTable, float]:
        by_type = self._rows.get(model)
        if by_type is None:
            raise BadInputError(f"model '{model}' is not in the profile; measure it with `pliant profile`")
        known = stand_in({name: len(rows) for name, rows in by_type.items()}, gpu_type)
        table = PlacementTable(by_type[known], self._metadata.get(_key(model, known), ""))
        return table, self._speeds.get(known, 1.0) / self._speeds.get(gpu_type, 1.0)


def with_triangulations(profile: Profile) -> Profile:
    """The profile with the triangulations of its rows in its metadata, so that they are found only once."""
    groups: dict[tuple[str, str], list[ProfileRow]] = {}
    for row in profile.rows:
        if row.kind == "train" and row.feasible:
            groups.setdefault((row.model, row.gpu_type), []).append(row)
    made = ((_key(*names), PlacementTable(groups[names]).triangulation) for names in sorted(groups))
    found = tuple((key, text) for key, text in made if text)
    return Profile(profile.rows, (*profile.metadata, *found))


def _key(model: str, gpu_type: str) -> str:
    return f"triangulation of {model} on {gpu_type}"


def _mean(found: list[StepTimes]) -> StepTimes:
    count = len(found)
    if count == 1:
        return found[0]
    return StepTimes(
        sum([times.step_seconds for times in found]) / count,
        sum([times.sync_seconds for times in found]) / count,
    )


def _between(samples: Samples, local_batch: int) -> StepTimes:
    """Linear between the neighbours; beyond them the nearest."""
    after = bisect_left(samples, local_batch, key=lambda sample: sample[0])
    if after == len(samples):
        return samples[-1][1]
    right, high = samples[after]
    if right == local_batch or after == 0:
        return high
    left, low = samples[after - 1]
    part = (local_batch - left) / (right - left)
    return StepTimes(*(a + (b - a) * part for a, b in zip(low, high, strict=True)))
