"""Pools: each GPU type as a cluster of its own, and the jobs that take part in the search of it."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Pool:
    """The GPUs of one type that are up."""

    gpu_type: str
    gpus: int
    node_gpus: int
    """GPUs of its largest node."""


def pools(snapshot: Snapshot, without: Container[str]) -> list[tuple[Pool, list[JobState]]]:
    """Every GPU type with the jobs that take part in its search, those with the least service first.

    A running job stays on its type. The first waiting jobs, as many as there are GPUs of a type, queue for
    the type that they can run on with most speed per job that is there already. Jobs of which nothing says
    how long they take are no more than fit at their smallest sizes: so the first to come is the first.
    """
    known = known_pools(snapshot)
    members: dict[str, list[JobState]] = {kind: [] for kind in known}
    waiting: dict[str, int] = dict.fromkeys(known, 0)
    for job in snapshot.jobs.values():
        if job.gpu_type in members and job.gpus:
            members[job.gpu_type].append(job)
    for job in snapshot.arrivals():
        if job.gpus or job.id in without:
            continue
        kind = _best_pool(job, known, members, snapshot)
        if kind is None or waiting[kind] >= known[kind].gpus:
            continue
        if job.is_speed_guessed:
            taken = sum(each.spec.min_gpus for each in members[kind] if each.is_speed_guessed)
            if taken + job.spec.min_gpus > known[kind].gpus:
                continue
        waiting[kind] += 1
        members[kind].append(job)
    return [
        (known[kind], sorted(jobs, key=lambda job: (_attained_s(job, snapshot), *job.arrival)))
        for kind, jobs in members.items()
        if jobs
    ]


def _attained_s(job: JobState, snapshot: Snapshot) -> float:
    """To the microsecond: it is a difference of times, which are rounded by the hour, and many are equal."""
    return round(job.attained_service_s(snapshot.time_s), 6)


def known_pools(snapshot: Snapshot) -> dict[str, Pool]:
    """The pools of the cluster by GPU type, in order of the first node of each."""
    largest: dict[str, int] = {}
    for node in snapshot.nodes:
        if node.up:
            largest[node.gpu_type] = max(node.gpus, largest.get(node.gpu_type, 0))
    totals = snapshot.gpus_by_type()
    return {kind: Pool(kind, totals[kind], most) for kind, most in largest.items() if totals[kind]}


def _runs_in(pool: Pool, job: JobState) -> bool:
    return pool.gpus >= job.spec.min_gpus and job.fits_now(job.spec.min_gpus, pool.gpu_type)


def _best_pool(
    job: JobState, known: Mapping[str, Pool], members: Mapping[str, Sequence[JobState]], snapshot: Snapshot
) -> str | None:
    fitting = [pool for pool in known.values() if _runs_in(pool, job)]
    if len(fitting) < 2:
        return fitting[0].gpu_type if fitting else None
    worth = {
        pool.gpu_type: snapshot.speeds.rate(job, job.spec.min_gpus, pool.gpu_type)
        * pool.gpus
        / (len(members[pool.gpu_type]) + 1)
        for pool in fitting
    }
    return min(worth, key=lambda kind: (-worth[kind], kind))
