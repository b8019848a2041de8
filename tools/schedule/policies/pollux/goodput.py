"""Goodput of one job by allocation, each at its best batch: throughput × statistical efficiency.

Pollux (OSDI '21), sections 3.1 and 4.1. All that the model knows about a placement is whether it spans
several nodes and how many GPUs it has, so tables have two rows (one node, several nodes) and a column for
every size.

The throughput model is that of :mod:`~pliant.tools.schedule.step_time_fit`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pliant.tools.profile.throughput import Placement
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.step_time_fit import Fit, Floats

Ints = npt.NDArray[np.int64]
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
