"""First come, first served, with or without backfilling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pliant.schemas.text import in_gpus
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.backfill import HeadStart, WaitingJobs, reserve, waits
from pliant.tools.schedule.policies.common import GpuBudget, Grant, is_in_reach, reject_impossible
from pliant.tools.schedule.policy import PRIORITY_FIRST, Decision, Explanation, Policy, Target, Traits
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np

    from pliant.schemas.job import Job

Backfill = Literal["none", "easy", "skip"]


class Fifo(Policy):
    """First come, first served: jobs start in order of arrival on what they requested, and run to their
    end.

    The first waiting job is the head; without backfilling no job starts before it. A job that the nodes
    that are up could not run, were they empty, keeps its place and is passed over. A job that lost its
    GPUs with a node goes back to its place. ``backfill`` says who else may start, once the head does not
    fit:

    - ``none``: no job.
    - ``easy``: a job that fits now and does not delay the head's predicted start: it ends before that,
      or it leaves enough of that GPU type for the head (Lifka, JSSPP 1995: EASY). While nothing says
      when the head can start, no job passes it.
    - ``skip``: every job that fits, in order. Keeps GPUs busy and may starve large jobs.
    """

    name: ClassVar[str] = "fifo"
    traits: ClassVar[Traits] = Traits(
        knows="nothing",
        priority_means=PRIORITY_FIRST,
    )

    def __init__(self, backfill: Backfill = "none") -> None:
        self.backfill: Backfill = backfill
        self._waiting: WaitingJobs | None = None
        # Jobs that hold GPUs, for `easy`; some have given them up since.
        self._running: dict[str, JobState] = {}
        # By type; empty: to be looked at.
        self._gpus_up: Mapping[str, int] = {}

    def counts_on_work(self, jobs: Iterable[Job]) -> bool:
        return self.backfill == "easy"

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        """O(changes) while the head waits and no job may pass."""
        waiting, arrived = self._update(snapshot)
        if not (arrived or waiting.line):
            return Decision(outlasts_ends=True)
        budget = GpuBudget(snapshot.free_gpus)
        grants: dict[str, Grant] = {}
        if len(arrived) == 1 and not waiting.line:
            job = arrived[0]
            grant = budget.fit(job, job.requested, snapshot.speeds)
            if grant is not None:  # no job is before it: it need not stand in line
                if self.backfill == "easy":
                    self._running[job.id] = job
                return Decision({job.id: Target(*grant)}, outlasts_ends=True)
        rejected = reject_impossible(snapshot)
        for job in arrived:
            if job.id not in rejected:
                waiting.add(job, snapshot)
        for job_id in rejected:
            waiting.discard(snapshot.jobs[job_id])
        head = self._start_heads(snapshot, waiting, budget, grants)
        if head is not None and self.backfill != "none":
            reserve_for = self._reserve(snapshot, head, budget, grants) if self.backfill == "easy" else None
            grants |= waiting.passing(head, snapshot, budget, reserve_for)
        if self.backfill == "easy":
            self._running |= {job_id: snapshot.jobs[job_id] for job_id in grants}
        return Decision({job_id: Target(*grant) for job_id, grant in grants.items()}, rejected)

    def _start_heads(
        self, snapshot: Snapshot, waiting: WaitingJobs, budget: GpuBudget, grants: dict[str, Grant]
    ) -> JobState | None:
        """Start jobs in order, passing over those out of reach, until one does not fit: the head."""
        started = []
        head = None
        left = budget.total
        for job in waiting.line.after() if left else ():
            if not waits(job, snapshot):
                continue
            grant = budget.fit(job, job.requested, snapshot.speeds)
            if grant is not None:
                budget.take(grant)
                left -= grant.gpus
                grants[job.id] = grant
                started.append(job)
                if not left:
                    break
            elif self._is_in_reach(job, snapshot):
                head = job
                break
        for job in started:
            waiting.discard(job)
        return head

    def _reserve(
        self, snapshot: Snapshot, head: JobState, budget: GpuBudget, starting: Mapping[str, Grant]
    ) -> Callable[[], HeadStart | None]:
        def found() -> HeadStart | None:
            self._running = {job_id: job for job_id, job in self._running.items() if job.gpus}
            in_sight = (job for job in self._running.values() if snapshot.jobs.get(job.id) is job)
            return reserve(snapshot, head, budget, in_sight, starting)

        return found

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        waiting = [job for job in snapshot.arrivals() if not job.gpus]
        reasons = {
            job.id: Explanation(f"waits in line, {place} before it", job.requested)
            for place, job in enumerate(waiting)
        }
        for job in waiting:
            gpus = in_gpus(job.requested)
            if self._is_in_reach(job, snapshot):
                reason = f"first in line: waits until {gpus} of one type are free"
                reasons[job.id] = Explanation(reason, job.requested)
                break
            reason = f"passed over: waits for nodes, as those that are up cannot give it {gpus} of one type"
            reasons[job.id] = Explanation(reason, job.requested)
        return reasons

    def _is_in_reach(self, job: JobState, snapshot: Snapshot) -> bool:
        self._gpus_up = self._gpus_up or snapshot.gpus_by_type()
        return is_in_reach(job, job.requested, self._gpus_up, snapshot.speeds)

    def _update(self, snapshot: Snapshot) -> tuple[WaitingJobs, Sequence[JobState]]:
        """The jobs in line, and those that come to it; among both may be some that can never run."""
        waiting, begins, named = self._waiting, False, {}
        for _, kind, job, node, _ in snapshot.changes:
            if node is not None:
                self._gpus_up = {}
            if job is not None:
                named[job.id] = job
            if kind == "priority":
                begins = True
        if begins or waiting is None:
            jobs = snapshot.arrivals()
            self._running = {job.id: job for job in jobs if job.gpus}
            first = (job for job in jobs if not job.gpus)
            self._waiting = WaitingJobs(first, snapshot, by_kind=self.backfill != "none")
            return self._waiting, ()
        arrived, active = [], snapshot.jobs
        for job_id, job in named.items():
            waiting.discard(job)
            if job.gpus:
                if self.backfill == "easy":
                    self._running[job_id] = job
            elif active.get(job_id) is job:
                arrived.append(job)
        return waiting, arrived
