"""Checks between files: do the jobs fit the cluster, does the profile know their models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from pliant.schemas.cluster import Cluster, UserLimit
from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.job import Job
from pliant.schemas.resources import Capacities
from pliant.schemas.shares import Shares
from pliant.schemas.text import in_gpus, similar


class Room(NamedTuple):
    """What a job can get of a cluster at most."""

    gpus: int
    types: int
    """Number of GPU types."""
    limit_of: Callable[[str], UserLimit | None] = lambda _: None
    capacities: Capacities | None = None
    """What jobs with further demands can get, if nodes state capacities."""
    shares: Shares | None = None

    @classmethod
    def of(cls, cluster: Cluster) -> Room:
        by_type: Counter[str] = Counter()
        for node in cluster.nodes:
            by_type[node.gpu_type] += node.gpus * (node.count or 1)
        most = max(by_type.values(), default=0)
        return cls(most, len(by_type), cluster.limit_of, Capacities(cluster.nodes), cluster.shares)


def check_fits(jobs: Iterable[Job], cluster: Cluster | Room, source: str) -> None:
    """Refuse jobs whose smallest size exceeds every GPU type; a job never mixes types.

    :raises BadInputError: one problem a job.
    """
    _refuse([f'job "{job_id}" {reason}' for job_id, reason in oversized(jobs, cluster).items()], source)


def oversized(jobs: Iterable[Job], cluster: Cluster | Room) -> dict[str, str]:
    """The jobs that do not fit a GPU type, the nodes or the limit of their user, and why, as a clause."""
    room = cluster if isinstance(cluster, Room) else Room.of(cluster)
    of_one_type = " of one type" if room.types > 1 else ""
    found = {}
    for job in jobs:
        limit = room.limit_of(job.user)
        if job.min_gpus > room.gpus:
            found[job.id] = f"needs {in_gpus(job.min_gpus)}{of_one_type}, the cluster has {room.gpus}"
        elif limit is not None and limit.gpus is not None and job.gpus.requested > limit.gpus:
            requested = in_gpus(job.gpus.requested)
            found[job.id] = f'requests {requested}, user "{job.user}" may hold {limit.gpus}'
        elif room.shares is not None and job.min_gpus > room.shares.most_gpus(job):
            team, most = room.shares.team_of(job), room.shares.most_gpus(job)
            found[job.id] = f'needs {in_gpus(job.min_gpus)}, team "{team}" may hold {most:g}'
        elif room.capacities is not None and (why := room.capacities.why_too_large(job)) is not None:
            found[job.id] = why
    return found


def check_profiled(jobs: Iterable[Job], models: Collection[str], source: str) -> None:
    """:raises BadInputError: one problem for each job whose model is not profiled."""
    known = frozenset(models)
    problems = [
        f'job "{job.id}": model "{job.model}" is not profiled, {_hint(job.model, known)}'
        for job in jobs
        if job.model not in known
    ]
    _refuse(problems, source)


def check_after(jobs: Sequence[Job], known: Collection[str], source: str) -> None:
    """Refuse jobs that wait for jobs that are not there, or for each other.

    :param known: ids of further jobs.
    :raises BadInputError: one problem for each such job.
    """
    waiting = {job.id: job.after for job in jobs if job.after}
    if not waiting:
        return
    ids = {job.id for job in jobs}
    problems = [
        f'job "{job_id}": there is no job "{other}" that it could wait for{_near(other, ids)}'
        for job_id, after in waiting.items()
        for other in after
        if other not in ids and other not in known
    ]
    left = {job_id: {other for other in after if other in waiting} for job_id, after in waiting.items()}
    while free := [job_id for job_id, others in left.items() if not others]:
        for job_id in free:
            del left[job_id]
        for others in left.values():
            others.difference_update(free)
    problems += [
        f'job "{job_id}": it waits for itself, through the jobs after which it starts' for job_id in left
    ]
    _refuse(problems, source)


def _near(name: str, ids: Collection[str]) -> str:
    near = similar(name, sorted(ids), 1)
    return f'; did you mean "{near[0]}"?' if near else ""


def _refuse(problems: Iterable[str], source: str) -> None:
    found = [Problem(source, None, "", text) for text in problems]
    if found:
        raise BadInputError(found)


def _hint(model: str, known: frozenset[str]) -> str:
    near = similar(model, sorted(known), 1)
    if near:
        return f'expected something like "{near[0]}"'
    shown = sorted(known)[:5]
    if not shown:
        return "the profile has no models"
    return "expected one of " + ", ".join(shown) + (" …" if len(known) > len(shown) else "")
