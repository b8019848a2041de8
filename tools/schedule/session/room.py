"""Whether there is room for what jobs shall hold, all at once: a pure function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from pliant.tools.schedule.jobs import JobState, NodeGpus
from pliant.tools.schedule.session.transitions import Holding


def company_in(
    holdings: Sequence[Holding], jobs: Mapping[str, JobState], room_on: Callable[[str], int]
) -> dict[str, str]:
    """The jobs that come to GPUs that another one holds alone by then, and which one that is.

    Jobs may take over each other's GPUs.

    :param jobs: all active ones.
    :param room_on: GPUs of a node that no job holds now; 0 where there is no such node.
    :raises KeyError: a job is not active.
    :raises ValueError: a node is unknown or has too few GPUs for one of them.
    """
    moving = {each.job_id: jobs[each.job_id] for each in holdings}
    alone = _left_alone(holdings, moving, jobs)
    freed = _on_nodes(job.placement for job in moving.values() if job.frees_gpus(moving))
    company: dict[str, str] = {}
    for job_id, place, beside in ((each.job_id, each.placement, each.beside) for each in holdings):
        if beside is not None and place and alone.get(beside) == place:
            company[job_id] = beside
            del alone[beside]
            continue
        for name, count in place:
            freed[name] -= count
            if room_on(name) + freed[name] < 0:
                text = f'job "{job_id}" cannot hold {count} GPUs on {name}: they are not there or taken'
                raise ValueError(text)
        alone[job_id] = place
    return company


def _left_alone(
    holdings: Iterable[Holding], moving: Mapping[str, JobState], jobs: Mapping[str, JobState]
) -> dict[str, NodeGpus]:
    """The jobs that stay where they are, have nothing beside them by then, and are to get company."""
    named = (jobs.get(each.beside or "") for each in holdings)
    stay = (job for job in named if job is not None and job.id not in moving)
    return {job.id: job.placement for job in stay if job.beside is None or job.beside in moving}


def _on_nodes(placements: Iterable[NodeGpus]) -> Counter[str]:
    """GPUs of all these placements by node."""
    found = Counter[str]()
    for placement in placements:
        for name, count in placement:
            found[name] += count
    return found
