"""How one worker ended, in its own words."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.record import NonNegativeInt, Record
from pliant.tools.run.statedir.contract.files import read_record

LOST_PEER: Final = "lost the connection to another worker"
"""How the message of a crashed worker begins that only noticed the end of another one."""


class WorkerOutcome(Record):
    """How one worker ended, written atomically as its last act."""

    outcome: Literal["done", "stopped", "crashed", "left", "cut_off"]
    """``left``: a newer plan goes on without this worker. ``cut_off``: the network keeps it from the others,
    which can go on without it."""
    samples_done: float = Field(default=0.0, ge=0)
    epoch: NonNegativeInt = 0
    message: str = ""
    exit_counts: bool = False
    """A non-zero exit code turns "done" into a failure: the script ended, or left its training, by itself."""

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The outcome in a file; None: there is none, or none that makes sense: the worker left no word.

        :raises UnreadableError: it cannot be read at the moment.
        """
        try:
            return read_record(path, "outcome", cls)
        except BadInputError:
            return None
