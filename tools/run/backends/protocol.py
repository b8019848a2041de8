"""What a place to run processes offers: six operations. Nothing outside a backend knows a process id.

Launcher and workers share a directory, not a machine: an attempt is known by its folder, what was started
there is recorded in that folder, and any later process can take the attempt over from the record.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from pliant.tools.run.statedir.contract.folders import AttemptDir, JobDir

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
