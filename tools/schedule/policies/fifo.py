"""First come, first served, with or without backfilling."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Container, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Literal

from pliant.schemas.text.wording import in_gpus
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import GpuBudget, Grant, is_in_reach, reject_impossible
from pliant.tools.schedule.policy import PRIORITY_FIRST, Decision, Explanation, Knows, Policy, Target
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np

Backfill = Literal["none", "easy", "skip"]


class Fifo(Policy):
    """First come, first served: jobs start in order of arrival on what they requested, and run to their end.

    Jobs of higher priority come before all others; of equal ones the order is that of arrival, (submit_time,
    id). The first waiting job is the head; without backfilling no job
    starts before it. A job that the nodes that are up could not run, were they empty, keeps its place and is
    passed over until more come up. ``backfill`` says who else may start, once the head does not fit:

    - ``none``: no job.
    - ``easy``: a job that fits now and does not delay the head's predicted start: it ends before that, or it
      leaves enough of that GPU type for the head (Lifka, JSSPP 1995: EASY). Predictions use stated work and
      the throughput model; while they do not say when the head can start, no job passes it.
    - ``skip``: every job that fits, in order. Keeps GPUs busy and may starve large jobs.

    No preemption. A job that lost its GPUs with a node goes back to its place in the order.
    """

    name: ClassVar[str] = "fifo"
    knows: ClassVar[Knows] = "nothing"
    priority_means: ClassVar[str] = PRIORITY_FIRST

    def __init__(self, backfill: Backfill = "none") -> None:
        self.backfill: Backfill = backfill
        self._queue: deque[JobState] | None = None
        self._gpus_up: Mapping[str, int] = {}
        """By type; empty: to be looked at."""

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        """Start heads while they fit, then backfill. O(changes) while the head waits and no job may pass."""
        rejected = reject_impossible(snapshot)
        queue = self._update(snapshot)
        if not queue:
            return Decision(rejected=rejected)
        budget = GpuBudget(snapshot.free_gpus)
        grants: dict[str, Grant] = {}
        passed_over = self._start_heads(snapshot, queue, budget, grants, rejected)
        if queue and budget.total and self.backfill != "none":
            passed = self._pass_head(snapshot, queue, budget, grants, rejected)
            grants |= passed
            queue = self._queue = deque(job for job in queue if job.id not in passed) if passed else queue
        queue.extendleft(reversed(passed_over))
        return Decision(
            {job_id: Target(grant.gpus, grant.gpu_type) for job_id, grant in grants.items()}, rejected
        )

    def _start_heads(
        self,
        snapshot: Snapshot,
        queue: deque[JobState],
        budget: GpuBudget,
        grants: dict[str, Grant],
        rejected: Container[str],
    ) -> list[JobState]:
        """Start jobs in order until one does not fit; returns those before it that are out of reach."""
        out_of_reach = []
        while queue and budget.total:
            head = queue[0]
            if _waits(head, snapshot) and head.id not in rejected and head.id not in grants:
                grant = budget.fit(head, head.spec.gpus.requested, snapshot.speeds)
                if grant is not None:
                    budget.take(grant)
                    grants[head.id] = grant
                elif self._is_in_reach(head, snapshot):
                    break
                else:
                    out_of_reach.append(head)
            queue.popleft()
        return out_of_reach

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        """The head waits for its GPUs, the others for their turn."""
        waiting = [job for job in snapshot.arrivals() if not job.gpus]
        reasons = {
            job.id: Explanation(f"waits in line, {place} before it", job.spec.gpus.requested)
            for place, job in enumerate(waiting)
        }
        for job in waiting:
            gpus = in_gpus(job.spec.gpus.requested)
            if self._is_in_reach(job, snapshot):
                reason = f"first in line: waits until {gpus} of one type are free"
                reasons[job.id] = Explanation(reason, job.spec.gpus.requested)
                break
            reason = f"passed over: waits for nodes, as those that are up cannot give it {gpus} of one type"
            reasons[job.id] = Explanation(reason, job.spec.gpus.requested)
        return reasons

    def _is_in_reach(self, job: JobState, snapshot: Snapshot) -> bool:
        self._gpus_up = self._gpus_up or snapshot.gpus_by_type()
        return is_in_reach(job, job.spec.gpus.requested, self._gpus_up, snapshot.speeds)

    def _update(self, snapshot: Snapshot) -> deque[JobState]:
        """The waiting jobs in order; those that left are dropped when they come to the head."""
        gone: set[str] = set()
        back: dict[str, JobState] = {}
        for change in snapshot.changes:
            if change.kind == "priority":
                self._queue = None
            elif change.node is not None:
                self._gpus_up = {}
            elif change.job is not None and change.kind == "cancelled":
                gone.add(change.job.id)
            elif change.job is not None and change.kind in ("arrived", "lost"):
                back[change.job.id] = change.job
        if self._queue is None:
            self._queue = deque(job for job in snapshot.arrivals() if not job.gpus)
            return self._queue
        if gone:  # a job that is held may come back
            self._queue = deque(job for job in self._queue if job.id not in gone)
        for job in back.values():
            if not self._queue or self._queue[-1].turn < job.turn:
                self._queue.append(job)
            elif job.id not in gone or _waits(job, snapshot):
                insort(self._queue, job, key=lambda each: each.turn)
        return self._queue

    def _pass_head(
        self,
        snapshot: Snapshot,
        queue: deque[JobState],
        budget: GpuBudget,
        grants: dict[str, Grant],
        rejected: Container[str],
    ) -> dict[str, Grant]:
        reservation = None
        if self.backfill == "easy":
            reservation = _reserve(snapshot, queue[0], budget, grants)
            if reservation is None:
                return {}
        passed = {}
        for job in islice(queue, 1, None):
            if not _waits(job, snapshot) or job.id in rejected:
                continue
            grant = _backfill(job, snapshot, budget, reservation)
            if grant is not None:
                passed[job.id] = grant
                budget.take(grant)
            if not budget.total:
                break
        return passed


def _waits(job: JobState, snapshot: Snapshot) -> bool:
    return not job.gpus and snapshot.jobs.get(job.id) is job


def _backfill(
    job: JobState, snapshot: Snapshot, budget: GpuBudget, reservation: _Reservation | None
) -> Grant | None:
    grant = budget.fit(job, job.spec.gpus.requested, snapshot.speeds)
    if grant is None or reservation is None or reservation.allows(job, grant, snapshot):
        return grant
    elsewhere = GpuBudget({kind: left for kind, left in budget.left.items() if kind != reservation.gpu_type})
    return elsewhere.fit(job, grant.gpus, snapshot.speeds)


@dataclass(slots=True)
class _Reservation:
    """EASY backfilling: the head starts at ``start_s``, and leaves ``spare`` of its ``gpu_type`` then."""

    start_s: float
    gpu_type: str
    spare: int

    def allows(self, job: JobState, grant: Grant, snapshot: Snapshot) -> bool:
        """Whether the job, started now on ``grant``, leaves the head's start as it is; if so, books it."""
        if grant.gpu_type != self.gpu_type:
            return True
        end_s = _predicted_end_s(job, grant, snapshot)
        if end_s is not None and end_s <= self.start_s:
            return True
        if grant.gpus <= self.spare:
            self.spare -= grant.gpus
            return True
        return False


def _predicted_end_s(job: JobState, grant: Grant, snapshot: Snapshot) -> float | None:
    """When the job would end if it started now on ``grant`` and kept it; None: its work is unknown."""
    remaining = job.remaining_samples(snapshot.time_s)
    rate = snapshot.speeds.rate(job, grant.gpus, grant.gpu_type)
    return None if remaining is None or rate <= 0 else snapshot.time_s + remaining / rate


def _reserve(
    snapshot: Snapshot, head: JobState, budget: GpuBudget, starting: Mapping[str, Grant]
) -> _Reservation | None:
    """The earliest predicted start of ``head``, which does not fit now; None where nothing predicts one.

    ``budget`` is what is left after ``starting``, the jobs that this decision starts.
    """
    ends: dict[str, list[tuple[float, str, int]]] = {kind: [] for kind in budget.left}
    for job in snapshot.jobs.values():
        end_s = job.finish_time_s()
        if job.gpu_type is not None and end_s is not None:
            ends[job.gpu_type].append((max(end_s, snapshot.time_s), job.id, job.gpus))
    for job_id, grant in starting.items():
        end_s = _predicted_end_s(snapshot.jobs[job_id], grant, snapshot)
        if end_s is not None:
            ends[grant.gpu_type].append((end_s, job_id, grant.gpus))
    gpus = head.spec.gpus.requested
    found = [
        _first_fit(gpus, kind, budget.left[kind], sorted(ends[kind]))
        for kind in budget.left
        if snapshot.speeds.gpu_types[kind] >= gpus and snapshot.speeds.rate(head, gpus, kind) > 0
    ]
    able = [reservation for reservation in found if reservation is not None]
    return min(able, key=lambda reservation: (reservation.start_s, reservation.gpu_type), default=None)


def _first_fit(
    gpus: int, gpu_type: str, free: int, ends: list[tuple[float, str, int]]
) -> _Reservation | None:
    """The moment at which enough of ``gpu_type`` is free; GPUs freed at that very moment count as spare."""
    for position, (end_s, _, freed) in enumerate(ends):
        free += freed
        last_of_moment = position + 1 == len(ends) or ends[position + 1][0] > end_s
        if free >= gpus and last_of_moment:
            return _Reservation(end_s, gpu_type, free - gpus)
    return None
