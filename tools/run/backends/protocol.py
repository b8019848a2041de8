"""What a place to run processes offers: six operations. Process ids are only known inside a backend.

Launcher and workers share a directory, not a machine. So an attempt is known by its folder (:class:`Handle`),
where its :class:`LaunchRecord` lets any later process take it over.

:class:`Credentials` say whose process a unit is: ids, groups, umask, limits and environment.
"""

from __future__ import annotations

import errno
import logging
import os
import pwd
import resource
import secrets
import shlex
import socket
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, Self

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.record import Identifier, NonNegativeInt, PositiveInt, Record
from pliant.schemas.text import counted
from pliant.tools.run.statedir.contract import folders
from pliant.tools.run.statedir.contract.as_user import own_files
from pliant.tools.run.statedir.contract.folders import AttemptDir, JobDir

PATH: Final = "/usr/local/bin:/usr/bin:/bin"
UMASK: Final = 0o077
NO_GROUP: Final = 65534
"""Group of an id without an account; a group of that number could have rights."""
_PID_MAX: Final = Path("/proc/sys/kernel/pid_max")


class ProcessLimits(Record):
    """What the processes of one account may take of the machine that they are on."""

    processes: PositiveInt = 8192
    """Processes and threads of the account, over all its jobs there; a quarter of the machine's at most."""
    open_files: PositiveInt = 65536
    """Open files of each process, at most the launcher's own limit."""
    core_bytes: NonNegativeInt = 0
    """Bytes of the core file of a crashed process."""
    memory_bytes: PositiveInt | None = None
    """Address space of each process; None: not limited. CUDA reserves far more than it uses."""
    file_bytes: PositiveInt | None = None
    """Bytes of each file; None for no limit."""

    def as_numbers(self) -> dict[int, int]:
        """By number of the resource, as ``setrlimit`` takes them."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        asked = {
            resource.RLIMIT_NPROC: min(self.processes, _processes_of_the_machine() // 4),
            resource.RLIMIT_NOFILE: self.open_files if most < 0 else min(self.open_files, most),
            resource.RLIMIT_CORE: self.core_bytes,
            resource.RLIMIT_AS: self.memory_bytes,
            resource.RLIMIT_FSIZE: self.file_bytes,
        }
        return {number: value for number, value in asked.items() if value is not None}


def _processes_of_the_machine() -> int:
    try:
        return int(_PID_MAX.read_text())
    except (OSError, ValueError):
        return 32768


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account of this machine, as its processes have it."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str
    shell: str
    umask: int = UMASK
    limits: ProcessLimits = field(default_factory=ProcessLimits)

    @classmethod
    def of(cls, uid: int, limits: ProcessLimits | None = None, umask: int = UMASK) -> Self:
        """The account of that id with all its groups; an id without an account has none of them."""
        own = limits or ProcessLimits()
        try:
            account = pwd.getpwuid(uid)
        except KeyError:
            return cls(uid, NO_GROUP, (), str(uid), "/", "/bin/sh", umask, own)
        groups = tuple(sorted(os.getgrouplist(account.pw_name, account.pw_gid)))
        shell = account.pw_shell or "/bin/sh"
        return cls(uid, account.pw_gid, groups, account.pw_name, account.pw_dir, shell, umask, own)

    def environment(self) -> dict[str, str]:
        """What its processes begin with, as after a login: nothing of the launcher's own."""
        return {
            "HOME": self.home,
            "LANG": "C.UTF-8",
            "LOGNAME": self.name,
            "PATH": PATH,
            "SHELL": self.shell,
            "USER": self.name,
        }

    def order(self, env: dict[str, str]) -> dict[str, Any]:
        """What ``supervisor_setuid.py`` is to start a command with, as JSON values."""
        said = asdict(self) | {"limits": sorted(self.limits.as_numbers().items()), "env": env}
        return {name: said[name] for name in ("uid", "gid", "groups", "umask", "limits", "env")}


StopLevel = Literal["term", "kill"]
"""``term``: SIGTERM to what was started. ``kill``: SIGKILL to all of it, stray descendants included."""
_SELDOM_USED: Final = range(20_000, 30_000)
"""Ports that systems do not assign by themselves; a job that finds its port taken is tried again."""
_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node as its backend sees it."""

    name: str
    gpus: int
    """Or CPU slots."""
    up: bool = True
    address: str = "127.0.0.1"
    """Address for workers on other nodes."""
    devices: tuple[str, ...] | None = None
    """The name of each slot's GPU in CUDA_VISIBLE_DEVICES; None for CPU slots."""
    reason: str = ""
    """Reason that the node is not up."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One process to start on one node; it may start more of its own (torchrun does)."""

    node: str
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Added to what units get of the launcher's environment, or to its account's."""
    account: Credentials | None = None
    """Whose process it is, if several accounts share the run; None: the launcher's."""
    slots: int = 0
    """Number of GPUs, or CPU slots, on its node."""
    demand: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Demand of the job on the node, by name: ``cpu``, ``memory`` in bytes."""

    @property
    def in_a_shell(self) -> str:
        env = [f"{name}={value}" for name, value in self.env.items()]
        return f"cd {shlex.quote(self.cwd)} && {shlex.join(['env', *env, *self.argv])}"


@dataclass(frozen=True, slots=True)
class Handle:
    """One attempt of one job; the same value names it in every process that shares the directory."""

    job: str
    attempt: int
    folder: Path
    kept: Path | None = None
    """The launcher's own folder of it, if several accounts share the run."""

    @classmethod
    def of(cls, job: JobDir, attempt: int) -> Handle:
        files = job.attempt(attempt)
        return cls(job.path.name, attempt, files.path, files.kept)

    @property
    def files(self) -> AttemptDir:
        return AttemptDir(self.folder, self.kept)

    @property
    def job_files(self) -> JobDir:
        return JobDir(self.folder.parent.parent, None if self.kept is None else self.kept.parent.parent)


class MemoryKill(Record):
    """The system killed a unit, or a part of it, since it used all of the memory that it may. In bytes."""

    limit: PositiveInt
    peak: PositiveInt | None = None
    """The most that was used; None if it is not known."""

    def __str__(self) -> str:
        peak = "" if self.peak is None else f", peak {mebibytes(self.peak)}"
        return f"killed for memory: limit {mebibytes(self.limit)}{peak}"


def mebibytes(count: float) -> str:
    return f"{count / 2**20:,.0f} MiB"


@dataclass(frozen=True, slots=True)
class UnitStatus:
    """What became of one unit. ``lost``: it is gone and left no exit code."""

    state: Literal["running", "exited", "lost"]
    code: int | None = None
    idle: bool = field(default=False, compare=False)
    """True if it is stopped (SIGSTOP) and has no children, so that it cannot end."""
    queued: bool = field(default=False, compare=False)
    """True if it counts as running and still waits in a queue."""
    starting: bool = field(default=False, compare=False)
    """True if it counts as running and its start is not confirmed yet."""
    displaced: str = field(default="", compare=False)
    """Reason that it lost its place through no fault of its own."""
    noticed: bool = field(default=False, compare=False)
    """True if it runs and its end from outside has been announced."""
    began: bool = field(default=True, compare=False)
    """False if certainly nothing of it has ever run."""
    memory: MemoryKill | None = field(default=None, compare=False)
    """Memory kill of the unit or of a part of it."""


class Backend(Protocol):
    """A place to run processes."""

    @property
    def in_place(self) -> bool:
        """Whether a running attempt can get further units and give up some of its own."""
        ...

    @property
    def shares_slots(self) -> bool:
        """Whether units of two jobs can run on one slot at a time."""
        ...

    def nodes(self) -> Sequence[NodeInfo]:
        """All nodes, up or not, as of now. Waits only on the first call.

        :raises ServiceMissingError: the driver or resource manager does not answer.
        """
        ...

    def change_cluster(self, cluster: Cluster) -> None:
        """Go on with other nodes. Those on which units run are among them, as they were. Never waits."""
        ...

    def shown(self, handle: Handle, units: Sequence[Unit]) -> Sequence[str]:
        """The command lines that :meth:`start` would run for these units."""
        ...

    def start(self, handle: Handle, units: Sequence[Unit]) -> None:
        """Start all units or none, in addition to those that the attempt already has.

        :raises OSError: a unit cannot be started.
        """
        ...

    def stop(self, handle: Handle, level: StopLevel, only: Collection[int] | None = None) -> None:
        """Ask or force the units of an attempt to end. Never waits; harmless if they are gone.

        :param only: numbers of the units; None for all and anything else that belongs to the job.
        """
        ...

    def poll(self, handles: Iterable[Handle]) -> Mapping[Handle, tuple[UnitStatus, ...]]:
        """What became of the units of each attempt, in the order of their start."""
        ...

    def adopt(self, over: Container[str] = ()) -> list[Handle]:
        """The newest attempt of every job in the directory, alive or not, by any process.

        :param over: jobs to skip, of which nothing is left.
        """
        ...

    @property
    def held_nodes(self) -> int:
        """How many nodes are kept from others, whether or not anything runs there."""
        ...

    def release(self, over: Container[str] = ()) -> int:
        """Give back nodes on which nothing runs; returns their number.

        :param over: jobs of which nothing is left, whatever their files say.
        :raises ServiceMissingError: the resource manager does not answer.
        """
        ...


class StartedUnit(Record):
    """One unit: its command and, once started, the process that keeps it."""

    node: str
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    pid: PositiveInt | None = None
    born: str | None = None
    """Distinguishes the process from a later one with the same pid."""
    groups: tuple[str, ...] = ()
    """The folders of its control group."""

    @classmethod
    def of(cls, unit: Unit, groups: tuple[str, ...] = ()) -> StartedUnit:
        return cls(node=unit.node, argv=unit.argv, cwd=unit.cwd, env=dict(unit.env), groups=groups)


UNKNOWN_UNIT: Final = StartedUnit(node="", argv=(), cwd="", env={})


class LaunchRecord(Record):
    """An attempt. Written before its units are started, and again, complete, afterwards."""

    job: Identifier
    attempt: PositiveInt
    backend: str
    units: tuple[StartedUnit, ...]
    slurm_job: str = ""
    """The id of its Slurm job, where the attempt is one of another account, who may change its name."""

    @property
    def complete(self) -> bool:
        return all(unit.pid is not None for unit in self.units)


def write_record(handle: Handle, record: LaunchRecord) -> None:
    with own_files():
        folders.write_record(handle.files.launch, "launch", record)


def read_record(handle: Handle) -> LaunchRecord | None:
    """The record of an attempt. Returns None if there is none, so nothing of it was started.

    :raises UnreadableError: it cannot be read at the moment.
    :raises DamagedError: it is damaged.
    :raises BadInputError: it is of an unknown version.
    """
    with own_files():
        return folders.read_record(handle.files.launch, "launch", LaunchRecord)


def read_or_rebuild(
    handle: Handle, backend: str, units: Callable[[], tuple[StartedUnit, ...]]
) -> LaunchRecord | None:
    """The record of an attempt; a damaged one is replaced, with the units that can be found."""
    try:
        return read_record(handle)
    except folders.DamagedError as error:
        record = LaunchRecord(job=handle.job, attempt=handle.attempt, backend=backend, units=units())
        _log.warning("%s; it is made again from %s", error, counted(len(record.units), "unit"))
        write_record(handle, record)
        return record


def bad_cluster(message: str) -> BadInputError:
    return BadInputError.one("cluster", message, pointer="/nodes")


def newest_attempts(jobs: Path, over: Container[str] = ()) -> list[Handle]:
    """The newest attempt of each job in the folder of jobs except ``over``, in order of their names."""
    handles = []
    for name in _folders(jobs):
        if name in over:
            continue
        job = folders.job_folder(jobs, name)
        if number := job.newest_attempt():
            handles.append(Handle.of(job, number))
    return handles


def _folders(jobs: Path) -> list[str]:
    try:
        with os.scandir(jobs) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def free_port(address: str) -> int:
    """A port of this machine that is free at the moment.

    :raises OSError: the machine has no such address.
    """
    family, kind, protocol, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.bind(place)
        return int(probe.getsockname()[1])


def port_to_meet_at(address: str) -> int:
    """A port that is free at that address; on another machine, one that probably is.

    :raises OSError: none is free here.
    """
    try:
        return free_port(address)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
    return _SELDOM_USED.start + secrets.randbelow(len(_SELDOM_USED))
