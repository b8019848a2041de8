"""The events of one replay, kept in columns: about fifty bytes an event.

A log may be given a store for blocks of events that are full: then it keeps no more than one block.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from pliant.schemas.event import EVENT, EVENT_NAMES, Event, EventName
from pliant.schemas.file_io.json_lines import header
from pliant.tools.schedule.jobs import NodeGpus

Detail = str | Callable[[], str]
"""A detail as JSON text, or what makes that text when it is asked for."""

BLOCK: Final = 1 << 16
"""Events of a block, which is a row group of the file."""
NO_NUMBER: Final = -1
"""Stands for null in the columns of integers; NaN does in those of floats."""
_NAN: Final = float("nan")
_CODES: Final = {name: code for code, name in enumerate(EVENT_NAMES)}


def detail_text(detail: Detail) -> str:
    return detail() if callable(detail) else detail


class EventLog:
    """Events in the order in which they happened; equal events give equal bytes.

    The columns are public for :mod:`pliant.tools.replay.output` alone.
    """

    def __init__(self, store: Callable[[EventLog], None] | None = None) -> None:
        """:param store: is given the log when a block is full, to store its columns; None: all are kept."""
        self._store = store
        self.first = 0
        """Number of the first row in the columns: those before it are stored."""
        self.late_overheads: dict[int, float] = {}
        """Seconds of stored rows that have changed since."""
        self.late_details: dict[int, Detail] = {}
        """Details of stored rows that were set since."""
        self.rejects: list[tuple[str, Detail | None]] = []
        """Ids of the jobs that were rejected, and the details of these events."""
        self._clear()

    def _clear(self) -> None:
        self.time = array("d")
        self.event = array("b")
        self.job = array("q")
        self.gpus = array("q")
        self.placement = array("q")
        self.global_batch = array("q")
        self.samples_done = array("d")
        self.overhead_seconds = array("d")
        self.details: dict[int, Detail] = {}
        self.jobs: list[str] = []
        """Job ids by their code in the column."""
        self.places: list[str] = []
        """Placements as JSON text, by their code in the column."""
        self.texts: dict[str, Sequence[str]] = {
            "job": self.jobs,
            "event": EVENT_NAMES,
            "placement": self.places,
        }
        self._job_codes: dict[str, int] = {}
        self._place_codes: dict[NodeGpus, int] = {}

    def __len__(self) -> int:
        return self.first + len(self.time)

    @property
    def last_s(self) -> float:
        """Time of the last event."""
        return self.time[-1]

    def overhead_s(self, row: int) -> float:
        """Of one of the rows in the columns."""
        return self.overhead_seconds[row - self.first]

    def set_overhead_s(self, row: int, overhead_s: float) -> None:
        """:param row: any, also one that is stored."""
        if row >= self.first:
            self.overhead_seconds[row - self.first] = overhead_s
        else:
            self.late_overheads[row] = overhead_s

    def set_detail(self, row: int, detail: Detail) -> None:
        """:param row: any, also one that is stored."""
        (self.details if row >= self.first else self.late_details)[row] = detail

    def store(self) -> None:
        """Store what is in the columns, which are empty then."""
        if self._store is not None and self.time:
            self._store(self)
            self.first += len(self.time)
            self._clear()

    def add(
        self,
        time_s: float,
        event: EventName,
        job: str | None = None,
        *,
        gpus: int | None = None,
        placement: NodeGpus | None = None,
        global_batch: int | None = None,
        samples_done: float | None = None,
        overhead_s: float | None = None,
        detail: Detail | None = None,
    ) -> int:
        row = self.first + len(self.time)
        if self._store is not None and row - self.first == BLOCK:
            self.store()
        self.time.append(time_s)
        self.event.append(_CODES[event])
        self.job.append(NO_NUMBER if job is None else self._job_code(job))
        self.gpus.append(NO_NUMBER if gpus is None else gpus)
        self.placement.append(NO_NUMBER if placement is None else self._place_code(placement))
        self.global_batch.append(NO_NUMBER if global_batch is None else global_batch)
        self.samples_done.append(_NAN if samples_done is None else samples_done)
        self.overhead_seconds.append(_NAN if overhead_s is None else overhead_s)
        if detail is not None:
            self.details[row] = detail
        if event == "reject" and job is not None:
            self.rejects.append((job, detail))
        return row

    def detail(self, row: int) -> str | None:
        found = self.details.get(row)
        return None if found is None else detail_text(found)

    # What follows is of the rows in the columns.

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

    def _job_code(self, job: str) -> int:
        code = self._job_codes.get(job)
        if code is None:
            code = self._job_codes[job] = len(self.jobs)
            self.jobs.append(job)
        return code

    def _place_code(self, placement: NodeGpus) -> int:
        code = self._place_codes.get(placement)
        if code is None:
            code = self._place_codes[placement] = len(self.places)
            self.places.append(compact_json(placement))
        return code

    def _rows(self) -> Iterator[dict[str, Any]]:
        """The fields that are not null, in the order of the columns; JSON columns as text."""
        names = [column.name for column in EVENT.columns if column.name in vars(self)]
        columns = [(name, getattr(self, name), self.texts.get(name)) for name in names]
        for row in range(len(self.time)):
            fields: dict[str, Any] = {}
            for name, column, known in columns:
                if (value := column[row]) >= 0:  # neither NO_NUMBER nor NaN
                    fields[name] = value if known is None else known[value]
            if (detail := self.detail(self.first + row)) is not None:
                fields["detail"] = detail
            yield fields


def compact_json(value: object) -> str:
    """JSON text without spaces. NaN is a ``ValueError``: no reader would accept it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _line(fields: dict[str, Any]) -> bytes:
    texts = (
        f'"{name}":{value if name in ("placement", "detail") else compact_json(value)}'
        for name, value in fields.items()
    )
    return f"{{{','.join(texts)}}}\n".encode()
