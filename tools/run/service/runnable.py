"""From a schedule file to one that can be executed here: all that is wrong with it is said at once."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.job import Job
from pliant.schemas.schedule import Schedule


def runnable(schedule: Schedule, source: str, folder: Path, accepted: Collection[str] = ()) -> Schedule:
    """The schedule with the folder of every job written out, ``folder`` where a job names none.

    :param accepted: jobs that were acknowledged: what is wrong with one of them keeps no other from running.
    :raises BadInputError: with every job that has no command, whose folder is missing, or that a decision
        names without the schedule having it; and every node that is given more than it has.
    """
    jobs = tuple(at_home(job, folder) for job in schedule.jobs)
    problems = [
        found
        for index, job in enumerate(jobs)
        if job.id not in accepted
        for found in job_problems(job, source, f"/jobs/{index}")
    ]
    problems += _allocation_problems(schedule, source)
    if problems:
        raise BadInputError(problems)
    return schedule.model_copy(update={"jobs": jobs})


def at_home(job: Job, folder: Path) -> Job:
    """The job with its folder written out, ``folder`` where it names none."""
    return job.model_copy(update={"workdir": str(folder / (job.workdir or ""))})


def job_problems(job: Job, source: str, pointer: str = "") -> list[Problem]:
    """What keeps one job from being started here.

    :param pointer: where the job stands in its source.
    """
    return [
        Problem(source, None, f"{pointer}/{field}", f'job "{job.id}"{text}')
        for field, text in _obstacles(job).items()
    ]


def check_startable(job: Job) -> None:
    """Refuse a job that cannot be started here and now.

    :raises BadInputError: its folder is missing, or it has no command.
    """
    for text in _obstacles(job).values():
        raise BadInputError(text.lstrip(": "))


def _obstacles(job: Job) -> dict[str, str]:
    """What keeps a job from being started, by field, as the end of a sentence about it."""
    found = {}
    if not job.command:
        found["command"] = " has no command: it can be replayed, but not run"
    if not os.path.isdir(job.workdir or "."):
        found["workdir"] = f": no such folder: {job.workdir}"
    return found


def _allocation_problems(schedule: Schedule, source: str) -> list[Problem]:
    known = {job.id for job in schedule.jobs}
    left = {node.name: node.gpus for node in schedule.cluster.expanded()}
    problems = []
    for index, allocation in enumerate(schedule.allocations):
        where = f"/allocations/{index}"
        if allocation.job not in known:
            problems.append(
                Problem(source, None, f"{where}/job", f'"{allocation.job}" is not among the jobs')
            )
        if allocation.gpus and not allocation.placement:
            problems.append(Problem(source, None, f"{where}/placement", "is empty, expected nodes"))
        for node, count in allocation.placement:
            left[node] = left.get(node, 0) - count
            if left[node] < 0:
                text = f"node {node} does not have so many GPUs free"
                problems.append(Problem(source, None, f"{where}/placement", text))
    return problems
