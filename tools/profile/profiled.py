"""What both throughput models share that are made from a profile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from pliant.schemas.errors import BadInputError
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.rows import mean_rescale, training_rows
from pliant.tools.profile.throughput import stand_in


class Table(Protocol):
    """What one model does on one GPU type."""

    @property
    def local_batches(self) -> Sequence[int]:
        """Local batches that were measured, ascending."""
        ...


AnyTable = TypeVar("AnyTable", bound=Table)


class ProfiledThroughput(ABC, Generic[AnyTable]):
    """Answers from tables, one for each model and GPU type, made when they are first needed.

    A GPU type that a model was not measured on answers as the type with most rows of that model does, its
    times multiplied by the ratio of the relative speeds (1 where none is given).
    """

    def __init__(
        self, profile: Profile, speeds: Mapping[str, float] | None, rows: Iterable[ProfileRow]
    ) -> None:
        """``rows``: those of the profile that count.

        :raises BadInputError: none of them is a training row.
        """
        self._speeds = dict(speeds or {})
        self._profile = profile
        self._rows = training_rows(rows)
        if not self._rows:
            raise BadInputError.one(
                profile.source, "has no training rows; measure some with `pliant profile`"
            )
        self._tables: dict[tuple[str, str], tuple[AnyTable, float]] = {}

    def models(self) -> Collection[str]:
        """Models with training rows."""
        return self._rows.keys()

    def local_batches(self, model: str, gpu_type: str) -> Sequence[int]:
        """Local batches that were measured, ascending."""
        return self.table(model, gpu_type)[0].local_batches

    def rescale_seconds(self, model: str) -> float | None:
        """The mean of the model's rows, or of all rows where the model has none; None: there is none."""
        return mean_rescale(self._rows, model)

    def profile_rows(self) -> Collection[ProfileRow]:
        """All rows of the profile."""
        return self._profile.rows

    def table(self, model: str, gpu_type: str) -> tuple[AnyTable, float]:
        """The table that answers for a GPU type, and the factor on its times.

        :raises BadInputError: the model is not profiled.
        """
        found = self._tables.get((model, gpu_type))
        if found is None:
            rows, known = self.rows_for(model, gpu_type)
            factor = self._speeds.get(known, 1.0) / self._speeds.get(gpu_type, 1.0)
            found = self._tables[model, gpu_type] = self._make(model, known, rows), factor
        return found

    def rows_for(self, model: str, gpu_type: str) -> tuple[Sequence[ProfileRow], str]:
        """The rows that answer for a GPU type, and the type that they were measured on.

        :raises BadInputError: the model is not profiled.
        """
        by_type = self._rows.get(model)
        if by_type is None:
            raise BadInputError(_unprofiled(model, self._rows))
        known = stand_in({name: len(rows) for name, rows in by_type.items()}, gpu_type)
        return by_type[known], known

    @abstractmethod
    def _make(self, model: str, gpu_type: str, rows: Sequence[ProfileRow]) -> AnyTable:
        """The table of the rows of a model on a type that it was measured on."""


def _unprofiled(model: str, known: Collection[str]) -> str:
    names = sorted(known)
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return f"model '{model}' is not in the profile (it has: {shown}); measure it with `pliant profile`"
