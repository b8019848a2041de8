"""Lucid: shortest predicted jobs first, and light jobs two on one set of GPUs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import GpuBudget, reject_impossible
from pliant.tools.schedule.policies.lucid.durations import Durations
from pliant.tools.schedule.policies.lucid.packing import Hosts
from pliant.tools.schedule.policy import PRIORITY_FIRST, Decision, Explanation, Knows, Policy, Target
from pliant.tools.schedule.snapshot import Snapshot
from pliant.tools.schedule.speeds import Speeds

if TYPE_CHECKING:
    import numpy as np


class Lucid(Policy):
    """Shortest predicted service first, without preemption; light jobs train two on one set of GPUs.

    Lucid (ASPLOS '23). Each round, waiting jobs of higher priority come first, then those of least expected
    GPU-seconds, ties by arrival. A job gets what it requested, or is passed over. How long it takes is
    expected from the jobs that finished before: the geometric mean of those of its model, user and size,
    which leans on that of its model and user, and so on, as on two jobs more. Until one has finished, all are
    taken to be as long.

    A job that no free GPUs are left for joins a running one that has as many GPUs, all on one node and no
    company yet, if both keep ``least_speed`` of their speeds alone; of several the one with which both keep
    most together. The profile's measured pairs say how much that is, or the cluster file (``sharing``); where
    neither says that two jobs fit the memory, they do not share.

    Departures from the paper: pairs are scored by what both keep instead of classes of single jobs;
    shrunken means instead of an additive model; jobs are not tried out first, as the profile knows them.

    least_speed: part of its speed alone that a job keeps at least; 1: only what costs nothing is shared.
    durations: "predicted", or "stated": of jobs that state their work, what follows from it.
    """

    name: ClassVar[str] = "lucid"
    knows: ClassVar[Knows] = "service"
    packs: ClassVar[bool] = True
    priority_means: ClassVar[str] = PRIORITY_FIRST
    default_interval_s: ClassVar[float | None] = 60.0

    def __init__(
        self, least_speed: float = 0.75, durations: Literal["predicted", "stated"] = "predicted"
    ) -> None:
        if not 0 < least_speed <= 1:
            raise ValueError(f"least_speed: {least_speed:g} is not above 0 and at most 1")
        self.least_speed = least_speed
        self.durations: Literal["predicted", "stated"] = durations
        self._past = Durations()
        self._learns = True

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        """Start waiting jobs in order, on free GPUs first, then beside running jobs."""
        self._learn(snapshot)
        rejected = reject_impossible(snapshot)
        budget, hosts = GpuBudget(snapshot.free_gpus), Hosts(snapshot, self.least_speed)
        targets: dict[str, Target] = {}
        for job in self._queue(snapshot):
            if not budget.total and not hosts:
                break
            if job.id in rejected:
                continue
            gpus = job.spec.gpus.requested
            grant = budget.fit(job, gpus, snapshot.speeds)
            if grant is not None:
                budget.take(grant)
                targets[job.id] = Target(gpus, grant.gpu_type)
            elif (host := hosts.join(job)) is not None:
                targets[job.id] = Target(gpus, beside=host.id)
        return Decision(targets, rejected, quiet_until_s=None if targets else math.inf)

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        """What is expected of each job, and whose GPUs it shares."""
        places = {job.id: place for place, job in enumerate(self._queue(snapshot))}
        found = {}
        for job in snapshot.jobs.values():
            reason = str(self._past.expect(job.spec))
            if job.id in places:
                found[job.id] = Explanation(f"{reason}; {places[job.id]} before it", job.spec.gpus.requested)
            else:
                company = "" if job.beside is None else f"shares its GPUs with {job.beside}; "
                found[job.id] = Explanation(f"{company}runs to its end; {reason}")
        return found

    def look_ahead(self) -> None:
        """What is only supposed to end teaches nothing."""
        self._learns = False

    def _learn(self, snapshot: Snapshot) -> None:
        for change in snapshot.changes if self._learns else ():
            if change.kind == "finished" and change.job is not None:
                done = change.job.samples_done(snapshot.time_s)
                seconds = _seconds(change.job, done, snapshot.speeds)
                if 0 < seconds < math.inf:
                    self._past.learn(change.job.spec, seconds)

    def _queue(self, snapshot: Snapshot) -> list[JobState]:
        """The waiting jobs in order."""
        waiting = [job for job in snapshot.jobs.values() if not job.gpus]
        return sorted(waiting, key=lambda job: (-job.priority, self._service_s(job, snapshot), job.arrival))

    def _service_s(self, job: JobState, snapshot: Snapshot) -> float:
        """GPU-seconds that a job is expected to take."""
        if self.durations == "stated" and job.known_samples is not None:
            seconds = _seconds(job, job.known_samples, snapshot.speeds)
        else:
            seconds = self._past.expect(job.spec).seconds
        return seconds * job.spec.gpus.requested


def _seconds(job: JobState, samples: float, speeds: Speeds) -> float:
    """How long that many samples take on the requested GPUs, alone; infinite where they have no speed."""
    rate = speeds.rate(job, job.spec.gpus.requested)
    return samples / rate if rate > 0 else math.inf
