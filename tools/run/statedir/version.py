"""In which format a state directory is, so that a pliant that is too old for it says so and touches nothing.

The log is only appended to, and what earlier versions wrote stays readable. So a directory of an earlier
version needs no conversion: its first writer raises the number, and later formats are refused in one line.
"""

from __future__ import annotations

import json
import logging
from importlib.metadata import version
from typing import Final

from pliant.schemas.errors import BadInputError, PliantError
from pliant.schemas.file_io.files import atomic_write
from pliant.tools.run.statedir.fault import may_pass
from pliant.tools.run.statedir.layout import StateDir

SCHEMA: Final = "pliant.state/1"
FORMAT: Final = 2
"""1: without ``version.json``. 2: the log and the spool may hold orders (:mod:`orders`). To be raised where a
directory may hold what the pliant before would misunderstand."""
MODE: Final = 0o600
_log = logging.getLogger("pliant")


def check_format(dirs: StateDir) -> None:
    """Refuse a state directory that a later pliant has written.

    :raises BadInputError: it is of a later format, or its ``version.json`` cannot be understood.
    """
    _format_of(dirs)


def raise_format(dirs: StateDir) -> None:
    """From now on the directory is in this format. The caller holds the lock and is about to write.

    Where the file cannot be written at the moment, the next writer does it.
    """
    if _format_of(dirs) == FORMAT:
        return
    found = {"schema": SCHEMA, "format": FORMAT, "pliant": version("pliant")}
    try:
        atomic_write(dirs.version, json.dumps(found).encode() + b"\n", mode=MODE)
    except (OSError, PliantError) as error:
        _log.debug("%s is not written: %s", dirs.version, error)


def _format_of(dirs: StateDir) -> int:
    try:
        found = json.loads(dirs.version.read_bytes())
        number, writer = int(found["format"]), str(found["pliant"])
    except FileNotFoundError:
        return 1
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        if may_pass(error):
            return FORMAT
        text = f"does not say the format of a state directory ({error}); remove it where this pliant wrote it"
        raise BadInputError.one(str(dirs.version), text) from error
    if number > FORMAT:
        own = version("pliant")
        text = f"pliant {writer} wrote it in format {number}, and pliant {own} knows {FORMAT} and earlier"
        raise BadInputError(f"{dirs.path}: {text}: use pliant {writer} or a later one")
    return number
