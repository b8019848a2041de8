"""The head's reservation in EASY backfilling: when and where it will start, and what it leaves over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import GpuBudget, Grant
from pliant.tools.schedule.snapshot import Snapshot


@dataclass(slots=True)
class Reservation:
    """The head starts at ``start_s`` on ``gpu_type``; ``spare`` GPUs of that type it will not need then."""

    start_s: float
    gpu_type: str
    spare: int

    def allows(self, job: JobState, grant: Grant, snapshot: Snapshot) -> bool:
        """Whether the job, started now on ``grant``, leaves the head's start as it is; if so, books it."""
        if grant.gpu_type != self.gpu_type:
            return True
        end_s = predicted_end_s(job, grant, snapshot)
        if end_s is not None and end_s <= self.start_s:
            return True
        if grant.gpus <= self.spare:
            self.spare -= grant.gpus
            return True
        return False


def predicted_end_s(job: JobState, grant: Grant, snapshot: Snapshot) -> float | None:
    """When the job would end if it started now on ``grant`` and kept it; None: its work is unknown."""
    remaining = job.remaining_samples(snapshot.time_s)
    rate = snapshot.speeds.rate(job, grant.gpus, grant.gpu_type)
    return None if remaining is None or rate <= 0 else snapshot.time_s + remaining / rate


def reserve(
    snapshot: Snapshot, head: JobState, budget: GpuBudget, starting: Mapping[str, Grant]
) -> Reservation | None:
    """The earliest predicted start of ``head``, which does not fit now; None where nothing predicts one.

    ``budget`` is what is left after ``starting``, the jobs that this decision starts.
    """
    ends: dict[str, list[tuple[float, str, int]]] = {kind: [] for kind in budget.left}
    for job in snapshot.jobs.values():
        end_s = job.finish_time_s()
        if job.gpu_type is not None and end_s is not None:
            ends[job.gpu_type].append((max(end_s, snapshot.time_s), job.id, job.gpus))
    for job_id, grant in starting.items():
        end_s = predicted_end_s(snapshot.jobs[job_id], grant, snapshot)
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


def _first_fit(gpus: int, gpu_type: str, free: int, ends: list[tuple[float, str, int]]) -> Reservation | None:
    """The moment at which enough of ``gpu_type`` is free; GPUs freed at that very moment count as spare."""
    for position, (end_s, _, freed) in enumerate(ends):
        free += freed
        last_of_moment = position + 1 == len(ends) or ends[position + 1][0] > end_s
        if free >= gpus and last_of_moment:
            return Reservation(end_s, gpu_type, free - gpus)
    return None
