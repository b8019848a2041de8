"""Starting attempts, and workers that join one; and whether jobs can be started here at all.

:func:`runnable` reports all that is wrong with a schedule at once: folders, commands and scripts. torchrun
    runs a command as ``python -u COMMAND…`` in each worker, in the folder of the job, so its first word is a
    Python file, a folder or archive with ``__main__.py``, or an option of Python such as ``-m``.

Where several accounts share a run, :class:`Submitters` know whose each job is.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import zipfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pliant.schemas.checks import most_on_a_node, replica_on_a_node
from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.file_io.files import make_folder
from pliant.schemas.job import Job
from pliant.schemas.schedule import Schedule
from pliant.tools.run.backends.protocol import (
    Backend,
    Credentials,
    Handle,
    NodeInfo,
    ProcessLimits,
    Unit,
    UnitStatus,
    port_to_meet_at,
)
from pliant.tools.run.backends.supervisor import LOG_BYTES
from pliant.tools.run.service.allocation import Assignment, InPlace
from pliant.tools.run.service.commands import (
    last_generation,
    make_member,
    make_plan,
    meets_at_port,
    next_plan,
    read_plan,
    units,
    write_plan,
)
from pliant.tools.run.service.elastic_gang import ElasticGang
from pliant.tools.run.service.gang import Gang
from pliant.tools.run.service.members import WorkerFailure
from pliant.tools.run.service.rigid_gang import RigidGang
from pliant.tools.run.service.starters import SHELL_SUFFIXES
from pliant.tools.run.service.stop_stages import Timeouts
from pliant.tools.run.statedir.contract import as_user
from pliant.tools.run.statedir.contract.as_user import Rights, files_of, make_job_folder
from pliant.tools.run.statedir.contract.folders import PRIVATE, DamagedError, read_file
from pliant.tools.run.statedir.contract.plan import Plan
from pliant.tools.run.statedir.contract.stacks import offer_stacks
from pliant.tools.run.statedir.directory import StateDir, check_job
from pliant.tools.run.statedir.log.fold import RunLog


class Submitters:
    """The accounts that jobs run as: those that the log says.

    :param root: whether jobs of root run, too; such a job can do anything to the others.
    """

    def __init__(self, limits: ProcessLimits, *, root: bool = False) -> None:
        self.log = RunLog()
        self._limits, self._root = limits, root

    def of(self, job_id: str) -> Credentials:
        """The account of a job; one without is root's.

        :raises BadInputError: it is root's, and such jobs are refused.
        """
        job = self.log.jobs.get(job_id)
        uid = 0 if job is None or job.uid is None else job.uid
        if uid == 0 and not self._root:
            raise BadInputError("root's jobs do not run here: submit it as its user (--allow-root-jobs)")
        return Credentials.of(uid, self._limits)


Nodes = Mapping[str, NodeInfo]
_STARTING: Final = UnitStatus("running", starting=True)
RUN_ID: Final = r"[A-Za-z0-9._-]{1,128}"
"""What wandb takes."""
_JOB_CHARS: Final = 100
_NO_COMMAND: Final = " has no command: it can be replayed, but not run"


class Launching:
    """Starts processes on a backend; the plan is on disk before they start.

    :param log_bytes: most bytes of each output file of a worker that stay on disk; None for the default.
    :param submitters: the accounts that jobs run as; None for this process's.
    """

    def __init__(
        self,
        backend: Backend,
        dirs: StateDir,
        timeouts: Timeouts,
        *,
        log_bytes: int | None = None,
        submitters: Submitters | None = None,
    ) -> None:
        self._backend = backend
        self._dirs = dirs
        self._timeouts = timeouts
        self._log_bytes = log_bytes
        self._submitters = submitters

    def prepare(self, job_id: str, target: Assignment, nodes: Nodes) -> Gang:
        """Make the next attempt of a job, of which nothing runs before :meth:`start`.

        :raises BadInputError: the job cannot be started here and now.
        """
        check_job(self._dirs, job_id)
        job_dir = self._dirs.job(job_id)
        if (account := self._account(job_id)) is None:
            check_startable(target.job)
        else:  # its supervisor finds out, as the user, whether it can be started in its folder
            check_command(target.job)
            if text := foreign_container(target.job):
                raise BadInputError(text)
            make_job_folder(job_dir.path, Rights(account.uid, account.gid))
        try:
            before = read_plan(job_dir)
        except DamagedError:  # nothing runs under it, and its number is known
            before = None
        handle = next_handle(self._dirs, job_id)
        make_folder(handle.kept or handle.folder, exist_ok=False, mode=0o700)
        if handle.kept is not None:
            with files_of(handle.files):
                make_folder(handle.folder, mode=0o700)
        if job_dir.from_start.exists():
            with files_of(handle.files), suppress(FileNotFoundError):
                job_dir.checkpoints.rename(job_dir.path / f"checkpoints-{handle.attempt - 1}")
            job_dir.run_id.unlink(missing_ok=True)
            job_dir.from_start.unlink()
        generation = max(last_generation(job_dir), before.generation if before else 0) + 1
        reason = before.reason if before is not None and before.abort else ""
        plan = make_plan(target, generation, handle.attempt, nodes, reason)
        write_plan(job_dir, plan)
        offer_stacks(handle.files)
        with files_of(handle.files):
            job_dir.link_latest(handle.attempt)
        if not target.job.changes_in_place:
            with files_of(handle.files):
                as_user.write(handle.files.stop, b"", PRIVATE)
        return self._gang(handle, plan, target)

    def start(self, gang: Gang, nodes: Nodes) -> None:
        """Start what was prepared. Until the next look all of it counts as running, after an error, too.

        :raises PliantError: the job's account may not run it, or files cannot be read or written.
        :raises OSError: its processes cannot be started.
        """
        handle, target = gang.handle, gang.target
        first = nodes[target.slots[0].node]
        port = port_to_meet_at(first.address) if meets_at_port(target) else 0
        commands = self._commands(target, handle, nodes, port=port)
        gang.statuses = (_STARTING,) * len(commands)
        self._backend.start(handle, commands)

    def adopt(self, handle: Handle, plan: Plan, target: Assignment, seen: int) -> Gang:
        """The gang of an attempt that was started, ``seen`` events of whose workers were read before."""
        gang = self._gang(handle, plan, target, seen)
        gang.statuses = self._backend.poll([handle])[handle]
        return gang

    def _gang(self, handle: Handle, plan: Plan, target: Assignment, seen: int = 0) -> Gang:
        with files_of(handle.files):
            kind = gang_class(target.job)
            return kind(handle, plan, target, self._backend, timeouts=self._timeouts, seen=seen)

    def publish(self, gang: Gang, plan: Plan, failure: WorkerFailure | None = None) -> None:
        """Give the workers of an attempt a newer plan. If it cannot be written, the plan before stays."""
        write_plan(self._dirs.job(gang.handle.job), plan)
        gang.switch_to(plan, failure)

    def rescale(self, gang: Gang, target: Assignment, way: InPlace, nodes: Nodes) -> None:
        """Change the workers of an attempt while it trains; new ones leave at once if no plan names them."""
        first = len(gang.statuses)
        joining = [
            make_member(slot, nodes[slot.node], worker) for worker, slot in enumerate(way.joining, first)
        ]
        cut = target.allocation.cut
        self.publish(gang, next_plan(gang.plan, (*way.members, *joining), cut))
        if not joining:
            return
        added = Assignment.of(target.job, way.joining, cut)
        commands = self._commands(added, gang.handle, nodes, first=first)
        gang.statuses += (_STARTING,) * len(commands)
        try:
            self._backend.start(gang.handle, commands)
        except OSError as error:
            reason = f"new workers cannot be started: {error.strerror or error}"
            self.publish(gang, *gang.plan_without(way.members, WorkerFailure(way.joining, reason)))
        gang.statuses = self._backend.poll([gang.handle])[gang.handle]

    def _commands(
        self, target: Assignment, handle: Handle, nodes: Nodes, *, first: int = 0, port: int = 0
    ) -> list[Unit]:
        job, files, most = handle.job_files.path, handle.files, self._log_bytes
        account = self._account(handle.job)
        if account is not None and most is None:  # else the job could say it
            most = LOG_BYTES
        run_id = _run_id(handle)
        more: dict[str, Any] = {"log_bytes": most, "account": account, "run_id": run_id}
        return units(target, job, files, nodes, port, first=first, **more)

    def _account(self, job_id: str) -> Credentials | None:
        """:raises BadInputError: the job is root's, and such jobs are refused."""
        return None if self._submitters is None else self._submitters.of(job_id)


def _run_id(handle: Handle) -> str:
    """What trackers call the run of a job: made at its first start, and read at the others.

    :raises PliantError: it cannot be read or written.
    """
    path = handle.job_files.run_id
    kept = (read_file(path) or b"").decode("ascii", "replace").strip()
    if re.fullmatch(RUN_ID, kept):
        return kept
    run_id = f"{handle.job[:_JOB_CHARS]}-{secrets.token_hex(4)}"
    as_user.write(path, f"{run_id}\n".encode(), PRIVATE)
    return run_id


def gang_class(job: Job) -> type[ElasticGang | RigidGang]:
    return ElasticGang if job.changes_in_place else RigidGang


def next_handle(dirs: StateDir, job_id: str) -> Handle:
    """The attempt after the newest one that has a folder."""
    number = dirs.job(job_id).newest_attempt() + 1
    return Handle.of(dirs.job(job_id), number)


def runnable(schedule: Schedule, source: str, folder: Path, accepted: Collection[str] = ()) -> Schedule:
    """The schedule with the folder of every job written out, ``folder`` if a job names none.

    :param accepted: jobs that were acknowledged earlier: what is wrong with them keeps no other from
        running.
    :raises BadInputError: names every job without a command or folder, every allocation of a job that the
        schedule lacks, and every node that is given more than it has.
    """
    jobs = tuple(at_home(job, folder) for job in schedule.jobs)
    problems = [
        problem
        for index, job in enumerate(jobs)
        if job.id not in accepted
        for problem in job_problems(job, source, f"/jobs/{index}")
    ]
    problems += _allocation_problems(schedule, source)
    if problems:
        raise BadInputError(problems)
    return schedule.model_copy(update={"jobs": jobs})


def at_home(job: Job, folder: Path) -> Job:
    return job.model_copy(update={"workdir": str(folder / (job.workdir or ""))})


def job_problems(job: Job, source: str, pointer: str = "", *, looks: bool = True) -> list[Problem]:
    """What keeps one job from being started here.

    :param pointer: where it stands in its source.
    :param looks: whether its folder is there counts, too; else it is another account's.
    """
    return [
        Problem(source, None, f"{pointer}/{field}", f'job "{job.id}"{text}')
        for field, text in (_obstacles(job, looks=looks) | _unserved(job)).items()
    ]


def check_startable(job: Job) -> None:
    """:raises BadInputError: the job's folder is missing, or it has no command."""
    for text in _obstacles(job).values():
        raise BadInputError(text.lstrip(": "))


def check_command(job: Job) -> None:
    """:raises BadInputError: it has no command."""
    if not job.command:
        raise BadInputError(_NO_COMMAND)


def _obstacles(job: Job, *, looks: bool = True) -> dict[str, str]:
    """What keeps a job from being started, by field, as the end of a sentence about it.

    :param looks: it is this account's, and its folder is looked at.
    """
    obstacles = {}
    if not job.command:
        obstacles["command"] = _NO_COMMAND
    if looks and not os.path.isdir(job.workdir or "."):
        obstacles["workdir"] = f": no such folder: {job.workdir}"
    if not looks and (text := foreign_container(job)):
        obstacles["container/runtime"] = f": {text}"
    return obstacles


def foreign_container(job: Job) -> str:
    """Why a job of another account cannot have its container; empty if it can."""
    if job.container is None or job.container.runtime != "docker":
        return ""
    return "docker's containers are root's, beyond the limits of an account: name podman or apptainer"


def _unserved(job: Job) -> dict[str, str]:
    """What a job asks for and would not get; a job that was accepted earlier is started all the same."""
    unserved = {}
    if job.resources.ps:
        unserved["resources/ps"] = " has parameter servers: it can be replayed, but not run"
    if (gpus := job.resources.worker.get("gpu", 1.0)) > 1:
        unserved["resources/worker/gpu"] = f" needs {gpus:g} GPUs for each worker, which gets one"
    if job.changes_in_place and (gpus := job.gpus.per_replica) > 1:
        unserved["gpus/per_replica"] = (
            f" resizes replicas of {gpus} GPUs in place: it can be replayed, but not run"
        )
    return unserved


def _allocation_problems(schedule: Schedule, source: str) -> list[Problem]:
    known = {job.id: job for job in schedule.jobs}
    nodes = {node.name: node for node in schedule.cluster.expanded()}
    left, most = {name: node.gpus for name, node in nodes.items()}, most_on_a_node(nodes.values())
    problems: list[Problem] = []
    for index, allocation in enumerate(schedule.allocations):
        where = f"/allocations/{index}"
        if allocation.job not in known:
            problems.append(
                Problem(source, None, f"{where}/job", f'"{allocation.job}" is not among the jobs')
            )
        if allocation.gpus and not allocation.placement:
            problems.append(Problem(source, None, f"{where}/placement", "is empty, expected nodes"))
        shares = allocation.beside is not None and allocation.beside < allocation.job
        shares = shares or (allocation.job in known and known[allocation.job].on_cpus)
        for node, count in () if shares else allocation.placement:  # those of two count once
            left[node] = left.get(node, 0) - count
            if left[node] < 0:
                text = f"node {node} has fewer free GPUs than that"
                problems.append(Problem(source, None, f"{where}/placement", text))
        job = known.get(allocation.job)
        if job is not None and any(
            count % replica_on_a_node(job, most[nodes[node].gpu_type])
            for node, count in allocation.placement
            if node in nodes
        ):
            text = f"a replica of {job.gpus.per_replica} GPUs is not on one node"
            problems.append(Problem(source, None, f"{where}/placement", text))
    return problems


_STARTERS: Final = re.compile(r"(python[\d.]*|torchrun|accelerate|deepspeed|srun|mpirun|env|sh|bash)$")
"""Programs that people type before a script."""
_LOOKED_AT_BYTES: Final = 200


def script_obstacle(command: Sequence[str], workdir: Path) -> str | None:
    """Why Python would not find or read what the command starts, as a clause. Returns None if it would.

    :param workdir: the folder that the job starts in.
    """
    first = command[0]
    if first == "-m":
        return _module_obstacle(command[1:], workdir)
    if first.startswith("-"):
        return None
    path = workdir / first
    try:
        return _file_obstacle(path) if path.exists() else _missing(command, path)
    except OSError as error:
        return f"script {path} cannot be read: {error.strerror}"


def _file_obstacle(path: Path) -> str | None:
    if not os.access(path, os.R_OK):
        return f"script {path} cannot be read: {os.strerror(errno.EACCES)}"
    if path.is_dir():
        return None if (path / "__main__.py").exists() else f"{path} is a folder without __main__.py"
    if not path.is_file() or zipfile.is_zipfile(path):
        return None
    with path.open("rb") as file:
        return _language_obstacle(path, file.read(_LOOKED_AT_BYTES))


def _language_obstacle(path: Path, head: bytes) -> str | None:
    """What a file is instead of Python, which reads it as Python whatever its first line names."""
    first = head.partition(b"\n")[0].decode(errors="replace").strip()
    if b"\0" in head:
        what = "a compiled program"
    elif first.startswith("#!") and "python" not in first:
        what = f'a script for "{first[2:].strip()}"'
    elif path.suffix in SHELL_SUFFIXES and not first.startswith("#!"):
        what = "a script for a shell"
    else:
        return None
    return f"{path} is {what}, but torchrun starts Python scripts"


def _module_obstacle(words: Sequence[str], workdir: Path) -> str | None:
    if not words:
        return "-m names no module"
    top = words[0].partition(".")[0]
    if PathFinder.find_spec(top, [str(workdir)]) or find_spec(top):
        return None
    return f'no module "{words[0]}" in {workdir} or among the installed packages'


def _missing(command: Sequence[str], path: Path) -> str:
    """What is wrong if the first word is not a file: often it is a program that torchrun replaces."""
    if not _STARTERS.match(Path(command[0]).name):
        return f"no such script: {path}"
    rest = command[1:]
    place = next((i for i, word in enumerate(rest) if word == "-m" or word.endswith(".py")), len(rest))
    expected = json.dumps(rest[place:] or ["train.py"], ensure_ascii=False)
    return f'starts with "{command[0]}", but torchrun itself starts Python: expected "command": {expected}'
