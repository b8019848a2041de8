"""The start record: what was started for an attempt, so that a later process can find it again."""

from __future__ import annotations

from pliant.schemas.file_io.record import Identifier, PositiveInt, Record
from pliant.tools.run.backends.protocol import Handle
from pliant.tools.run.statedir.contract import files as contract


class StartedUnit(Record):
    """One unit: its command and, once it was started, the process that keeps it."""

    node: str
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    pid: PositiveInt | None = None
    born: str | None = None
    """Which process of that pid it is: tells a recycled pid from ours."""


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
