"""Fractions of time on each GPU type that make the least gain as large as it can be: linear programs.

Jobs that gain alike get alike, so the program has a row for each kind of job and not for each job. After the
first program water-filling goes on: kinds that no solution can give more are fixed at their level, and the
next program raises the others. The outcome is max-min fair: no job gains more without one that gains less, or
as little, losing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import csc_array

Floats = npt.NDArray[np.float64]
Fractions = tuple[float, ...]
"""Parts of the time on each GPU type; together at most 1."""
_BINDING: Final = 1e-7
"""Prices below this come from rounding."""
_SLACK: Final = 1e-6
"""Part of its level that a fixed kind may lose, so that rounding makes no program infeasible."""


class Kind(NamedTuple):
    """Jobs that gain alike."""

    gains: tuple[float, ...]
    """What all of the time on each GPU type would be worth; 0: they cannot run there."""
    gpus: int
    """GPUs of each such job."""


def max_min(
    counts: Mapping[Kind, int], capacity: Sequence[int], levels: int | None = None
) -> dict[Kind, Fractions]:
    """Fractions by kind, for ``counts`` jobs of each on ``capacity`` GPUs of each type.

    A job gains its fractions times ``gains``. A job that fits no type gets none.

    :param levels: how many linear programs at most: 1 makes the least gain as large as it can be and leaves
        the others where the program puts them. None: as many as there are levels. On one GPU type, where a
        closed form gives all levels, it does not count.
    """
    usable = {kind: _usable(kind, capacity) for kind in counts}
    number: Counter[Kind] = Counter()
    for kind, count in counts.items():
        number[usable[kind]] += count
    able = sorted(kind for kind in number if any(kind.gains))
    used = [index for index in range(len(capacity)) if any(kind.gains[index] for kind in able)]
    gains = np.array([[kind.gains[index] for index in used] for kind in able])
    weights = np.array([kind.gpus * number[kind] for kind in able], dtype=float)
    limits = np.array([capacity[index] for index in used], dtype=float)
    parts = np.zeros((len(able), len(capacity)))
    if len(used) == 1:
        parts[:, used[0]] = _one_type(gains[:, 0], weights, limits[0])
    elif used:
        parts[:, used] = _Programs(gains, weights, limits).solve(levels)
    found = dict(zip(able, map(tuple, np.clip(parts, 0.0, 1.0).tolist()), strict=True))
    return {kind: found.get(usable[kind], (0.0,) * len(capacity)) for kind in counts}


def gain(kind: Kind, fractions: Fractions) -> float:
    """What a job of that kind gains by its fractions."""
    return sum(worth * part for worth, part in zip(kind.gains, fractions, strict=True))


def _usable(kind: Kind, capacity: Sequence[int]) -> Kind:
    """The same without gains on types that have too few GPUs."""
    gains = (worth if kind.gpus <= gpus else 0.0 for worth, gpus in zip(kind.gains, capacity, strict=True))
    return Kind(tuple(gains), kind.gpus)


def _one_type(gains: Floats, weights: Floats, capacity: float) -> Floats:
    """Fractions on the only type: water rises to one level, which a job reaches or has all of the time.

    ``weights`` are GPUs of all jobs of a kind.
    """
    order = np.argsort(gains, kind="stable")
    at_level = np.cumsum((weights / gains)[order][::-1])[::-1]
    before = np.concatenate([[0.0], np.cumsum(weights[order])[:-1]])
    levels = (capacity - before) / at_level
    reached = np.flatnonzero(levels <= gains[order])
    if not reached.size:
        return np.ones_like(gains)
    parts: Floats = np.minimum(levels[reached[0]] / gains, 1.0)
    return parts


class _Programs:
    """The linear programs of one problem: variables are the fractions, and last the level."""

    def __init__(self, gains: Floats, weights: Floats, capacity: Floats) -> None:
        """``weights`` are GPUs of all jobs of a kind."""
        self._rows, self._columns = np.nonzero(gains)
        self._worth = gains[self._rows, self._columns] / gains.max(axis=1).min()
        self._shape = gains.shape
        self._weights = weights
        self._capacity = capacity
        self._levels = np.full(len(gains), np.nan)
        """Of kinds that are fixed."""

    def solve(self, most: int | None) -> Floats:
        """Raise the level until every kind is fixed, or ``most`` times."""
        kinds = self._shape[0]
        parts = np.zeros(self._shape)
        for _ in range(kinds if most is None else most):
            found = self._program()
            if found is None:  # what the programs before it gave is feasible
                break
            parts, level, binding = found
            rising = np.isnan(self._levels)
            binding &= rising
            self._levels[binding if binding.any() else rising] = level
            if not np.isnan(self._levels).any():
                break
        return parts

    def _program(self) -> tuple[Floats, float, npt.NDArray[np.bool_]] | None:
        """Fractions, the level, and which kinds hold it down; None: the solver gave up on the numbers."""
        kinds, types = self._shape
        variables = np.arange(len(self._rows))
        rising = np.flatnonzero(np.isnan(self._levels))
        parts = [
            (self._rows, variables, -self._worth),
            (rising, np.full(len(rising), len(variables)), np.ones(len(rising))),
            (kinds + self._rows, variables, np.ones(len(variables))),
            (2 * kinds + self._columns, variables, self._weights[self._rows]),
        ]
        rows, columns, values = (np.concatenate(each) for each in zip(*parts, strict=True))
        matrix: Any = csc_array((values, (rows, columns)), shape=(2 * kinds + types, len(variables) + 1))
        floors = -np.nan_to_num(self._levels, nan=0.0) * (1 - _SLACK)
        limits = np.concatenate([floors, np.ones(kinds), self._capacity])
        costs = np.zeros(len(variables) + 1)
        costs[-1] = -1.0
        found = linprog(costs, A_ub=matrix, b_ub=limits, method="highs")
        if found.x is None:
            return None
        fractions = np.zeros(self._shape)
        fractions[self._rows, self._columns] = found.x[:-1]
        return fractions, float(found.x[-1]), found.ineqlin.marginals[:kinds] < -_BINDING
