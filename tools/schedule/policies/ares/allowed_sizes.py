"""Which sizes a job may have under Ares: scaling control.

Ares, section 3.3. Efficiency of ``k`` GPUs relative to the requested number ``d``, at the job's own global
batch: ``eff(k) = (T(k)/k) / (T(d)/d)``. Starting at ``d`` the size doubles while ``eff(2k) >= alpha``; where
that ends is the job's ceiling, which nothing exceeds. Below ``d`` the sizes go down over the powers of two
to the job's minimum. Departures from the paper: where not alpha but the job's maximum, its batch or the
cluster ends the doubling, that limit is the largest size (if still efficient); the minimum is allowed as
well; sizes that the profile calls infeasible are left out, and if ``d`` is among them, the largest feasible
size below it takes its place as the base; so are, for an elastic job, sizes slower than a smaller one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from pliant.schemas.text.wording import in_gpus
from pliant.tools.schedule.demand import sizes_below
from pliant.tools.schedule.jobs import JobState

T = TypeVar("T")
_ROUNDING: Final = 1e-9
"""Relative difference of speeds that counts as none."""


class Rates(Protocol):
    """How fast jobs train, by size and GPU type: :class:`~pliant.tools.schedule.speeds.Speeds` knows."""

    @property
    def gpu_types(self) -> Mapping[str, int]:
        """GPUs of the whole cluster by type."""
        ...

    def rate(self, job: JobState, gpus: int, gpu_type: str, /) -> float:
        """Samples per second; 0.0 where that is infeasible."""
        ...

    def of_kind(self, job: JobState, what: Hashable, make: Callable[[], T]) -> T:
        """What is made of the speeds of a job, once for all of its kind."""
        ...


@dataclass(frozen=True, slots=True)
class AllowedSizes:
    """The sizes of one job on one GPU type, ascending, with the speed of each."""

    sizes: tuple[int, ...]
    rates: tuple[float, ...]
    """Samples per second at each size."""
    base: int
    """The size that efficiency is relative to; 0: no size is feasible."""
    reason: str
    """What limits it at its ceiling."""

    @property
    def ceiling(self) -> int:
        """The largest size; 0: no size is feasible."""
        return self.sizes[-1] if self.sizes else 0

    def largest_within(self, gpus: int) -> int:
        """The largest size within ``gpus``; 0: none is."""
        index = bisect_right(self.sizes, gpus)
        return self.sizes[index - 1] if index else 0


def efficiency(job: JobState, gpus: int, base: int, gpu_type: str, speeds: Rates) -> float:
    """Speed per GPU of ``gpus`` GPUs relative to ``base`` GPUs; 0.0 where ``gpus`` is infeasible."""
    return speeds.rate(job, gpus, gpu_type) / gpus / (speeds.rate(job, base, gpu_type) / base)


def allowed_sizes(job: JobState, gpu_type: str, speeds: Rates, alpha: float) -> AllowedSizes:
    """The sizes of ``job`` on one GPU type of the cluster."""
    most = speeds.gpu_types[gpu_type]
    requested = job.spec.gpus.requested
    low = [k for k in sizes_below(job) if k <= most and speeds.rate(job, k, gpu_type)]
    if requested <= most and speeds.rate(job, requested, gpu_type):
        low.insert(0, requested)
    if not low:
        return AllowedSizes((), (), 0, _why_empty(job, gpu_type, most))
    high, reason = _above(job, low[0], gpu_type, speeds, alpha)
    found: list[tuple[int, float]] = []
    candidates = (*reversed(low), *high)
    for size in candidates:
        rate = speeds.rate(job, size, gpu_type)
        if not found or rate >= found[-1][1] * (1 - _ROUNDING):
            found.append((size, rate))
    sizes, rates = zip(*found, strict=True)
    slower = sizes[-1] < candidates[-1]
    return AllowedSizes(sizes, rates, low[0], "its speed, which falls beyond" if slower else reason)


def _why_empty(job: JobState, gpu_type: str, most: int) -> str:
    if job.spec.min_gpus > most:
        return f"needs {in_gpus(job.spec.min_gpus)}, {gpu_type} has {most}"
    return f"no size of it is feasible on {gpu_type}"


def _above(job: JobState, base: int, gpu_type: str, speeds: Rates, alpha: float) -> tuple[list[int], str]:
    """Sizes above ``base`` and what ends them."""
    limit, reason = _limit(job, speeds.gpu_types[gpu_type])
    sizes: list[int] = []
    reached = base
    while reached < limit:
        size = min(2 * reached, limit)
        found = efficiency(job, size, base, gpu_type, speeds)
        if found < alpha:
            return sizes, f"alpha {alpha:g} (eff({size}) = {found:.2f})"
        sizes.append(size)
        reached = size
    return sizes, reason


def _limit(job: JobState, most: int) -> tuple[int, str]:
    """The largest size that scaling control need not even look beyond."""
    if job.spec.elastic == "none":
        return job.spec.gpus.requested, "its fixed size"
    limits = [
        (
            job.max_gpus(most),
            "its maximum" if (job.spec.gpus.max or most + 1) <= most else "the cluster",
        ),
    ]
    if job.spec.batch.size is not None:  # a batch that is not stated limits nothing
        limits.append((job.spec.batch.size, "its batch"))
    return min(limits, key=lambda item: item[0])


class SizesByJob:
    """Allowed sizes of all jobs by GPU type, each kind of job computed once."""

    def __init__(self, speeds: Rates, alpha: float) -> None:
        self.speeds = speeds
        self.alpha = alpha
        self.gpu_types = tuple(speeds.gpu_types)

    def of(self, job: JobState) -> tuple[AllowedSizes, ...]:
        """Those on each GPU type, in the order of ``gpu_types``."""
        gpus = job.spec.gpus
        limits = (gpus.requested, gpus.min, gpus.max, job.most, job.spec.elastic == "none")
        return self.speeds.of_kind(job, ("ares", self.alpha, *limits), lambda: self._made(job))

    def _made(self, job: JobState) -> tuple[AllowedSizes, ...]:
        return tuple(allowed_sizes(job, kind, self.speeds, self.alpha) for kind in self.gpu_types)
