"""Where the workers of one job are, whatever they are started by."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pliant.schemas.errors import UsageError
from pliant.schemas.text import iso_time
from pliant.tools.run.backends.py_spy import dumped, find_py_spy, worker_processes
from pliant.tools.run.service.commands import read_plan
from pliant.tools.run.service.stacks import (
    WITHIN_S,
    WorkerStack,
    answers_questions,
    grouped,
    worker_stacks,
)
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.plan import Plan
from pliant.tools.run.statedir.directory import StateDir, check_job
from pliant.tools.run.statedir.state import no_such_job
from pliant.tools.run.watch.job_status import known_ids, standing
from pliant.tools.run.watch.status import Status, Watcher

SCHEMA: Final = "pliant.stack/1"


def job_stacks(
    state: Path, job_id: str, *, within_s: float = WITHIN_S, found: Status | None = None
) -> list[WorkerStack]:
    """The stacks of all workers of a running job.

    :param within_s: how long to wait for answers.
    :param found: where its jobs stand; None: it is looked up.
    :raises UsageError: no such state directory or job, or it does not run.
    :raises ServiceMissingError: it does not use the elastic library, and py-spy is not installed.
    """
    found = Watcher(state).look() if found is None else found
    job = found.log.jobs.get(job_id)
    if job is None and job_id not in known_ids(found):
        raise no_such_job(state, [job_id], known_ids(found))
    if job is None or not job.gpus:
        what = "waiting for a run" if job is None else standing(job)
        raise UsageError(f"job {job_id} has no workers: it is {what}")
    dirs = StateDir(state.resolve())
    check_job(dirs, job_id)
    folder = dirs.job(job_id)
    plan = read_plan(folder)
    if plan is None or plan.attempt <= job.over_attempt:
        raise UsageError(f"job {job_id} has no workers yet: it is being started")
    slots = {worker: member.slot for worker, member in zip(plan.workers, plan.members, strict=True)}
    attempt = folder.attempt(plan.attempt)
    if job.job.changes_in_place or answers_questions(attempt, slots):
        return worker_stacks(attempt, slots, within_s=within_s)
    backend = "local" if found.log.info is None else found.log.info.cluster.backend
    if backend != "local":
        nodes = ", ".join(name for name, _ in job.placement)
        raise UsageError(
            f"job {job_id} does not use the elastic library: its stacks are seen on its nodes alone "
            f"({nodes}), by py-spy dump"
        )
    if dirs.is_shared:
        text = "its stacks are seen by its user alone, by py-spy dump"
        raise UsageError(f"job {job_id} does not use the elastic library: {text}")
    return _by_py_spy(folder, plan)


def _by_py_spy(folder: JobDir, plan: Plan) -> list[WorkerStack]:
    py_spy, processes = find_py_spy(), worker_processes(folder)
    found = []
    for rank, member in enumerate(plan.members):
        pid = processes.get(rank)
        threads, remark = ((), "it has no process") if pid is None else dumped(py_spy, pid)
        found.append(WorkerStack(member.slot, threads, remark))
    return found


def stacks_document(job_id: str, stacks: Sequence[WorkerStack]) -> str:
    """For programs: docs/running-json.md lists the fields."""
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "time": iso_time(time.time()),
        "job": job_id,
        "groups": [[each.slot for each in group] for group in grouped(stacks)],
        "workers": [
            {
                "slot": each.slot,
                "remark": each.remark or None,
                "threads": [
                    {"name": thread.name, "frames": [frame._asdict() for frame in thread.frames]}
                    for thread in each.threads
                ],
            }
            for each in stacks
        ],
    }
    return json.dumps(found, indent=1, ensure_ascii=True) + "\n"
