"""Scaling curves of jobs for elastic-dp: the best batch for every number of GPUs, and how fast it is.

The job scalability analyzer of "Effective Elastic Scaling of Deep Learning Workloads" (Saxena et al., 2020),
sections III-B and III-C: S(b, k) = T(b, k) / T(largest local batch, 1), and for each k the batch b of
[b_min, b_max] with the largest S. A share ceil(b / k) that does not fit a GPU is infeasible. Step times are
linear between the measured local batches, so T has its maxima there or at the ends of the range: only these
are tried, or a geometric grid where none are named. :class:`Gains` is what the optimizer sees of a curve.

Departures: a job that no size of its own lets run without accumulation runs with it, at any size; the base of
a job without a speed on one GPU is its speed per GPU at its smallest size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np
import numpy.typing as npt

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.rates import Speeds

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
BatchRange = tuple[int, int]
GRID: Final = 2.0**-32
"""Resolution of gains, in throughput scaling factors."""
_NOTHING: Final = np.zeros(1)
_ALL_TRIED: Final = 16
"""Local batches of one size that are all tried; of more, a selection."""
_ROUNDING: Final = 1e-9
"""Relative difference of speeds that counts as none."""


class ScalingCurves:
    """Scaling curves; jobs of one kind share them."""

    def __init__(self, speeds: Speeds) -> None:
        self.speeds = speeds

    def of(self, job: JobState, gpu_type: str, batches: BatchRange) -> ScalingCurve | None:
        """The curve of a job whose batch may be chosen from ``batches``; None if no size is feasible."""
        spec = job.spec
        limits = (spec.min_gpus, self._most(job, gpu_type), spec.elastic == "none" and spec.gpus.requested)
        cap = self.speeds.most_local(job, gpu_type)
        largest = min(allowed_batches(job)[1], cap or job.reference_batch)
        what = ("elastic-dp", gpu_type, limits, batches, largest)
        return self.speeds.of_kind(job, what, lambda: self._make(job, gpu_type, batches))

    def _make(self, job: JobState, gpu_type: str, batches: BatchRange) -> ScalingCurve | None:
        cap = self.speeds.most_local(job, gpu_type)
        rates, best = self._fastest(job, gpu_type, batches, cap)
        if not rates.any():
            rates, best = self._fastest(job, gpu_type, batches, None)
        sizes = np.flatnonzero(rates)
        if not sizes.size:
            return None
        base = self._base_rate(job, gpu_type, cap) or rates[sizes[0]] / sizes[0]
        factors = np.where(rates > 0, rates / base, -np.inf)
        gains = Gains.of(factors)
        assert gains is not None, "there is a feasible size"  # noqa: S101
        return ScalingCurve(factors, best, gains)

    def _fastest(
        self, job: JobState, gpu_type: str, batches: BatchRange, cap: int | None
    ) -> tuple[Floats, Ints]:
        """[GPUs] samples per second at the best batch, 0 where infeasible, and that batch."""
        most = self._most(job, gpu_type)
        rates, best = np.zeros(most + 1), np.zeros(most + 1, dtype=np.int64)
        for gpus in job.sizes(most):
            for batch in self._candidates(job, gpu_type, gpus, batches, cap):
                rate = self.speeds.rate(job, gpus, gpu_type, global_batch=batch)
                if rate > rates[gpus] * (1 + _ROUNDING):
                    rates[gpus], best[gpus] = rate, batch
        return rates, best

    def _candidates(
        self, job: JobState, gpu_type: str, gpus: int, batches: BatchRange, cap: int | None
    ) -> Iterator[int]:
        """Global batches worth trying: the author's own first, then ascending."""
        low, high = batches
        workers = job.spec.gpus.replicas(gpus)
        least, most = -(-low // workers), -(-high // workers)
        if cap is not None:
            most = min(most, cap)
        if least > most:
            return
        own = min(max(job.reference_batch, low), high)
        if -(-own // workers) <= most:
            yield own
        if low < high:
            for local in sorted(
                {least, *self._locals(job, gpu_type, least, most), max(least, most - 1), most}
            ):
                yield min(local * workers, high)

    def _locals(self, job: JobState, gpu_type: str, least: int, most: int) -> Iterable[int]:
        if most - least < _ALL_TRIED:
            return range(least, most + 1)
        measured = self.speeds.throughput.local_batches(job.spec.model, gpu_type)
        if not measured:
            return [int(local) for local in np.geomspace(least, most, _ALL_TRIED)]
        return [local for local in measured if least < local < most]

    def _base_rate(self, job: JobState, gpu_type: str, cap: int | None) -> float:
        """Samples per second on one GPU at the largest local batch that the job allows; 0: it needs more."""
        largest = allowed_batches(job)[1]
        batch = largest if cap is None else min(largest, cap)
        return self.speeds.rate(job, 1, gpu_type, global_batch=batch)

    def _most(self, job: JobState, gpu_type: str) -> int:
        return job.max_gpus(self.speeds.gpu_types[gpu_type])


@dataclass(frozen=True, slots=True, eq=False)
class ScalingCurve:
    """One job on one GPU type, by number of GPUs."""

    factors: Floats
    """[GPUs] the throughput scaling factor at the best batch, -inf where infeasible."""
    batches: Ints
    """[GPUs] the best global batch, 0 where infeasible."""
    gains: Gains

    @property
    def least(self) -> int:
        return self.gains.least


def allowed_batches(job: JobState) -> BatchRange:
    spec, batch = job.spec, job.reference_batch
    if spec.elastic != "size+batch":
        return batch, batch
    return spec.batch.min or batch, spec.batch.max or batch


# What GPUs are worth to the optimizer.


@dataclass(frozen=True, slots=True, eq=False)
class Gains:
    """Worth of GPUs beyond the smallest size of one job, or of several that share GPUs.

    Multiples of :data:`GRID`, so sums of them have no rounding error below 2**21 and equally good allocations
    are equal.
    """

    least: int
    base: float
    by_extra: Floats
    """[GPUs beyond ``least``] gain over ``base``, -inf where fewer GPUs are worth as much."""
    concave: bool
    """Whether each GPU more is worth no more than the one before."""

    @property
    def most_extra(self) -> int:
        """GPUs beyond ``least`` after which nothing is gained."""
        return len(self.by_extra) - 1

    @classmethod
    def of(cls, worth: Floats) -> Gains | None:
        """Gains of a curve, ``worth[k]`` with k GPUs, -inf where infeasible; None if no size is feasible.

        ``worth[0]`` is not read. Increments that grow by less than the grid are rounding, and count as
        concave.
        """
        values: list[float] = worth.tolist()
        least = next((size for size in range(1, len(values)) if values[size] > -inf), None)
        if least is None:
            return None
        base = values[least]
        gains, steps = [0.0], [inf]
        reached, concave = 0, True
        for value in values[least + 1 :]:
            gain = value - base
            if gain > gains[reached]:
                step = gain - gains[reached]
                concave = concave and reached == len(gains) - 1 and step <= steps[-1] + GRID
                steps.append(min(step, steps[-1]))
                reached = len(gains)
                gains.append(gain)
            else:
                gains.append(-inf)
        by_extra = _sums(steps[1:]) if concave else _on_grid(gains[: reached + 1])
        return cls(least, base, by_extra, concave)


def _on_grid(values: list[float]) -> Floats:
    return np.rint(np.array(values) / GRID) * GRID


def _sums(steps: list[float]) -> Floats:
    rounded = _on_grid(steps)
    return np.concatenate((_NOTHING, np.cumsum(rounded[: np.count_nonzero(rounded)])))
