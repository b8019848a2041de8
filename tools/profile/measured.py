"""The throughput model made from a profile: measured rows first, the additive model between them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.by_size import AllReduce, SizeTable
from pliant.tools.profile.costs import mean_rescale
from pliant.tools.profile.rows import key, shape
from pliant.tools.profile.stand_in import stand_in
from pliant.tools.profile.throughput import CurveThroughput, Placement, Throughput

Query = tuple[str, str, Placement, int, int | None]


def throughput_from(profile: Profile | None, cluster: Cluster) -> Throughput:
    """The model for a cluster; without a profile every job scales linearly from 1 sample per GPU-second.

    Either way the cluster's relative speeds of its GPU types count.

    :raises BadInputError: the profile has no training row.
    """
    return (
        CurveThroughput(speeds=cluster.speeds)
        if profile is None
        else ThroughputBySize(profile, cluster.speeds)
    )


class ThroughputBySize:
    """Answers from a profile; how is said in ``steptable.py``.

    A GPU type that a model was not measured on answers as the type with most rows of that model does, its
    times multiplied by the ratio of the relative speeds (1 where none is given).
    """

    def __init__(self, profile: Profile, speeds: Mapping[str, float] | None = None) -> None:
        """:raises BadInputError: the profile has no training row."""
        self._speeds = dict(speeds or {})
        self._rows: dict[str, dict[str, list[ProfileRow]]] = {}
        for row in profile.rows:
            if row.kind == "train":
                self._rows.setdefault(row.model, {}).setdefault(row.gpu_type, []).append(row)
        if not self._rows:
            raise BadInputError.one(
                profile.source, "has no training rows; measure some with `pliant profile`"
            )
        self._allreduce = _allreduces(profile.rows)
        self._tables: dict[tuple[str, str], tuple[SizeTable, float]] = {}
        self._seconds: dict[Query, float | None] = {}

    def models(self) -> Collection[str]:
        """Models with training rows."""
        return self._rows.keys()

    def max_local_batch(self, model: str, gpu_type: str) -> int:
        """Largest number of samples known to fit one GPU of the type; 0: nothing was found to fit."""
        return self._table(model, gpu_type)[0].max_local

    def local_batches(self, model: str, gpu_type: str) -> Sequence[int]:
        """Local batches that were measured, ascending."""
        return self._table(model, gpu_type)[0].local_batches

    def sizes(self, model: str, gpu_type: str) -> Sequence[int]:
        """Numbers of GPUs that were measured and fit a batch, ascending."""
        by_type = self._rows[model]
        known = stand_in({name: len(rows) for name, rows in by_type.items()}, gpu_type)
        return sorted({row.gpus for row in by_type[known] if row.feasible})

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

    def rescale_seconds(self, model: str) -> float | None:
        """The mean of the model's rows, or of all rows where none of the model tells; None: none tells."""
        return mean_rescale(self._rows, model)

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
        table = self._table(model, gpu_type)[0]
        plan = table.cut(placement, global_batch, per_gpu_max)
        row = None if plan is None else table.measured(placement, plan)
        same = row is not None and row.gpu_type == gpu_type and shape(row) == placement
        return "measured" if same and row is not None and row.source != "modelled" else "modelled"

    def _answer(self, query: Query) -> float | None:
        model, gpu_type, placement, global_batch, per_gpu_max = query
        table, factor = self._table(model, gpu_type)
        plan = table.cut(placement, global_batch, per_gpu_max)
        seconds = None if plan is None else table.seconds(placement, plan)
        return None if seconds is None else seconds * factor

    def _table(self, model: str, gpu_type: str) -> tuple[SizeTable, float]:
        """The table that answers for a GPU type, and the factor on its times."""
        found = self._tables.get((model, gpu_type))
        if found is None:
            found = self._tables[model, gpu_type] = self._make(model, gpu_type)
        return found

    def _make(self, model: str, gpu_type: str) -> tuple[SizeTable, float]:
        by_type = self._rows.get(model)
        if by_type is None:
            raise BadInputError(_unprofiled(model, self._rows))
        known = stand_in({name: len(rows) for name, rows in by_type.items()}, gpu_type)
        table = SizeTable(by_type[known], self._allreduce.get(known, AllReduce(())))
        return table, self._speeds.get(known, 1.0) / self._speeds.get(gpu_type, 1.0)


@dataclass(frozen=True, slots=True)
class HoldOut:
    """A measured row and what the model says of it without having seen it."""

    row: ProfileRow
    predicted_s: float

    @property
    def error(self) -> float:
        """Relative error: 0.1 means predicted 10 % slower than measured."""
        return self.predicted_s / (self.row.step_seconds or self.predicted_s) - 1.0


def holdout_errors(profile: Profile) -> list[HoldOut]:
    """The model's error on each measured row of several GPUs, left out one at a time.

    With a row all others are left out that measure the same. Rows of which nothing can be told without them
    (the only one beyond one GPU) are not in the list.
    """
    found = []
    allreduces = _allreduces(profile.rows)
    for group in _groups(profile.rows):
        allreduce = allreduces.get(group[0].gpu_type, AllReduce(()))
        for row in group:
            if row.gpus > 1 and row.feasible and row.source == "measured":
                predicted = _without(row, group, allreduce)
                found += [] if predicted is None else [HoldOut(row, predicted)]
    return found


Spread = tuple[float, float]
"""The smallest and the largest relative error of a model, as :attr:`HoldOut.error`."""


def spreads(profile: Profile) -> dict[tuple[str, str], Spread]:
    """The spread of the model's errors on held-out rows, by model and GPU type; 0 is always within."""
    errors: dict[tuple[str, str], list[float]] = {}
    for found in holdout_errors(profile):
        errors.setdefault((found.row.model, found.row.gpu_type), []).append(found.error)
    return {kind: (min(0.0, *each), max(0.0, *each)) for kind, each in errors.items()}


def _without(row: ProfileRow, group: Collection[ProfileRow], allreduce: AllReduce) -> float | None:
    table = SizeTable([other for other in group if key(other) != key(row)], allreduce)
    plan = table.cut(shape(row), row.gpus * row.local_batch * row.accum_steps, row.local_batch)
    return None if plan is None else table.seconds(shape(row), plan)


def _groups(rows: Iterable[ProfileRow]) -> list[list[ProfileRow]]:
    groups: dict[tuple[str, str], list[ProfileRow]] = {}
    for row in rows:
        if row.kind == "train":
            groups.setdefault((row.model, row.gpu_type), []).append(row)
    return [groups[name] for name in sorted(groups)]


def _allreduces(rows: Iterable[ProfileRow]) -> dict[str, AllReduce]:
    by_type: dict[str, list[ProfileRow]] = {}
    for row in rows:
        if row.kind == "allreduce":
            by_type.setdefault(row.gpu_type, []).append(row)
    return {gpu_type: AllReduce(found) for gpu_type, found in by_type.items()}


def _unprofiled(model: str, known: Collection[str]) -> str:
    names = sorted(known)
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return f"model '{model}' is not in the profile (it has: {shown}); measure it with `pliant profile`"
