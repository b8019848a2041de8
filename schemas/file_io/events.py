"""Event files: JSON Lines that grow while a run is live, Parquet when it is finished.

:func:`parse_events` reads a whole file in either form. :func:`event_columns` reads good Parquet files for
reports, in blocks of columns: it checks whole columns and leaves details as text. :class:`EventWriter`
appends to the log of a state directory, and :class:`LogReader` reads it as it grows. Both verify every
checksum.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from zlib import crc32

from pydantic_core import InitErrorDetails, SchemaValidator, ValidationError

from pliant.schemas.errors import BadInputError
from pliant.schemas.event import EVENT, EVENT_NAMES, OF_THE_CLUSTER, Event
from pliant.schemas.events import TypedEvent, typed
from pliant.schemas.file_io.columns import validator
from pliant.schemas.file_io.files import PARQUET_MAGIC, sync_folder, write_all, write_error
from pliant.schemas.file_io.json_lines import (
    DAMAGED,
    FIRST,
    LineReader,
    Seals,
    encode,
    header,
    is_json,
    is_torn,
    link_of,
    read_lines,
    refuse_other_kind,
    seal,
    stated_schema,
)
from pliant.schemas.file_io.limits import garbage_collection_paused
from pliant.schemas.file_io.parquet import (
    among,
    check_rows,
    compute,
    file_metadata,
    match_pattern,
    numbers_of,
    parse_parquet,
    row_groups,
)
from pliant.schemas.file_io.record import MAYBE_NOT_FINITE, broken_rule, is_newer, schema_id

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


LOG_HEADER: Final = header(EVENT.kind, minor=1)
"""The first line of a log whose lines carry checksums."""
_BLOCK: Final = 65536
_NUMBERS: Final = {name: number for number, name in enumerate(EVENT_NAMES)}
_log = logging.getLogger("pliant")
_LOG_BLOCK: Final = 1 << 24
_CRC_BLOCK: Final = 1 << 18
"""Bytes checked at a time. Small, as a writer checks its whole log again and again."""


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
    """Without the header; nulls are left out."""
    check_rows(events, EVENT)
    return b"".join(encode(_fields(event)) for event in events)


@garbage_collection_paused()
def sealed_lines(events: Sequence[Event], link: bytes) -> tuple[bytes, bytes]:
    """Lines of a log, each with its checksum, and the link for the line after them."""
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
    """Looking it up by its table takes as long as validating an event."""
    return validator(EVENT)


def _fields(event: Event) -> dict[str, Any]:
    fields = {name: getattr(event, name) for name in EVENT.names}
    if event.detail is not None:
        fields["detail"] = dict(event.detail)
    return {name: value for name, value in fields.items() if value is not None}


Detail = Mapping[str, Any] | str
"""A detail, or its JSON text."""
UNSTATED: Final = -1
"""Stands in columns of whole numbers where an event does not say one."""


class EventColumns(NamedTuple):
    """Events in order, a column for each of what a report reads; arrays have the shape (events,)."""

    time_s: NDArray[np.float64]
    event: NDArray[np.uint8]
    """Place of its name in ``EVENT_NAMES``."""
    job: NDArray[np.int64]
    """Place in ``job_ids``, or :data:`UNSTATED`."""
    job_ids: Sequence[str]
    """Each once."""
    gpus: NDArray[np.int64]
    """:data:`UNSTATED` where the event does not say them, as of batches."""
    global_batch: NDArray[np.int64]
    samples_done: NDArray[np.float64]
    """NaN where the event does not say it, as of losses."""
    loss: NDArray[np.float64]
    overhead_s: NDArray[np.float64]
    """0 where there is none."""
    detail: Sequence[Detail | None]
    """A text where the events come from a Parquet file."""

    def stated(self, at: int) -> Detail:
        """All that an event says beside its columns."""
        return self.detail[at] or {}

    def may_contain(self, at: int, *keys: str) -> bool:
        """Whether it is worth parsing an event for one of these keys.

        A text with a backslash may spell them otherwise.
        """
        detail = self.detail[at]
        if isinstance(detail, str):
            return "\\" in detail or any(f'"{key}"' in detail for key in keys)
        return bool(detail)

    def typed(self, at: int) -> TypedEvent:
        """An event by its time, its name and what it says beside its columns."""
        detail = self.detail[at]
        said = json.loads(detail) if isinstance(detail, str) else detail
        return typed(Event(self.time_s.item(at), EVENT_NAMES[self.event[at]], detail=said))


def event_columns(data: bytes | Path, source: str) -> Iterator[EventColumns]:
    """The events of a Parquet file, in blocks; a row group of it is in memory at a time.

    Values are checked as :func:`parse_events` does, but of details of ``submit`` events only that their
    numbers are finite.

    :raises BadInputError: it needs :func:`parse_events`, which says what is wrong, if anything is. The events
        of row groups before that one have come by then.
    """
    for arrow in row_groups(data, source, EVENT.kind):
        same = arrow.schema.equals(EVENT.arrow().remove_metadata(), check_metadata=False)
        is_current = same and file_metadata(arrow).get("schema") == schema_id(EVENT.kind)
        holds = is_current and _numbers_hold(arrow) and _names_hold(arrow)
        if not (holds and _preempted_hold_nothing(arrow) and _texts_hold(arrow)):
            raise BadInputError.one(source, "has events that have to be read with care")
        for block in arrow.combine_chunks().to_batches(max_chunksize=_BLOCK):
            yield _columns_of_arrow(block)


def columns_of(events: Sequence[Event]) -> EventColumns:
    """Events of any other source in one block."""
    import numpy as np

    numbers: dict[str, int] = {}
    jobs = [UNSTATED if each.job is None else numbers.setdefault(each.job, len(numbers)) for each in events]

    def whole(values: Iterable[int | None]) -> NDArray[np.int64]:
        return np.array([UNSTATED if value is None else value for value in values], np.int64)

    def real(values: Iterable[float | None], otherwise: float) -> NDArray[np.float64]:
        return np.array([otherwise if value is None else value for value in values], np.float64)

    return EventColumns(
        np.array([each.time for each in events], np.float64),
        np.array([_NUMBERS[each.event] for each in events], np.uint8),
        np.array(jobs, np.int64),
        [*numbers],
        whole(each.gpus for each in events),
        whole(each.global_batch for each in events),
        real((each.samples_done for each in events), nan),
        real((each.loss for each in events), nan),
        real((each.overhead_seconds for each in events), 0.0),
        [each.detail for each in events],
    )


def _columns_of_arrow(block: pa.RecordBatch) -> EventColumns:
    import numpy as np

    def whole(name: str) -> NDArray[np.int64]:
        return numbers_of(block.column(name), np.dtype(np.int64), UNSTATED)

    def real(name: str, otherwise: float) -> NDArray[np.float64]:
        return numbers_of(block.column(name), np.dtype(np.float64), otherwise)

    jobs = compute("dictionary_encode", block.column("job"))
    names = among("index_in", block.column("event"), EVENT_NAMES)
    return EventColumns(
        real("time", nan),
        numbers_of(names, np.dtype(np.int32), 0).astype(np.uint8),
        numbers_of(jobs.indices, np.dtype(np.int32), UNSTATED).astype(np.int64),
        jobs.dictionary.to_pylist(),
        whole("gpus"),
        whole("global_batch"),
        real("samples_done", nan),
        real("loss", nan),
        real("overhead_seconds", 0.0),
        block.column("detail").to_pylist(),
    )


def _numbers_hold(arrow: pa.Table) -> bool:
    for column in EVENT.columns:
        values = arrow.column(column.name)
        if not column.nullable and values.null_count:
            return False
        if column.type == "float64" and compute("all", compute("is_finite", values)).as_py() is False:
            return False
        if column.about.least is not None:
            least = compute("min_max", values).as_py()["min"]
            if least is not None and least < column.about.least:
                return False
    return True


def _names_hold(arrow: pa.Table) -> bool:
    events = arrow.column("event")
    nameless = compute("filter", events, compute("is_null", arrow.column("job")))
    return _all_in(events, EVENT_NAMES) and _all_in(nameless, OF_THE_CLUSTER)


def _preempted_hold_nothing(arrow: pa.Table) -> bool:
    held = compute("filter", arrow.column("gpus"), among("is_in", arrow.column("event"), ["preempt"]))
    return not compute("min_max", held).as_py()["max"]


def _texts_hold(arrow: pa.Table) -> bool:
    """Equal texts are checked once."""
    details = arrow.column("detail")
    if compute("any", match_pattern(details, MAYBE_NOT_FINITE)).as_py():
        return False
    others = compute("filter", details, compute("invert", among("is_in", arrow.column("event"), ["submit"])))
    check = validator(EVENT, json_as_text=True).validate_python
    try:
        for name, texts in (("placement", arrow.column("placement")), ("detail", others)):
            for text in compute("unique", texts).to_pylist():
                check({"time": 0.0, "event": "decision", name: text})
    except ValidationError:
        return False
    return True


def _all_in(values: Any, words: Iterable[str]) -> bool:
    return compute("all", among("is_in", values, words)).as_py() is not False


class EventWriter:
    """Appends events to a JSON Lines file; appended events survive a crash.

    Every line gets a checksum. Opening writes a missing header and cuts off a torn last line. Only the owner
    can read a new file, as environments of jobs may hold secrets. The caller holds the lock.

    :raises BadInputError: the file is not an event file, or its last line is damaged.
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
        return os.fstat(self._descriptor).st_size

    def is_at(self, path: Path) -> bool:
        """Whether this file has that name now."""
        return os.path.samestat(os.stat(path), os.fstat(self._descriptor))

    def append(self, events: Iterable[Event]) -> None:
        """Write events and force them to disk: all of them, or none and an error."""
        lines, link = sealed_lines(tuple(events), self._link)
        if lines:
            self._append(lines)
            self._link = link

    def close(self) -> None:
        """Closing twice is harmless."""
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
        """Cut off a torn last line, and end a whole one that lacks its line end."""
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
        """Refuse a file of another kind before it is changed. A header may be cut short."""
        start = os.pread(self._descriptor, _BLOCK, 0)
        if LOG_HEADER.startswith(start) or header(EVENT.kind).startswith(start):
            return
        is_newer(stated_schema(start), EVENT.kind, str(self.path), line=1)


def _last_line(descriptor: int, size: int) -> tuple[int, bytes]:
    """The start of the bytes after the last line end, and the bytes."""
    tail, start = b"", size
    while start > 0 and b"\n" not in tail:
        step = min(_BLOCK, start)
        start -= step
        tail = os.pread(descriptor, step, start) + tail
    line = tail.rpartition(b"\n")[2]
    return size - len(line), line


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A place between two lines of a log."""

    bytes: int = 0
    """From the start of the file."""
    lines: int = 0
    link: str | None = FIRST.decode()
    """What the next line continues, None if unknown."""
    crc: int = 0
    """CRC-32 of the bytes before it."""

    def is_in(self, path: Path) -> bool:
        """Whether a file begins with the same bytes; reads all of them.

        :raises OSError: the file cannot be read.
        """
        crc, left = 0, self.bytes
        with path.open("rb") as file:
            while left and (block := file.read(min(left, _CRC_BLOCK))):
                crc, left = crc32(block, crc), left - len(block)
        return not left and crc == self.crc


class LogReader:
    """The events of a growing log, each given once.

    :param place: where to begin.
    :param opener: of the file, as ``open`` takes it.
    """

    def __init__(
        self, path: Path, place: LogPlace | None = None, opener: Callable[[str, int], int] | None = None
    ) -> None:
        self._path = path
        self._opener = opener
        # After the last line that was read.
        self.place = place = place or LogPlace()
        self._seals = Seals(None if place.link is None else place.link.encode())
        self._lines = LineReader(
            str(path), EVENT.kind, read_event, seals=self._seals, first_line=place.lines + 1
        )

    @garbage_collection_paused()
    def read(self, *, to_the_end: bool = False, until: int | None = None) -> list[tuple[int, Event]]:
        """The whole lines since the last call, with line numbers.

        A last line without its line end may still be being written and waits for the next call.

        :param to_the_end: there is no next call, so a last line without its line end counts.
        :param until: the number of bytes to look at.
        :raises BadInputError: a line is damaged or not an event, or the file is shorter than before. Discard
            the reader then.
        :raises OSError: the file cannot be read.
        """
        size = self._path.stat().st_size
        left = (size if until is None else min(size, until)) - self.place.bytes
        if left == 0:
            return []
        if left < 0:
            raise BadInputError.one(str(self._path), "is shorter than it was")
        rest = b""
        with open(self._path, "rb", opener=self._opener) as file:
            file.seek(self.place.bytes)
            while left and (block := file.read(min(left, _LOG_BLOCK))):
                left -= len(block)
                rest = self._take(rest + block)
        if (to_the_end and is_json(rest)) or (rest and not is_torn(rest) and not is_json(rest)):
            self._lines.feed([rest])  # it lacks no more than its line end, or that was damaged
        return self._given_out()

    def _take(self, data: bytes) -> bytes:
        """Returns what is left after the whole lines."""
        begins = self.place.bytes == 0
        if begins:
            refuse_other_kind(data, str(self._path), EVENT.kind)
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines:
            self._lines.feed(lines, schema_required=begins)
            whole = data[: len(data) - len(rest)]
            link = None if self._seals.link is None else self._seals.link.decode()
            crc = crc32(whole, self.place.crc)
            self.place = LogPlace(self.place.bytes + len(whole), self._lines.number - 1, link, crc)
        return rest

    def read_all(self) -> Iterator[list[Event]]:
        """The whole lines, block by block."""
        size, until = self._path.stat().st_size, self.place.bytes
        while until < size:
            until += _LOG_BLOCK
            yield [event for _, event in self.read(until=until)]

    def _given_out(self) -> list[tuple[int, Event]]:
        if self._lines.problems:
            raise BadInputError(self._lines.problems)
        records, self._lines.records = self._lines.records, []
        return records
