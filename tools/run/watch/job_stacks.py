"""Where the workers of one job are, whatever they are started by.

Workers with the elastic library answer by themselves. Of others py-spy tells, where it is installed; it looks
at processes of this machine, so it serves the local backend.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from pliant.schemas.errors import ServiceMissingError, UsageError
from pliant.schemas.text import iso_time, whole_number
from pliant.tools.profile.torchrun.start import RUN_TORCHRUN, printable, strays
from pliant.tools.run.backends.local import SUPERVISORS
from pliant.tools.run.service.commands import read_plan
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR, Plan
from pliant.tools.run.statedir.contract.stacks import (
    MOST_FRAMES,
    RESPONSE_TIMEOUT_S,
    Frame,
    ThreadStack,
    WorkerStack,
    answers_questions,
    grouped,
    worker_stacks,
)
from pliant.tools.run.statedir.directory import StateDir, check_job
from pliant.tools.run.statedir.state import no_such_job
from pliant.tools.run.watch.job_status import known_ids, standing
from pliant.tools.run.watch.status import Status, Watcher

PY_SPY_TIMEOUT_S: Final = 20.0
_STARTERS: Final = SUPERVISORS | {Path(RUN_TORCHRUN).name}
"""Programs between the launcher and its workers."""


def _find_py_spy() -> str:
    """:raises ServiceMissingError: it is not installed."""
    program = shutil.which("py-spy")
    if program is None:
        text = "py-spy is not on PATH, which shows jobs without the elastic library: pip install py-spy"
        raise ServiceMissingError(text)
    return program


def _worker_processes(folder: JobDir) -> dict[int, int]:
    """The process of each worker of a job on this machine, by rank."""
    processes = {each.pid: each for each in strays((ENV_JOB_DIR, str(folder.path)))}
    between = {pid for pid, each in processes.items() if _starts_workers(each)}
    pids = {}
    for pid, process in processes.items():
        with contextlib.suppress(psutil.Error):
            if pid not in between and process.ppid() not in processes.keys() - between:
                pids[whole_number(process.environ().get("RANK", "0")) or 0] = pid
    return dict(sorted(pids.items()))


def _starts_workers(process: psutil.Process) -> bool:
    try:
        return any(Path(word).name in _STARTERS for word in process.cmdline()[:5])
    except psutil.Error:
        return True


def _dumped(py_spy: str, pid: int) -> tuple[tuple[ThreadStack, ...], str]:
    """The stacks of a process, the main thread first; or why there are none."""
    try:
        done = subprocess.run(
            [py_spy, "dump", "--json", "--pid", str(pid)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=PY_SPY_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return (), f"py-spy did not answer within {PY_SPY_TIMEOUT_S:g} s"
    except OSError as error:
        return (), f"py-spy cannot be started: {error.strerror}"
    if done.returncode:
        said = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        return (), printable(f"py-spy: {said[-1].strip() if said else f'exit code {done.returncode}'}")
    try:
        return _threads(json.loads(done.stdout)), ""
    except (ValueError, KeyError, TypeError):
        return (), "py-spy wrote no JSON that this version understands"


def _threads(found: Iterable[Mapping[str, Any]]) -> tuple[ThreadStack, ...]:
    threads = [
        ThreadStack(
            name=str(thread.get("thread_name") or "not made by Python"),
            frames=tuple(
                Frame(str(call["filename"]), int(call["line"]), str(call["name"]))
                for call in thread["frames"][:MOST_FRAMES]
            ),
        )
        for thread in found
    ]
    return tuple(sorted(threads, key=lambda thread: thread.name != "MainThread"))


SCHEMA: Final = "pliant.stack/1"


def job_stacks(
    state: Path, job_id: str, *, within_s: float = RESPONSE_TIMEOUT_S, status: Status | None = None
) -> list[WorkerStack]:
    """The stacks of all workers of a running job.

    :param within_s: how long to wait for answers.
    :param status: where its jobs stand; None: it is looked up.
    :raises UsageError: no such state directory or job, or it does not run.
    :raises ServiceMissingError: it does not use the elastic library, and py-spy is not installed.
    """
    status = Watcher(state).look() if status is None else status
    job = status.log.jobs.get(job_id)
    if job is None and job_id not in known_ids(status):
        raise no_such_job(state, [job_id], known_ids(status))
    if job is None or not job.gpus:
        what = "waiting for a run" if job is None else standing(job)
        raise UsageError(f"job {job_id} has no workers: it is {what}")
    dirs = StateDir(state.resolve())
    check_job(dirs, job_id)
    folder = dirs.job(job_id)
    plan = read_plan(folder)
    if plan is None or plan.attempt <= job.attempt.over_attempt:
        raise UsageError(f"job {job_id} has no workers yet: it is being started")
    slots = {worker: member.slot for worker, member in zip(plan.workers, plan.members, strict=True)}
    attempt = folder.attempt(plan.attempt)
    if job.job.changes_in_place or answers_questions(attempt, slots):
        return worker_stacks(attempt, slots, within_s=within_s)
    backend = "local" if status.log.info is None else status.log.info.cluster.backend
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
    py_spy, processes = _find_py_spy(), _worker_processes(folder)
    stacks = []
    for rank, member in enumerate(plan.members):
        pid = processes.get(rank)
        threads, remark = ((), "it has no process") if pid is None else _dumped(py_spy, pid)
        stacks.append(WorkerStack(member.slot, threads, remark))
    return stacks


def stacks_document(job_id: str, stacks: Sequence[WorkerStack]) -> str:
    """For programs: docs/running-json.md lists the fields."""
    document: dict[str, Any] = {
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
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"
