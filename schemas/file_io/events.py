"""Event files: JSON Lines that are appended to while live, Parquet when finished."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from pydantic_core import InitErrorDetails, SchemaValidator, ValidationError

from pliant.schemas.errors import BadInputError
from pliant.schemas.event import EVENT, Event
from pliant.schemas.file_io.bulk import garbage_collection_paused
from pliant.schemas.file_io.files import PARQUET_MAGIC, sync_folder, write_all, write_error
from pliant.schemas.file_io.jsonlines import encode, header, is_torn, read_lines
from pliant.schemas.file_io.jsontext import is_json, stated_schema
from pliant.schemas.file_io.record import broken_rule
from pliant.schemas.file_io.rows import validator
from pliant.schemas.file_io.seals import DAMAGED, FIRST, Seals, link_of, seal
from pliant.schemas.file_io.tables import check_rows, parse_parquet
from pliant.schemas.file_io.version import is_newer

LOG_HEADER: Final = header(EVENT.kind, minor=1)
"""The first line of a log whose lines carry checksums."""
_BLOCK: Final = 65536
_log = logging.getLogger("pliant")


def parse_events(data: bytes, source: str) -> tuple[Event, ...]:
    """All events of a file in either form. A torn last line is dropped with a warning.

    :raises BadInputError: with every problem; a checksum that does not hold is one.
    """
    if data.startswith(PARQUET_MAGIC):
        return parse_parquet(data, source, EVENT)[0]
    lines, problems = read_lines(
        data, source, EVENT.kind, read_event, schema_required=True, torn_end_allowed=True, seals=Seals()
    )
    if problems:
        raise BadInputError(problems)
    return tuple(event for _, event in lines)


@garbage_collection_paused()
def event_lines(events: Sequence[Event]) -> bytes:
    """Events as JSON Lines, without the header; what is null is left out."""
    check_rows(events, EVENT)
    return b"".join(encode(_fields(event)) for event in events)


@garbage_collection_paused()
def sealed_lines(events: Sequence[Event], link: bytes) -> tuple[bytes, bytes]:
    """Events as lines of a log, each with its checksum, and what the line after them continues."""
    check_rows(events, EVENT)
    lines = []
    for event in events:
        line, link = seal(encode(_fields(event))[:-1], link)
        lines.append(line + b"\n")
    return b"".join(lines), link


def read_event(line: bytes) -> Event:
    """The event on one line.

    :raises ValidationError: it breaks the schema.
    """
    event: Event = _validator().validate_json(line)
    broken = [
        InitErrorDetails(type=broken_rule(text, pointer), loc=(), input=None)
        for pointer, text in EVENT.broken(event)
    ]
    if broken:
        raise ValidationError.from_exception_data("Event", broken)
    return event


@cache
def _validator() -> SchemaValidator:
    """That of one event; finding it by its table takes as long as an event."""
    return validator(EVENT)


def _fields(event: Event) -> dict[str, Any]:
    found = {name: getattr(event, name) for name in EVENT.names}
    if event.detail is not None:
        found["detail"] = dict(event.detail)
    return {name: value for name, value in found.items() if value is not None}


class EventWriter:
    """Appends events to a JSON Lines file; what :meth:`append` returned from survives a crash.

    Every line gets a checksum. Opening writes the header that a file lacks and cuts off a torn last line.
    Only its owner can read a new file: jobs state secrets in their environment. The caller holds the lock.

    :raises BadInputError: the file is there and is not an event file, or its last line is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._link = FIRST
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise write_error(error, str(path)) from error
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self._descriptor).st_size

    def append(self, events: Iterable[Event]) -> None:
        """Write events and force them to disk: all of them, or none and an error."""
        lines, link = sealed_lines(tuple(events), self._link)
        if lines:
            self._append(lines)
            self._link = link

    def close(self) -> None:
        """Close the file. Closing twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, lines: bytes) -> None:
        length = os.fstat(self._descriptor).st_size
        try:
            write_all(self._descriptor, lines)
        except OSError as error:
            os.ftruncate(self._descriptor, length)
            raise write_error(error, str(self.path)) from error

    def _prepare(self) -> None:
        self._check_header()
        self._mend_end()
        size = os.fstat(self._descriptor).st_size
        last = _last_line(self._descriptor, max(0, size - 1))[1]
        link = FIRST if last == LOG_HEADER[:-1] else link_of(last)
        self._link = link or FIRST
        if link is None:
            self._append(LOG_HEADER)
        if not size:
            sync_folder(self.path.resolve().parent)

    def _mend_end(self) -> None:
        """Cut off a torn last line; end a whole one that lacks only its line end, as readers count it."""
        size = os.fstat(self._descriptor).st_size
        start, line = _last_line(self._descriptor, size)
        if not line:
            return
        if is_json(line):
            self._append(b"\n")
            return
        if not is_torn(line):
            raise BadInputError.one(str(self.path), DAMAGED)
        _log.warning("%s: the last line is torn (a crash while writing) and is cut off", self.path)
        os.ftruncate(self._descriptor, start)
        os.fsync(self._descriptor)

    def _check_header(self) -> None:
        """Refuse another kind of file before a byte of it is changed; a header cut short is none."""
        start = os.pread(self._descriptor, _BLOCK, 0)
        if LOG_HEADER.startswith(start) or header(EVENT.kind).startswith(start):
            return
        is_newer(stated_schema(start), EVENT.kind, str(self.path), line=1)


def _last_line(descriptor: int, size: int) -> tuple[int, bytes]:
    """Where the bytes after the last line end start, and those bytes."""
    tail, start = b"", size
    while start > 0 and b"\n" not in tail:
        step = min(_BLOCK, start)
        start -= step
        tail = os.pread(descriptor, step, start) + tail
    line = tail.rpartition(b"\n")[2]
    return size - len(line), line
