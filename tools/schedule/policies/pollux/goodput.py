"""Goodput of one job by allocation, each at its best batch: throughput × statistical efficiency.

Pollux (OSDI '21), sections 3.1 and 4.1. All that the model knows about a placement is whether it spans
several nodes and how many GPUs it has, so tables have two rows (one node, several nodes) and a column for
every size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from pliant.tools.profile.throughput import Placement
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.pollux.fit import Fit, Floats, Ints
from pliant.tools.schedule.speeds import Speeds

_GRID: Final = 32
"""Batches tried where they cost a formula each, in geometric steps."""
_PROFILE_GRID: Final = 12
"""Batches tried where each is a question to the profile."""


class Limits(NamedTuple):
    """What a job may be given, in GPUs and in samples."""

    least_gpus: int
    most_gpus: int
    least_batch: int
    most_batch: int
    least_local: int = 1
    """Smallest number of samples a GPU and micro-step."""
    most_local: int | None = None

    @property
    def resizes_batch(self) -> bool:
        """Whether there is a batch to choose."""
        return self.least_batch < self.most_batch


def efficiency(noise_scale: float | None, reference: int, batch: Ints) -> Floats:
    """(φ + B0) / (φ + B): progress per sample against that at the reference batch.

    1 where φ is infinite (nothing but noise), and where it is unknown: such a job keeps to one batch.
    """
    if noise_scale is None or noise_scale == np.inf:
        return np.ones(batch.shape)
    return np.asarray((noise_scale + reference) / (noise_scale + np.maximum(batch, 1)), dtype=np.float64)


class Goodput(NamedTuple):
    """Useful samples per second, and the batch that gives them; [several nodes, GPUs], 0 where infeasible."""

    rates: Floats
    batches: Ints

    def speedups(self, fair_gpus: int, node_gpus: int) -> Floats:
        """Goodput over that of the fair share, which sits on one node where it fits."""
        fair = min(fair_gpus, self.rates.shape[1] - 1)
        base = float(self.rates[int(fair > node_gpus), fair]) or float(self.rates[:, : fair + 1].max())
        base = base or float(self.rates.max())
        return self.rates / base if base else self.rates


@dataclass(frozen=True)
class Candidates:
    """Batches that a job could train at, and how fast it would; both [several nodes, GPUs, candidate]."""

    batches: Ints
    samples_per_second: Floats
    """0 where infeasible."""

    def best(self, noise_scale: float | None, reference: int) -> Goodput:
        """The goodput of the best candidate of each allocation; of equals the smallest batch."""
        rates = self.samples_per_second * efficiency(noise_scale, reference, self.batches)
        chosen = rates.argmax(axis=2)[:, :, None]
        return Goodput(
            np.take_along_axis(rates, chosen, 2)[:, :, 0],
            np.take_along_axis(self.batches, chosen, 2)[:, :, 0],
        )


def from_fit(fit: Fit | None, limits: Limits, *, lone_accumulates: bool = False) -> Candidates:
    """What the seven parameters promise; without them, speed in proportion to the GPUs.

    :param lone_accumulates: one GPU cuts every batch above its smallest into two micro-steps at least, as a
        library does that needs two gradients to measure their noise.
    """
    gpus = np.arange(limits.most_gpus + 1, dtype=np.int64)[:, None]
    batch, local, accum = _cuts(gpus, limits, lone_accumulates=lone_accumulates)
    fits = (gpus >= max(1, limits.least_gpus)) & (local >= limits.least_local)
    fits &= (batch >= gpus) & (batch <= limits.most_batch)
    several = np.array([False, True])[:, None, None]
    if fit is None:
        rate = np.broadcast_to(gpus.astype(np.float64), batch.shape)[None] * np.ones((2, 1, 1))
    else:
        rate = batch / fit.step_seconds(several, gpus, local, accum)
    allowed = fits[None] & ~(several & (gpus[None] < 2))
    return Candidates(np.repeat(batch[None], 2, axis=0), np.where(allowed, rate, 0.0))


def _cuts(gpus: Ints, limits: Limits, *, lone_accumulates: bool) -> tuple[Ints, Ints, Ints]:
    """Global batches by size and candidate, and their local batches and micro-steps."""
    wide = np.maximum(gpus, 1)
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

    def of(self, job: JobState, gpu_type: str, node_gpus: int, limits: Limits) -> Candidates:
        """Candidates of a job on one GPU type; jobs of one kind share them."""
        what = ("pollux", gpu_type, node_gpus, limits)
        return self.speeds.of_kind(job, what, lambda: self._made(job, gpu_type, node_gpus, limits))

    def _made(self, job: JobState, gpu_type: str, node_gpus: int, limits: Limits) -> Candidates:
        batches = _few(limits)
        rates = np.zeros((2, limits.most_gpus + 1, len(batches)))
        for several, gpus, place in _places(limits, node_gpus):
            rates[several, gpus] = [
                self.speeds.rate(job, gpus, gpu_type, global_batch=int(each), placement=place)
                for each in batches
            ]
        return Candidates(np.broadcast_to(batches, rates.shape), rates)


def _few(limits: Limits) -> Ints:
    if not limits.resizes_batch:
        return np.array([limits.least_batch])
    grid = np.geomspace(limits.least_batch, limits.most_batch, _PROFILE_GRID)
    return np.unique(np.rint(grid).astype(np.int64))


def _places(limits: Limits, node_gpus: int) -> Iterator[tuple[int, int, Placement]]:
    """(1 if on several nodes, GPUs, the placement that stands for all such)."""
    for gpus in range(max(1, limits.least_gpus), limits.most_gpus + 1):
        if gpus <= node_gpus:
            yield 0, gpus, (gpus,)
        if gpus > 1:
            whole, rest = divmod(gpus, node_gpus)
            spread = (gpus - gpus // 2, gpus // 2)
            packed = (node_gpus,) * whole + ((rest,) if rest else ())
            yield 1, gpus, packed if len(packed) > 1 else spread
