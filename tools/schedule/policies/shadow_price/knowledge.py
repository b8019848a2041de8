"""What the policy knows of jobs: curves by pool, and what others of their model have shown by progress."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any, Final

import numpy as np

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.pools import Pool
from pliant.tools.schedule.policies.shadow_price.curves import (
    MOST_NOISE,
    Curve,
    Curves,
    Floats,
    Ints,
    sizes_of,
)
from pliant.tools.schedule.policies.shadow_price.noise import CELLS, noise_scales, paces
from pliant.tools.schedule.policies.shadow_price.outlook import Ahead, Outlook
from pliant.tools.schedule.speeds import Speeds, shape_of

_REMEMBERED: Final = 32
"""Jobs of a model that ended, from which the work of others is expected."""
_LEAST_SAMPLES: Final = 1e-9
_QUEUE_GPU_S: Final = 60.0
_QUEUE_FACTOR: Final = 4.0
_AS_PROMISED: Final = np.ones(CELLS)


class Knowledge:
    """Curves are made again in every process; what jobs have shown is carried."""

    def __init__(self, ahead_s: float, rescale_s: float = 30.0) -> None:
        """:param rescale_s: what a change costs a job whose profile has not measured it."""
        self._ahead_s = ahead_s
        self._rescale_s = rescale_s
        self._noise = noise_scales()
        self._by_samples = noise_scales()
        """By the logarithm of the samples done, for jobs of unknown work."""
        self._totals: dict[str, list[float]] = {}
        """Samples of the last jobs that ended, by model."""
        self._paces = paces()
        self._speeds: Speeds | None = None
        self._curves: dict[Pool, Curves] = {}
        self._ahead: dict[tuple[Curve, str], Ahead] = {}

    def use(self, speeds: Speeds) -> None:
        """Take up the throughput model; curves of another one are forgotten."""
        if self._speeds is not speeds:
            self._speeds, self._curves, self._ahead = speeds, {}, {}

    def left(self, job: JobState, time_s: float) -> float | None:
        """Samples still to train, expected ones where the job does not state its work; None: unknown.

        Expected is the mean over the jobs of its model that ended after more than it has done.
        """
        left = job.remaining_samples(time_s)
        if left is not None and not job.is_speed_guessed:
            return left
        done = job.samples_done(time_s)
        longer = [total for total in self._totals.get(job.spec.model, ()) if total > done]
        return fmean(longer) - done if longer else None

    def work(self, job: JobState, per_gpu: float, time_s: float) -> float:
        """The same, of unknown work what its queue says, at ``per_gpu`` samples per GPU-second."""
        left = self.left(job, time_s)
        return _queue_gpu_s(job, time_s) * per_gpu if left is None else max(left, _LEAST_SAMPLES)

    def progress(self, job: JobState, time_s: float) -> float | None:
        """The part of its work that a job has done; None: unknown."""
        left, done = self.left(job, time_s), job.samples_done(time_s)
        if left is None:
            return None
        return done / (done + left) if left > 0 else 1.0

    def learn(self, job: JobState) -> None:
        """A job has done its work."""
        known = self._totals.get(job.spec.model, [])
        self._totals[job.spec.model] = [*known, job.samples_done(math.inf)][-_REMEMBERED:]

    def observe(self, job: JobState, time_s: float) -> None:
        """A running job shows its noise scale and its pace."""
        noise_scale, speeds = job.noise_scale, self._speeds
        if not job.gpus or noise_scale is None or speeds is None:
            return
        self._by_samples.observe(job.spec.model, _doublings(job, time_s), noise_scale)
        progress = self.progress(job, time_s)
        if progress is None:
            return
        self._noise.observe(job.spec.model, progress, noise_scale)
        base = min(job.spec.batch.min or job.reference_batch, job.reference_batch)
        promised = held_speed(job, speeds) * _efficiency(noise_scale, base, job.global_batch)
        if promised > 0 and job.samples_per_second > 0:
            pace = job.samples_per_second / promised
            self._paces.observe(_pace_key(job), progress, pace)
            self._paces.observe(job.spec.model, progress, pace)

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
        line, progress = self._noise.line(job.spec.model), self.progress(job, time_s)
        if line is None or progress is None or not curve.rates.any():
            rates = curve.goodput(self.noise_scale(job, time_s))
            return Outlook(rates, rates)
        ahead = self._ahead_of(job, curve, line)
        size = int(np.searchsorted(sizes, job.gpus))
        if not (size and size < len(sizes) and curve.rates[size].any()):
            size = int((ahead.whole(progress)[1:] / sizes[1:]).argmax()) + 1
        total = job.samples_done(time_s) + (self.left(job, time_s) or 0.0)
        return ahead.at(progress, max(total, _LEAST_SAMPLES), self._ahead_s, size)

    def rescale_s(self, job: JobState) -> float:
        """Seconds that a change costs a job that trains."""
        measured = None if self._speeds is None else self._speeds.rescale_seconds(job.spec.model)
        return self._rescale_s if measured is None else measured

    def held_rate(self, job: JobState, time_s: float) -> float:
        """Samples per second of its own batch that the profile promises of what a job holds."""
        if not job.gpus or self._speeds is None:
            return 0.0
        speed, own = held_speed(job, self._speeds), job.reference_batch
        noise_scale = None if job.global_batch == own else self.noise_scale(job, time_s)
        return speed if noise_scale is None else speed * _efficiency(noise_scale, own, job.global_batch)

    def noise_scale(self, job: JobState, time_s: float) -> float | None:
        """That of the job, or of its model where the job is; None: nothing is known."""
        if job.noise_scale is not None:
            return job.noise_scale
        progress = self.progress(job, time_s)
        if progress is not None:
            return self._noise.at(job.spec.model, progress)
        return self._by_samples.at(job.spec.model, _doublings(job, time_s))

    def dump(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "noise": self._noise.dump(),
            "noise_by_samples": self._by_samples.dump(),
            "pace": self._paces.dump(),
            "totals": dict(sorted(self._totals.items())),
        }

    def load(self, state: Any) -> None:
        """The inverse of :meth:`dump`."""
        self._noise.load(state["noise"])
        self._by_samples.load(state["noise_by_samples"])
        self._paces.load(state["pace"])
        self._totals = dict(state["totals"])
        self._ahead = {}

    def _ahead_of(self, job: JobState, curve: Curve, line: Floats) -> Ahead:
        key = (curve, _pace_key(job))
        found = self._ahead.get(key)
        if found is None:
            found = self._ahead[key] = Ahead(curve)
        pace = self._paces.line(key[1])
        if pace is None:
            pace = self._paces.line(job.spec.model)
        found.update(line, _AS_PROMISED if pace is None else pace)
        return found


def held_speed(job: JobState, speeds: Speeds) -> float:
    """Samples per second of a job that holds GPUs: its batch, and the nodes where it is."""
    ring = shape_of(job.placement)
    return speeds.rate(job, job.gpus, job.gpu_type, global_batch=job.global_batch, placement=ring)


def _efficiency(noise_scale: float, base: int, batch: int) -> float:
    noise_scale = min(noise_scale, MOST_NOISE)
    return (noise_scale + base) / (noise_scale + batch)


def _queue_gpu_s(job: JobState, time_s: float) -> float:
    """What a job of unknown work is taken to have left: the bound of the queue of its attained service."""
    attained = max(job.attained_service_s(time_s), _QUEUE_GPU_S)
    level = math.floor(math.log(attained / _QUEUE_GPU_S, _QUEUE_FACTOR) + 1e-9)
    return _QUEUE_GPU_S * _QUEUE_FACTOR**level


def _doublings(job: JobState, time_s: float) -> float:
    """How often the samples that a job has done have doubled, over the most that is possible."""
    return math.log2(1.0 + job.samples_done(time_s)) / CELLS


def _pace_key(job: JobState) -> str:
    return f"{job.spec.model} {job.reference_batch}"
