"""What operators have commanded, and the limits of users.

Policies need no code for any of it: it is hidden from them. A job that is held, or over its user's limit, is
not in the snapshot. A drained node is down. A job that may finish on a drained node is *bound* to it: it is
hidden, too, and its GPUs on other nodes are out of service until it ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pliant.schemas.cluster import UserLimit
from pliant.schemas.text import counted, in_gpus
from pliant.tools.schedule.jobs import JobState, NodeGpus

OVER_LIMIT: Final = "beyond the limit of"
"""Reasons of jobs that wait for their user's limit begin so."""


class Commands:
    """What is in force; ``ClusterState`` carries it out.

    A job is held or limited, not both; it is bound only while it holds GPUs on a drained node.
    """

    def __init__(self) -> None:
        self.held: dict[str, str] = {}
        """Active jobs that get no GPUs, and the user who holds them."""
        self.drained: dict[str, bool] = {}
        """Nodes that get no further work, and whether their jobs must leave at the next decision."""
        self.bound: dict[str, str] = {}
        """Jobs that keep their GPUs until they end, and the node that they finish on."""
        self.limited: dict[str, str] = {}
        """Jobs over their user's limit, and the limit in words."""
        self.vanished: dict[str, float] = {}
        """Drained nodes that are down, and since when."""

    @property
    def hide_jobs(self) -> bool:
        return bool(self.held or self.bound or self.limited)

    def hides(self, job_id: str) -> bool:
        return job_id in self.held or job_id in self.bound or job_id in self.limited

    def forget(self, job_id: str) -> None:
        for hidden in (self.held, self.bound, self.limited):
            hidden.pop(job_id, None)

    def in_service(self, placement: NodeGpus) -> NodeGpus:
        """The part of a placement on nodes that are not drained."""
        if not self.drained:
            return placement
        return tuple((name, count) for name, count in placement if name not in self.drained)

    def binding(self, job: JobState) -> str | None:
        """The drained node that a job may finish on; None if it holds none, or must leave one."""
        held = [name for name, _ in job.placement if name in self.drained]
        return held[0] if held and not any(self.drained[name] for name in held) else None

    def must_be_left(self) -> set[str]:
        return {name for name, at_once in self.drained.items() if at_once}

    def limit(self, job: JobState, limit: UserLimit) -> None:
        """A job waits until its user's limit has room for it."""
        user = job.spec.user
        who = f"user {user}" if user else "jobs that name no user"
        parts = [in_gpus(limit.gpus)] if limit.gpus is not None else []
        parts += [counted(limit.jobs, "job")] if limit.jobs is not None else []
        self.limited[job.id] = f"{OVER_LIMIT} {who}: {', '.join(parts)}"

    def within_limit(self, jobs: Iterable[JobState], user: str, limit: UserLimit) -> list[JobState]:
        """The waiting jobs of a user that the limit has room for, in order of priority and arrival.

        No job overtakes one that must wait. What a job requests counts from its arrival, so no decision can
        exceed a limit.
        """
        own = [job for job in jobs if job.spec.user == user and job.id not in self.held]
        inside = [job for job in own if job.id not in self.limited]
        count, gpus = len(inside), sum(max(job.gpus, job.spec.gpus.requested) for job in inside)
        found = []
        for job in sorted((job for job in own if job.id in self.limited), key=lambda job: job.turn):
            count, gpus = count + 1, gpus + job.spec.gpus.requested
            if count > (limit.jobs or count) or gpus > (limit.gpus or gpus):
                break
            found.append(job)
        return found
