"""Seven parameters that say how long a training step takes, fitted to what one job measured.

The throughput model of Pollux (OSDI '21), section 3.2; symbols as there. With b samples a GPU and micro-step
on k GPUs, computing takes ``alpha_c + beta_c · b`` seconds, and synchronising

    0                                on one GPU,
    alpha_r + beta_r · max(k - 2, 0) on several GPUs of one node,
    alpha_n + beta_n · max(k - 2, 0) across nodes.

A micro-step that synchronises takes ``(compute^gamma + sync^gamma)^(1/gamma)``: gamma 1 means no overlap, the
larger it is the more is hidden. What was not measured yet is taken to cost nothing, or across nodes a tenth
more than inside one, so that a job finds out by trying.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pliant.tools.schedule.jobs import Observation

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_LEAST_S: Final = 1e-8
"""Stands for no time at all where a logarithm is taken."""
_WORSE_ACROSS: Final = 1.1
"""Synchronising across nodes, against inside of one, as long as it is not measured."""
_OVERLAP_WEIGHT: Final = 1e-5
_SLOPE_WEIGHT: Final = 1e-6
"""Small regularisers: no overlap, and no growth with the number of GPUs, unless the measurements say so."""
_GAMMA: Final = 6
"""The position of gamma; the times before it are sought as logarithms."""


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
        """Seconds to compute one micro-step of ``local`` samples a GPU."""
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


class _Measured:
    """Observations in columns, and the log-errors that parameters make on them."""

    def __init__(self, observations: Sequence[Observation]) -> None:
        self.gpus = np.array([sum(each.placement) for each in observations], dtype=np.float64)
        self.across = np.array([len(each.placement) > 1 for each in observations])
        self.inside = ~self.across & (self.gpus > 1)
        self.local = np.array([each.local_batch for each in observations], dtype=np.float64)
        sync = np.array([each.sync_seconds or 0.0 for each in observations])
        step = np.array([each.step_seconds for each in observations])
        accum = np.array([each.accum for each in observations], dtype=np.float64)
        compute = np.maximum((step - sync) / accum, _LEAST_S)
        self.compute_s = float(np.mean(compute))
        self.log_compute = np.log(compute)
        self.log_last = np.log(compute + sync)
        self.more = np.maximum(self.gpus - 2, 0.0)
        self.told_apart = np.array(
            [each.sync_seconds is not None or sum(each.placement) == 1 for each in observations], dtype=float
        )

    def bounds(self) -> list[tuple[float, float]]:
        """Bounds of the logarithms of the six times and of gamma; what cannot be known yet is held fixed."""
        nothing = (np.log(_LEAST_S), np.log(_LEAST_S))
        free = (np.log(_LEAST_S), np.log(1e5))
        large = self.gpus > 2
        known = [
            True,
            True,
            bool(self.across.any()),
            bool((self.across & large).any()),
            bool(self.inside.any()),
            bool((self.inside & large).any()),
        ]
        bounds = [free if each else nothing for each in known]
        if len(np.unique(self.local)) == 1:  # one point: half of it is constant
            bounds[0] = (np.log(self.compute_s / 2),) * 2
        return [*bounds, (1.0, 10.0) if known[2] or known[4] else (1.0, 1.0)]

    def guess(self) -> Floats:
        """Where a search may begin: half of computing is constant, synchronising takes as long."""
        half = np.log(self.compute_s / 2)
        per_sample = half - np.log(self.local.mean())
        return np.array([half, per_sample, half, half - 3, half, half - 3, 1.5])

    def loss(self, point: Floats) -> tuple[float, Floats]:
        """Mean squared log-errors of computing and of the last micro-step, regularised; and the gradient."""
        a_c, b_c, a_n, b_n, a_r, b_r = np.exp(point[:_GAMMA])
        gamma = point[_GAMMA]
        compute = a_c + b_c * self.local
        sync = self.across * (a_n + b_n * self.more) + self.inside * (a_r + b_r * self.more) + _LEAST_S
        longer = np.maximum(compute, sync)
        log_c, log_s = np.log(compute / longer), np.log(sync / longer)
        part_c, part_s = np.exp(gamma * log_c), np.exp(gamma * log_s)
        both = part_c + part_s
        off_c = (np.log(compute) - self.log_compute) * self.told_apart
        off_l = np.log(longer) + np.log(both) / gamma - self.log_last
        count = len(self.local)
        slopes = np.array([(b_n / a_n) ** 2, (b_r / a_r) ** 2])
        value = (
            (off_c @ off_c + off_l @ off_l) / count
            + _OVERLAP_WEIGHT * (gamma - 1) ** 2
            + _SLOPE_WEIGHT * float(slopes.sum())
        )
        by_compute = 2 / count * (off_c + off_l * part_c / both) / compute
        by_sync = 2 / count * off_l * part_s / both / sync
        by_gamma = off_l * ((part_c * log_c + part_s * log_s) / both - np.log(both) / gamma) / gamma
        push = 2 * _SLOPE_WEIGHT * slopes
        gradient = np.array(
            [
                a_c * by_compute.sum(),
                b_c * (by_compute @ self.local),
                a_n * (by_sync @ self.across) - push[0],
                b_n * (by_sync @ (self.across * self.more)) + push[0],
                a_r * (by_sync @ self.inside) - push[1],
                b_r * (by_sync @ (self.inside * self.more)) + push[1],
                2 / count * by_gamma.sum() + 2 * _OVERLAP_WEIGHT * (gamma - 1),
            ]
        )
        return float(value), gradient


def fit(observations: Sequence[Observation]) -> Fit:
    """The parameters that explain the observations best, in the sense of the logarithms of their times.

    It depends on the observations alone, so it is the same in a process that takes up from another.

    :raises ValueError: there are no observations.
    """
    if not observations:
        raise ValueError("there is nothing to fit: no observations")
    from scipy.optimize import minimize

    measured = _Measured(observations)
    bounds = measured.bounds()
    low, high = (np.array(side) for side in zip(*bounds, strict=True))
    found = minimize(
        measured.loss,
        np.clip(measured.guess(), low, high),
        jac=True,
        method="SLSQP",  # as good here as L-BFGS-B, and starts no threads
        bounds=bounds,
        options={"maxiter": 100, "ftol": 1e-8},
    )
    return _with_priors(Fit._make([*np.exp(found.x[:_GAMMA]).tolist(), float(found.x[_GAMMA])]), measured)


def _with_priors(found: Fit, measured: _Measured) -> Fit:
    """Across nodes never measured: a little worse than inside one."""
    if measured.across.any():
        return found
    return found._replace(
        alpha_n=max(found.alpha_n, _WORSE_ACROSS * found.alpha_r),
        beta_n=max(found.beta_n, _WORSE_ACROSS * found.beta_r),
    )
