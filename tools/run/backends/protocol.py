"""What a place to run processes offers: six operations. Nothing outside a backend knows a process id.

Launcher and workers share a directory, not a machine: an attempt is known by its folder, what was started
there is recorded in that folder, and any later process can take the attempt over from the record.

Where workers of the local backend meet: at addresses of this machine that strangers do not reach.
"""

from __future__ import annotations

import errno
import secrets
import shlex
import socket
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol

from pliant.schemas.errors import BadInputError, UsageError
from pliant.tools.run.statedir.contract.folders import AttemptDir, JobDir, refuse_public

StopLevel = Literal["term", "kill"]
"""``term``: SIGTERM to what was started. ``kill``: SIGKILL to all of it, stray descendants included."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node as its backend sees it."""

    name: str
    gpus: int
    """GPUs, or CPU slots."""
    up: bool = True
    address: str = "127.0.0.1"
    """Address that workers on other nodes reach it at."""
    devices: tuple[str, ...] | None = None
    """Its GPUs as CUDA_VISIBLE_DEVICES names them there, by slot index; None on CPU slots."""
    reason: str = ""
    """Why it is not up."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One process to start on one node; it may start more of its own (torchrun does)."""

    node: str
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Added to the environment of the launcher, cleaned of what belongs to other launchers."""

    @property
    def in_a_shell(self) -> str:
        """What a person would type on the node to start it."""
        env = [f"{name}={value}" for name, value in self.env.items()]
        return f"cd {shlex.quote(self.cwd)} && {shlex.join(['env', *env, *self.argv])}"


@dataclass(frozen=True, slots=True)
class Handle:
    """One attempt of one job; the same value names it in every process that shares the directory."""

    job: str
    attempt: int
    folder: Path

    @property
    def files(self) -> AttemptDir:
        """The paths of the attempt."""
        return AttemptDir(self.folder)

    @property
    def job_files(self) -> JobDir:
        """The paths of the job."""
        return JobDir(self.folder.parent.parent)


@dataclass(frozen=True, slots=True)
class UnitStatus:
    """What became of one unit; ``lost``: it is gone and left no exit code."""

    state: Literal["running", "exited", "lost"]
    code: int | None = None
    idle: bool = field(default=False, compare=False)
    """It runs, but is stopped (SIGSTOP), and nothing that it started lives: it cannot end by itself."""
    queued: bool = field(default=False, compare=False)
    """It counts as running, but nothing of it does yet: it waits for its turn."""
    starting: bool = field(default=False, compare=False)
    """It counts as running, and needs further looks of this process until it does."""
    displaced: str = field(default="", compare=False)
    """Why it lost its place through no fault of its own; empty: it did not."""
    began: bool = field(default=True, compare=False)
    """False: it is certain that nothing of it has ever run."""


class Backend(Protocol):
    """A place to run processes."""

    @property
    def in_place(self) -> bool:
        """Whether an attempt that runs can get further units, and give up some of its own."""
        ...

    @property
    def shares_slots(self) -> bool:
        """Whether units of two jobs can run on one slot at a time."""
        ...

    def nodes(self) -> Sequence[NodeInfo]:
        """All nodes, up or not, as of now. Never waits, but for the first time.

        :raises ServiceMissingError: what they are counted with is not there.
        """
        ...

    def shown(self, handle: Handle, units: Sequence[Unit]) -> Sequence[str]:
        """What :meth:`start` would run for these units, in lines for people. Nothing is touched."""
        ...

    def start(self, handle: Handle, units: Sequence[Unit]) -> None:
        """Start all units, or none; those of an attempt that has some already are added to them.

        :raises OSError: a unit cannot be started.
        """
        ...

    def stop(self, handle: Handle, level: StopLevel, only: Collection[int] | None = None) -> None:
        """Ask, or force, all that was started for an attempt to end. Never waits; harmless if it is gone.

        :param only: numbers of the units that are meant; None: all, and whatever else belongs to the job.
        """
        ...

    def poll(self, handles: Iterable[Handle]) -> Mapping[Handle, tuple[UnitStatus, ...]]:
        """What became of the units of each attempt, in the order they were started in."""
        ...

    def adopt(self, over: Container[str] = ()) -> list[Handle]:
        """The newest attempt of every job in the directory, started by any process, alive or not.

        :param over: jobs of which nothing is left; they are not looked at.
        """
        ...

    @property
    def held_nodes(self) -> int:
        """Nodes that are kept from others, whether or not something runs there."""
        ...

    def release(self, over: Container[str] = ()) -> int:
        """Give back what is held of nodes on which nothing runs; returns of how many.

        :param over: jobs of which nothing is left, whatever their files say.
        :raises ServiceMissingError: who gave it does not answer.
        """
        ...


LOOPBACK: Final = "127.0.0.1"
_SELDOM_USED: Final = range(20_000, 30_000)
"""Ports that systems give to no process by themselves; a job that finds its port taken is tried again."""


def check_own(node: str, address: str) -> str:
    """The address, if it is a loopback or private one of this machine.

    :raises BadInputError: it is public, another machine's, or a name that is not known here.
    """
    for found in _resolve(node, address):
        try:
            refuse_public(found)
        except UsageError as error:
            raise _bad(f"node {node}: {error}") from error
        try:
            free_port(found)
        except OSError:
            raise _bad(
                f"node {node} has the address {address}, which is not one of this machine: "
                "the local backend starts everything here"
            ) from None
    return address


def _resolve(node: str, address: str) -> list[str]:
    try:
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(address, None)})
    except OSError:
        raise _bad(f"the address {address} of node {node} is not known on this machine") from None


def free_port(address: str) -> int:
    """A port of this machine that is free at the moment.

    :raises OSError: it has no such address.
    """
    family, kind, protocol, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.bind(place)
        return int(probe.getsockname()[1])


def port_to_meet_at(address: str) -> int:
    """A port that is free on the machine of that address, or most likely is, where it is another one.

    :raises OSError: none is free here.
    """
    try:
        return free_port(address)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
    return _SELDOM_USED.start + secrets.randbelow(len(_SELDOM_USED))


def _bad(message: str) -> BadInputError:
    return BadInputError.one("cluster", message, pointer="/nodes")
