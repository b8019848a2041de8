"""The small files that launcher, backend and workers leave for each other: plans, launch records, outcomes.

A file that is not there, one that cannot be read at the moment, and one that makes no sense are three things:
nothing was written; it is not known, so look again; something is wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from pydantic import ValidationError

from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.schemas.file_io.files import atomic_write, make_folder
from pliant.schemas.file_io.jsontext import validate_value, warn_dropped
from pliant.schemas.file_io.problems import problems_of
from pliant.schemas.file_io.record import Record
from pliant.schemas.file_io.version import check_schema_id, schema_id

R = TypeVar("R", bound=Record)
PRIVATE: Final = 0o600
_AGAIN_S: Final = 0.02


class UnreadableError(ServiceMissingError):
    """A file is there and cannot be read: too many open files, a stale handle, a broken disk."""


class DamagedError(BadInputError):
    """A file makes no sense."""


def write_record(path: Path, kind: str, record: Record) -> None:
    """Write a file as a whole, with its schema, for its owner alone.

    It is one line: to indent it, the interpreter makes cycles of objects, which a loop that writes such files
    all day would keep until its garbage is collected.

    :raises PliantError: it cannot be written.
    """
    fields = {"schema": schema_id(kind), **record.model_dump(mode="json")}
    atomic_write(path, json.dumps(fields).encode() + b"\n", mode=PRIVATE)


def read_record(path: Path, kind: str, record: type[R], *, tries: int = 2) -> R | None:
    """What is in a file; None: there is none.

    :param tries: how often it is tried in all, 20 ms apart.
    :raises UnreadableError: it cannot be read.
    :raises DamagedError: it makes no sense.
    :raises BadInputError: it is of an unknown version.
    """
    data = read_file(path, tries=tries)
    return None if data is None else parse_record(data, str(path), kind, record)


def read_file(path: Path, *, tries: int = 2) -> bytes | None:
    """The bytes of a file; None: there is none.

    :raises UnreadableError: it cannot be read.
    """
    for left in reversed(range(tries)):
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if not left:
                text = error.strerror or str(error)
                raise UnreadableError(f"{path}: cannot be read: {text.lower()}") from error
            time.sleep(_AGAIN_S)
    return None


def open_log(path: Path) -> BinaryIO:
    """A file to append to, whose owner alone can read it."""
    return open(path, "ab", opener=partial(os.open, mode=PRIVATE))


def make_log_folder(folder: Path) -> None:
    """Make a folder for the output of a job, for its owner alone.

    :raises PliantError: it cannot be made.
    """
    make_folder(folder, mode=0o700)


def look_again(path: str | Path) -> os.stat_result | None:
    """What a file is now, however lately this host has asked; None: there is none, or it cannot be opened.

    A host may answer from memory what another host's file is like, for seconds up to a minute. To open a file
    asks its server, also whether another one has taken its name.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.fstat(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def is_there(path: Path) -> bool:
    """Whether a file is there, as far as this host knows: see :func:`ask_server`."""
    return path.exists()


def ask_server(folder: Path) -> None:
    """Let this host forget what it remembers of a folder that other hosts write to.

    A host may remember for up to a minute that a file was not there, and what a folder held. To set the time
    of the folder goes to its server and changes nothing that anybody reads; what comes back shows that the
    folder has changed, so that the next look goes to the server, too.
    """
    with contextlib.suppress(OSError):
        os.utime(folder)


def parse_record(data: bytes, source: str, kind: str, record: type[R]) -> R:
    """The record in the bytes of a file. One without a schema is of the first version.

    :raises DamagedError: it makes no sense.
    :raises BadInputError: it is of an unknown version.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise DamagedError.one(source, "is damaged: it holds no JSON") from None
    if not isinstance(value, dict):
        raise DamagedError.one(source, "is damaged: it holds no JSON object")
    problem, newer = check_schema_id(value.pop("schema", schema_id(kind)), kind)
    if problem is not None:
        raise BadInputError.one(source, problem)
    for name in record.former_fields:
        value.pop(name, None)
    try:
        found, dropped = validate_value(value, record.model_validate_json, drop_unknown=newer)
    except ValidationError as error:
        raise DamagedError(problems_of(error, source)) from None
    warn_dropped(source, dropped)
    return found
