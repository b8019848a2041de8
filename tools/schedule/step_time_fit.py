"""Step times of a model on one GPU type, fitted to what was measured: the throughput model of Pollux.

Pollux (OSDI '21), section 3.2, symbols as there: seven parameters. With b samples a GPU and micro-step on k
GPUs, computing takes ``alpha_c + beta_c · b`` seconds, and synchronising ``alpha + beta · max(k - 2, 0)``:
alpha_r, beta_r on one node, alpha_n, beta_n across nodes, and nothing on one GPU. A micro-step that
synchronises takes ``(compute^gamma + sync^gamma)^(1/gamma)``: gamma 1 means no overlap. What was not measured
yet is taken to cost nothing, or across nodes a tenth more than inside one, so that a job finds out by trying.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pliant.tools.schedule.jobs import Observation

Floats = npt.NDArray[np.float64]
_LEAST_S: Final = 1e-8
"""Stands for no time at all where a logarithm is taken."""
_WORSE_ACROSS: Final = 1.1
"""Synchronising across nodes, against inside of one, as long as it is not measured."""
_OVERLAP_WEIGHT: Final = 1e-5
_SLOPE_WEIGHT: Final = 1e-6
"""Small regularisers: no overlap, and no growth with the number of GPUs, unless the measurements say so."""
_PULL: Final = 3e-3
"""Towards the first guess, for what the measurements leave open: each time's logarithm counts as this part of
a measurement more. So it is if the model errs by a tenth, and the guess by a factor of six; chosen by what
serves the jobs of four workloads (docs/decisions.md).
"""
_GAMMA: Final = 6
"""The position of gamma in a point."""
_FIRST_GAMMA: Final = 1.5
_LOWEST: Final = np.array([np.log(_LEAST_S)] * _GAMMA + [1.0])
_HIGHEST: Final = np.array([np.log(1e5)] * _GAMMA + [10.0])
"""Highest point; with the lowest it bounds the search."""
_STIFF: Final = 1e9
"""Curvature that holds a coordinate at its bound."""
_UNIT: Final = np.eye(_GAMMA + 1)
_OPPOSED: Final = np.array([[1.0, -1.0], [-1.0, 1.0]])
_DAMPING: Final = 1e-3
_RELAXED: Final = 0.1
_TIGHTENED: Final = 8.0
"""The first damping of steps; and its factors after a step that was taken, and one that was not."""
_TOLERANCE: Final = 1e-6
"""A change of the loss by this part of it ends the search."""
_MOST_STEPS: Final = 100
_KEPT_FITS: Final = 4096
"""Jobs of a model that have tried the same have measured the same, where speeds are simulated."""


class Fit(NamedTuple):
    """The seven parameters; seconds, seconds per sample, seconds per GPU, and the overlap gamma (1 to 10)."""

    alpha_c: float
    beta_c: float
    alpha_n: float
    beta_n: float
    alpha_r: float
    beta_r: float
    gamma: float

    def compute_seconds(self, local: npt.NDArray[Any]) -> Floats:
        return np.asarray(self.alpha_c + self.beta_c * local, dtype=np.float64)

    def step_seconds(
        self,
        several_nodes: npt.NDArray[np.bool_],
        gpus: npt.NDArray[Any],
        local: npt.NDArray[Any],
        accum: npt.NDArray[Any],
    ) -> Floats:
        """Seconds of one optimizer step of ``accum`` micro-steps, the last of which synchronises."""
        compute = self.compute_seconds(local)
        more = np.maximum(gpus - 2, 0)
        sync = np.where(several_nodes, self.alpha_n + self.beta_n * more, self.alpha_r + self.beta_r * more)
        sync = np.where(gpus > 1, sync, 0.0)
        longer = np.maximum(np.maximum(compute, sync), _LEAST_S)
        both = (compute / longer) ** self.gamma + (sync / longer) ** self.gamma
        last: Floats = longer * both ** (1.0 / self.gamma)
        return last + (accum - 1) * compute


def fit(observations: Sequence[Observation], per_replica: int = 1) -> Fit:
    """The parameters that explain the observations best, in the sense of the logarithms of their times.

    :param observations: of finite times.
    :param per_replica: GPUs that count as one, as they have a local batch and synchronise together.
    :raises ValueError: there are no observations.
    """
    if not observations:
        raise ValueError("there is nothing to fit: no observations")
    return _fit(tuple(observations), per_replica)


@lru_cache(_KEPT_FITS)
def _fit(observations: tuple[Observation, ...], per_replica: int) -> Fit:
    measured = _Measured(observations, per_replica)
    return _with_priors(measured.fit_at(_minimum(measured)), measured)


class _Loss(NamedTuple):
    """The loss at a point, half of its gradient [7], and half of Gauss and Newton's Hessian [7, 7]."""

    value: float
    slope: Floats
    curvature: Floats


def _minimum(measured: _Measured) -> Floats:
    """The point of least loss by Levenberg's method: Newton's steps, shorter as long as they lead up.

    It ends when a step would change next to nothing, for better or worse.
    """
    point, damping = measured.guess, _DAMPING
    here = measured.loss(point)
    for _ in range(_MOST_STEPS):
        outward = ((point <= _LOWEST) & (here.slope > 0)) | ((point >= _HIGHEST) & (here.slope < 0))
        step = np.linalg.solve(here.curvature + (damping + _STIFF * outward) * _UNIT, here.slope)
        next_point = np.minimum(np.maximum(point - step, _LOWEST), _HIGHEST)
        there = measured.loss(next_point)
        gain = here.value - there.value
        if gain > 0:
            point, here = next_point, there
            damping *= _RELAXED
        else:
            damping *= _TIGHTENED
        if abs(gain) <= _TOLERANCE * here.value:
            break
    return point


class _Measured:
    """Observations in columns, and the log-errors that a point makes on them.

    A point is the logarithms of the six times, in the order of :class:`Fit`, and gamma. What no observation
    tells has no slope, and stays where it begins.
    """

    def __init__(self, observations: Sequence[Observation], per_replica: int) -> None:
        gpus = np.array([sum(each.placement) // per_replica for each in observations], dtype=np.float64)
        self.across = np.array([len(each.placement) > 1 for each in observations])
        self.inside = ~self.across & (gpus > 1)
        self.large = gpus > 2
        self.local = np.array([each.local_batch for each in observations], dtype=np.float64)
        sync = np.array([each.sync_seconds or 0.0 for each in observations])
        step = np.array([each.step_seconds for each in observations])
        accum = np.array([each.accum for each in observations], dtype=np.float64)
        compute = np.maximum((step - sync) / accum, _LEAST_S)
        self.compute_s = float(np.mean(compute))
        # Of computing, and of the last micro-step; [2 n].
        self._logs = np.log(np.concatenate([compute, compute + sync]))
        more = np.maximum(gpus - 2, 0.0)
        # What the two times of computing are multiplied by; [2, n].
        self._computes = np.array([np.ones(len(gpus)), self.local])
        # The same of the four of synchronising; [4, n].
        self._syncs = np.array([self.across, self.across * more, self.inside, self.inside * more])
        told_apart = np.array([each.sync_seconds is not None for each in observations]) | (gpus == 1)
        self._weights = np.concatenate([told_apart, np.ones(len(gpus))]) / np.sqrt(len(gpus))
        # Else there is one point, and half of it counts as constant.
        self._splits_compute = bool((self.local != self.local[0]).any())
        self._overlaps = bool(self.across.any() or self.inside.any())
        self.guess = self._guess()
        # What the regularisers draw to, and how much.
        self._aim = np.array([*self.guess[:_GAMMA], 1.0])
        self._pulls = np.array([_PULL / len(gpus)] * _GAMMA + [_OVERLAP_WEIGHT])

    def _guess(self) -> Floats:
        """Where the search begins: half of computing is constant, synchronising takes as long."""
        half, nothing = np.log(self.compute_s / 2), np.log(_LEAST_S)
        start = [half, half - np.log(self.local.mean())]
        for where in (self.across, self.inside):
            start += [half if where.any() else nothing, half - 3 if (where & self.large).any() else nothing]
        start.append(_FIRST_GAMMA if self._overlaps else 1.0)
        first: Floats = np.minimum(np.maximum(start, _LOWEST), _HIGHEST)
        return first

    def fit_at(self, point: Floats) -> Fit:
        return Fit._make([*np.exp(point[:_GAMMA]).tolist(), float(point[_GAMMA])])

    def loss(self, point: Floats) -> _Loss:
        """Mean squared log-errors of computing and of the last micro-step, and the small regularisers."""
        count, times, gamma = len(self.local), np.exp(point[:_GAMMA]), float(point[_GAMMA])
        computes, syncs = self._computes * times[:2, None], self._syncs * times[2:, None]
        seconds = np.array([np.add.reduce(computes), np.add.reduce(syncs) + _LEAST_S])
        computes /= seconds[0]
        syncs /= seconds[1]
        logs = np.log(seconds)
        longer = np.maximum(logs[0], logs[1])
        shorter_by = logs - longer
        parts = np.exp(gamma * shorter_by)
        both = np.add.reduce(parts)
        parts /= both
        log_both = np.log(both) / gamma
        errors = (np.concatenate([logs[0], longer + log_both]) - self._logs) * self._weights

        slopes = np.zeros((len(point), 2 * count))  # of the errors, before their weights
        if self._splits_compute:
            slopes[0, :count], slopes[0, count:] = computes[0], computes[0] * parts[0]
        slopes[1, :count], slopes[1, count:] = computes[1], computes[1] * parts[0]
        slopes[2:_GAMMA, count:] = syncs * parts[1]
        if self._overlaps:
            slopes[_GAMMA, count:] = (np.add.reduce(parts * shorter_by) - log_both) / gamma
        slopes *= self._weights

        away = point - self._aim
        pulls = self._pulls * away
        slope = slopes @ errors + pulls
        curvature = slopes @ slopes.T + self._pulls * _UNIT
        value = float(errors.dot(errors) + pulls.dot(away))
        for constant in (2, 4):
            growth = _SLOPE_WEIGHT * float(times[constant + 1] / times[constant]) ** 2
            value += growth
            slope[constant : constant + 2] += -growth, growth
            curvature[constant : constant + 2, constant : constant + 2] += growth * _OPPOSED
        return _Loss(value, slope, curvature)


def _with_priors(fit: Fit, measured: _Measured) -> Fit:
    """Across nodes never measured: a little worse than inside one."""
    if measured.across.any():
        return fit
    return fit._replace(
        alpha_n=max(fit.alpha_n, _WORSE_ACROSS * fit.alpha_r),
        beta_n=max(fit.beta_n, _WORSE_ACROSS * fit.beta_r),
    )
