"""The limit R of each job's batch, and what a job may have under it: ONES (SC '21), section 3.3.2.

A limit is in samples. On GPUs it allows floor(R / local), where local is what each GPU trained per step when
the job ran last. For a job whose batch may not move, the limit says the number of GPUs alone.
:class:`BatchLimits` moves R by the epochs that jobs end; :class:`SizeTables` has the best batch of each job
at each size, and :class:`Sizes` the tables that a search works with.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.rates import Speeds

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Rule = Literal["start", "resume", "refused", "scale-up", "scale-down"]
_WHOLE: Final = 1 - 1e-6
"""Part of an epoch, or of a warm-up, that counts as all of it: progress is a sum of floats."""

_DIGITS: Final = 6
"""Digits after the point of arrivals while a job has run: often a whole number, but for rounding."""


@dataclass(slots=True)
class BatchLimit:
    """What one job may have, and what the next limit follows from."""

    samples: int
    """R."""
    local: float
    """Samples per GPU when it ran last; before it runs, on its smallest size."""
    rule: Rule = "start"
    """Rule that R follows."""
    executed_s: float = 0.0
    """Seconds for which it has held GPUs: T_processed."""
    begun_samples: float = 0.0
    """Samples done when the epoch that counts next began."""
    begun_s: float = 0.0
    """Time of that."""
    changed_samples: float = 0.0
    """Samples done when its GPUs or its batch changed last."""
    between: bool = False
    """Whether that was a start between two updates."""
    patience_s: float = 0.0
    """Seconds that an epoch of it took when it lost its GPUs."""
    refusable_s: float = 0.0
    """Time from which it counts as refused if it waits on."""


@dataclass(frozen=True, slots=True)
class EpochRule:
    """When a job has done an epoch.

    :param unknown_s: seconds of training that stand for an epoch of unknown length.
    :param longest_s: seconds after which it counts as done at the latest; None: no such limit.
    """

    unknown_s: float
    longest_s: float | None

    def end_s(self, job: JobState, from_samples: float, from_s: float, time_s: float) -> float:
        """When the epoch that began there ends; not after ``time_s`` if it is done."""
        size = job.epoch_samples
        if size is None:
            return from_s + self.unknown_s
        latest_s = math.inf if self.longest_s is None else from_s + self.longest_s
        goal = from_samples + size * _WHOLE
        if job.samples_done(time_s) >= goal:
            return min(time_s, latest_s)
        return min(latest_s, _reaches_s(job, from_samples + size, time_s))

    def lasts_s(self, job: JobState, rate: float) -> float:
        size = job.epoch_samples
        if size is None:
            return self.unknown_s
        return min(
            size / rate if rate > 0 else math.inf, math.inf if self.longest_s is None else self.longest_s
        )


def _reaches_s(job: JobState, samples: float, time_s: float) -> float:
    """When a job has done these samples at its present rate; infinite if it does not train."""
    if not job.gpus or job.samples_per_second <= 0:
        return math.inf
    for _ in range(8):  # the first steps pass over the time that a change costs
        lacking = samples - job.samples_done(time_s)
        if lacking <= 0:
            break
        time_s += lacking / job.samples_per_second
    return time_s


class BatchLimits:
    """The limits of all active jobs."""

    def __init__(self, epochs: EpochRule, warmup_steps: int, *, by_epochs: bool = False) -> None:
        """:param by_epochs: an epoch is waited for below the submitted batch, too."""
        self.epochs = epochs
        self._warmup_steps = warmup_steps
        self._by_epochs = by_epochs
        # Whether jobs wait: then an epoch is waited for, so that none starts for a few steps alone.
        self.queue = False
        self._known: dict[str, BatchLimit] = {}
        self._seen_s = 0.0

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._known

    def __getitem__(self, job_id: str) -> BatchLimit:
        return self._known[job_id]

    def forget(self, job_id: str) -> None:
        self._known.pop(job_id, None)

    def follow(
        self,
        jobs: Mapping[str, JobState],
        speeds: Speeds,
        time_s: float,
        rate: float,
        in_the_way: Container[str] = (),
    ) -> None:
        """Time has passed: jobs came, others have done an epoch.

        :param rate: mean arrivals a second, the σ of the scale-down rule.
        :param in_the_way: jobs that others wait behind.
        """
        self.queue = any(not job.gpus for job in jobs.values())
        for job in jobs.values():
            limit = self._known.get(job.id)
            if limit is None:
                limit = self._known[job.id] = _taken_up(job, speeds, time_s)
            if not job.gpus:
                if limit.rule not in ("start", "resume", "refused"):  # it lost its GPUs
                    self.preempted(job, time_s)
                continue
            limit.local = job.global_batch / job.gpus
            limit.executed_s += max(0.0, time_s - max(self._seen_s, job.granted_s))
            if limit.begun_s < job.granted_s:
                self.changed(job, time_s)
            if self.epochs.end_s(job, limit.begun_samples, limit.begun_s, time_s) <= time_s:
                if job.samples_done(time_s) >= self._warmup_steps * job.global_batch * _WHOLE:
                    _after_epoch(job, limit, rate, shrinks=job.id in in_the_way)
                limit.begun_samples, limit.begun_s = job.samples_done(time_s), time_s
            elif self._warm_s(job, limit.begun_samples, time_s) <= time_s:
                limit.samples = max(limit.samples, min(2 * job.global_batch, job.reference_batch))
            # a job that was shrunk, or resumed on fewer GPUs, does not go back in one change
            limit.samples = min(limit.samples, 2 * job.global_batch)
        self._seen_s = time_s

    def changed(self, job: JobState, time_s: float, *, between: bool = False) -> None:
        limit = self._known[job.id]
        limit.between = between
        limit.begun_samples = limit.changed_samples = job.samples_done(time_s)
        limit.begun_s = time_s

    def preempted(self, job: JobState, time_s: float) -> None:
        """The job may ask for no more than it had."""
        limit = self._known[job.id]
        limit.samples, limit.rule = min(limit.samples, job.global_batch), "resume"
        lasts_s = self.epochs.lasts_s(job, job.samples_per_second)
        limit.patience_s = lasts_s if lasts_s < math.inf else self.epochs.unknown_s
        limit.refusable_s = time_s + limit.patience_s

    def refused(self, job: JobState, time_s: float) -> None:
        """The job waits on in another schedule: R is halved, down to its smallest size, once an epoch."""
        limit = self._known[job.id]
        if time_s < limit.refusable_s:
            return
        limit.refusable_s = time_s + limit.patience_s
        least = math.ceil(limit.local * job.min_gpus)
        limit.samples, limit.rule = max(least, limit.samples // 2), "refused"

    def may_change_s(self, job: JobState, time_s: float) -> float:
        """When it has done an epoch, or its warm-up, since it changed; not after ``time_s`` if it has."""
        samples = self._known[job.id].changed_samples
        epoch_s = self.epochs.end_s(job, samples, job.changed_s, time_s)
        return min(epoch_s, self._warm_s(job, samples, time_s))

    def settles_s(self, job: JobState, batch: int, rate: float) -> float:
        """Seconds from a change to that batch until the job may change again; ``rate``: samples a second."""
        lasts_s = self.epochs.lasts_s(job, rate)
        return min(lasts_s, self._warmup_steps * batch / rate) if 0 < batch < self._sought(job) else lasts_s

    def next_epoch_s(self, job: JobState, time_s: float) -> float:
        """When the job ends the epoch, or the warm-up, that it is in."""
        limit = self._known[job.id]
        epoch_s = self.epochs.end_s(job, limit.begun_samples, limit.begun_s, time_s)
        warm_s = self._warm_s(job, limit.begun_samples, time_s)
        return min(epoch_s, warm_s) if warm_s > time_s else epoch_s

    def _warm_s(self, job: JobState, from_samples: float, time_s: float) -> float:
        """When the job has done its warm-up since then; never if it has no batch to grow back to."""
        if job.global_batch >= self._sought(job):
            return math.inf
        goal = from_samples + self._warmup_steps * job.global_batch
        if job.samples_done(time_s) >= goal * _WHOLE:
            return time_s
        return _reaches_s(job, goal, time_s)

    def _sought(self, job: JobState) -> int:
        """The batch below which a job waits for no epoch: that with which it was submitted, if it moves."""
        by_steps = job.spec.elastic == "size+batch" and not (self._by_epochs or self.queue)
        return job.reference_batch if by_steps else 0

    def dump(self) -> dict[str, Any]:
        return {
            "seen_s": self._seen_s,
            "jobs": {job_id: asdict(limit) for job_id, limit in sorted(self._known.items())},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self._seen_s = state["seen_s"]
        self._known = {job_id: BatchLimit(**limit) for job_id, limit in state["jobs"].items()}


def _after_epoch(job: JobState, limit: BatchLimit, rate: float, *, shrinks: bool) -> None:
    """Scale-up: R ← 2R, at most twice the batch and the job's largest. Scale-down: R ← ⌈2R / ⌈σT + 1⌉⌉."""
    arrivals = round(rate * limit.executed_s, _DIGITS)
    if shrinks and arrivals > 1:
        least = math.ceil(limit.local * job.min_gpus)
        limit.samples = max(least, math.ceil(2 * limit.samples / math.ceil(arrivals + 1)))
        limit.rule = "scale-down"
    else:
        limit.samples = _within(job, 2 * min(limit.samples, job.global_batch))
        limit.rule = "scale-up"


def _within(job: JobState, samples: int) -> int:
    """No more than the job's largest batch; where its batch does not move, R says GPUs alone."""
    most = job.spec.batch.max if job.spec.elastic == "size+batch" else None
    return samples if most is None else min(samples, max(most, job.global_batch))


def _taken_up(job: JobState, speeds: Speeds, time_s: float) -> BatchLimit:
    """Start: what fits the smallest size. A job of which there is more to know has run before."""
    least = job.min_gpus
    if job.first_start_s is not None and job.gpus:
        samples, local = job.global_batch, job.global_batch / job.gpus
    else:
        samples = batches(job, least, most_local(job, speeds), job.reference_batch)[1]
        local = samples / least
    executed_s = job.attained_service_s(time_s) / max(job.gpus, job.requested)
    done = job.samples_done(time_s)
    rule: Rule = "start" if job.first_start_s is None else "resume"
    return BatchLimit(samples, local, rule, executed_s, done, max(time_s, job.granted_s), done)


def most_local(job: JobState, speeds: Speeds, gpu_type: str | None = None) -> int:
    """Samples that one replica holds: what is known to fit, else the share that the author gave it."""
    kinds = speeds.gpu_types if gpu_type is None else (gpu_type,)
    known = [most for kind in kinds if (most := speeds.most_local(job, kind))]
    gpus = job.spec.gpus
    return min(known, default=-(-job.reference_batch // gpus.replicas(gpus.requested)))


def batches(job: JobState, gpus: int, local: int, limit: int) -> tuple[int, int]:
    """The smallest and the largest batch that a job may have on that many GPUs under a limit.

    One that may move is cut into micro-steps only where its smallest does not fit.
    """
    if job.spec.elastic != "size+batch":
        return job.reference_batch, job.reference_batch
    low, high = job.spec.batch.min or job.reference_batch, job.spec.batch.max or job.reference_batch
    return low, max(low, min(limit, high, job.spec.gpus.replicas(gpus) * local))


class ArrivalRate:
    """λ: arrivals a second, over all that has been seen."""

    def __init__(self) -> None:
        self._count, self._first_s, self._last_s = 0, 0.0, 0.0

    def count(self, time_s: float) -> None:
        self._first_s = min(self._first_s, time_s) if self._count else time_s
        self._last_s = max(self._last_s, time_s)
        self._count += 1

    @property
    def per_second(self) -> float:
        """0 where there are not two arrivals at different times."""
        passed_s = self._last_s - self._first_s
        return (self._count - 1) / passed_s if passed_s > 0 else 0.0

    def dump(self) -> list[float]:
        return [self._count, self._first_s, self._last_s]

    def load(self, state: Sequence[float]) -> None:
        self._count, self._first_s, self._last_s = int(state[0]), state[1], state[2]


_AS_FAST: Final = 1 - 1e-9


class SizeRow(NamedTuple):
    """One job by GPUs: from 0 to that of the sizes that its limit allows on which it is fastest."""

    utilization: Sequence[float]
    """GPU-seconds for a sample; infinite where it may not have that size."""
    batches: Sequence[int]
    """The best batch; 0 where there is none."""


class SizeTables:
    """Rows of jobs, made again only where a limit has changed."""

    def __init__(self, speeds: Speeds) -> None:
        self.speeds = speeds
        self._known: dict[str, tuple[tuple[object, ...], SizeRow]] = {}

    def forget(self, job_id: str) -> None:
        self._known.pop(job_id, None)

    def row(self, job: JobState, gpu_type: str, gpus: int, limit: BatchLimit) -> SizeRow:
        least, most = job.min_gpus, job.max_gpus(gpus)
        most = min(most, max(least, math.floor(limit.samples / limit.local * (1 + 1e-9))))
        key = (gpu_type, most, limit.samples, limit.local)
        known = self._known.get(job.id)
        if known is None or known[0] != key:
            sizes = job.spec.gpus.between(least, most)
            known = self._known[job.id] = key, self._made(job, gpu_type, sizes, limit)
        return known[1]

    def _made(self, job: JobState, gpu_type: str, sizes: Sequence[int], limit: BatchLimit) -> SizeRow:
        utilization = [0.0] + [math.inf] * max(sizes, default=0)
        batch_by_gpus = [0] * len(utilization)
        local = most_local(job, self.speeds, gpu_type)
        fastest, size = 0.0, 0
        for gpus in sizes:
            low, high = batches(job, gpus, local, limit.samples)
            rest = high % job.spec.gpus.replicas(gpus)
            choices = [high - rest] if high - rest > low else []  # equal shares
            choices += _choices(job.reference_batch, low, high, limit.local * gpus)
            rates = [self.speeds.rate(job, gpus, gpu_type, global_batch=batch) for batch in choices]
            best = max(rates)
            if best > 0:
                fastest, size = max((fastest, size), (best, gpus), key=lambda each: each[0])
                near = [batch for batch, rate in zip(choices, rates, strict=True) if rate >= best * _AS_FAST]
                batch_by_gpus[gpus] = min(near, key=lambda batch: (abs(batch - limit.local * gpus), batch))
                utilization[gpus] = gpus / best
        return SizeRow(utilization[: size + 1], batch_by_gpus[: size + 1])


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


def sizes_of(rows: Sequence[SizeRow]) -> Sizes:
    table = np.full((len(rows), max(len(row.utilization) for row in rows)), np.inf)
    for place, row in zip(table, rows, strict=True):
        place[: len(row.utilization)] = row.utilization
    return Sizes(table)


class Sizes:
    """Tables by [job, GPUs], for many genomes at once.

    :param utilization: GPU-seconds for a sample, c / X; 0 for no GPUs, infinite where a size is not allowed.
    """

    def __init__(self, utilization: Floats) -> None:
        jobs, width = utilization.shape
        feasible = np.isfinite(utilization)
        self.utilization = utilization
        self._allowed = np.maximum.accumulate(np.where(feasible, np.arange(width), 0), axis=1)
        # The largest size of each job.
        self.most = self._allowed[:, -1]
        # GPU-seconds for a sample at the largest size of each job.
        self.largest = utilization[np.arange(jobs), self.most]
        above = np.where(feasible, np.arange(width), np.iinfo(np.int32).max)
        above = np.minimum.accumulate(above[:, ::-1], axis=1)[:, ::-1]
        self._next = np.concatenate([above[:, 1:], np.full((jobs, 1), np.iinfo(np.int32).max)], axis=1)
        # The smallest size of each job; beyond any cluster for one that has none.
        self.least = self._next[:, 0]
        self._offsets = np.arange(jobs) * width

    def fitted(self, counts: Ints) -> Ints:
        """The largest allowed sizes up to these, by [genome, job]."""
        return np.asarray(self._allowed.ravel()[np.minimum(counts, self._last) + self._offsets])

    def step_up(self, counts: Ints) -> Ints:
        """GPUs to the next allowed size, beyond any cluster where there is none; sizes must be allowed."""
        return np.asarray(self._next.ravel()[counts + self._offsets]) - counts

    def of(self, counts: Ints) -> Floats:
        """GPU-seconds for a sample by [genome, job]; sizes must be allowed."""
        return np.asarray(self.utilization.ravel()[counts + self._offsets])

    @property
    def _last(self) -> int:
        return int(self.utilization.shape[1]) - 1
