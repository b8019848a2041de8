"""Lucid: shortest predicted jobs first, and light jobs two on one set of GPUs.

:class:`Durations` predicts how long a job takes; :class:`Hosts` finds the running job that a waiting one may
join: pairs in which both keep most of their speed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple

from pliant.schemas.job import Job
from pliant.schemas.text import counted
from pliant.tools.schedule.jobs import JobKind, JobState, NodeGpus
from pliant.tools.schedule.policies.common import GpuBudget, reject_impossible
from pliant.tools.schedule.policy import PRIORITY_FIRST, Decision, Explanation, Policy, Target, Traits
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np

PRIOR: Final = 2.0
"""A mean of a group counts as this many jobs against the jobs of a group within it."""
_ALIKE: Final = ("", " of its model", " of its model and user", " of its model, user and size")
_Group = tuple[str | int, ...]


class Lucid(Policy):
    """Shortest predicted service first, without preemption; light jobs train two on one set of GPUs.

    Lucid (ASPLOS '23). Each round, waiting jobs go in order of expected GPU-seconds, the least first,
    ties by arrival. A job gets what it requested, or is passed over. Its duration is expected from the
    jobs that finished before: the geometric mean of those of its model, user and size, which leans on
    that of its model and user, and so on. Until one has finished, all count as equally long.

    A job for which no free GPUs are left joins a running one that has as many GPUs, all on one node, and
    no company yet, if both keep ``least_speed`` of their speeds alone; of several, the one with which
    both keep most together. The profile's measured pairs say how much that is, or the cluster file
    (``sharing``); where neither says that two jobs fit the memory, they do not share.

    Departures from the paper: pairs are scored by what both keep instead of classes of single jobs;
    shrunken means instead of an additive model; jobs are not tried out first, as the profile knows them.

    least_speed: part of its speed alone that a job keeps at least; 1: only what costs nothing is shared.
    durations: "predicted", or "stated": jobs that state their work are taken at their word.
    """

    name: ClassVar[str] = "lucid"
    traits: ClassVar[Traits] = Traits(
        knows="service",
        packs=True,
        priority_means=PRIORITY_FIRST,
        default_interval_s=60.0,
    )

    def __init__(
        self, least_speed: float = 0.75, durations: Literal["predicted", "stated"] = "predicted"
    ) -> None:
        if not 0 < least_speed <= 1:
            raise ValueError(f"least_speed: {least_speed:g} is not above 0 and at most 1")
        self.least_speed = least_speed
        self.durations: Literal["predicted", "stated"] = durations
        self._past = Durations()
        self._learns = True

    def counts_on_work(self, jobs: Iterable[Job]) -> bool:
        return self.durations == "stated"

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        self._learn(snapshot)
        rejected = reject_impossible(snapshot)
        budget, hosts = GpuBudget(snapshot.free_gpus), Hosts(snapshot, self.least_speed)
        targets: dict[str, Target] = {}
        for job in self._queue(snapshot):
            if not budget.total and not hosts:
                break
            if job.id in rejected:
                continue
            gpus = job.requested
            grant = budget.fit(job, gpus, snapshot.speeds)
            if grant is not None:
                budget.take(grant)
                targets[job.id] = Target(gpus, grant.gpu_type)
            elif (host := hosts.join(job)) is not None:
                targets[job.id] = Target(gpus, beside=host.id)
        return Decision(targets, rejected, quiet_until_s=None if targets else math.inf)

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        places = {job.id: place for place, job in enumerate(self._queue(snapshot))}
        explanations = {}
        for job in snapshot.jobs.values():
            reason = str(self._past.expect(job.spec))
            if job.id in places:
                explanations[job.id] = Explanation(f"{reason}; {places[job.id]} before it", job.requested)
            else:
                company = "" if job.beside is None else f"shares its GPUs with {job.beside}; "
                explanations[job.id] = Explanation(f"{company}runs to its end; {reason}")
        return explanations

    def look_ahead(self) -> None:
        self._learns = False

    def _learn(self, snapshot: Snapshot) -> None:
        for change in snapshot.changes if self._learns else ():
            if change.kind == "finished" and change.job is not None:
                done = change.job.samples_done(snapshot.time_s)
                seconds = _seconds(change.job, done, snapshot.speeds)
                if 0 < seconds < math.inf:
                    self._past.learn(change.job.spec, seconds)

    def _queue(self, snapshot: Snapshot) -> list[JobState]:
        waiting = [job for job in snapshot.jobs.values() if not job.gpus]
        return sorted(waiting, key=lambda job: (-job.priority, self._service_s(job, snapshot), job.arrival))

    def _service_s(self, job: JobState, snapshot: Snapshot) -> float:
        if self.durations == "stated" and job.known_samples is not None:
            seconds = _seconds(job, job.known_samples, snapshot.speeds)
        else:
            seconds = self._past.expect(job.spec).seconds
        return seconds * job.requested


def _seconds(job: JobState, samples: float, speeds: Speeds) -> float:
    """How long that many samples take on the requested GPUs, alone; infinite where they have no speed."""
    rate = speeds.rate(job, job.requested)
    return samples / rate if rate > 0 else math.inf


# Which running job a waiting one may join.


class Hosts:
    """Running jobs that another job may join, each once: alone on their GPUs, which are on one node.

    Asking for one costs O(kinds of jobs), however many run.
    """

    def __init__(self, snapshot: Snapshot, least_speed: float) -> None:
        """:param least_speed: part of its speed alone that either job keeps at least."""
        self._speeds: Speeds = snapshot.speeds
        self._least = least_speed
        self._free: dict[int, dict[_SharingKind, deque[JobState]]] = {}
        self._scores: dict[tuple[_SharingKind, _SharingKind], float] = {}
        alone = (job for job in snapshot.jobs.values() if job.gpus and job.beside is None)
        for job in sorted(alone, key=lambda job: job.arrival):
            if job.spec.shares_gpus and len(job.placement) == 1:
                kinds = self._free.setdefault(job.gpus, {})
                kinds.setdefault(_kind(job, job.gpu_type or "", job.gpus), deque()).append(job)

    def __bool__(self) -> bool:
        return bool(self._free)

    def join(self, job: JobState) -> JobState | None:
        """The job of as many GPUs with which both keep most, of equal ones the first; None if there is none.

        No other job can join it then.
        """
        kinds = self._free.get(job.requested)
        if not kinds or not job.spec.shares_gpus:
            return None
        scored = ((self._score(job, hosts[0], kind), hosts[0].arrival, kind) for kind, hosts in kinds.items())
        best = min(((-score, arrival, kind) for score, arrival, kind in scored if score), default=None)
        if best is None:
            return None
        kind = best[-1]
        host = kinds[kind].popleft()
        if not kinds[kind]:
            del kinds[kind]
        if not kinds:
            del self._free[host.gpus]
        return host

    def _score(self, job: JobState, host: JobState, kind: _SharingKind) -> float:
        """The sharing score: what both keep together, up to 2; 0 if they do not share."""
        key = (_kind(job, kind.gpu_type, kind.gpus), kind)
        if key not in self._scores:
            self._scores[key] = sharing_score(job, host, self._speeds, self._least)
        return self._scores[key]


def sharing_score(job: JobState, host: JobState, speeds: Speeds, least_speed: float) -> float:
    """What two jobs keep together of their speeds, on the GPUs of the second; 0 if one keeps too little."""
    place: NodeGpus = host.placement
    if speeds.rate(job, host.gpus, host.gpu_type) <= 0:
        return 0.0
    parts = speeds.parts(job, host, host.gpu_type or "", place)
    return sum(parts) if parts is not None and min(parts) >= least_speed else 0.0


class _SharingKind(NamedTuple):
    """Jobs of one kind do the same to a job beside them."""

    speeds: JobKind
    batch: int
    gpu_type: str
    gpus: int


def _kind(job: JobState, gpu_type: str, gpus: int) -> _SharingKind:
    return _SharingKind(JobKind.of(job), job.global_batch, gpu_type, gpus)


# How long a job will take, from those like it that ended before.


@dataclass(slots=True)
class Durations:
    """Geometric means by group: of all jobs, of a model, of its users, and of the sizes that these request.

    The mean of a group leans on that of the group around it as on ``PRIOR`` jobs more. What is expected does
    not depend on the order in which jobs ended, but for rounding.
    """

    _means: dict[_Group, _Mean] = field(default_factory=dict)

    def learn(self, job: Job, seconds: float) -> None:
        """A job has ended, and would have taken this long on the GPUs that it requested."""
        for group in _groups(job):
            mean = self._means.setdefault(group, _Mean())
            mean.total += math.log(seconds)
            mean.jobs += 1

    def expect(self, job: Job) -> DurationEstimate:
        estimate = DurationEstimate(1.0, 0)
        log_seconds = 0.0
        for group, alike in zip(_groups(job), _ALIKE, strict=True):
            mean = self._means.get(group)
            if mean is None:
                break
            prior = PRIOR if estimate.jobs else 0.0
            log_seconds = (mean.total + prior * log_seconds) / (mean.jobs + prior)
            estimate = DurationEstimate(math.exp(log_seconds), mean.jobs, alike)
        return estimate


class DurationEstimate(NamedTuple):
    """How long a job is expected to take on the GPUs that it requests, alone on them."""

    seconds: float
    jobs: int
    """Ended jobs in the smallest group of jobs like it that has some; 0 if none has ended yet."""
    alike: str = ""
    """Words on what they have in common with it."""

    def __str__(self) -> str:
        if not self.jobs:
            return "no job has ended yet, so all are taken to be as long"
        return f"{self.seconds:.4g} s expected, from {counted(self.jobs, 'ended job')}{self.alike}"


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    jobs: int = 0


def _groups(job: Job) -> Iterator[_Group]:
    """The groups that a job is in, each within the one before."""
    names = (job.model, job.user, job.gpus.requested)
    return (names[:length] for length in range(len(names) + 1))
