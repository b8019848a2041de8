"""When the jobs of a synthetic trace arrive: a Poisson process whose rate is constant piece by piece."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from pliant.tools.replay.traces.recipe import Recipe

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[np.float64]]

_HOUR_S: Final = 3600.0
_DAY_H: Final = 24


def arrival_times_s(recipe: Recipe, rng: np.random.Generator) -> Floats:
    """Arrivals in ascending order, seconds.

    A number of jobs alone: the first arrives at time 0 and the others follow at the rate. A number of hours
    alone: the same for so long. Both: exactly that number within the hours, spread as the rate says.
    """
    import numpy as np

    pieces = _pieces(recipe)
    count = recipe.count
    if recipe.hours is None:
        gaps = rng.standard_exponential(count)
        gaps[0] = 0.0
        return _when(np.cumsum(gaps), pieces)
    expected = _arrivals_until(recipe.hours, pieces)
    if count is None:
        count = 1 + int(rng.poisson(expected))
        return _when(np.concatenate([[0.0], np.sort(rng.random(count - 1)) * expected]), pieces)
    return _when(np.sort(rng.random(count)) * expected, pieces)


def _pieces(recipe: Recipe) -> list[tuple[float, float]]:
    """(hours, arrivals an hour) of one cycle of the rate."""
    rate = recipe.rate_per_hour
    if recipe.kind == "bursty":
        hours = recipe.phase_minutes / 60
        return [(hours, rate), (hours, recipe.low_rate_per_hour or rate / 4)]
    if recipe.kind == "diurnal":
        middles = [hour + 0.5 - recipe.peak_hour for hour in range(_DAY_H)]
        swings = [math.cos(2 * math.pi * middle / _DAY_H) for middle in middles]
        return [(1.0, rate * (1 + recipe.amplitude * swing)) for swing in swings]
    return [(1.0, rate)]


def _when(arrivals: Floats, pieces: list[tuple[float, float]]) -> Floats:
    """Seconds until the expected number of arrivals is each of ``arrivals``."""
    import numpy as np

    hours, expected = _cycle(pieces)
    cycles = np.floor(arrivals / expected[-1])
    found: Floats = cycles * hours[-1] + np.interp(arrivals - cycles * expected[-1], expected, hours)
    return found * _HOUR_S


def _arrivals_until(hours: float, pieces: list[tuple[float, float]]) -> float:
    """Expected number of arrivals in the first ``hours``."""
    import numpy as np

    at, expected = _cycle(pieces)
    cycles = math.floor(hours / at[-1])
    return float(cycles * expected[-1] + np.interp(hours - cycles * at[-1], at, expected))


def _cycle(pieces: list[tuple[float, float]]) -> tuple[Floats, Floats]:
    """Hours and expected arrivals at the ends of the pieces, from zero on."""
    import numpy as np

    table = np.array([(0.0, 0.0), *((hours, hours * rate) for hours, rate in pieces)])
    return np.cumsum(table[:, 0]), np.cumsum(table[:, 1])
