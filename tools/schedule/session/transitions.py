"""What a decision does to a job: the effects a session reports, and what it means to hold GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pliant.tools.schedule.jobs import JobState, NodeGpus, Phase, gpus_of

Step = Literal["start", "resume", "grow", "shrink", "move", "rebatch", "preempt", "reject"]


class Transition(NamedTuple):
    """One effect of a decision on one job; the job's state already shows it.

    ``rebatch`` changes only the global batch. ``before`` is the placement held until now.
    """

    job: JobState
    step: Step
    before: NodeGpus = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one job holds, as a log or a schedule says; an empty placement: nothing."""

    job_id: str
    placement: NodeGpus = ()
    global_batch: int | None = None
    """None: as it is."""
    servers: NodeGpus = ()
    """Where its parameter servers are."""
    beside: str | None = None
    """The job that holds the same GPUs; one of two that share may say so, or both."""

    @classmethod
    def of(cls, job: JobState) -> Holding:
        """What a job holds now."""
        return cls(job.id, job.placement, job.global_batch, job.servers, job.beside)


def in_net(transitions: Sequence[Transition]) -> list[Transition]:
    """One transition for each job, from what it held first to what it holds now."""
    first = {each.job.id: each for each in reversed(transitions)}
    if len(first) == len(transitions):
        return list(transitions)
    last = {each.job.id: each for each in transitions}
    return [_net(first[job_id], each) for job_id, each in last.items()]


def _net(first: Transition, last: Transition) -> Transition:
    if first is last:
        return last
    return Transition(last.job, _net_step(last.job, first.before), first.before)


def _net_step(job: JobState, before: NodeGpus) -> Step:
    held = gpus_of(before)
    if not job.gpus:
        return "preempt"
    return "move" if job.gpus == held else "grow" if job.gpus > held else "shrink"


def step_of(job: JobState, place: NodeGpus) -> Step:
    """What it means for a job to hold this place from now on."""
    gpus = gpus_of(place)
    if gpus == 0:
        return "preempt"
    if job.gpus == 0:
        return "start" if job.phase is Phase.WAITING else "resume"
    if gpus != job.gpus:
        return "grow" if gpus > job.gpus else "shrink"
    return "move" if place != job.placement else "rebatch"


def hold(job: JobState, time_s: float, place: NodeGpus, servers: NodeGpus = ()) -> None:
    """Book what was done until now; the job holds this place from now on, nothing if it is empty."""
    job.settle(time_s)
    if not job.gpus:
        job.granted_s = time_s
    job.changed_s = time_s
    job.gpus, job.placement, job.servers = gpus_of(place), place, servers
    if place:
        job.phase = Phase.RUNNING
        if job.first_start_s is None:
            job.first_start_s = time_s
        return
    if job.phase is Phase.RUNNING:
        job.phase = Phase.PREEMPTED
    job.gpu_type, job.samples_per_second = None, 0.0
