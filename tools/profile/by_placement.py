"""Step times by placement and local batch, interpolated from measurements: :class:`ThroughputByPlacement`.

After how the Pollux simulator reads its measurements (replay.md, the semantics of the Pollux simulator):

- A placement is the GPUs per node in the order of the ring; rotations of it are the same, the smallest stands
  for all. A measured one answers linearly between its local batches.
- Any other is interpolated linearly over (nodes, GPUs, local batch), between the means of the measured
  placements with as many nodes and GPUs and the rows that state those numbers alone, on the Delaunay
  triangulation of these points. Larger node counts are clamped to :data:`MOST_NODES`.
- A step with ``accum`` micro-steps takes the measured step and ``accum - 1`` times its part without sync.

Local batches beyond the measured ones are answered as the nearest measured one. Outside of the triangulation
nothing is known, and nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.batch import plan_batch
from pliant.tools.profile.curve import around, between
from pliant.tools.profile.profiled import ProfiledThroughput
from pliant.tools.profile.rows import training_rows
from pliant.tools.profile.simplices import Point, Simplices
from pliant.tools.profile.throughput import Placement, local_limit

MOST_NODES: Final = 16
"""Larger node counts are clamped to this value."""


class StepTimes(NamedTuple):
    """One measured step of one micro-batch, seconds."""

    step_seconds: float
    sync_seconds: float
    """The part that waits for the all-reduce."""

    def accumulated(self, micro_steps: int) -> float:
        """Seconds of an optimizer step of N micro-steps, 1 without accumulation."""
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


class ThroughputByPlacement(ProfiledThroughput[PlacementTable]):
    """The throughput model that tells placements apart; what it answers is said in ``throughput.py``."""

    def __init__(
        self,
        profile: Profile,
        speeds: Mapping[str, float] | None = None,
        most_local: Mapping[str, int] | None = None,
    ) -> None:
        """``most_local``: largest local batches by model, smaller than the measured ones.

        :raises BadInputError: the profile has no training row.
        """
        super().__init__(profile, speeds, (row for row in profile.rows if row.feasible))
        self._most_local = dict(most_local or {})
        self._metadata = dict(profile.metadata)

    def load(self, models: Iterable[str], gpu_types: Iterable[str]) -> None:
        """Compile the tables of some models, so that the first question costs what others do."""
        kinds = list(gpu_types)
        for model in sorted(set(models) & set(self.models())):
            for gpu_type in kinds:
                self.table(model, gpu_type)[0].load()

    def max_local_batch(self, model: str, gpu_type: str) -> int | None:
        """Largest number of samples known to fit one GPU of the type."""
        limits = (*self.local_batches(model, gpu_type)[-1:], self._most_local.get(model))
        return min((limit for limit in limits if limit is not None), default=None)

    def times(self, model: str, gpu_type: str, ring: Placement, local_batch: int) -> StepTimes | None:
        """Of one micro-batch on the GPUs of ``ring``, a placement in the order of the ring.

        None: nothing is known. Raises ``BadInputError`` for a model that is not known.
        """
        table, factor = self.table(model, gpu_type)
        found = table.times(ring, local_batch)
        return found if found is None or factor == 1.0 else found.times(factor)

    def step_seconds(
        self, model: str, gpu_type: str, placement: Placement, global_batch: int, per_gpu_max: int | None
    ) -> float | None:
        """Seconds of one optimizer step, the batch cut evenly; None: infeasible or not known."""
        gpus = sum(placement)
        if global_batch < gpus:
            return None
        plan = plan_batch(global_batch, gpus, local_limit(self, model, gpu_type, per_gpu_max))
        found = self.times(model, gpu_type, placement, plan.local)
        return None if found is None else found.accumulated(plan.accum)

    def _make(self, model: str, gpu_type: str, rows: Sequence[ProfileRow]) -> PlacementTable:
        return PlacementTable(rows, self._metadata.get(_key(model, gpu_type), ""))


def with_triangulations(profile: Profile) -> Profile:
    """The profile with the triangulations of its rows in its metadata, so that they are found only once."""
    groups = training_rows(row for row in profile.rows if row.feasible)
    made = (
        (_key(model, gpu_type), PlacementTable(groups[model][gpu_type]).triangulation)
        for model in sorted(groups)
        for gpu_type in sorted(groups[model])
    )
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
    (left, low), (right, high) = around(samples, local_batch)
    if left == right:
        return low
    return StepTimes(*(between(local_batch, left, a, right, b) for a, b in zip(low, high, strict=True)))
