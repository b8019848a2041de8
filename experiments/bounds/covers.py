"""What every run of a job has to take, as the dual bound sees it: covers.

A cover is a pair (γ, W) with ∫ γ(k(t)) dt ≥ W for every way in which the job can run to its end on k(t) GPUs.
A job whose rates do not change with progress has one: its rates, and its work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

RATIOS: Final = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Prices of a GPU for which :func:`covers_of` weighs the parts of a job's work."""


@dataclass(frozen=True, eq=False)
class Cover:
    """∫ γ(k) dt ≥ W for every run of a job."""

    rates: Floats
    """[size] γ: progress per second on 0, 1, … GPUs; the first is 0."""
    work: float


@dataclass(frozen=True)
class BoundJob:
    """One job; jobs that share the very tuple of covers are computed together."""

    release_s: float
    covers: tuple[Cover, ...]


def covers_of(
    rates: Floats, work: Sequence[float] | Floats, ratios: Iterable[float] = RATIOS
) -> tuple[Cover, ...]:
    """Covers of a job whose work comes in parts that train at different rates.

    In whatever order and on whatever GPUs it runs, part e takes work[e] of ∫ rates[e](k) dt. So for all
    u ≥ 0, γ(k) = max over e of u[e] rates[e](k) and W = Σ u[e] work[e] are a cover. u[e] is what a unit of
    the part costs at its cheapest size where a GPU costs ``ratio`` for each second that counts 1.

    :param rates: [part, size], 0 on 0 GPUs and where a part cannot run.
    """
    sizes = np.arange(rates.shape[1])
    found = []
    for ratio in ratios:
        with np.errstate(divide="ignore"):
            weights = ((1.0 + ratio * sizes) / rates)[:, 1:].min(axis=1)
        found.append(Cover((weights[:, None] * rates).max(axis=0), float(weights @ np.asarray(work))))
    return tuple(found)


def concave_hull(rates: Floats) -> tuple[Ints, Floats]:
    """Corners of the concave hull over (size, rate), up to the size of the largest rate."""
    corners = [(0, 0.0)]
    for size in range(1, int(rates.argmax()) + 1):
        point = (size, float(rates[size]))
        while len(corners) > 1 and _is_under(corners[-2], corners[-1], point):
            corners.pop()
        if point[1] > corners[-1][1]:
            corners.append(point)
    sizes, heights = zip(*corners, strict=True)
    return np.array(sizes, dtype=np.int64), np.array(heights)


def _is_under(left: tuple[int, float], middle: tuple[int, float], right: tuple[int, float]) -> bool:
    rise, run = right[1] - left[1], right[0] - left[0]
    return (middle[1] - left[1]) * run <= rise * (middle[0] - left[0])
