"""The start record: what was started for an attempt, so that a later process can find it again."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path

from pliant.schemas.file_io.record import Identifier, PositiveInt, Record
from pliant.tools.run.backends.protocol import Handle, Unit
from pliant.tools.run.statedir.contract import files as contract
from pliant.tools.run.statedir.contract.folders import JobDir


class StartedUnit(Record):
    """One unit: its command and, once it was started, the process that keeps it."""

    node: str
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    pid: PositiveInt | None = None
    born: str | None = None
    """Which process of that pid it is: tells a recycled pid from ours."""

    @classmethod
    def of(cls, unit: Unit) -> StartedUnit:
        """A unit that is still to be started."""
        return cls(node=unit.node, argv=unit.argv, cwd=unit.cwd, env=dict(unit.env))


class LaunchRecord(Record):
    """An attempt. Written before its units are started, and again, complete, after."""

    job: Identifier
    attempt: PositiveInt
    backend: str
    units: tuple[StartedUnit, ...]

    @property
    def complete(self) -> bool:
        """Whether every unit was started and is known."""
        return all(unit.pid is not None for unit in self.units)


def write_record(handle: Handle, record: LaunchRecord) -> None:
    """Write the record of an attempt, as a whole."""
    contract.write_record(handle.files.launch, "launch", record)


def read_record(handle: Handle) -> LaunchRecord | None:
    """The record of an attempt; None: there is none, so nothing of it was started.

    :raises UnreadableError: it cannot be read at the moment.
    :raises DamagedError: it is damaged.
    :raises BadInputError: it is of an unknown version.
    """
    return contract.read_record(handle.files.launch, "launch", LaunchRecord)


def newest_attempts(jobs: Path, over: Container[str] = ()) -> list[Handle]:
    """The newest attempt of every job in the folder of jobs that has one, in order of their names.

    :param over: jobs that are left out.
    """
    handles = []
    for name in _folders(jobs):
        if name in over:
            continue
        number = JobDir(jobs / name).newest_attempt()
        if number:
            handles.append(Handle(name, number, JobDir(jobs / name).attempt(number).path))
    return handles


def _folders(jobs: Path) -> list[str]:
    """Names of the folders in a folder; of links nothing is taken up."""
    try:
        with os.scandir(jobs) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []
