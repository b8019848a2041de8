"""Goodput of one job by allocation, each at its best batch: throughput × statistical efficiency.

Pollux (OSDI '21), sections 3.1 and 4.1. All that the model knows about a placement is whether it spans
several nodes and how many GPUs it has, so tables have two rows (one node, several nodes) and a column for
every size.

The throughput model (:class:`Fit`; section 3.2, symbols as there) has seven parameters, fitted to what one
job measured. With b samples a GPU and micro-step on k GPUs, computing takes ``alpha_c + beta_c · b`` seconds,
and synchronising ``alpha + beta · max(k - 2, 0)``: alpha_r, beta_r on one node, alpha_n, beta_n across nodes,
and nothing on one GPU. A micro-step that synchronises takes ``(compute^gamma + sync^gamma)^(1/gamma)``: gamma
1 means no overlap. What was not measured yet is taken to cost nothing, or across nodes a tenth more than
inside one, so that a job finds out by trying.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pliant.tools.profile.throughput import Placement
from pliant.tools.schedule.jobs import JobState, Observation
from pliant.tools.schedule.rates import Speeds

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
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
_GRID: Final = 32
"""Batches tried where they cost a formula each, in geometric steps."""
_PROFILE_GRID: Final = 12
"""Batches tried where each is a question to the profile."""


class GoodputTable(NamedTuple):
    """Useful samples per second, and the batch that gives them; [several nodes, GPUs], 0 where infeasible."""

    rates: Floats
    batches: Ints

    def speedups(self, fair_gpus: int, node_gpus: int) -> Floats:
        """Goodput over that of the fair share, which sits on one node where it fits."""
        fair = min(fair_gpus, self.rates.shape[1] - 1)
        base = float(self.rates[int(fair > node_gpus), fair]) or float(self.rates[:, : fair + 1].max())
        base = base or float(self.rates.max())
        return self.rates / base if base else self.rates


class JobLimits(NamedTuple):
    """What a job may be given, in GPUs and in samples."""

    least_gpus: int
    most_gpus: int
    least_batch: int
    most_batch: int
    least_local: int = 1
    """Smallest number of samples a GPU and micro-step."""
    most_local: int | None = None
    per_replica: int = 1
    """GPUs of one replica, which has a local batch."""
    sizes: Sequence[int] | None = None
    """The sizes that the job may have, ascending. Default: every number of replicas."""

    @property
    def gpus(self) -> Sequence[int]:
        """Every size within the limits."""
        whole = range(self.per_replica, self.most_gpus + 1, self.per_replica)
        return [size for size in self.sizes or whole if self.least_gpus <= size <= self.most_gpus]

    @property
    def resizes_batch(self) -> bool:
        return self.least_batch < self.most_batch


def job_limits(
    job: JobState, gpu_type: str, gpus: tuple[int, int], speeds: Speeds, *, begins_small: bool
) -> JobLimits:
    """What a job may be given of a GPU type: from least to most ``gpus``, fewer if its batch ends first.

    The batch may move where its elasticity and knowledge of its noise allow.

    :param begins_small: as long as the noise is unknown, the smallest batch instead of the author's.
    """
    spec, batch = job.spec, job.reference_batch
    least, most = gpus
    wide, each = speeds.most_local(job, gpu_type), job.per_replica
    if spec.elastic != "size+batch":
        return JobLimits(least, most, batch, batch, 1, wide, each)
    low, high = spec.batch.min or batch, spec.batch.max or batch
    local = min(speeds.throughput.local_batches(spec.model, gpu_type), default=1)
    most = min(most, max(least, spec.gpus.whole(high // local * each)))
    if job.noise_scale is None:
        low = high = low if begins_small else batch
    return JobLimits(least, most, low, high, local, wide, each)


def efficiency(noise_scale: float | None, reference: int, batch: Ints) -> Floats:
    """(φ + B0) / (φ + B): progress per sample against that at the reference batch.

    1 where φ is infinite, or unknown: such a job keeps to one batch.
    """
    if noise_scale is None or noise_scale == np.inf:
        return np.ones(batch.shape)
    return np.asarray((noise_scale + reference) / (noise_scale + np.maximum(batch, 1)), dtype=np.float64)


# Batches to choose from, with their step times.


@dataclass(frozen=True)
class BatchCandidates:
    """Batches that a job could train at, and how fast it would; both [several nodes, GPUs, candidate]."""

    batches: Ints
    samples_per_second: Floats
    """0 where infeasible."""

    def best(self, noise_scale: float | None, reference: int) -> GoodputTable:
        rates = self.samples_per_second * efficiency(noise_scale, reference, self.batches)
        chosen = rates.argmax(axis=2)[:, :, None]
        return GoodputTable(
            np.take_along_axis(rates, chosen, 2)[:, :, 0],
            np.take_along_axis(self.batches, chosen, 2)[:, :, 0],
        )

    def present(self, job: JobState, row: int, column: int) -> float:
        """Goodput of a job there at the candidate nearest to its present batch."""
        nearest = int(np.abs(self.batches[row, column] - job.global_batch).argmin())
        useful = efficiency(job.noise_scale, job.reference_batch, np.array([job.global_batch]))
        return float(self.samples_per_second[row, column, nearest] * useful[0])


def from_fit(fit: Fit | None, limits: JobLimits, *, lone_accumulates: bool = False) -> BatchCandidates:
    """What the seven parameters promise of every size; see :func:`fit_at`."""
    gpus = np.arange(limits.most_gpus + 1, dtype=np.int64)
    several = np.array([[False], [True]])
    return fit_at(fit, limits, several, gpus, lone_accumulates=lone_accumulates)


def fit_at(
    fit: Fit | None,
    limits: JobLimits,
    several: npt.NDArray[np.bool_],
    gpus: Ints,
    *,
    lone_accumulates: bool = False,
) -> BatchCandidates:
    """What the seven parameters promise; without them, speed in proportion to the GPUs.

    :param several: whether the GPUs are on several nodes, [row, 1] or [row, size].
    :param gpus: [size].
    :param lone_accumulates: one GPU cuts every batch above its smallest into two micro-steps at least, as a
        library does that needs two gradients to measure their noise.
    """
    gpus, several = gpus[:, None], several[:, :, None]
    workers = gpus // limits.per_replica
    batch, local, accum = _cuts(workers, limits, lone_accumulates=lone_accumulates)
    fits = np.isin(gpus, limits.gpus) & (local >= limits.least_local)
    fits &= (batch >= workers) & (batch <= limits.most_batch)
    if fit is None:
        rate = np.broadcast_to(gpus.astype(np.float64), batch.shape)[None] * np.ones((len(several), 1, 1))
    else:
        rate = batch / fit.step_seconds(several, workers, local, accum)
    allowed = fits[None] & ~(several & (gpus[None] < 2))
    return BatchCandidates(np.repeat(batch[None], len(several), axis=0), np.where(allowed, rate, 0.0))


def _cuts(workers: Ints, limits: JobLimits, *, lone_accumulates: bool) -> tuple[Ints, Ints, Ints]:
    """Global batches by number of workers and candidate, and their local batches and micro-steps."""
    wide = np.maximum(workers, 1)
    low = np.maximum(limits.least_batch, limits.least_local * wide)
    steps = np.linspace(0.0, 1.0, _GRID if limits.resizes_batch else 1)
    wanted = low * (np.maximum(limits.most_batch, low) / low) ** steps
    share = wanted / wide
    accum = np.ceil(share / (limits.most_local or np.inf) - 1e-8).clip(min=1)
    if lone_accumulates:
        accum = np.where((wide == 1) & (wanted > limits.least_batch), np.maximum(accum, 2), accum)
    local = np.ceil(share / accum - 1e-8)
    batch = wide * accum * local if limits.resizes_batch else wanted
    return batch.astype(np.int64), local.astype(np.int64), accum.astype(np.int64)


class ProfileCandidates:
    """What the session's throughput model says, for jobs that have no measurements of their own."""

    def __init__(self, speeds: Speeds) -> None:
        self.speeds = speeds

    def of(self, job: JobState, gpu_type: str, node_gpus: int, limits: JobLimits) -> BatchCandidates:
        what = ("pollux", gpu_type, node_gpus, limits)
        return self.speeds.of_kind(job, what, lambda: self._made(job, gpu_type, node_gpus, limits))

    def _made(self, job: JobState, gpu_type: str, node_gpus: int, limits: JobLimits) -> BatchCandidates:
        batches = few_batches(limits)
        rates = np.zeros((2, limits.most_gpus + 1, len(batches)))
        for several, gpus, place in _places(limits, node_gpus):
            rates[several, gpus] = [
                self.speeds.rate(job, gpus, gpu_type, global_batch=int(each), placement=place)
                for each in batches
            ]
        return BatchCandidates(np.broadcast_to(batches, rates.shape), rates)


def few_batches(limits: JobLimits) -> Ints:
    """Batches to try where each is a question to the profile."""
    if not limits.resizes_batch:
        return np.array([limits.least_batch])
    grid = np.geomspace(limits.least_batch, limits.most_batch, _PROFILE_GRID)
    return np.unique(np.rint(grid).astype(np.int64))


def _places(limits: JobLimits, node_gpus: int) -> Iterator[tuple[int, int, Placement]]:
    """(1 if on several nodes, GPUs, the placement that stands for all such)."""
    each = limits.per_replica if limits.per_replica <= node_gpus else 1
    node_gpus -= node_gpus % each
    for gpus in limits.gpus:
        if gpus <= node_gpus:
            yield 0, gpus, (gpus,)
        if gpus > each:
            whole, rest = divmod(gpus, node_gpus)
            half = gpus // 2 // each * each
            spread = (gpus - half, half)
            packed = (node_gpus,) * whole + ((rest,) if rest else ())
            yield 1, gpus, packed if len(packed) > 1 else spread


# The throughput model and its fit.


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
