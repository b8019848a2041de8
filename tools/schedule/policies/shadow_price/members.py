"""The jobs of one pool of GPUs as columns: what is ahead of each, what is left, what it holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.pools import Pool
from pliant.tools.schedule.policies.shadow_price.curves import Curve, Floats, Ints
from pliant.tools.schedule.policies.shadow_price.knowledge import Knowledge, held_speed
from pliant.tools.schedule.speeds import Speeds

_MOST_PRIORITY: Final = 30.0


@dataclass(frozen=True)
class Members:
    """Columns by job, in order of arrival; sizes are positions among those of the pool."""

    pool: Pool
    sizes: Ints
    jobs: Sequence[JobState]
    curves: Sequence[Curve]
    whole: Floats
    """[job, size] F."""
    soon: Floats
    """[job, size] G."""
    left: Floats
    """R, in samples."""
    seconds: Floats
    """GPU-seconds of it at k°."""
    normal: Ints
    """k°, the size that makes most of a GPU."""
    held: Ints
    """The size held in this pool; 0: none, or one that is not among the sizes."""
    scattered: Floats
    """What the place of a job leaves of its speed: 1 where it is as compact as can be."""
    runs: npt.NDArray[np.bool_]
    """Whether the job holds GPUs, here or in another pool."""
    weights: Floats
    rescale_s: Floats

    @classmethod
    def of(cls, pool: Pool, jobs: Sequence[JobState], known: Knowledge, time_s: float) -> Members | None:
        """The columns of the jobs that can run in the pool; None: there is none."""
        curves = known.curves(pool)
        sizes = curves.sizes
        fitting = [
            (job, curve, outlook)
            for job in sorted(jobs, key=lambda each: each.arrival)
            if (outlook := known.outlook(job, curve := curves.of(job), sizes, time_s)).whole.any()
        ]
        if not fitting:
            return None
        whole = np.stack([outlook.whole for _, _, outlook in fitting])
        per_gpu = whole[:, 1:] / sizes[1:]
        normal = per_gpu.argmax(axis=1) + 1
        fastest = per_gpu[np.arange(len(fitting)), normal - 1]
        left = np.array(
            [known.work(job, rate, time_s) for (job, _, _), rate in zip(fitting, fastest, strict=True)]
        )
        found = [job for job, _, _ in fitting]
        here = [job.gpus if job.gpu_type == pool.gpu_type else 0 for job in found]
        held = np.searchsorted(sizes, here).clip(max=len(sizes) - 1)
        speeds = curves.speeds
        return cls(
            pool,
            sizes,
            found,
            [curve for _, curve, _ in fitting],
            whole,
            np.stack([outlook.soon for _, _, outlook in fitting]),
            left,
            left / fastest,
            normal,
            np.where(sizes[held] == here, held, 0),
            np.array([_scattered(job, pool, speeds) for job in found]),
            np.array([job.gpus > 0 for job in found]),
            np.array([weight(job) for job in found]),
            np.array([known.rescale_s(job) for job in found]),
        )

    def shortest_last(self) -> list[int]:
        """Rows by weighted GPU-seconds, those with most first; of equal ones the last to arrive."""
        keys = self.seconds / self.weights
        return sorted(range(len(self.jobs)), key=lambda row: (keys[row], row), reverse=True)


def weight(job: JobState) -> float:
    """What a second of the job's completion time counts: 2 to its priority."""
    return math.exp2(min(max(job.priority, -_MOST_PRIORITY), _MOST_PRIORITY))


def _scattered(job: JobState, pool: Pool, speeds: Speeds) -> float:
    """The speed of a job where it is, over that on as few nodes as possible."""
    if job.gpu_type != pool.gpu_type or len(job.placement) <= -(-job.gpus // pool.node_gpus):
        return 1.0
    compact = speeds.rate(job, job.gpus, pool.gpu_type, global_batch=job.global_batch)
    return min(1.0, held_speed(job, speeds) / compact) if compact > 0 else 1.0
