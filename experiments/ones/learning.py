"""Policy gradient (REINFORCE) for a network of one hidden layer, with replays of one trace as baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from pliant.tools.schedule.policies.drl import Weights

Floats = npt.NDArray[np.float64]
_GRID_S: Final = 5.0
"""Costs are summed over steps of this many seconds."""
_MOMENTUM: Final = (0.9, 0.999)
_TINY: Final = 1e-8
_LARGEST: Final = 1.0
"""Norm to which a gradient is cut."""


@dataclass(frozen=True, slots=True)
class Step:
    """One choice."""

    time_s: float
    features: Floats
    """[action, feature]."""
    taken: int


@dataclass(frozen=True, slots=True)
class Rollout:
    """One replay: when jobs came and ended, and what was chosen."""

    lives: Sequence[tuple[float, float]]
    steps: Sequence[Step]

    @property
    def mean_jct_s(self) -> float:
        """Mean JCT."""
        return float(np.mean([end_s - begin_s for begin_s, end_s in self.lives]))


def costs(rollout: Rollout, points: int, horizon_s: float) -> Floats:
    """[grid point] jobs x seconds from there on, e times less after each horizon."""
    begins, ends = (np.sort(np.array(times)) for times in zip(*rollout.lives, strict=True))
    grid = _GRID_S * np.arange(points)
    active = np.searchsorted(begins, grid, "right") - np.searchsorted(ends, grid, "right")
    kept, total = np.exp(-_GRID_S / horizon_s), 0.0
    found = np.empty(points)
    for point in range(points - 1, -1, -1):
        total = found[point] = _GRID_S * active[point] + kept * total
    return found


def returns(rollouts: Sequence[Rollout], horizon_s: float) -> list[Floats]:
    """[step] of each rollout: by how much it went better than the mean of all, in standard deviations."""
    last_s = max(end_s for rollout in rollouts for _, end_s in rollout.lives)
    points = int(last_s / _GRID_S) + 2
    table = np.array([costs(rollout, points, horizon_s) for rollout in rollouts])
    better = table.mean(axis=0) - table
    found = [
        row[[int(step.time_s / _GRID_S) for step in rollout.steps]] if rollout.steps else np.empty(0)
        for row, rollout in zip(better, rollouts, strict=True)
    ]
    scale = float(np.std(np.concatenate(found))) if found else 0.0
    return [each / (scale + _TINY) for each in found]


def gradient(
    weights: Weights, rollouts: Sequence[Rollout], advantages: Sequence[Floats], entropy: float
) -> Weights:
    """Ascent: more of what went better than usual, and a little of everything."""
    steps = [step for rollout in rollouts for step in rollout.steps]
    if not steps:
        return Weights(*(np.zeros_like(each) for each in _parts(weights)))
    features = np.concatenate([step.features for step in steps])
    sizes = np.array([len(step.features) for step in steps])
    firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    hidden = weights.activities(features)
    chances = _chances(hidden @ weights.out, firsts, sizes)
    taken = np.zeros(len(features))
    taken[firsts + np.array([step.taken for step in steps])] = 1.0
    better = np.repeat(np.concatenate(advantages), sizes)
    surprise = -np.log(chances + _TINY)
    usual = np.repeat(np.add.reduceat(chances * surprise, firsts), sizes)
    pull = (better * (taken - chances) + entropy * chances * (surprise - usual)) / len(steps)
    inner = (pull[:, None] * weights.out) * (1 - hidden**2)
    return Weights(features.T @ inner, inner.sum(axis=0), hidden.T @ pull)


def _chances(scores: Floats, firsts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> Floats:
    """The probability of each action among those of its step."""
    odds = np.exp(scores - np.repeat(np.maximum.reduceat(scores, firsts), sizes))
    return np.asarray(odds / np.repeat(np.add.reduceat(odds, firsts), sizes))


def _parts(weights: Weights) -> tuple[Floats, Floats, Floats]:
    return weights.hidden, weights.offsets, weights.out


@dataclass(slots=True)
class Adam:
    """Steps of a length that gradients of any size suit."""

    rate: float
    count: int = 0
    means: list[Floats] = field(default_factory=list)
    squares: list[Floats] = field(default_factory=list)

    def step(self, weights: Weights, ascent: Weights) -> Weights:
        """The weights a step further up."""
        slopes = _parts(ascent)
        norm = float(np.sqrt(sum(float((each**2).sum()) for each in slopes)))
        cut = min(1.0, _LARGEST / (norm + _TINY))
        self.count += 1
        self.means = self.means or [np.zeros_like(each) for each in slopes]
        self.squares = self.squares or [np.zeros_like(each) for each in slopes]
        made = []
        for index, (value, slope) in enumerate(zip(_parts(weights), slopes, strict=True)):
            first, second = _MOMENTUM
            self.means[index] = first * self.means[index] + (1 - first) * cut * slope
            self.squares[index] = second * self.squares[index] + (1 - second) * (cut * slope) ** 2
            mean = self.means[index] / (1 - first**self.count)
            square = self.squares[index] / (1 - second**self.count)
            made.append(value + self.rate * mean / (np.sqrt(square) + _TINY))
        return Weights(*made)
