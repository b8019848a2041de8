"""Which jobs the policy sees: holds, limits of users and arrays, jobs that wait for other jobs.

Policies need no code for any of it: a job that is held, over its user's or its array's limit, that waits for
another job, or that needs no GPU is not in the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping

from pliant.schemas.job import ArrayPlace, Job
from pliant.schemas.text import counted
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.session.book import JobBook
from pliant.tools.schedule.session.changes import SessionChanges
from pliant.tools.schedule.session.cluster import ClusterNodes
from pliant.tools.schedule.session.dependencies import wait_of
from pliant.tools.schedule.session.hidden import HiddenJobs
from pliant.tools.schedule.session.part import SessionPart
from pliant.tools.schedule.session.user_limits import OVER_LIMIT, UserLimits, limit_in_words


def first_holder(job: Job) -> str:
    """Who holds a job that is held from its submission on."""
    return job.user or "its submitter"


class Admission(SessionPart[HiddenJobs]):
    """Shows jobs to the policy, and hides them."""

    def __init__(
        self, cluster: ClusterNodes, book: JobBook, changes: SessionChanges, hidden: HiddenJobs
    ) -> None:
        self.state = hidden
        self._cluster = cluster
        self._book = book
        self._jobs = book.active
        self._changes = changes
        self._limits = UserLimits(book.active, hidden)

    @property
    def visible_jobs(self) -> Mapping[str, JobState]:
        """Active jobs that the policy sees, in order of submission."""
        hidden = self.state
        if not hidden.any:
            return self._jobs
        return {job_id: job for job_id, job in self._jobs.items() if not hidden.hides(job_id)}

    # Users and operators hold and release jobs, and give them priorities.

    def hold(self, job_id: str, time_s: float, by: str) -> None:
        """A job gives up its GPUs at the next decision and gets none; the policy sees it cancelled.

        :param by: who asked for it.
        :raises KeyError: the job is not active.
        """
        job, time_s = self._jobs[job_id], self._cluster.at(time_s)
        self._changes.note("cancelled", time_s, job=job)
        self.state.held[job_id] = by
        self.state.let_in(job_id)
        self.admit_after(job.spec, time_s)

    def release(self, job_id: str, time_s: float) -> None:
        """A held job arrives again, for the policy. Any other job is left as it is.

        :raises KeyError: the job is not active.
        """
        job, time_s = self._jobs[job_id], self._cluster.at(time_s)
        if self.state.held.pop(job_id, None) is not None:
            self.arrive(job, time_s)

    def prioritize(self, job_id: str, time_s: float, priority: float) -> None:
        """Change the priority of a job.

        :raises KeyError: the job is not active.
        """
        job, time_s = self._jobs[job_id], self._cluster.at(time_s)
        if priority != job.priority:
            job.spec = job.spec.model_copy(update={"priority": priority})
            job.priority = priority
            self._changes.note("priority", time_s, job=job)
            self._admit_user(job.spec.user, time_s)

    # Jobs arrive, and others have left.

    def arrive(self, job: JobState, time_s: float) -> None:
        """The policy sees a new job only once it waits for no other one and the limits have room for it."""
        wait = wait_of(job.spec, self._book.outcome, self._book.array_of) if job.spec.after else None
        array = job.spec.array
        if wait is not None:
            self.state.awaiting[job.id] = wait.words
            if wait.is_unsatisfiable:
                self.state.unsatisfiable[job.id] = wait.words
        elif array is not None and array.limit is not None:
            limit = f"{OVER_LIMIT} array {array.name}: {counted(array.limit, 'job')} at a time"
            self.state.in_line[job.id] = limit
            self._admit_array(array, time_s)
        else:
            self._admit(job, time_s)

    def readmit(self, job: JobState, time_s: float, *, more: bool) -> None:
        """A job that the policy has seen cancelled arrives again, as it asks for something else.

        :param more: for more GPUs than before, which its user's limit may have no room for.
        """
        if self.state.keeps_waiting(job.id):
            self.state.let_in(job.id)
            self.arrive(job, time_s)
        else:
            self._admit(job, time_s, was_admitted=True, more=more)

    def admit_after(self, left: Job, time_s: float) -> None:
        """A job has ended, or is held: those that waited for it or for its room are admitted."""
        waiting = self.state.awaiting
        for job_id in [job_id for job_id in waiting if left.id in self._jobs[job_id].spec.after]:
            self.state.let_in(job_id)
            self.arrive(self._jobs[job_id], time_s)
        if left.array is not None and self.state.in_line:
            self._admit_array(left.array, time_s)
        self._admit_user(left.user, time_s)

    def _admit_array(self, array: ArrayPlace, time_s: float) -> None:
        for job in self._limits.next_of_array(array.name):
            del self.state.in_line[job.id]
            self._admit(job, time_s)

    def _admit(self, job: JobState, time_s: float, *, was_admitted: bool = False, more: bool = False) -> None:
        """The policy sees a job once its user's limit has room for it.

        :param was_admitted: it is within the limit, and stays unless it asks for ``more`` than there is room
            for.
        """
        user, cluster = job.spec.user, self._cluster.spec
        limit = cluster.limit_of(user) if cluster.user_limits else None
        if limit is None:
            self._changes.note("arrived", time_s, job=job)
            return
        if limit.gpus is not None:
            job.most = job.spec.gpus.requested
        if was_admitted and not (more and self._limits.is_exceeded(user, limit)):
            self._changes.note("arrived", time_s, job=job)
        else:
            self.state.limited[job.id] = limit_in_words(user, limit)
        self._admit_user(user, time_s)

    def _admit_user(self, user: str, time_s: float) -> None:
        limit = self._cluster.spec.limit_of(user) if self.state.limited else None
        if limit is not None:
            for job in self._limits.next_of_user(user, limit):
                del self.state.limited[job.id]
                self._changes.note("arrived", time_s, job=job)

    # Limits.

    def renew_limits(self, time_s: float) -> None:
        """The limits of users have changed: what is admitted stays so, and others take the room there is."""
        cluster = self._cluster.spec
        waiting = [self._jobs[job_id] for job_id in self.state.limited]
        self.state.limited.clear()
        for job in self._jobs.values():
            limit = cluster.limit_of(job.spec.user)
            job.most = None if limit is None or limit.gpus is None else job.spec.gpus.requested
        for job in waiting:
            limit = cluster.limit_of(job.spec.user)
            if limit is None:
                self._changes.note("arrived", time_s, job=job)
            else:
                self.state.limited[job.id] = limit_in_words(job.spec.user, limit)
        for user in dict.fromkeys(job.spec.user for job in waiting):
            self._admit_user(user, time_s)
