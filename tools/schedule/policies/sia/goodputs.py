"""Goodput of jobs by configuration, and what is known of GPU types on which a job has not run.

Sia (SOSP '23), sections 3.1 and 3.3. Goodput is that of :mod:`~pliant.tools.schedule.policies.pollux.goodput`
(throughput × statistical efficiency at the best batch), for each GPU type by itself. Where step times are
measured by the jobs, a type is answered for in this order:

- by the parameters fitted to what the job measured on it;
- by those of the first type that it measured, times the ratio of the speeds of one replica:
  throughput(N, A) = throughput(1, A) / throughput(1, B) · throughput(N, B).

With "bootstrap", the paper's way, the speeds of one replica are known of every type at the start. A fit to
them alone takes synchronising to cost nothing, and answers only until a type was measured on several GPUs.
With "measured", as the paper's simulator has it, nothing is known before a job has run: until then it is
offered its least configuration of every type, all equally good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from pliant.tools.schedule.jobs import JobKind, JobState, Observation
from pliant.tools.schedule.policies.pollux.goodput import (
    BatchCandidates,
    Ints,
    JobLimits,
    few_batches,
    fit_at,
    job_limits,
)
from pliant.tools.schedule.policies.sia.configurations import Configuration, GpuType, placement_of
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.step_time_fit import Fit, Floats, fit

Knowledge = Literal["profile", "bootstrap", "measured"]
"""Where step times come from: all from the session's profile; those of one replica, and the rest from what
the job itself has measured; from that alone."""


Offers = Mapping[GpuType, Sequence[Configuration]]
"""Configurations of each type that a job may get, ascending; no type without any."""


class GoodputRow(NamedTuple):
    """One row of the paper's matrix G before it is normalised: a job's goodput by configuration."""

    configurations: tuple[Configuration, ...]
    rates: Floats
    """Useful samples per second; all above 0."""
    batches: Ints


@dataclass(slots=True)
class _Known:
    """What is kept of one job, and what it was made of."""

    observations: int
    fits: Mapping[str, Fit]
    """Fits by GPU type."""
    candidates: dict[str, tuple[_Key, BatchCandidates]]
    """Candidates by GPU type, with what they were made of."""


class _Key(NamedTuple):
    job: JobKind
    offered: tuple[Configuration, ...]
    limits: JobLimits
    observations: int


class _PendingRow(NamedTuple):
    """A row that is being made."""

    job: JobState
    offers: Offers
    known: _Known


class JobGoodputs:
    """JobGoodputs of all jobs, made again only when what they are made of has changed."""

    def __init__(self, speeds: Speeds, knowledge: Knowledge, *, lone_accumulates: bool) -> None:
        self.speeds = speeds
        self._knowledge = knowledge
        self._lone_accumulates = lone_accumulates
        self._known: dict[str, _Known] = {}

    def forget(self, job_id: str) -> None:
        self._known.pop(job_id, None)

    def row(self, job: JobState, offers: Offers) -> GoodputRow:
        """The job's goodputs on what it may get, without configurations on which it would not advance."""
        asked = _PendingRow(job, offers, self._up_to_date(job))
        if self._knowledge == "measured" and not any(kind.name in asked.known.fits for kind in offers):
            return self._unknown(job, offers)
        configurations: list[Configuration] = []
        rates, batches = [np.zeros(0)], [np.zeros(0, dtype=np.int64)]
        for kind, offered in offers.items():
            best = self._candidates(asked, kind, tuple(offered)).best(job.noise_scale, job.reference_batch)
            able = best.rates[0] > 0
            configurations += [one for one, runs in zip(offered, able, strict=True) if runs]
            rates.append(best.rates[0][able])
            batches.append(best.batches[0][able])
        return GoodputRow(tuple(configurations), np.concatenate(rates), np.concatenate(batches))

    def present(self, job: JobState, held: Configuration) -> float:
        """Goodput of a running job as it is, at its present batch; 0 where that is not known."""
        known = self._known.get(job.id)
        made = None if known is None else known.candidates.get(held.gpu_type)
        if made is None or held not in made[0].offered:
            return 0.0
        return made[1].present(job, 0, made[0].offered.index(held))

    def _up_to_date(self, job: JobState) -> _Known:
        known, measured = self._known.get(job.id), len(job.observations)
        if known is None or known.observations != measured:
            fits = {} if self._knowledge == "profile" else self._fits(job)
            known = self._known[job.id] = _Known(measured, fits, known.candidates if known else {})
        return known

    def _fits(self, job: JobState) -> dict[str, Fit]:
        fits = {}
        for gpu_type in self.speeds.gpu_types:
            seen = (*self._profiled(job, gpu_type), *job.observations_on(gpu_type))
            if seen:
                fits[gpu_type] = fit(seen, job.per_replica)
        return fits

    def _profiled(self, job: JobState, gpu_type: str) -> Sequence[Observation]:
        """One replica at the batches that were measured, as the profile knows them."""
        if self._knowledge != "bootstrap":
            return ()
        each, most = job.per_replica, self.speeds.most_local(job, gpu_type)
        batches = self.speeds.throughput.local_batches(job.spec.model, gpu_type) or (job.reference_batch,)
        place = self.speeds.consolidated(each, gpu_type, each)
        return [
            Observation(place, local, 1, local / rate, 0.0, gpu_type)
            for local in batches
            if (most is None or local <= most)
            and (rate := self.speeds.rate(job, each, gpu_type, global_batch=local)) > 0
        ]

    def _unknown(self, job: JobState, offers: Offers) -> GoodputRow:
        """The least configuration of each type, at the smallest batch: all equally good."""
        able = [(kind, one) for kind, (one, *_) in offers.items() if self._runs(job, kind, (one,))[0]]
        batches = []
        for kind, one in able:
            limits = job_limits(job, kind.name, (one.gpus, one.gpus), self.speeds, begins_small=True)
            smallest = limits.least_local * one.gpus // job.per_replica
            is_fixed = job.spec.elastic != "size+batch"
            batches.append(limits.least_batch if is_fixed else max(limits.least_batch, smallest))
        return GoodputRow(
            tuple(one for _, one in able), np.ones(len(able)), np.array(batches, dtype=np.int64)
        )

    def _candidates(
        self, asked: _PendingRow, kind: GpuType, offered: tuple[Configuration, ...]
    ) -> BatchCandidates:
        job, known = asked.job, asked.known
        sizes, small = tuple(one.gpus for one in offered), self._knowledge != "profile"
        limits = job_limits(job, kind.name, (sizes[0], sizes[-1]), self.speeds, begins_small=small)
        limits = limits._replace(sizes=sizes)
        key = _Key(JobKind.of(job), offered, limits, known.observations)
        made = known.candidates.get(kind.name)
        if made is None or made[0] != key:
            if self._knowledge == "profile":
                what = ("sia", offered, limits)
                candidates = self.speeds.of_kind(job, what, lambda: self._from_profile(job, kind, key))
            else:
                candidates = self._from_fits(asked, kind, key)
            made = known.candidates[kind.name] = (key, candidates)
        return made[1]

    def _from_profile(self, job: JobState, kind: GpuType, key: _Key) -> BatchCandidates:
        batches = few_batches(key.limits)
        rates = np.zeros((1, len(key.offered), len(batches)))
        for column, one in enumerate(key.offered):
            if one.gpus <= key.limits.most_gpus:
                rates[0, column] = [self._rate(job, kind, one, int(batch)) for batch in batches]
        return BatchCandidates(np.broadcast_to(batches, rates.shape), rates)

    def _from_fits(self, asked: _PendingRow, kind: GpuType, key: _Key) -> BatchCandidates:
        job, source = asked.job, self._source(asked, kind)
        type_fit = asked.known.fits.get(source.name)
        runs = np.array(self._runs(job, kind, key.offered))[None, :, None]
        gpus = np.array([one.gpus for one in key.offered], dtype=np.int64)
        if source is kind:
            several, ratio = np.array([[one.nodes > 1 for one in key.offered]]), 1.0
        else:
            several = (gpus > source.node_gpus)[None]
            ratio = self._alone(job, kind.name) / self._alone(job, source.name)
        made = fit_at(type_fit, key.limits, several, gpus, lone_accumulates=self._lone_accumulates)
        return BatchCandidates(made.batches, np.where(runs, made.samples_per_second * ratio, 0.0))

    def _source(self, asked: _PendingRow, kind: GpuType) -> GpuType:
        """The type whose fit answers for another one."""
        fitted = [each for each in asked.offers if each.name in asked.known.fits]
        if self._knowledge == "bootstrap":
            each = asked.job.per_replica
            wide = {seen.gpu_type for seen in asked.job.observations if sum(seen.placement) > each}
            fitted = [one for one in fitted if one.name in wide]
        return fitted[0] if fitted and kind not in fitted else kind

    def _alone(self, job: JobState, gpu_type: str) -> float:
        """Samples per second of one replica, at the largest batch that fits it."""
        largest = max(self.speeds.throughput.local_batches(job.spec.model, gpu_type), default=0)
        batch = min(filter(None, (largest, self.speeds.most_local(job, gpu_type))), default=0)
        return self.speeds.rate(job, job.per_replica, gpu_type, global_batch=batch or job.reference_batch)

    def _runs(self, job: JobState, kind: GpuType, offered: tuple[Configuration, ...]) -> Sequence[bool]:
        """Whether a speed is known of each configuration: fits are not trusted beyond."""
        most = job.spec.batch.max if job.spec.elastic == "size+batch" else None
        batch = max(most or 0, job.reference_batch)
        what = ("sia runs", kind.name, offered, batch)
        return self.speeds.of_kind(
            job, what, lambda: [self._rate(job, kind, one, batch) > 0 for one in offered]
        )

    def _rate(self, job: JobState, kind: GpuType, one: Configuration, batch: int) -> float:
        place = placement_of(one, kind.node_gpus)
        return self.speeds.rate(job, one.gpus, kind.name, global_batch=batch, placement=place)
