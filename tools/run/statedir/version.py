"""In which format a state directory is and where, so that no pliant uses one that is too new, or a copy.

The log is only appended to, and what earlier versions wrote stays readable. So a directory of an earlier
version needs no conversion: its first writer raises the number, and later formats are refused in one line.

A copy of a directory whose jobs run would start them a second time. So its writers say where it is.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Final

from pliant.schemas.errors import BadInputError, PliantError, UsageError
from pliant.schemas.file_io.files import atomic_write
from pliant.schemas.text.wording import listed
from pliant.tools.run.statedir.fault import may_pass
from pliant.tools.run.statedir.layout import StateDir

SCHEMA: Final = "pliant.state/1"
FORMAT: Final = 2
"""1: without ``version.json``. 2: the log and the spool may hold orders (:mod:`orders`). To be raised where a
directory may hold what the pliant before would misunderstand."""
MODE: Final = 0o600
_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class Home:
    """By what a directory is told from a copy of it."""

    host: str
    path: str
    inodes: list[int]
    """Of the directory and the folder of its jobs: a move on one file system keeps both, and so does a
    snapshot of all of it; any other copy keeps neither."""

    @classmethod
    def of(cls, dirs: StateDir) -> Home:
        """Where it is now."""
        return cls(
            os.uname().nodename, str(dirs.path), [os.stat(each).st_ino for each in (dirs.path, dirs.jobs)]
        )


def check_format(dirs: StateDir) -> None:
    """Refuse a state directory that a later pliant has written.

    :raises BadInputError: it is of a later format, or its ``version.json`` cannot be understood.
    """
    _format_of(dirs)


def claim(dirs: StateDir, running: Sequence[str] = (), *, restored: bool = False) -> None:
    """From now on the directory is in this format, and here. The caller holds the lock and is about to write.

    Where the file cannot be written at the moment, the next writer does it.

    :param running: jobs that hold GPUs, as its log says.
    :param restored: nothing of the directory that this one is a copy of runs any more.
    :raises UsageError: this is a copy of the directory that they run in, or that was moved while they ran.
    """
    number, home = _read(dirs)
    here = Home.of(dirs)
    if running and home is not None and not restored and (what := _elsewhere(home, here)):
        which = "job" if len(running) == 1 else "jobs"
        raise UsageError(
            f"{dirs.path}: {what}, where {which} {listed(running)} may still run: one that is started here "
            "trains twice. Where nothing of it runs any more: pliant run --restored"
        )
    if (number, home) == (FORMAT, here):
        return
    found = {"schema": SCHEMA, "format": FORMAT, "pliant": version("pliant"), "home": asdict(here)}
    try:
        atomic_write(dirs.version, json.dumps(found).encode() + b"\n", mode=MODE)
    except (OSError, PliantError) as error:
        _log.debug("%s is not written: %s", dirs.version, error)


def _elsewhere(home: Home, here: Home) -> str:
    """What a directory is that is not the one that was written last; empty: it is that one.

    Where only the host is another one, the directory is shared, or a container has another name. Where only
    the inodes are, it was restored in its place.
    """
    same_place = (home.host, home.path) == (here.host, here.path)
    if home.inodes != here.inodes:
        return "" if same_place else f"is a copy of {home.path} on host {home.host}"
    if home.host != here.host or same_place:
        return ""
    try:
        is_same = os.path.samefile(home.path, here.path)
    except OSError:
        return f"was moved from {home.path}"
    return "" if is_same else f"is a copy of {home.path} on host {home.host}"


def _format_of(dirs: StateDir) -> int:
    return _read(dirs)[0]


def _read(dirs: StateDir) -> tuple[int, Home | None]:
    """The format of a directory, and where it was when it was written; None: that is not said."""
    try:
        found = json.loads(dirs.version.read_bytes())
        number, writer = int(found["format"]), str(found["pliant"])
    except FileNotFoundError:
        return 1, None
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        if may_pass(error):
            return FORMAT, None
        text = f"does not say the format of a state directory ({error}); remove it where this pliant wrote it"
        raise BadInputError.one(str(dirs.version), text) from error
    if number > FORMAT:
        own = version("pliant")
        text = f"pliant {writer} wrote it in format {number}, and pliant {own} knows {FORMAT} and earlier"
        raise BadInputError(f"{dirs.path}: {text}: use pliant {writer} or a later one")
    with suppress(LookupError, TypeError, ValueError):
        home = found["home"]
        return number, Home(str(home["host"]), str(home["path"]), [int(each) for each in home["inodes"]])
    return number, None
