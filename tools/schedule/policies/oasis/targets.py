"""From what jobs have booked of the present slot to what the session is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pliant.tools.schedule.free_gpus import FreeGpus
from pliant.tools.schedule.jobs import JobState, NodeGpus
from pliant.tools.schedule.policies.oasis.bookings import Booking, Row
from pliant.tools.schedule.policy import Target


def targets(
    jobs: Iterable[JobState],
    free: FreeGpus,
    bookings: Mapping[str, Booking],
    slot: int,
    asked: dict[str, Row],
) -> tuple[dict[str, Target], list[str]]:
    """What changes, and the jobs that found no place in this slot although they have booked one.

    GPUs that are booked may be withheld, or not be given back yet: such a job gets others of its type.

    :param asked: what was asked for before, by job; brought up to date.
    """
    wanted = {job.id: (job, row) for job, row in _rows(jobs, bookings, slot) if _differs(job, row, asked)}
    left = free.after(job.placement for job, _ in wanted.values())
    found: dict[str, Target] = {}
    others = []
    for job_id, (_, row) in sorted(wanted.items()):
        kind, asked[job_id] = bookings[job_id].gpu_type, row
        if all(left.free_on(name) >= count for name, count in row.workers):
            found[job_id] = Target(row.gpus, kind, None, row.workers or None, row.servers or None)
            left.take(row.workers)
        else:
            others.append(job_id)
    displaced = []
    for job_id in others:
        job, row = wanted[job_id]
        place = left.choose(row.gpus, (bookings[job_id].gpu_type,))
        if place is None:
            displaced.append(job_id)
            asked.pop(job_id)
        else:
            left.take(place)
        if place is not None or job.gpus:
            found[job_id] = _on(place, bookings[job_id].gpu_type)
    return found, displaced


def _rows(
    jobs: Iterable[JobState], bookings: Mapping[str, Booking], slot: int
) -> Iterable[tuple[JobState, Row]]:
    """What each job has booked of the slot; one that was planned again keeps what it has until then."""
    for job in jobs:
        booking = bookings.get(job.id)
        if booking is not None and (slot >= booking.plan.first or not job.gpus):
            yield job, booking.at(slot)


def _differs(job: JobState, row: Row, asked: Mapping[str, Row]) -> bool:
    if job.gpus != row.gpus:
        return True
    return (row.workers, row.servers) != (job.placement, job.servers) and asked.get(job.id) != row


def _on(place: NodeGpus | None, gpu_type: str) -> Target:
    return Target(0) if place is None else Target(sum(count for _, count in place), gpu_type, None, place)
