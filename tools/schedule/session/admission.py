"""What operators have commanded, the limits of users and arrays, and jobs that wait for other jobs.

Policies need no code for any of it: it is hidden from them. A job that is held, over its user's or its
array's limit, that waits for another job, or that needs no GPU is not in the snapshot. A drained node is
down. A job that may finish on a drained node is *bound* to it: it is hidden, too, and its GPUs on other nodes
are out of service until it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from pliant.schemas.cluster import UserLimit
from pliant.schemas.job import ArrayPlace, Job
from pliant.schemas.text import counted, in_gpus
from pliant.tools.schedule.jobs import JobState, NodeGpus

OVER_LIMIT: Final = "beyond the limit of"
"""Reasons of jobs that wait for their user's limit begin so."""


def first_holder(job: Job) -> str:
    """Who holds a job that is held from its submission on."""
    return job.user or "its submitter"


class Admission:
    """What is in force; ``ClusterState`` carries it out.

    A job is held, awaiting, in line or limited, never two of them; it is bound only while it holds GPUs on a
    drained node.
    """

    def __init__(self) -> None:
        # Active jobs that get no GPUs, and the user who holds them.
        self.held: dict[str, str] = {}
        # Nodes that get no further work, and whether their jobs must leave at the next decision.
        self.drained: dict[str, bool] = {}
        # Jobs that keep their GPUs until they end, and the node that they finish on.
        self.bound: dict[str, str] = {}
        # Jobs that wait for other jobs to end, and for which, in words.
        self.awaiting: dict[str, str] = {}
        # Those of them that can never start, and why.
        self.unsatisfiable: dict[str, str] = {}
        # Jobs over the limit of their array, and the limit in words.
        self.in_line: dict[str, str] = {}
        # Jobs over their user's limit, and the limit in words.
        self.limited: dict[str, str] = {}
        # Active jobs that need no GPU. The session places them beside what the policy decides.
        self.on_cpus: dict[str, bool] = {}
        # Drained nodes that are down, and since when.
        self.vanished: dict[str, float] = {}

    @property
    def hide_jobs(self) -> bool:
        return bool(self.held or self.bound or self.limited or self.awaiting or self.in_line or self.on_cpus)

    def hides(self, job_id: str) -> bool:
        hidden = job_id in self.held or job_id in self.bound or job_id in self.on_cpus
        return hidden or self.keeps_waiting(job_id)

    def keeps_waiting(self, job_id: str) -> bool:
        """Whether a job waits for another one or for room within a limit."""
        return job_id in self.limited or job_id in self.awaiting or job_id in self.in_line

    def let_in(self, job_id: str) -> None:
        """A job waits for no other one and for no limit."""
        for hidden in (self.awaiting, self.unsatisfiable, self.in_line, self.limited):
            hidden.pop(job_id, None)

    def forget(self, job_id: str) -> None:
        self.let_in(job_id)
        for hidden in (self.held, self.bound, self.on_cpus):
            hidden.pop(job_id, None)

    def must_wait(self) -> Iterator[str]:
        """Jobs that may hold no GPUs."""
        return chain(self.held, self.awaiting, self.in_line, self.limited)

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

    def line_up(self, job: JobState, array: ArrayPlace) -> None:
        """A job waits until its array's limit has room for it."""
        self.in_line[job.id] = (
            f"{OVER_LIMIT} array {array.name}: {counted(array.limit or 0, 'job')} at a time"
        )

    def next_in_line(self, jobs: Iterable[JobState], name: str) -> list[JobState]:
        """The jobs in line that the limit of their array has room for, in order of priority and arrival."""
        own = [job for job in jobs if job.spec.array is not None and job.spec.array.name == name]
        own = [job for job in own if job.id not in self.held and job.id not in self.awaiting]
        count, found = sum(job.id not in self.in_line for job in own), []
        for job in sorted((job for job in own if job.id in self.in_line), key=lambda job: job.turn):
            limit = None if job.spec.array is None else job.spec.array.limit
            if limit is not None and count >= limit:
                break
            count += 1
            found.append(job)
        return found

    def within_limit(self, jobs: Iterable[JobState], user: str, limit: UserLimit) -> list[JobState]:
        """The waiting jobs of a user that the limit has room for, in order of priority and arrival.

        No job overtakes one that must wait. What a job requests counts from its arrival, so no decision can
        exceed a limit.
        """
        own = [job for job in jobs if job.spec.user == user]
        count, gpus = self._inside(own)
        found = []
        for job in sorted((job for job in own if job.id in self.limited), key=lambda job: job.turn):
            count, gpus = count + 1, gpus + job.spec.gpus.requested
            if count > (limit.jobs or count) or gpus > (limit.gpus or gpus):
                break
            found.append(job)
        return found

    def exceeds(self, jobs: Iterable[JobState], user: str, limit: UserLimit) -> bool:
        """Whether those jobs of a user that do not wait are more than its limit allows."""
        count, gpus = self._inside(job for job in jobs if job.spec.user == user)
        return count > (limit.jobs or count) or gpus > (limit.gpus or gpus)

    def _inside(self, own: Iterable[JobState]) -> tuple[int, int]:
        """How many of these jobs neither wait nor are held, and their GPUs."""
        kept = (self.held, self.awaiting, self.in_line, self.limited)
        inside = [job for job in own if not any(job.id in each for each in kept)]
        return len(inside), sum(max(job.log_gpus, job.spec.gpus.requested) for job in inside)
