"""How far a job is right now: one small file that its rank 0 replaces about once a second while it trains.

The log and the events of an attempt hold what is history; this file holds the newest measurements only, so
that a job that trains for hours does not fill a disk with them. It refines what the log says and is never
needed for it: where it is missing, torn or from another attempt, the log's word stands.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, ValidationError

from pliant.schemas.file_io.record import (
    Identifier,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Record,
)

_MOST_BYTES: Final = 1 << 16


class LastCheckpoint(Record):
    """The newest checkpoint of this attempt."""

    step: NonNegativeInt
    """Optimizer steps done in it."""
    samples_done: NonNegativeFloat
    """Samples trained in it."""
    seconds: NonNegativeFloat
    """What it took to write."""
    age_s: NonNegativeFloat
    """Since when it is on disk, at the time of the report."""


class Progress(Record):
    """The newest report on a job. Times are durations: the clocks of machines need not agree."""

    schema_: Literal["pliant.progress/1"] = Field(default="pliant.progress/1", alias="schema")
    job: Identifier
    attempt: PositiveInt
    """The start of the job, from 1, that it comes from."""
    generation: PositiveInt
    """The plan that it trains under."""
    gpus: PositiveInt
    """Workers that train."""
    global_batch: PositiveInt
    """Samples per optimizer step."""
    step: NonNegativeInt
    """Optimizer steps done."""
    epoch: NonNegativeInt
    """Epochs that are complete."""
    samples_done: NonNegativeFloat
    """Samples trained, over all epochs."""
    loss: float | None = None
    """Mean over rank 0's samples since the report before."""
    samples_per_second: NonNegativeFloat | None = None
    """Since the report before, everything between the steps included."""
    step_seconds: PositiveFloat | None = None
    """Mean time of a step in this configuration; None: too few steps were measured yet."""
    noise_scale: NonNegativeFloat | None = None
    """Of the gradients, in samples."""
    memory: NonNegativeInt | None = None
    """Bytes that rank 0 holds: the most of its GPU so far, or its resident main memory where it uses none."""
    checkpoint: LastCheckpoint | None = None
    warnings: NonNegativeInt = 0
    """How often something went wrong in this attempt that training went on after."""


def write_progress(path: Path, progress: Progress) -> None:
    """Replace the file; only its owner can read it. It is not forced to disk: the next one follows soon.

    :raises OSError: it cannot be written; the one before stays.
    """
    temporary = path.with_name(f"{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(temporary, flags, 0o600), "wb") as file:
        file.write(progress.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n")
    temporary.replace(path)


class ProgressFile:
    """The file of one job, as its readers see it: read when it was replaced, which one ``stat`` says."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._mark = (0, 0, 0)
        self.newest: Progress | None = None
        """What was read last; a file that cannot be understood changes nothing."""

    @property
    def written_s(self) -> float | None:
        """When it was written, by the clock of its file system; None: it was not read yet."""
        return self._mark[0] / 1e9 if self.newest is not None else None

    def fresh(self) -> Progress | None:
        """What it says, if it says something new."""
        try:
            found = os.stat(self._path)
            mark = (found.st_mtime_ns, found.st_ino, found.st_size)
            if mark == self._mark or not stat.S_ISREG(found.st_mode):
                return None
            with open(self._path, "rb") as file:
                data = file.read(_MOST_BYTES)
        except OSError:
            return None
        self._mark = mark
        try:
            self.newest = Progress.model_validate_json(data)
        except ValidationError:
            return None
        return self.newest
