"""What changes of the workers cost, as the rows of a profile have it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import fmean

from pliant.schemas.profile import ProfileRow


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
