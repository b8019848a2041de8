"""The batch of a job on the GPUs that it gets: the one that trains most there, if it may move."""

from __future__ import annotations

import numpy as np

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.shadow_price.curves import Curve


def best_batch(
    job: JobState, curve: Curve, size: int, noise_scale: float | None, *, worth_s: float | None
) -> int:
    """The global batch on the GPUs of a size, by position.

    :param worth_s: None: the job starts or changes its GPUs anyway, or batches change for nothing. Else the
        seconds that another batch costs it over those in which it pays.
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
