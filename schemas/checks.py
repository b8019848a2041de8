"""Checks between files: do the jobs fit the cluster, does the profile know their models."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from pliant.schemas.cluster import Cluster, UserLimit
from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.job import Job
from pliant.schemas.resources import Capacities
from pliant.schemas.text import in_gpus


class Room(NamedTuple):
    """What a job can get of a cluster at most."""

    gpus: int
    """GPUs of the most frequent type."""
    types: int
    """How many GPU types there are."""
    limit_of: Callable[[str], UserLimit | None] = lambda _: None
    """What a user may hold."""
    capacities: Capacities | None = None
    """What jobs with demands can get; None if GPUs alone count."""

    @classmethod
    def of(cls, cluster: Cluster) -> Room:
        """That of all its nodes."""
        by_type: Counter[str] = Counter()
        for node in cluster.nodes:
            by_type[node.gpu_type] += node.gpus * (node.count or 1)
        most = max(by_type.values(), default=0)
        return cls(most, len(by_type), cluster.limit_of, Capacities(cluster.nodes))


def check_fits(jobs: Iterable[Job], cluster: Cluster | Room, source: str) -> None:
    """Refuse jobs whose smallest size is more than any one GPU type has: a job never mixes types.

    :param cluster: or its room, where jobs are checked one by one.
    :raises BadInputError: one problem a job.
    """
    found = oversized(jobs, cluster)
    if found:
        raise BadInputError(
            [Problem(source, None, "", f'job "{job_id}" {reason}') for job_id, reason in found.items()]
        )


def oversized(jobs: Iterable[Job], cluster: Cluster | Room) -> dict[str, str]:
    """The jobs that no GPU type, no node or no limit of their user has room for, and why, as a clause."""
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
        elif room.capacities is not None and (why := room.capacities.why_too_large(job)) is not None:
            found[job.id] = why
    return found


def check_profiled(jobs: Iterable[Job], models: Collection[str], source: str) -> None:
    """Refuse jobs whose model is not among the profiled ``models``.

    :raises BadInputError: one problem a job.
    """
    known = frozenset(models)
    problems = [
        Problem(
            source,
            None,
            "",
            f'job "{job.id}": model "{job.model}" is not profiled, {_hint(job.model, known)}',
        )
        for job in jobs
        if job.model not in known
    ]
    if problems:
        raise BadInputError(problems)


def _hint(model: str, known: frozenset[str]) -> str:
    near = difflib.get_close_matches(model, sorted(known), n=1)
    if near:
        return f'expected something like "{near[0]}"'
    shown = sorted(known)[:5]
    if not shown:
        return "the profile has no models"
    return "expected one of " + ", ".join(shown) + (" …" if len(known) > len(shown) else "")
