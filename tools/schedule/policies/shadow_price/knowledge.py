"""What the policy knows of jobs: curves by pool, and what others of their model have shown by progress."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.pools import Pool
from pliant.tools.schedule.policies.shadow_price.curves import Curve, Curves, Floats, Ints, sizes_of
from pliant.tools.schedule.policies.shadow_price.noise import CELLS, noise_scales, paces
from pliant.tools.schedule.policies.shadow_price.outlook import Ahead, Outlook
from pliant.tools.schedule.speeds import Speeds

_AS_PROMISED: Final = np.ones(CELLS)


class Knowledge:
    """Curves are made again in every process; what jobs have shown is carried."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead_s = ahead_s
        self._noise = noise_scales()
        self._paces = paces()
        self._speeds: Speeds | None = None
        self._curves: dict[Pool, Curves] = {}
        self._ahead: dict[tuple[Curve, str], Ahead] = {}

    def use(self, speeds: Speeds) -> None:
        """Take up the throughput model; curves of another one are forgotten."""
        if self._speeds is not speeds:
            self._speeds, self._curves, self._ahead = speeds, {}, {}

    def observe(self, job: JobState, time_s: float) -> None:
        """A running job shows its noise scale and its pace."""
        noise_scale, total, speeds = job.noise_scale, job.total_samples, self._speeds
        if not job.gpus or noise_scale is None or not total or speeds is None:
            return
        progress = job.samples_done(time_s) / total
        self._noise.observe(job.spec.model, progress, noise_scale)
        ring = tuple(sorted((count for _, count in job.placement), reverse=True))
        rate = speeds.rate(job, job.gpus, job.gpu_type, global_batch=job.global_batch, placement=ring)
        base = min(job.spec.batch.min or job.reference_batch, job.reference_batch)
        promised = rate * _efficiency(noise_scale, base, job.global_batch)
        if promised > 0 and job.samples_per_second > 0:
            self._paces.observe(_pace_key(job), progress, job.samples_per_second / promised)

    def curves(self, pool: Pool) -> Curves:
        """The curves of a pool."""
        assert self._speeds is not None, "use() comes first"  # noqa: S101
        found = self._curves.get(pool)
        if found is None:
            sizes = sizes_of(pool.gpus, pool.node_gpus)
            found = self._curves[pool] = Curves(self._speeds, pool.gpu_type, sizes)
        return found

    def outlook(self, job: JobState, curve: Curve, sizes: Ints, time_s: float) -> Outlook:
        """What is ahead of a job; the same rate throughout where nothing is known to change."""
        line = self._noise.line(job.spec.model)
        left, total = job.remaining_samples(time_s), job.total_samples
        if line is None or left is None or not total or not curve.rates.any():
            rates = curve.goodput(job.noise_scale)
            return Outlook(rates, rates)
        ahead = self._ahead_of(job, curve, line)
        progress = min(max(1.0 - left / total, 0.0), 1.0)
        size = int(np.searchsorted(sizes, job.gpus))
        if not (size and size < len(sizes) and curve.rates[size].any()):
            size = int((ahead.whole(progress)[1:] / sizes[1:]).argmax()) + 1
        return ahead.at(progress, total, self._ahead_s, size)

    def noise_scale(self, job: JobState, time_s: float) -> float | None:
        """That of the job, or of its model where the job is; None: nothing is known."""
        if job.noise_scale is not None:
            return job.noise_scale
        line = self._noise.line(job.spec.model)
        left, total = job.remaining_samples(time_s), job.total_samples
        if line is None or left is None or not total:
            return None
        return float(line[min(max(int((1.0 - left / total) * CELLS), 0), CELLS - 1)])

    def dump(self) -> dict[str, Any]:
        """As JSON values."""
        return {"noise": self._noise.dump(), "pace": self._paces.dump()}

    def load(self, state: Any) -> None:
        """The inverse of :meth:`dump`."""
        self._noise.load(state["noise"])
        self._paces.load(state["pace"])
        self._ahead = {}

    def _ahead_of(self, job: JobState, curve: Curve, line: Floats) -> Ahead:
        key = (curve, _pace_key(job))
        found = self._ahead.get(key)
        if found is None:
            found = self._ahead[key] = Ahead(curve)
        pace = self._paces.line(key[1])
        found.update(line, _AS_PROMISED if pace is None else pace)
        return found


def _efficiency(noise_scale: float, base: int, batch: int) -> float:
    return 1.0 if noise_scale == np.inf else (noise_scale + base) / (noise_scale + batch)


def _pace_key(job: JobState) -> str:
    return f"{job.spec.model} {job.reference_batch}"
