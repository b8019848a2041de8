"""What jobs hold, how a change of it is called, and whether there is room for it.

The events by which jobs get GPUs and give them up say what they hold, whether they are from a log, or made
of a schedule or of what a session takes from jobs. A :class:`Transition` is what became of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from pliant.schemas.events import PLACED, Placed, Preempted
from pliant.tools.schedule.jobs import RUNNING, WAITING, JobState, NodeGpus, Phase, gpus_of

Step = Literal["start", "resume", "grow", "shrink", "move", "rebatch", "preempt", "reject"]


class Transition(NamedTuple):
    """One effect of a decision on one job; the job's state already shows it.

    ``rebatch`` changes only the global batch. ``before`` is the placement held until now.
    """

    job: JobState
    step: Step
    before: NodeGpus = ()
    reason: str = ""


AllocationEvent = Placed | Preempted
"""What one job holds from now on; of two jobs on the same GPUs one may name the other, or both."""


def allocation_event(
    job: JobState,
    place: NodeGpus,
    time_s: float,
    *,
    global_batch: int | None = None,
    servers: NodeGpus = (),
    beside: str | None = None,
) -> AllocationEvent:
    """The event by which a job holds a place, nothing if it is empty. No batch: that is unchanged."""
    if not place:
        return Preempted(time_s, job.id, 0, (), global_batch)
    step, gpus = step_of(job, place), gpus_of(place) if job.requested else 0
    kind = PLACED["move" if step == "rebatch" else step]
    return kind(time_s, job.id, gpus, place, global_batch, servers=servers, beside=beside)


def servers_in(event: AllocationEvent) -> NodeGpus:
    """Where the parameter servers of a job are."""
    return () if isinstance(event, Preempted) else tuple((name, count) for name, count in event.servers or ())


def step_of(job: JobState, place: NodeGpus) -> Step:
    """What it is called when a job gets this place."""
    gpus = gpus_of(place)
    if gpus == 0:
        return "preempt"
    if job.gpus == 0:
        return "start" if job.phase is WAITING else "resume"
    if gpus != job.gpus:
        return "grow" if gpus > job.gpus else "shrink"
    return "move" if place != job.placement else "rebatch"


def set_allocation(job: JobState, time_s: float, place: NodeGpus, servers: NodeGpus = ()) -> None:
    """Book progress until now; from now on the job holds this place, nothing if it is empty."""
    job.settle(time_s)
    if not job.gpus:
        job.granted_s = time_s
    job.changed_s = time_s
    job.placement, job.servers = place, servers
    if place:
        job.gpus, job.phase = gpus_of(place), RUNNING
        if job.first_start_s is None:
            job.first_start_s = time_s
        return
    job.gpus = 0
    if job.phase is RUNNING:
        job.phase = Phase.PREEMPTED
    job.gpu_type, job.samples_per_second = None, 0.0


def in_net(transitions: Sequence[Transition]) -> list[Transition]:
    """One transition a job, from what it held first to what it holds now; none if that is the same."""
    by_job: dict[str, list[Transition]] = {}
    for each in transitions:
        by_job.setdefault(each.job.id, []).append(each)
    if len(by_job) == len(transitions):
        return list(transitions)
    nets = (each[0] if len(each) == 1 else _net(each) for each in by_job.values())
    return [each for each in nets if each is not None]


def _net(steps: Sequence[Transition]) -> Transition | None:
    first, last = steps[0], steps[-1]
    job, held = last.job, gpus_of(first.before)
    if last.step == "reject":
        return last._replace(before=first.before)
    if job.placement == first.before and all(each.step != "rebatch" for each in steps):
        job.preemptions -= sum(each.step == "preempt" for each in steps)
        job.moves -= sum(each.step == "move" for each in steps)
        job.rescales -= sum(each.step in ("grow", "shrink") for each in steps)
        return None
    if not held:
        return first
    step: Step = "move" if job.gpus == held else "grow" if job.gpus > held else "shrink"
    return Transition(job, step if job.gpus else "preempt", first.before)


def sharing_in(
    events: Sequence[AllocationEvent], jobs: Mapping[str, JobState], room_on: Callable[[str], int]
) -> dict[str, str]:
    """The jobs that come to share GPUs, and with which job.

    Jobs may take over each other's GPUs.

    :param room_on: GPUs of a node that no job holds now; 0 where there is no such node.
    :raises KeyError: a job is not active.
    :raises ValueError: a node is unknown or has too few GPUs for one of them.
    """
    moving = {each.job: jobs[each.job] for each in events}
    alone = _left_alone(events, moving, jobs)
    freed = Counter[str]()
    for job in moving.values():
        if job.frees_gpus(moving):
            for name, count in job.placement:
                freed[name] += count
    partners: dict[str, str] = {}
    for job_id, place, beside in ((each.job, each.placement or (), _partner_in(each)) for each in events):
        if beside is not None and place and alone.get(beside) == place:
            partners[job_id] = beside
            del alone[beside]
            continue
        for name, count in place:
            freed[name] -= count
            if room_on(name) + freed[name] < 0:
                text = f'job "{job_id}" cannot hold {count} GPUs on {name}: they are not there or taken'
                raise ValueError(text)
        alone[job_id] = place
    return partners


def _left_alone(
    events: Iterable[AllocationEvent], moving: Mapping[str, JobState], jobs: Mapping[str, JobState]
) -> dict[str, NodeGpus]:
    """The jobs that stay where they are, without a partner, and are to get one."""
    named = (jobs.get(_partner_in(each) or "") for each in events)
    stay = (job for job in named if job is not None and job.id not in moving)
    return {job.id: job.placement for job in stay if job.beside is None or job.beside in moving}


def _partner_in(event: AllocationEvent) -> str | None:
    return None if isinstance(event, Preempted) else event.beside
