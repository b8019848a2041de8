"""Gather scattered jobs on fewer nodes, where a job ends the sooner for it although the move costs time.

Ares, section 4, workflow step 5 (consolidation after fragmentation).
"""

from __future__ import annotations

from collections.abc import Iterable

from pliant.tools.schedule.jobs import JobState, NodeGpus
from pliant.tools.schedule.policy import Target
from pliant.tools.schedule.snapshot import Snapshot


def consolidations(snapshot: Snapshot, jobs: Iterable[JobState], cost_s: float) -> dict[str, Target]:
    """Moves of running jobs, the first ones choosing first, each of which pays for its ``cost_s`` seconds."""
    scattered = [job for job in jobs if _could_use_fewer_nodes(job, snapshot)]
    if not scattered:
        return {}
    free = snapshot.free.after(())
    targets: dict[str, Target] = {}
    for job in scattered:
        free.give(job.placement)
        place = free.choose(job.gpus, (job.gpu_type or "",))
        if place is None or not _pays(job, place, snapshot, cost_s):
            place = job.placement
        else:
            targets[job.id] = Target(job.gpus, job.gpu_type, job.reference_batch, place)
        free.take(place)
    return targets


def _could_use_fewer_nodes(job: JobState, snapshot: Snapshot) -> bool:
    if len(job.placement) < 2 or job.gpu_type is None:
        return False
    return len(snapshot.speeds.consolidated(job.gpus, job.gpu_type)) < len(job.placement)


def _pays(job: JobState, place: NodeGpus, snapshot: Snapshot, cost_s: float) -> bool:
    remaining = job.remaining_samples(snapshot.time_s)
    shape = tuple(sorted((count for _, count in place), reverse=True))
    rate = snapshot.speeds.rate(job, job.gpus, job.gpu_type, placement=shape)
    if remaining is None or len(place) >= len(job.placement) or not 0 < job.samples_per_second < rate:
        return False
    return cost_s + remaining / rate < remaining / job.samples_per_second
