"""Two jobs on the same GPUs: what a profile says of their speeds and of their memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from statistics import fmean
from typing import Final, Literal, NamedTuple

from pliant.schemas.profile import ProfileRow
from pliant.tools.profile.rows import shape
from pliant.tools.profile.throughput import Placement


class Load(NamedTuple):
    """What one job does to each of its GPUs."""

    model: str
    local_batch: int
    """Samples per GPU and micro-step."""


Parts = tuple[float, float]
"""Of the speed that each of two jobs has alone, what it keeps beside the other."""
_Pair = tuple[str, Load, Load]
"""GPU type, a job, and the job beside it."""


class PairTable:
    """What was measured of pairs, and of the memory that jobs take alone.

    Both jobs of a pair have their batches; of another placement than those measured, their mean holds.
    """

    def __init__(self, rows: Collection[ProfileRow] = ()) -> None:
        alone = {
            (row.gpu_type, shape(row), Load(row.model, row.local_batch)): row.samples_per_second
            for row in rows
            if row.kind == "train" and row.feasible and row.accum_steps == 1
        }
        self._parts: dict[_Pair, dict[Placement, float | None]] = {}
        for row in rows:
            if row.kind == "pair":
                load, place = Load(row.model, row.local_batch), shape(row)
                beside = Load(row.beside_model or "", row.beside_batch or 0)
                part = _part(row.samples_per_second, alone.get((row.gpu_type, place, load)))
                if part is not None or not row.feasible:
                    self._parts.setdefault((row.gpu_type, load, beside), {})[place] = part
        self._memory = _memory(rows)

    def measured(self, first: Load, second: Load, gpu_type: str, place: Placement) -> Parts | Unknown | None:
        """What each keeps; None: they do not fit the GPU's memory together; ``UNKNOWN``: not measured."""
        found = [self._parts.get((gpu_type, *order)) for order in ((first, second), (second, first))]
        parts = [_at(each, place) for each in found if each]
        if len(parts) < len(found):
            return UNKNOWN
        one, other = parts
        return None if one is None or other is None else (one, other)

    def memory(self, load: Load, gpu_type: str) -> int | None:
        """Most bytes that the job takes of one GPU alone, by the next batch measured; None: unknown."""
        known = self._memory.get((load.model, gpu_type), {})
        batch = min((batch for batch in known if batch >= load.local_batch), default=None)
        return None if batch is None else known[batch]


Unknown = Literal["unknown"]
UNKNOWN: Final[Unknown] = "unknown"


def _part(beside: float | None, alone: float | None) -> float | None:
    """No job is faster for company: what noise adds to its speed is left out."""
    return min(1.0, beside / alone) if beside and alone else None


def _at(parts: dict[Placement, float | None], place: Placement) -> float | None:
    if place in parts:
        return parts[place]
    known = [part for part in parts.values() if part is not None]
    return fmean(known) if len(known) == len(parts) else None


def _memory(rows: Iterable[ProfileRow]) -> dict[tuple[str, str], dict[int, int]]:
    found: dict[tuple[str, str], dict[int, int]] = {}
    for row in rows:
        if row.kind == "train" and row.peak_memory:
            by_batch = found.setdefault((row.model, row.gpu_type), {})
            by_batch[row.local_batch] = max(row.peak_memory, by_batch.get(row.local_batch, 0))
    return found
