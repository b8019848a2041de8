"""What profile rows measure: their keys, one fixed order, and the costs of changes that they state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import fmean
from typing import Final

from pliant.schemas.profile import ProfileRow
from pliant.tools.profile.throughput import Placement

BUSY: Final = 0.1
"""A ``busy_share`` above which a row is that of a busy machine."""
Key = tuple[str, str, str, Placement, int, int, int, str, int]


def shape(row: ProfileRow) -> Placement:
    """GPUs per node of a row, descending."""
    return tuple(int(part) for part in row.placement.split(","))


def key(row: ProfileRow) -> Key:
    """What a row measures; two rows of one key contradict each other."""
    weights = row.parameters or 0 if row.kind == "allreduce" else 0
    beside = row.beside_model or "", row.beside_batch or 0
    return (row.kind, row.model, row.gpu_type, shape(row), row.local_batch, row.accum_steps, weights, *beside)


def merged(old: Iterable[ProfileRow], new: Iterable[ProfileRow]) -> tuple[ProfileRow, ...]:
    """All rows, a new one instead of an old one of the same key; ordered by key, training rows last."""
    rows = {key(row): row for row in (*old, *new)}
    return tuple(rows[found] for found in sorted(rows))


def training_rows(rows: Iterable[ProfileRow]) -> dict[str, dict[str, list[ProfileRow]]]:
    """The rows of training steps by model and GPU type."""
    found: dict[str, dict[str, list[ProfileRow]]] = {}
    for row in rows:
        if row.kind == "train":
            found.setdefault(row.model, {}).setdefault(row.gpu_type, []).append(row)
    return found


def by_model(
    rows: Iterable[ProfileRow], seconds_of: Callable[[ProfileRow], float | None]
) -> dict[str, list[float]]:
    """What was measured of each model; those without a measurement are absent."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if (seconds := seconds_of(row)) is not None:
            found.setdefault(row.model, []).append(seconds)
    return found


def rescales(rows: Iterable[ProfileRow]) -> dict[str, list[float]]:
    """Seconds by model that a change of its workers costs a job that trains.

    In place, where that was measured; a model that was only measured alone is relaunched.
    """
    kept = tuple(rows)
    in_place = by_model(kept, lambda row: row.rescale_seconds)
    return {**by_model(kept, lambda row: row.relaunch_seconds), **in_place}


def mean_rescale(rows: Mapping[str, Mapping[str, Iterable[ProfileRow]]], model: str) -> float | None:
    """The mean over what was measured of the model, or else over all; None: nothing was.

    :param rows: by model and GPU type.
    """
    found = rescales(row for by_type in rows.values() for each in by_type.values() for row in each)
    known = found.get(model) or [seconds for each in found.values() for seconds in each]
    return fmean(known) if known else None
