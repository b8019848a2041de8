"""Goodput curves: how fast a job would train, by number of GPUs and batch; jobs of one kind share theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pliant.schemas.job import Job
from pliant.tools.schedule.jobs import JobKind, JobState
from pliant.tools.schedule.rates import Speeds

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
BATCHES: Final = 24
"""Batches tried, in geometric steps, and the author's."""
EXACT_GPUS: Final = 128
"""Up to here every number of GPUs is tried; beyond, whole nodes in steps of a thirty-second."""
_STEP: Final = 32
_FEW: Final = 100
"""Jobs that have ended and are not worth a thought."""
MOST_NOISE: Final = 1e15
"""Samples; beyond it no batch trains less a sample than another."""


class GoodputCurves:
    """Curves of the jobs of one pool."""

    def __init__(self, speeds: Speeds, gpu_type: str, sizes: Ints) -> None:
        self.speeds = speeds
        self.gpu_type = gpu_type
        self.sizes = sizes
        self._grid = sizes.tobytes()
        # By job, with all of it that may change.
        self._known: dict[str, tuple[Job, JobKind, int | None, GoodputCurve]] = {}

    def of(self, job: JobState) -> GoodputCurve:
        known = self._known.get(job.id)
        if known is not None and known[0] is job.spec and known[1] is job.kind and known[2] == job.most:
            return known[3]
        curve = self._shared(job)
        self._known[job.id] = job.spec, JobKind.of(job), job.most, curve
        return curve

    def forget_others(self, jobs: Sequence[JobState]) -> None:
        """Keep what is known of these jobs, once others are many."""
        if len(self._known) > 2 * len(jobs) + _FEW:
            self._known = {job.id: self._known[job.id] for job in jobs if job.id in self._known}

    def _shared(self, job: JobState) -> GoodputCurve:
        """That of all jobs of its kind."""
        spec = job.spec
        limits = (
            spec.gpus.requested if spec.elastic == "none" else (spec.min_gpus, self._most(job)),
            *batch_range(job),
        )
        what = ("shadow-price", self.gpu_type, self._grid, limits, spec.batch.min)
        return self.speeds.of_kind(job, what, lambda: self._made(job))

    def _most(self, job: JobState) -> int:
        return job.max_gpus(int(self.sizes[-1]))

    def _made(self, job: JobState) -> GoodputCurve:
        spec, usual = job.spec, job.reference_batch
        grid = np.rint(np.geomspace(*batch_range(job), BATCHES)).astype(np.int64)
        tried = sorted({*grid.tolist(), usual})
        batches = np.array(tried, dtype=np.int64)
        least, most = spec.min_gpus, self._most(job)
        if spec.elastic == "none":
            least = most = spec.gpus.requested
        rates = np.zeros((len(self.sizes), len(batches)))
        for row, gpus in enumerate(self.sizes.tolist()):
            if max(least, 1) <= gpus <= most:
                rates[row] = self.speeds.rates(job, gpus, self.gpu_type, tried)
        base = min(spec.batch.min or usual, usual)
        return GoodputCurve(batches, rates, base, int(np.searchsorted(batches, usual)))


class Outlook(NamedTuple):
    """Mean progress of a job per second by size, 0 where infeasible."""

    whole: Floats
    """[size] F: over all the work that is left."""
    soon: Floats
    """[size] G: over the work of the time that a decision is taken to last, the same for all sizes."""
    runs: bool
    """Whether any size is feasible."""


@dataclass(frozen=True, slots=True, eq=False)
class GoodputCurve:
    """Jobs of one kind on one GPU type."""

    batches: Ints
    """[batch] global batches, ascending."""
    rates: Floats
    """[size, batch] samples per second, 0 where infeasible; the sizes are those of the pool."""
    base: int
    """B_min: the smallest batch that the job states."""
    usual: int
    """The batch of the author among ``batches``, by position."""
    outlook: Outlook = field(init=False)
    """At that batch."""
    runs: bool = field(init=False)
    """Whether it runs at any."""
    by_batch: Floats = field(init=False)
    """[batch, size] the rates again: the best batch of all sizes is found several times as fast."""

    def __post_init__(self) -> None:
        usual = self.rates[:, self.usual].copy()
        object.__setattr__(self, "outlook", Outlook(usual, usual, bool(usual.any())))
        object.__setattr__(self, "runs", bool(self.rates.any()))
        object.__setattr__(self, "by_batch", np.ascontiguousarray(self.rates.T))

    def __deepcopy__(self, memo: Mapping[int, Any]) -> GoodputCurve:
        """Nothing of it changes."""
        return self

    def efficiency(self, noise_scale: float) -> Floats:
        """[batch] progress per sample against B_min: (φ + B_min) / (φ + B)."""
        phi = min(noise_scale, MOST_NOISE)
        efficiency: Floats = np.divide(phi + self.base, phi + self.batches)
        return efficiency

    def goodput(self, noise_scale: float | None) -> Floats:
        """[size] most progress per second; at the author's batch where the noise scale is unknown."""
        if noise_scale is None:
            return self.outlook.whole
        goodput: Floats = np.maximum.reduce(self.efficiency(noise_scale)[:, None] * self.by_batch)
        return goodput


@lru_cache(maxsize=64)
def sizes_of(gpus: int, node_gpus: int) -> Ints:
    """The numbers of GPUs that are tried in a pool of ``gpus``, ascending from 0; not to be written to."""
    sizes_so_far = [*range(min(gpus, EXACT_GPUS) + 1)]
    while sizes_so_far[-1] < gpus:
        whole = sizes_so_far[-1] // node_gpus * node_gpus
        sizes_so_far.append(min(gpus, whole + max(node_gpus, whole // _STEP // node_gpus * node_gpus)))
    sizes = np.array(sizes_so_far, dtype=np.int64)
    sizes.flags.writeable = False
    return sizes


def batch_range(job: JobState) -> tuple[int, int]:
    """The smallest and the largest batch that a job may get."""
    spec, usual = job.spec, job.reference_batch
    if spec.elastic != "size+batch":
        return usual, usual
    return min(spec.batch.min or usual, usual), max(spec.batch.max or usual, usual)


def best_batch(
    job: JobState, curve: GoodputCurve, size: int, noise_scale: float | None, *, worth_s: float | None
) -> int:
    """The global batch on the GPUs of a size, by position.

    :param worth_s: seconds that another batch costs the job over those in which it pays; None where changes
        are free.
    """
    if len(curve.batches) == 1 or noise_scale is None:
        return job.global_batch if job.gpus and len(curve.batches) > 1 else job.reference_batch
    rates = curve.rates[size] * curve.efficiency(noise_scale)
    at = int(rates.argmax())
    if worth_s is not None:
        now = rates[int(np.abs(curve.batches - job.global_batch).argmin())]
        if rates[at] * (1.0 - worth_s) <= now:
            return job.global_batch
    return int(curve.batches[at])
