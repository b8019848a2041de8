"""Tiresias: least attained service in a few queues; with knowledge of durations, by the Gittins index."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import (
    GpuBudget,
    Grant,
    JobRecord,
    decision_from_grants,
    explain_gang,
    reject_impossible,
)
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Target, Traits
from pliant.tools.schedule.snapshot import Snapshot


@dataclass(slots=True)
class _Member(JobRecord):
    job: JobState
    queue: int
    entered_s: float
    """Time at which it came into this queue."""
    forgiven_gpu_s: float = 0.0
    """Service that does not count any more, since the job was promoted."""
    waits_since_s: float | None = None
    """None while it holds GPUs."""
    index: float = 0.0

    @property
    def turn(self) -> tuple[int, float, float, tuple[float, str]]:
        return self.queue, -self.index, self.entered_s, self.job.arrival


class Tiresias(Policy):
    """Discretised two-dimensional LAS: jobs that received much GPU-time queue behind those that did not.

    Tiresias (NSDI '19), sections 3.1 to 3.3. Attained service is GPUs × seconds held. A job that reaches
    its queue's threshold goes to the end of the next one; within a queue, first in, first out. Each
    round all GPUs are dealt out in that order: every job gets what it requested, or is passed over.
    Preemptive, needs no knowledge of the work. Departures from the paper: which models are skewed is
    stated and not profiled; without its saved state, jobs within one queue are in order of arrival.

    queue_gpu_hours: threshold of each queue but the last, with commas between them.
    promote_after: a job that has waited this many times as long as it has run goes back into the first
    queue; 0: never.
    skewed: models that start only on as few nodes as their GPUs need.
    placement: other jobs go to the node that they fill best ("compact"), or to the one with most free
    GPUs.
    """

    name: ClassVar[str] = "tiresias"
    traits: ClassVar[Traits] = Traits(
        knows="service",
        priority_means="",
        default_interval_s=60.0,
    )

    def __init__(
        self,
        queue_gpu_hours: str = "16",
        promote_after: float = 0.0,
        skewed: str = "",
        placement: Literal["compact", "emptiest"] = "compact",
    ) -> None:
        """:param queue_gpu_hours: thresholds in ascending order, with commas between them."""
        self.queue_gpu_hours = queue_gpu_hours
        self.promote_after = promote_after
        self.skewed = skewed
        self.placement = placement
        self._thresholds = _thresholds(queue_gpu_hours)
        if promote_after < 0:
            raise ValueError("parameter promote_after: expected 0 or more")
        self._skewed = frozenset(filter(None, skewed.split(",")))
        self._members: dict[str, _Member] = {}
        # By turn.
        self._order: list[_Member] = []
        # Whether no decision takes GPUs from some of them.
        self._some_stay = False

    def chooses_nodes(self) -> bool:
        return self.placement == "emptiest" or bool(self._skewed)

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        rejected = reject_impossible(snapshot)
        self._keep_up(snapshot, rejected)
        now_s = snapshot.time_s
        moved = [member for member in self._order if self._requeue(member, now_s)]
        if self._index(now_s) or moved:
            self._order.sort(key=attrgetter("turn"))
        decision = self._serve(snapshot, rejected)
        for job_id, target in decision.targets.items():
            if not target.gpus:
                self._members[job_id].waits_since_s = now_s
        decision.quiet_until_s = self._next_change_s(decision.targets, now_s)
        return decision

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        self._keep_up(snapshot, {})
        reasons, place = {}, {0: 0}
        for member in self._order:
            place[member.queue] = place.get(member.queue, 0) + 1
            job = member.job
            turn = f"queue {member.queue + 1} of {len(self._thresholds) + 1}, place {place[member.queue]}"
            service = f"{self._service(member, snapshot.time_s):.0f} GPU-seconds received"
            reasons[job.id] = explain_gang(job, f"{turn}, with {service}")
        return reasons

    def dump_state(self) -> dict[str, Any]:
        return {
            member.job.id: [member.queue, member.entered_s, member.forgiven_gpu_s, member.waits_since_s]
            for member in self._order
        }

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        self._members = {job_id: _Member(jobs[job_id], *values) for job_id, values in state.items()}
        self._order = sorted(self._members.values(), key=attrgetter("turn"))
        self._some_stay = any(member.job.is_pinned for member in self._order)

    # Queues.

    def _keep_up(self, snapshot: Snapshot, rejected: Mapping[str, str]) -> None:
        members, jobs = self._members, snapshot.jobs
        if not snapshot.changes and len(members) == len(jobs):
            return
        entered_s = self._entered_by_history(snapshot)
        gone = [job_id for job_id in members if job_id not in jobs]
        if gone:
            for job_id in gone:
                del members[job_id]
            self._order = [member for member in self._order if member.job.id in members]
        for job_id, job in jobs.items():
            if job_id not in members and job_id not in rejected:
                member = members[job_id] = _Member(job, 0, entered_s.get(job_id, snapshot.time_s))
                self._some_stay |= job.is_pinned
                insort(self._order, member, key=attrgetter("turn"))

    def _entered_by_history(self, snapshot: Snapshot) -> dict[str, float]:
        """When each job arrived last, where state is rebuilt from a history in which jobs were held."""
        came = [change for change in snapshot.changes if change.kind == "arrived" and change.job]
        last = {change.job.id: change.time_s for change in came if change.job}
        return {} if self._members or len(last) == len(came) else last

    def _service(self, member: _Member, time_s: float) -> float:
        return member.job.attained_service_s(time_s) - member.forgiven_gpu_s

    def _requeue(self, member: _Member, now_s: float) -> bool:
        """Move a job that has reached its threshold, or waited too long; returns whether it moved."""
        before = member.queue
        if member.job.gpus:
            member.waits_since_s = None
        elif member.waits_since_s is None:
            member.waits_since_s = now_s
        service = self._service(member, now_s)
        while member.queue < len(self._thresholds) and service >= self._thresholds[member.queue]:
            member.queue += 1
        if self._is_starving(member, service, now_s):
            member.queue, member.forgiven_gpu_s = 0, member.forgiven_gpu_s + service
            member.waits_since_s = now_s
        if member.queue == before:
            return False
        member.entered_s = now_s
        return True

    def _is_starving(self, member: _Member, service: float, now_s: float) -> bool:
        if not self.promote_after or not member.queue or member.waits_since_s is None:
            return False
        ran_s = service / member.job.requested
        return now_s - member.waits_since_s >= self.promote_after * ran_s

    def _index(self, now_s: float) -> bool:
        """Update the jobs' indices within their queues; returns whether one changed."""
        del now_s
        return False

    def _next_change_s(self, targets: Mapping[str, Target], now_s: float) -> float:
        """When the first job may change its queue if everything stays as it is from now on."""
        next_s = math.inf
        for member in self._order:
            target = targets.get(member.job.id)
            gpus = member.job.gpus if target is None else target.gpus
            if gpus and member.queue < len(self._thresholds):
                missing = self._thresholds[member.queue] - self._service(member, now_s)
                next_s = min(next_s, now_s + missing / gpus)
            elif self.promote_after and not gpus and member.queue:
                return -math.inf
        return next_s

    # GPUs.

    def _serve(self, snapshot: Snapshot, rejected: dict[str, str]) -> Decision:
        budget = GpuBudget(snapshot.gpus_by_type())
        grants: dict[str, Grant] = {}
        order: Sequence[_Member] = self._order
        if self._some_stay:
            order = sorted(order, key=lambda member: not member.job.stays)
        for member in order:
            job = member.job
            grant = budget.fit(job, job.requested, snapshot.speeds)
            if grant is not None:
                budget.take(grant)
                grants[job.id] = grant
            if not budget.total:
                break
        decision = decision_from_grants(snapshot, grants, rejected)
        if decision.targets and (self.placement == "emptiest" or self._skewed):
            self._place(snapshot, decision.targets)
        return decision

    def _place(self, snapshot: Snapshot, targets: dict[str, Target]) -> None:
        """Name nodes; a skewed job for which there is no place on few nodes waits.

        So does one that was to move to another GPU type: its GPUs are given to others already.
        """
        free = snapshot.free.after(snapshot.jobs[job_id].placement for job_id in targets)
        for job_id, target in list(targets.items()):
            if not target.gpus or target.gpu_type is None:
                continue
            each = snapshot.jobs[job_id].per_replica
            if snapshot.jobs[job_id].spec.model in self._skewed:
                place = free.together(target.gpus, target.gpu_type, per_replica=each)
                if place is None:
                    if snapshot.jobs[job_id].gpus:
                        targets[job_id] = Target(0)
                    else:
                        del targets[job_id]
                    continue
            elif self.placement == "emptiest":
                place = free.emptiest(target.gpus, target.gpu_type, per_replica=each)
            else:
                place = free.tightest(target.gpus, target.gpu_type, per_replica=each)
            free.take(place)
            targets[job_id] = Target(target.gpus, target.gpu_type, placement=place or None)


def _thresholds(queue_gpu_hours: str) -> Sequence[float]:
    """:raises ValueError: no ascending numbers above 0."""
    try:
        thresholds = [3600 * float(hours) for hours in queue_gpu_hours.split(",")]
    except ValueError:
        thresholds = []
    if (
        not thresholds
        or thresholds[0] <= 0
        or sorted(set(thresholds)) != thresholds
        or not math.isfinite(thresholds[-1])
    ):
        raise ValueError("parameter queue_gpu_hours: expected ascending numbers above 0, as in 16 or 1,16")
    return thresholds


Floats = npt.NDArray[np.float64]

_HOUR_S = 3600.0


class TiresiasGittins(Tiresias):
    """Discretised two-dimensional Gittins index: in every queue, first who is likely to finish soon.

    Tiresias (NSDI '19), section 3.3. As ``tiresias``, but within a queue jobs go by Gittins index,
    largest first: given the service that a job has had, the probability that it finishes within the next
    quantum, over the part of that quantum that it is expected to use. The distribution of service is
    that of the jobs that finished so far, together with ``history_gpu_hours``; in the paper it is given
    beforehand and stays. Before there is any, the order is that of ``tiresias``.

    quantum_gpu_hours: the quantum; none: the first threshold.
    history_gpu_hours: services of earlier jobs, with commas between them.
    """

    name: ClassVar[str] = "tiresias-gittins"

    def __init__(
        self,
        *,
        queue_gpu_hours: str = "16",
        promote_after: float = 0.0,
        skewed: str = "",
        placement: Literal["compact", "emptiest"] = "compact",
        quantum_gpu_hours: float | None = None,
        history_gpu_hours: str = "",
    ) -> None:
        super().__init__(queue_gpu_hours, promote_after, skewed, placement)
        if quantum_gpu_hours is not None and quantum_gpu_hours <= 0:
            raise ValueError("parameter quantum_gpu_hours: expected a number above 0")
        self.quantum_gpu_hours = quantum_gpu_hours
        self.history_gpu_hours = history_gpu_hours
        self._quantum = self._thresholds[0] if quantum_gpu_hours is None else _HOUR_S * quantum_gpu_hours
        self._stated = _stated(history_gpu_hours)
        # GPU-seconds of the jobs that finished, in order of their ends.
        self._seen: list[float] = []
        self._services = Services(self._stated)

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        ended = [change.job for change in snapshot.changes if change.kind == "finished" and change.job]
        services = [job.attained_service_s(snapshot.time_s) for job in ended]
        self._seen += services
        self._services.add(services)
        return super().decide(snapshot, rng)

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        reasons = super().explain(snapshot)
        for job_id, index in {member.job.id: member.index for member in self._order}.items():
            reason = f"{reasons[job_id].reason}, Gittins index {_HOUR_S * index:.3g} per GPU-hour"
            reasons[job_id] = Explanation(reason, reasons[job_id].needs_gpus)
        return reasons

    def dump_state(self) -> dict[str, Any]:
        return {"queues": super().dump_state(), "services": self._seen}

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        super().load_state(state["queues"], jobs)
        self._seen = list(state["services"])
        self._services = Services([*self._stated, *self._seen])

    def _index(self, now_s: float) -> bool:
        if not self._order:
            return False
        attained = np.array([self._service(member, now_s) for member in self._order])
        indices = self._services.indices(attained, self._quantum).tolist()
        changed: bool = indices != [member.index for member in self._order]
        for member, index in zip(self._order, indices, strict=True):
            member.index = index
        return changed

    def _next_change_s(self, targets: Mapping[str, Target], now_s: float) -> float:
        """While a job waits, indices may change places in any round."""
        gpus = [
            member.job.gpus if (target := targets.get(member.job.id)) is None else target.gpus
            for member in self._order
        ]
        return super()._next_change_s(targets, now_s) if all(gpus) else -math.inf


def _stated(history_gpu_hours: str) -> Sequence[float]:
    """:raises ValueError: no numbers above 0."""
    try:
        services = [_HOUR_S * float(hours) for hours in filter(None, history_gpu_hours.split(","))]
    except ValueError:
        services = [math.nan]
    if not all(0 < service < math.inf for service in services):
        raise ValueError("parameter history_gpu_hours: expected numbers above 0, as in 0.5,2,16")
    return services


class Services:
    """The service of finished jobs, GPU-seconds each; their order does not matter."""

    def __init__(self, known: Iterable[float] = ()) -> None:
        self._sorted: Floats = np.array(sorted(known), dtype=np.float64)
        self._sums = _sums(self._sorted)

    def add(self, services: Iterable[float]) -> None:
        more = np.array(sorted(services), dtype=np.float64)
        if more.size:
            self._sorted = np.insert(self._sorted, np.searchsorted(self._sorted, more), more)
            self._sums = _sums(self._sorted)

    def indices(self, attained: Floats, quantum: float) -> Floats:
        """Gittins index of jobs by attained service, 1 / GPU-seconds; ``quantum`` is one of service.

        P(S - a <= q | S > a) / E[min(S - a, q) | S > a], S as the finished jobs had it; 0 where none of them
        took more than ``attained``.
        """
        first = np.searchsorted(self._sorted, attained, side="right")
        last = np.searchsorted(self._sorted, attained + quantum, side="right")
        ending, beyond = last - first, len(self._sorted) - last
        taken = self._sums[last] - self._sums[first] - ending * attained + beyond * quantum
        quotients: Floats = np.divide(ending, taken, out=np.zeros(len(attained)), where=ending > 0)
        return quotients


def _sums(values: Floats) -> Floats:
    """Sums of the first 0, 1, 2, … values."""
    return np.concatenate(([0.0], np.cumsum(values)))
