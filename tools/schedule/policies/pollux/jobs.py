"""What Pollux knows of each job: limits, fit, candidates and goodput by allocation, kept while they hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.pollux.fit import Fit, fit
from pliant.tools.schedule.policies.pollux.goodput import (
    Candidates,
    Goodput,
    Limits,
    ProfileCandidates,
    efficiency,
    from_fit,
)
from pliant.tools.schedule.policies.pools import Pool
from pliant.tools.schedule.speeds import Speeds

Knowledge = Literal["profile", "measured"]
"""Where step times come from: the session's profile, or nothing but what the job itself has measured."""


@dataclass(slots=True)
class _Known:
    """What was made for one job, and of what."""

    pool: Pool
    limits: Limits
    observations: int
    """How many there were."""
    candidates: Candidates
    noise_scale: float | None
    goodput: Goodput
    fit: Fit | None


class Goodputs:
    """Goodput tables of jobs, made again only when what they are made of has changed."""

    def __init__(self, speeds: Speeds, knowledge: Knowledge, *, lone_accumulates: bool) -> None:
        self.speeds = speeds
        self._measured = knowledge == "measured"
        self._lone_accumulates = lone_accumulates
        self._profile = ProfileCandidates(speeds)
        self._known: dict[str, _Known] = {}

    def forget(self, job_id: str) -> None:
        """The job has left."""
        self._known.pop(job_id, None)

    def limits(self, job: JobState, pool: Pool) -> Limits:
        """What the job may be given out of the pool: its own limits, and at most twice what it has tried.

        The batch may move where its elasticity and knowledge of its noise allow; a job that only measures
        begins with the smallest it allows.
        """
        spec, batch = job.spec, job.reference_batch
        least, most = spec.min_gpus, job.max_gpus(pool.gpus)
        if spec.elastic == "none":
            least = most = spec.gpus.requested
        wide = self.speeds.most_local(job, pool.gpu_type)
        if spec.elastic != "size+batch":
            return Limits(least, self._tried(job, pool, least, most, batch), batch, batch, 1, wide)
        low, high = spec.batch.min or batch, spec.batch.max or batch
        local = min(self.speeds.throughput.local_batches(spec.model, pool.gpu_type), default=1)
        most = min(most, max(least, high // local))
        tried = self._tried(job, pool, least, most, high)
        if job.noise_scale is None:
            low = high = low if self._measured else batch
        return Limits(least, tried, low, high, local, wide)

    def goodput(self, job: JobState, pool: Pool) -> Goodput:
        """The job's goodput by allocation."""
        limits, measured = self.limits(job, pool), len(job.observations)
        known = self._known.get(job.id)
        if known is None or (known.pool, known.limits, known.observations) != (pool, limits, measured):
            candidates, found = self._candidates(job, pool, limits, known)
            best = candidates.best(job.noise_scale, job.reference_batch)
            known = _Known(pool, limits, measured, candidates, job.noise_scale, best, found)
            self._known[job.id] = known
        elif known.noise_scale != job.noise_scale:
            known.noise_scale = job.noise_scale
            known.goodput = known.candidates.best(job.noise_scale, job.reference_batch)
        return known.goodput

    def present(self, job: JobState, several: int) -> float:
        """Goodput on as many GPUs as the job holds, at the candidate nearest to its present batch."""
        candidates = self._known[job.id].candidates
        if job.gpus >= candidates.batches.shape[1]:
            return 0.0
        batches = candidates.batches[several, job.gpus]
        nearest = int(np.abs(batches - job.global_batch).argmin())
        useful = efficiency(job.noise_scale, job.reference_batch, np.array([job.global_batch]))
        return float(candidates.samples_per_second[several, job.gpus, nearest] * useful[0])

    def _candidates(
        self, job: JobState, pool: Pool, limits: Limits, known: _Known | None
    ) -> tuple[Candidates, Fit | None]:
        if not self._measured:
            return self._profile.of(job, pool.gpu_type, pool.node_gpus, limits), None
        found = known.fit if known is not None else None
        if job.observations and (known is None or known.observations != len(job.observations)):
            found = fit(job.observations)
        return from_fit(found, limits, lone_accumulates=self._lone_accumulates), found

    def _tried(self, job: JobState, pool: Pool, least: int, most: int, batch: int) -> int:
        """At most twice what the job has tried, and nothing of which the throughput model knows no speed.

        The fit of a job promises speed on any number of GPUs; beyond all measurements it stands still.
        """
        if not self._measured:
            return most
        largest = max((sum(each.placement) for each in job.observations), default=0)
        most = min(most, max(1, least, 2 * largest))
        rate = self.speeds.rate
        sizes = range(most, least, -1)
        return next(
            (k for k in sizes if rate(job, k, pool.gpu_type, global_batch=batch) > 0), min(most, least)
        )
