"""Which GPU type each job takes part in: where it would end first, those before it counted in."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final, NamedTuple

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.pools import Pool, known_pools
from pliant.tools.schedule.policies.shadow_price.knowledge import Knowledge
from pliant.tools.schedule.policies.shadow_price.shares import Shares
from pliant.tools.schedule.snapshot import Snapshot

_BETTER: Final = 1.25
"""A running job leaves its type where it would take this many times as long."""


class _Speed(NamedTuple):
    """A job on one type, in samples per second."""

    per_gpu: float
    fastest: float


def pool_members(
    snapshot: Snapshot, without: Container[str], known: Knowledge
) -> list[tuple[Pool, Sequence[JobState]]]:
    """Every GPU type with the jobs that take part there."""
    found = list(known_pools(snapshot).values())
    jobs = [job for job in snapshot.jobs.values() if job.id not in without]
    if len(found) < 2:
        return [(pool, [job for job in jobs if _may_run(job, pool.gpu_type)]) for pool in found]
    members: dict[str, list[JobState]] = {pool.gpu_type: [] for pool in found}
    ahead_s = dict.fromkeys(members, 0.0)
    speeds = {job.id: _speeds(job, found, known) for job in jobs}
    gpus = {pool.gpu_type: pool.gpus for pool in found}
    able = [job for job in jobs if speeds[job.id]]
    most = {job.id: max(speed.per_gpu for speed in speeds[job.id].values()) for job in able}
    work = {job.id: known.work(job, most[job.id], snapshot.time_s) for job in able}
    for job in sorted(able, key=lambda job: (work[job.id] / most[job.id], job.arrival)):
        own, left = speeds[job.id], work[job.id]
        ends_s = {kind: ahead_s[kind] + left / speed.fastest for kind, speed in own.items()}
        kind = min(ends_s, key=lambda each: (ends_s[each], each))
        if job.gpus and job.gpu_type in ends_s and ends_s[job.gpu_type] <= _BETTER * ends_s[kind]:
            kind = job.gpu_type
        members[kind].append(job)
        ahead_s[kind] += left / own[kind].per_gpu / gpus[kind]
    return [(pool, members[pool.gpu_type]) for pool in found]


def second_choices(first: Mapping[Pool, Shares | None]) -> dict[str, list[JobState]]:
    """Jobs that get nothing of the type of their choice, by the type that they are offered to instead.

    Those that run on another stay in it; those that wait go to the first that would stand idle in part.
    """
    found: dict[str, list[JobState]] = {}
    spare = [pool.gpu_type for pool, shares in first.items() if shares is None or shares.spare_gpus > 0]
    for pool, shares in first.items():
        if shares is None:
            continue
        own = pool.gpu_type
        for row, job in enumerate(shares.members.jobs):
            if shares.gpus(row) or job.gpu_type == own:
                continue
            others = [kind for kind in spare if kind != own and job.fits_now(job.spec.min_gpus, kind)]
            kind = job.gpu_type if job.gpus else next(iter(others), None)
            if kind is not None:
                found.setdefault(kind, []).append(job)
    return found


def _speeds(job: JobState, found: Sequence[Pool], known: Knowledge) -> dict[str, _Speed]:
    """Of the types on which the job runs."""
    speeds = {}
    for pool in found:
        curves = known.curves(pool)
        rates = curves.of(job).goodput(job.noise_scale)
        if rates.any() and _may_run(job, pool.gpu_type):
            per_gpu = float((rates[1:] / curves.sizes[1:]).max())
            speeds[pool.gpu_type] = _Speed(per_gpu, float(rates.max()))
    return speeds


def _may_run(job: JobState, gpu_type: str) -> bool:
    """Whether the nodes that are up have what its smallest size demands; they do where it runs."""
    return job.gpus > 0 or job.fits_now(job.spec.min_gpus, gpu_type)
