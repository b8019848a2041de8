"""The points that a profile under way has measured, in a file: the same command goes on from them.

JSON Lines, one point a line, each forced to disk when it is measured. A point counts again only where all is
the same that it depends on: :func:`launch_key`. The file is removed once the profile is written.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Collection
from importlib.metadata import version
from pathlib import Path
from typing import Final, Self

from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.file_io.files import atomic_write, read_failure, write_all, write_error
from pliant.schemas.file_io.jsonlines import encode, header, read_lines
from pliant.schemas.file_io.record import NonNegativeFloat, NonNegativeInt, Record
from pliant.tools.profile.measuring.launch import Script
from pliant.tools.profile.measuring.request import MeasurementRequest, Point

KIND: Final = "points"
MODE: Final = 0o600


class Measured(Record):
    """One point, or what a launch has measured at its end, and where."""

    launch: str
    """The :func:`launch_key` of what was started."""
    measured_at: NonNegativeFloat
    """UTC seconds."""
    parameters: NonNegativeInt = 0
    torch: str = ""
    device: str = ""
    driver: str = ""
    point: Point | None = None
    """None: the launch is over, and these are its costs."""
    start_s: NonNegativeFloat | None = None
    relaunch_s: NonNegativeFloat | None = None
    rescale_s: NonNegativeFloat | None = None


class PointsFile:
    """What was measured before, and a place for what is measured now.

    :param path: None: nothing is kept, the profile goes into a pipe.
    """

    def __init__(self, path: Path | None = None, found: Collection[Measured] = ()) -> None:
        self.path = path
        self._found = list(found)
        self._descriptor: int | None = None

    @classmethod
    def read(cls, path: Path | None) -> Self:
        """What a file keeps; a last line that a crash has torn is left out.

        :raises BadInputError: it is another file, or damaged.
        """
        if path is None:
            return cls()
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return cls(path)
        except OSError as error:
            raise read_failure(error, str(path)) from error
        lines, problems = read_lines(
            data, str(path), KIND, Measured.model_validate_json, schema_required=True, torn_end_allowed=True
        )
        if problems:
            what = "cannot be gone on from: remove it to measure everything again"
            raise BadInputError([*problems, Problem(str(path), None, "", what)])
        return cls(path, [found for _, found in lines])

    def count(self, launches: Collection[str]) -> int:
        """How many points of these launches are kept."""
        return sum(found.point is not None and found.launch in launches for found in self._found)

    def of(self, launch: str) -> list[Measured]:
        """What was measured of one launch, in the order in which it was."""
        return [found for found in self._found if found.launch == launch]

    def add(self, measured: Measured) -> None:
        """Keep one more; it is on disk when this returns.

        :raises PliantError: the file cannot be written.
        """
        self._found.append(measured)
        if self.path is None:
            return
        try:
            if self._descriptor is None:
                self._descriptor = self._open(self.path)
            else:
                write_all(self._descriptor, _line(measured))
        except OSError as error:
            raise write_error(error, str(self.path)) from error

    def remove(self) -> None:
        """The profile is written: what it was made of is needed no longer."""
        self.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Keep nothing further."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self, path: Path) -> int:
        """Write everything so far, without what a crash has torn, and open the file for more."""
        atomic_write(path, header(KIND) + b"".join(map(_line, self._found)), mode=MODE)
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)


def launch_key(script: Script, workers: int, wanted: MeasurementRequest) -> str:
    """A hash of all that a measured point depends on, and of the batches that are wanted.

    The script's own file is a part of it, the modules that it imports are not.

    :param wanted: of the whole plan: what its other launches find out makes no difference.
    """
    what = {
        "model": script.name,
        "command": script.command,
        "script": _digest(script),
        "workdir": script.workdir,
        "env": dict(script.env),
        "slots": script.slots,
        "workers": workers,
        "wanted": wanted.model_dump(mode="json"),
        "host": platform.node(),
        "versions": [version(name) for name in ("pliant", "torch")],
    }
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def _digest(script: Script) -> str | None:
    path = Path(script.workdir or ".", *script.command[:1])
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _line(measured: Measured) -> bytes:
    return encode(measured.model_dump(mode="json", exclude_defaults=True))
