"""From the throughput model to the tables of a search: the best batch of each job at each size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.ones.limits import Limit, batches, most_local
from pliant.tools.schedule.policies.ones.sizes import Sizes
from pliant.tools.schedule.speeds import Speeds

_AS_FAST: Final = 1 - 1e-9


class Row(NamedTuple):
    """One job by GPUs: from 0 to that of the sizes that its limit allows on which it is fastest."""

    utilization: Sequence[float]
    """GPU-seconds for a sample; infinite where it may not have that size."""
    batches: Sequence[int]
    """The best batch; 0 where there is none."""


class Tables:
    """Rows of jobs, made again only where a limit has changed."""

    def __init__(self, speeds: Speeds) -> None:
        self.speeds = speeds
        self._known: dict[str, tuple[tuple[object, ...], Row]] = {}

    def forget(self, job_id: str) -> None:
        """The job has left."""
        self._known.pop(job_id, None)

    def row(self, job: JobState, gpu_type: str, gpus: int, limit: Limit) -> Row:
        """What the job may have of a pool of ``gpus`` GPUs under its limit."""
        least, most = job.spec.min_gpus, job.max_gpus(gpus)
        most = min(most, max(least, math.floor(limit.samples / limit.local * (1 + 1e-9))))
        key = (gpu_type, most, limit.samples, limit.local)
        known = self._known.get(job.id)
        if known is None or known[0] != key:
            known = self._known[job.id] = key, self._made(job, gpu_type, range(least, most + 1), limit)
        return known[1]

    def _made(self, job: JobState, gpu_type: str, sizes: range, limit: Limit) -> Row:
        utilization = [0.0] + [math.inf] * max(0, sizes.stop - 1)
        found = [0] * len(utilization)
        local = most_local(job, self.speeds, gpu_type)
        fastest, size = 0.0, 0
        for gpus in sizes:
            low, high = batches(job, gpus, local, limit.samples)
            choices = [high - high % gpus] if high - high % gpus > low else []  # equal shares
            choices += _choices(job.reference_batch, low, high, limit.local * gpus)
            rates = [self.speeds.rate(job, gpus, gpu_type, global_batch=batch) for batch in choices]
            best = max(rates)
            if best > 0:
                fastest, size = max((fastest, size), (best, gpus), key=lambda each: each[0])
                near = [batch for batch, rate in zip(choices, rates, strict=True) if rate >= best * _AS_FAST]
                found[gpus] = min(near, key=lambda batch: (abs(batch - limit.local * gpus), batch))
                utilization[gpus] = gpus / best
        return Row(utilization[: size + 1], found[: size + 1])


def _choices(reference: int, low: int, high: int, usual: float) -> Iterator[int]:
    """The largest, the one that leaves each GPU what it had, the smallest, and doublings between."""
    yield high
    yield min(high, max(low, round(usual)))
    yield low
    batch = reference << (high // reference).bit_length() if high >= reference else reference
    while batch > low:
        if batch < high:
            yield batch
        batch //= 2


def sizes_of(rows: Sequence[Row]) -> Sizes:
    """The rows as one table."""
    table = np.full((len(rows), max(len(row.utilization) for row in rows)), np.inf)
    for place, row in zip(table, rows, strict=True):
        place[: len(row.utilization)] = row.utilization
    return Sizes(table)
