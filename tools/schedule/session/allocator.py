"""Jobs come to hold GPUs, share them and leave them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pliant.tools.schedule.jobs import SAMPLES_WITHOUT_GPU, WAITING, JobState, NodeGpus, gpus_of
from pliant.tools.schedule.session.allocations import Step, Transition, set_allocation, step_of
from pliant.tools.schedule.session.changes import make
from pliant.tools.schedule.session.cluster import ClusterNodes

if TYPE_CHECKING:
    from pliant.tools.schedule.entitlements import TeamUsage


class Allocator:
    """Writes to the records of jobs what they hold, how fast they train and what their teams use."""

    def __init__(
        self, cluster: ClusterNodes, jobs: Mapping[str, JobState], usage: TeamUsage | None = None
    ) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._usage = usage
        # Samples per second of jobs that began or stopped sharing GPUs; the caller clears it.
        self.slowed: dict[str, float] = {}

    def change(
        self,
        job: JobState,
        place: NodeGpus,
        batch: int,
        time_s: float,
        servers: NodeGpus = (),
        *,
        beside: JobState | None = None,
    ) -> Transition | None:
        """Let a job hold a place that the caller has booked.

        :param beside: a job that holds the same GPUs, alone so far.
        """
        before, same_batch = job.placement, batch == job.global_batch
        if place == before:
            unchanged = same_batch and servers == job.servers and beside is None
            if not place or unchanged:
                return None
        step = step_of(job, place)
        self.set(job, time_s, place, servers)
        job.global_batch = batch
        if place:
            job.gpu_type = self._cluster.speeds.gpu_type_of(place) if job.requested else None
            job.train_from(time_s, self._rate(job))
        if beside is None and job.beside is not None:  # a batch changes, and nothing else
            beside = self._jobs[job.beside]
        if beside is not None:
            self._join(job, beside, time_s)
        if step == "preempt":
            job.preemptions += 1
        elif step == "move" and same_batch:
            job.moves += 1
        elif step not in ("start", "resume"):
            job.rescales += 1
        return make(Transition, (job, step, before, ""))

    def begin(self, job: JobState, place: NodeGpus, batch: int, time_s: float) -> Transition:
        """As :meth:`change`, for a job that holds nothing and gets GPUs of its own."""
        step: Step = "start" if job.phase is WAITING else "resume"
        self.set(job, time_s, place)
        job.global_batch, job.gpu_type = batch, self._cluster.speeds.gpu_type_of(place)
        job.train_from(time_s, self._rate(job))
        return make(Transition, (job, step, (), ""))

    def stop(self, job: JobState, time_s: float) -> Transition:
        """As :meth:`change`, for a job that has its GPUs to itself and gives them all back."""
        before = job.placement
        self.set(job, time_s, ())
        job.preemptions += 1
        return make(Transition, (job, "preempt", before, ""))

    def set(self, job: JobState, time_s: float, place: NodeGpus, servers: NodeGpus = ()) -> None:
        """Let a job hold a place from now on; the caller books the GPUs."""
        if self._usage is not None and job.requested:
            self._use(job, gpus_of(place) - job.gpus, time_s)
        set_allocation(job, time_s, place, servers)

    def _use(self, job: JobState, more: float, time_s: float) -> None:
        """A job uses more GPUs from now on, or fewer; two jobs on the same GPUs use half of them each."""
        if self._usage is not None:
            self._usage.hold(self._usage.shares.owner_of(job.spec), more, time_s)

    def leave(self, job: JobState, time_s: float) -> None:
        """A job's GPUs are free, or its partner's alone; the caller updates the job."""
        if job.beside is not None:
            self.separate(job, time_s)
        elif job.placement and job.requested:
            self._cluster.free.give(job.placement)

    def take_batch(self, job: JobState, batch: int, samples_done: float, time_s: float) -> None:
        """A job has changed its batch by itself, at this progress; its speed changes with it."""
        job.take_batch(batch, samples_done)
        if job.beside is not None:
            self._join(job, self._jobs[job.beside], time_s)
        elif job.gpus:
            self._train_at(job, self._rate(job), time_s)

    # Two jobs share GPUs.

    def _join(self, job: JobState, other: JobState, time_s: float) -> None:
        """Two jobs start to share GPUs."""
        place, kind, cluster = job.placement, job.gpu_type or "", self._cluster
        parts = cluster.training_speeds.parts(job, other, kind, place) or (cluster.spec.sharing.speed,) * 2
        for each, part in zip((job, other), parts, strict=True):
            self._train_at(each, self._rate(each) * part, time_s)
            if each.beside is None:
                self._use(each, -each.gpus / 2, time_s)
        job.beside, other.beside = other.id, job.id

    def separate(self, job: JobState, time_s: float) -> None:
        """Two jobs stop sharing GPUs: the other one has them alone."""
        if job.beside is None:
            return
        other = self._jobs[job.beside]
        self._train_at(other, self._rate(other), time_s)
        job.settle(time_s)
        for each in (job, other):
            self._use(each, each.gpus / 2, time_s)
        job.beside = other.beside = None

    def _train_at(self, job: JobState, rate: float, time_s: float) -> None:
        job.settle(time_s)  # one that does not train yet still begins as planned
        job.samples_per_second = rate
        self.slowed[job.id] = rate

    def _rate(self, job: JobState) -> float:
        """Samples per second of a job that has its GPUs alone.

        GPUs that a batch chosen by the job itself leaves without a sample idle until the next decision.
        """
        if not job.requested:
            return SAMPLES_WITHOUT_GPU
        speeds = self._cluster.training_speeds
        rate = speeds.rate_at(job, job.placement, job.global_batch)
        if rate or not job.batch_changes:
            return rate
        part = speeds.useful_part(job, job.placement, job.global_batch)
        return speeds.rate_at(job, part, job.global_batch)
