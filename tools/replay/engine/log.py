"""The events of one replay, kept in columns: about fifty bytes an event.

A log may be given a store for blocks of events that are full: then it keeps no more than one block.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from json.encoder import encode_basestring
from struct import Struct
from typing import Any, Final, TypeVar

from pliant.schemas.event import EVENT, EVENT_NAMES, Event, EventName
from pliant.schemas.events import Rejected, TypedEvent, detail_of
from pliant.schemas.file_io.json_lines import header
from pliant.tools.schedule.jobs import NodeGpus

T = TypeVar("T")
Detail = str | Callable[[], str]
"""A detail as JSON text, or what makes that text when it is asked for."""

BLOCK: Final = 1 << 16
"""Events of a block, which is a row group of the file."""
NO_NUMBER: Final = -1
"""Stands for null in the columns of integers; NaN does in those of floats."""
_NAN: Final = float("nan")
_REJECT: Final = Rejected.name
_CODES: Final = {name: code for code, name in enumerate(EVENT_NAMES)}
_INTEGERS: Final = ("event", "job", "gpus", "placement", "global_batch")
_FLOATS: Final = ("time", "samples_done", "overhead_seconds")
COLUMNS: Final = (*_INTEGERS, *_FLOATS)
_ROW: Final = Struct("=qqqqqddd")
"""A row: the integers, then the floats, eight bytes each."""
_pack_row: Final = _ROW.pack
_ROW_BYTES: Final = _ROW.size
_OVERHEAD: Final = Struct("=d")
_OVERHEAD_AT: Final = _ROW_BYTES - _OVERHEAD.size
"""Where it stands in a row."""


class _Codes(dict[T, int]):
    """Numbers of values, in the order in which they are first asked for."""

    def __init__(self, texts: list[str], text_of: Callable[[T], str]) -> None:
        """:param texts: the text of each new value is added to it."""
        super().__init__()
        self._texts = texts
        self._text_of = text_of

    def __missing__(self, value: T) -> int:
        code = self[value] = len(self._texts)
        self._texts.append(self._text_of(value))
        return code


def detail_text(detail: Detail) -> str:
    return detail() if callable(detail) else detail


class EventLog:
    """Events in the order in which they happened; equal events give equal bytes.

    A row is packed as it comes, in one step; :meth:`column` takes the columns apart when they are read.
    """

    def __init__(self, store: Callable[[EventLog], None] | None = None) -> None:
        """:param store: is given the log when a block is full, to store its columns; None: all are kept."""
        self._store = store
        # Of the rows of a full block.
        self._full_bytes = math.inf if store is None else BLOCK * _ROW_BYTES
        # Number of the first row in the columns: those before it are stored.
        self.first = 0
        # Seconds of stored rows that have changed since.
        self.late_overheads: dict[int, float] = {}
        # Details of stored rows that were set since.
        self.late_details: dict[int, Detail] = {}
        # Ids of the jobs that were rejected, and the details of these events.
        self.rejects: list[tuple[str, Detail | None]] = []
        self._clear()

    def _clear(self) -> None:
        # The rows, one after the other.
        self._packed = bytearray()
        self.details: dict[int, Detail] = {}
        # Job ids by their code in the column.
        self.jobs: list[str] = []
        # Placements as JSON text, by their code in the column.
        self.places: list[str] = []
        self.texts: dict[str, Sequence[str]] = {
            "job": self.jobs,
            "event": EVENT_NAMES,
            "placement": self.places,
        }
        self._job_codes = _Codes[str](self.jobs, str)
        self._place_codes = _Codes[NodeGpus](self.places, _place_json)

    def __len__(self) -> int:
        return self.first + self.rows

    @property
    def rows(self) -> int:
        """In the columns."""
        return len(self._packed) // _ROW_BYTES

    def column(self, name: str) -> array[Any]:
        """One of :data:`COLUMNS` as numbers: of texts their codes, NaN or :data:`NO_NUMBER` for null."""
        values = array("d" if name in _FLOATS else "q")
        with memoryview(self._packed) as packed, packed.cast("q") as numbers:
            values.frombytes(numbers[COLUMNS.index(name) :: len(COLUMNS)].tobytes())
        return values

    @property
    def last_s(self) -> float:
        """Time of the last event."""
        last: float = _ROW.unpack_from(self._packed, len(self._packed) - _ROW_BYTES)[len(_INTEGERS)]
        return last

    def set_overhead_s(self, row: int, overhead_s: float) -> None:
        """:param row: any, also one that is stored."""
        if row >= self.first:
            at = (row - self.first) * _ROW_BYTES + _OVERHEAD_AT
            _OVERHEAD.pack_into(self._packed, at, overhead_s)
        else:
            self.late_overheads[row] = overhead_s

    def set_detail(self, row: int, detail: Detail) -> None:
        """:param row: any, also one that is stored."""
        (self.details if row >= self.first else self.late_details)[row] = detail

    def store(self) -> None:
        """Store what is in the columns, which are empty then."""
        if self._store is not None and self._packed:
            self._store(self)
            self.first += self.rows
            self._clear()

    def add(
        self,
        time_s: float,
        event: EventName,
        job: str | None = None,
        *,
        gpus: int = NO_NUMBER,
        placement: NodeGpus | None = None,
        global_batch: int = NO_NUMBER,
        samples_done: float = _NAN,
        overhead_s: float = _NAN,
        detail: Detail | None = None,
    ) -> int:
        filled = len(self._packed)
        if filled == self._full_bytes:
            self.store()
            filled = 0
        row = self.first + filled // _ROW_BYTES
        code = NO_NUMBER if job is None else self._job_codes[job]
        place = NO_NUMBER if placement is None else self._place_codes[placement]
        self._packed += _pack_row(
            _CODES[event], code, gpus, place, global_batch, time_s, samples_done, overhead_s
        )
        if detail is not None:
            self.details[row] = detail
        if event == _REJECT and job is not None:
            self.rejects.append((job, detail))
        return row

    def append(self, event: TypedEvent) -> None:
        """As :meth:`add`, of an event with more than its columns."""
        detail, gpus, batch = detail_of(event), event.gpus, event.global_batch
        self.add(
            *(event.time, event.name, event.job),
            gpus=NO_NUMBER if gpus is None else gpus,
            placement=event.placement,
            global_batch=NO_NUMBER if batch is None else batch,
            samples_done=_NAN if event.samples_done is None else event.samples_done,
            overhead_s=_NAN if event.overhead_seconds is None else event.overhead_seconds,
            detail=None if detail is None else compact_json(detail),
        )

    # What follows is of the rows in the columns.

    def detail_texts(self, rows: range) -> list[str | None]:
        """:param rows: in the columns, counted from the first of them."""
        details = map(self.details.get, range(self.first + rows.start, self.first + rows.stop))
        return [None if detail is None else detail_text(detail) for detail in details]

    def events(self) -> Iterator[Event]:
        for fields in self._rows():
            if "placement" in fields:
                fields["placement"] = tuple((name, count) for name, count in json.loads(fields["placement"]))
            if "detail" in fields:
                fields["detail"] = json.loads(fields["detail"])
            yield Event(**fields)

    def json_lines(self) -> bytes:
        """The file as JSON Lines; what is null is left out."""
        return header(EVENT.kind) + b"".join(map(_line, self._rows()))

    def _rows(self) -> Iterator[dict[str, Any]]:
        """The fields that are not null, in the order of the columns; JSON columns as text."""
        names = [column.name for column in EVENT.columns if column.name in COLUMNS]
        columns = [(name, self.column(name), self.texts.get(name)) for name in names]
        for row in range(self.rows):
            fields: dict[str, Any] = {}
            for name, column, known in columns:
                if (value := column[row]) >= 0:  # neither NO_NUMBER nor NaN
                    fields[name] = value if known is None else known[value]
            if (detail := self.details.get(self.first + row)) is not None:
                fields["detail"] = detail_text(detail)
            yield fields


_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def compact_json(value: object) -> str:
    """JSON text without spaces. NaN is a ``ValueError``: no reader would accept it."""
    if type(value) is float and -math.inf < value < math.inf:
        return repr(value)
    return _encode(value)


def _place_json(placement: NodeGpus) -> str:
    """As :func:`compact_json`, in a third of the time."""
    return f"[{','.join([f'[{encode_basestring(name)},{count}]' for name, count in placement])}]"


def _line(fields: dict[str, Any]) -> bytes:
    texts = (
        f'"{name}":{value if name in ("placement", "detail") else compact_json(value)}'
        for name, value in fields.items()
    )
    return f"{{{','.join(texts)}}}\n".encode()
