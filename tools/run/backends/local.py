"""The local backend: every node of the cluster is this machine, every unit a process in a session of its own.

A unit runs under ``supervisor.py``, which writes the exit code to a file for any later launcher.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, UsageError
from pliant.tools.profile.torchrun.start import kill, node_environment, strays, tree
from pliant.tools.run.backends.cgroup import UnitCgroup
from pliant.tools.run.backends.host import (
    Waker,
    Watched,
    birth,
    devices_by_node,
    find,
    spawn,
    visible_gpus,
)
from pliant.tools.run.backends.limits import UnitLimits, gpus_of, group_name
from pliant.tools.run.backends.protocol import (
    UNKNOWN_UNIT,
    Handle,
    LaunchRecord,
    MemoryKill,
    NodeInfo,
    StartedUnit,
    StopLevel,
    Unit,
    UnitStatus,
    bad_cluster,
    free_port,
    newest_attempts,
    read_or_rebuild,
    write_record,
)
from pliant.tools.run.backends.supervisor import (
    CONTAINER,
    ENV_GROUP,
    container_of,
    remove_scratch,
    scratch_of,
)
from pliant.tools.run.statedir.contract.as_user import files_of, with_own_files
from pliant.tools.run.statedir.contract.folders import (
    FolderCache,
    UnreadableError,
    make_log_folder,
    open_log,
    read_file,
    refuse_public,
)
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR, ENV_LOG_BYTES, ENV_WORKER
from pliant.tools.run.statedir.directory import StateDir

SUPERVISOR: Final = str(Path(__file__).with_name("supervisor.py"))
SETUID_SUPERVISOR: Final = str(Path(__file__).with_name("supervisor_setuid.py"))
SUPERVISORS: Final = frozenset((Path(SUPERVISOR).name, Path(SETUID_SUPERVISOR).name, "keep.py", "keep_as.py"))
"""Script names of supervisors. The last two are of earlier versions, whose processes an upgrade adopts."""
SUPERVISOR_ENV: Final = (ENV_JOB_DIR, ENV_WORKER, ENV_LOG_BYTES)
"""Variables of another account's unit that its supervisor uses."""
LOOPBACK: Final = "127.0.0.1"
_RUNNING: Final = UnitStatus("running")
_STANDS_STILL: Final = UnitStatus("running", idle=True)


def open_local(cluster: Cluster, dirs: StateDir) -> LocalBackend:
    return LocalBackend(cluster, dirs.jobs)


class LocalBackend:
    """Processes on this machine.

    :param jobs: the folder of jobs in the state directory.
    """

    name = "local"
    in_place = True
    shares_slots = True
    held_nodes = 0

    def __init__(self, cluster: Cluster, jobs: Path) -> None:
        self._cluster = cluster
        self._jobs = jobs
        # Births by pid of the supervisors that this process has started and not yet reaped.
        self._children: dict[int, str] = {}
        self._watched = Watched()
        self._waker = Waker()
        # Of attempts with running units.
        self._folders: dict[Handle, FolderCache] = {}
        # Which units of an attempt ran at the last look.
        self._left: dict[Handle, list[UnitStatus | None]] = {}
        # Of attempts started by this process: a job may remove its own folder.
        self._launched: dict[Handle, LaunchRecord] = {}
        # By the note of a container, the process that removes it.
        self._ending: dict[Path, int] = {}
        self._nodes: Sequence[NodeInfo] | None = None
        # What units may take of this machine.
        self.limits = UnitLimits(cluster)

    def nodes(self) -> Sequence[NodeInfo]:
        """The nodes of the cluster file, with the GPUs that they name or this machine's in order.

        :raises BadInputError: the cluster file has more GPUs than this machine, names one that does not
            exist, or has an address that is public or another machine's.
        """
        if self._nodes is None:
            self._nodes = self._find_nodes()
        return self._nodes

    def change_cluster(self, cluster: Cluster) -> None:
        self._cluster, self._nodes = cluster, None
        self.limits.change_cluster(cluster)

    def _find_nodes(self) -> Sequence[NodeInfo]:
        nodes = self._cluster.expanded()
        addresses = [check_own(node.name, node.address or LOOPBACK) for node in nodes]
        devices: Sequence[tuple[str, ...] | None] = [None] * len(nodes)
        if self._cluster.slots == "gpu":
            usable = visible_gpus(os.environ)
            devices = devices_by_node(self._cluster, usable)
            self.limits.cards = {gpu.name: gpu.card for gpu in usable}
        return [
            NodeInfo(node.name, node.gpus, True, address, own)
            for node, address, own in zip(nodes, addresses, devices, strict=True)
        ]

    def shown(self, handle: Handle, units: Sequence[Unit]) -> Sequence[str]:
        return [f"{unit.node}: {unit.in_a_shell}" for unit in units]

    @with_own_files
    def start(self, handle: Handle, units: Sequence[Unit]) -> None:
        with files_of(handle.files):
            make_log_folder(handle.files.logs)
        for pid in tuple(self._children):
            self._reap(pid)
        before = self._record(handle)
        if before is None:  # nothing of an earlier attempt runs, unless the job's folder was removed
            kill(strays(_mark(handle)))
        started = list(before.units) if before else []
        first = len(started)
        running = [index for index, unit in enumerate(started) if self._running(unit, _mark(handle))]
        gpus = gpus_of([*(started[index] for index in running), *units])
        names = [group_name(str(handle.files.exit_code(index))) for index in range(first, first + len(units))]
        groups = [self.limits.group(name, unit, gpus) for name, unit in zip(names, units, strict=True)]
        started.extend(
            StartedUnit.of(unit, () if group is None else group.folders)
            for unit, group in zip(units, groups, strict=True)
        )
        self._write(handle, started)
        try:
            for index, (unit, group) in enumerate(zip(units, groups, strict=True), first):
                started[index] = self._spawn(handle, index, unit, started[index], group)
            self._write(handle, started)
            if running:
                self.limits.share_gpus([*(started[index] for index in running), *started[first:]])
        except BaseException:
            self.stop(handle, "kill", range(first, len(started)) if first else None)
            raise

    def _record(self, handle: Handle) -> LaunchRecord | None:
        return _record(handle) or self._launched.get(handle)

    def _write(self, handle: Handle, units: Sequence[StartedUnit]) -> None:
        record = LaunchRecord(job=handle.job, attempt=handle.attempt, backend=self.name, units=tuple(units))
        write_record(handle, record)
        self._launched[handle] = record

    def _spawn(
        self, handle: Handle, index: int, unit: Unit, record: StartedUnit, group: UnitCgroup | None
    ) -> StartedUnit:
        code_file = str(handle.files.exit_code(index))
        supervisor, env, told = SUPERVISOR, node_environment(os.environ, unit.env), b""
        if unit.account is not None:
            own = unit.account.environment()
            supervisor, told = SETUID_SUPERVISOR, json.dumps(unit.account.order({**own, **unit.env})).encode()
            env = {
                "PATH": own["PATH"],
                **{name: unit.env[name] for name in SUPERVISOR_ENV if name in unit.env},
            }
        env = {**env, ENV_GROUP: "" if group is None else str(group)}
        argv = (sys.executable, "-I", "-S", supervisor, code_file, unit.cwd, *unit.argv)
        with files_of(handle.files):
            log = open_log(handle.files.launcher_log(index))
        with log:
            pid = spawn(argv, env, log, told)
        try:
            self._children[pid] = born = birth(pid)
        except psutil.NoSuchProcess:  # it has ended, and the system has reaped it
            born = ""
        return record.model_copy(update={"pid": pid, "born": born})

    @with_own_files
    def stop(self, handle: Handle, level: StopLevel, only: Collection[int] | None = None) -> None:
        """SIGTERM to each supervisor, which passes it on, or SIGKILL to every process with the job's mark."""
        try:
            listed = enumerate(_supervisors(handle, self._record(handle)))
        except UnreadableError:
            if level == "kill" and only is None:
                kill(strays(_mark(handle)))
            raise
        meant = [supervisor for index, supervisor in listed if only is None or index in only]
        supervisors = [supervisor for supervisor in meant if supervisor is not None]
        if level == "kill":
            left = (
                supervisors
                if handle.kept is None
                else [each for each in supervisors if not _kill_below(each)]
            )
            for supervisor in left:
                kill(tree(supervisor))
            workers = None if only is None else {str(index) for index in only}
            spared = {supervisor.pid for supervisor in supervisors}
            kill(
                process
                for process in strays(_mark(handle))
                if process.pid not in spared and _is_one_of(process, workers)
            )
            self._end_groups(handle, only)
            if handle.kept is None:
                self._remove_what_is_left(handle, only)
            return
        for supervisor in supervisors:
            try:
                supervisor.send_signal(signal.SIGTERM)
            except psutil.Error:
                continue

    def _end_groups(self, handle: Handle, only: Collection[int] | None) -> None:
        """Kill what is in the control groups of units, wherever it hides, and remove the groups."""
        record = self._record(handle)
        for index, unit in enumerate(record.units if record else ()):
            if unit.groups and (only is None or index in only):
                group = UnitCgroup(unit.groups)
                group.kill()
                group.remove()

    def _remove_what_is_left(self, handle: Handle, only: Collection[int] | None) -> None:
        """Temporary files and containers of supervisors that were killed."""
        record = self._record(handle)
        for index, unit in enumerate(record.units if record else ()):
            if only is None or index in only:
                self._end_container(handle.files.container(index), container_of(unit.argv))
                env = node_environment(os.environ, unit.env)
                remove_scratch(scratch_of(str(handle.files.exit_code(index)), env))

    def _end_container(self, note: Path, spec: str) -> None:
        """Have a container ended that is left, without waiting for it.

        :param spec: what was launched; empty: no container.
        """
        before = self._ending.get(note)
        if spec and note.exists() and (before is None or before not in self._children or self._reap(before)):
            argv = (sys.executable, "-I", "-S", CONTAINER, "--remove", spec)
            with open(os.devnull, "wb") as output:
                self._ending[note] = pid = spawn(argv, node_environment(os.environ, {}), output)
            self._children[pid] = ""

    @with_own_files
    def poll(self, handles: Iterable[Handle]) -> Mapping[Handle, tuple[UnitStatus, ...]]:
        return {handle: self._statuses(handle) for handle in handles}

    def _statuses(self, handle: Handle) -> tuple[UnitStatus, ...]:
        folder = self._folders.setdefault(handle, FolderCache(handle.folder))
        with files_of(handle.files):
            folder.look()
        record = folder.get("record", lambda: self._record(handle))
        mark = folder.get("mark", lambda: _mark(handle))
        running = [self._running(unit, mark) for unit in (record.units if record else ())]
        if self._left.get(handle) != running and record is not None:
            self.limits.share_gpus([unit for unit, runs in zip(record.units, running, strict=True) if runs])
        self._left[handle] = running
        if not any(running):
            del self._folders[handle], self._left[handle]
            self._launched.pop(handle, None)
        return tuple(
            status or folder.get(f"exit {index}", partial(_ended, handle, index))
            for index, status in enumerate(running)
        )

    def _running(self, unit: StartedUnit, mark: tuple[str, str]) -> UnitStatus | None:
        if unit.pid is None or unit.born is None:
            return None
        ours = self._children.get(unit.pid) == unit.born and not self._reap(unit.pid)
        runs = ours or self._watched.runs(unit.pid, unit.born, mark)
        if not runs:
            self._waker.forget(unit.pid)
            return None
        return _STANDS_STILL if self._waker.look(unit.pid) else _RUNNING

    def _reap(self, pid: int) -> bool:
        """Reap a child if it has ended (its exit code is in a file). Returns whether it has."""
        try:
            runs = os.waitpid(pid, os.WNOHANG) == (0, 0)
        except ChildProcessError:  # SIGCHLD is ignored, so the system reaps the children
            runs = False
        if not runs:
            del self._children[pid]
        return not runs

    def _end_unknown(self, handle: Handle, record: LaunchRecord) -> None:
        """Kill units that may have been started, but whose pids were not recorded."""
        unknown = [index for index, unit in enumerate(record.units) if unit.pid is None]
        self.stop(handle, "kill", None if len(unknown) == len(record.units) else unknown)

    def adopt(self, over: Container[str] = ()) -> list[Handle]:
        """The newest attempt of every job that is not over. Kills units whose start was cut short."""
        handles = newest_attempts(self._jobs, over)
        for handle in handles:
            with contextlib.suppress(UnreadableError, BadInputError):  # poll tells
                record = _record(handle)
                if record is not None and not record.complete:
                    self._end_unknown(handle, record)
        return handles

    def release(self, over: Container[str] = ()) -> int:
        return 0


def _mark(handle: Handle) -> tuple[str, str]:
    return ENV_JOB_DIR, str(handle.folder.parent.parent)


def _kill_below(supervisor: psutil.Process) -> bool:
    """Kill what another account's supervisor has started, so that it finds and ends what hides, and then
    itself.

    Returns False if nothing was there.
    """
    below = tree(supervisor)[:-1]
    kill(below)
    return bool(below)


def _is_one_of(process: psutil.Process, workers: Collection[str] | None) -> bool:
    """Whether it belongs to one of these workers; None is any."""
    try:
        return workers is None or process.environ().get(ENV_WORKER) in workers
    except psutil.Error:
        return False


def _supervisors(handle: Handle, record: LaunchRecord | None) -> list[psutil.Process | None]:
    """The live supervisor of each unit; None for one that is gone or was never started."""
    return [
        None if unit.pid is None or unit.born is None else find(unit.pid, unit.born, _mark(handle))
        for unit in (record.units if record else ())
    ]


def _record(handle: Handle) -> LaunchRecord | None:
    """The record of an attempt, rebuilt from the supervisors that run if it is damaged."""
    return read_or_rebuild(handle, LocalBackend.name, partial(_found, handle))


def _found(handle: Handle) -> tuple[StartedUnit, ...]:
    """Units of an attempt, by the command lines of their supervisors; ended ones are unknown."""
    started: dict[int, StartedUnit] = {}
    for process in strays(_mark(handle)):
        with contextlib.suppress(psutil.Error):
            if process.uids().real != os.getuid():
                continue
            argv = process.cmdline()
            at = next((place for place, word in enumerate(argv) if Path(word).name in SUPERVISORS), -1)
            code_file = Path(argv[at + 1]) if 0 <= at < len(argv) - 2 else Path()
            number = code_file.name.removeprefix("exit-")
            if code_file.parent == handle.folder and number.isdecimal():
                started[int(number)] = StartedUnit(
                    node="",
                    argv=tuple(argv[at + 3 :]),
                    cwd=argv[at + 2],
                    env={},
                    pid=process.pid,
                    born=birth(process.pid),
                )
    return tuple(started.get(number, UNKNOWN_UNIT) for number in range(max(started, default=-1) + 1))


def _ended(handle: Handle, index: int) -> UnitStatus:
    with files_of(handle.files):
        text = read_file(handle.files.exit_code(index))
        killed = read_file(handle.files.memory(index))
    try:
        memory = None if killed is None else MemoryKill.model_validate_json(killed)
    except ValueError:
        memory = None
    try:
        return UnitStatus("lost") if text is None else UnitStatus("exited", int(text), memory=memory)
    except ValueError:
        return UnitStatus("lost")


def check_own(node: str, address: str) -> str:
    """The address if it is a loopback or private one of this machine.

    :raises BadInputError: it is public, another machine's, or an unknown name.
    """
    for resolved in _resolve(node, address):
        try:
            refuse_public(resolved)
        except UsageError as error:
            raise bad_cluster(f"node {node}: {error}") from error
        try:
            free_port(resolved)
        except OSError:
            raise bad_cluster(
                f"node {node} has the address {address}, which is not one of this machine: "
                "the local backend starts everything here"
            ) from None
    return address


def _resolve(node: str, address: str) -> list[str]:
    try:
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(address, None)})
    except OSError:
        raise bad_cluster(f"the address {address} of node {node} is not known on this machine") from None
