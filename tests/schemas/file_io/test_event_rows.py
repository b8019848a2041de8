"""The fast reader of event files: the same events as the careful one, and nothing where that one refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from pliant.schemas import io
from pliant.schemas.errors import BadInputError
from pliant.schemas.event import EVENT, Event
from pliant.schemas.file_io.events import EventRow, event_rows, parse_events
from pliant.schemas.file_io.tables import parquet_bytes
from tests.strategies import events

LOG = (
    Event(0.0, "decision", detail={"policy": "fifo"}),
    Event(0.0, "submit", "a", detail={"curve": [[1, 2.5]]}),
    Event(1.0, "start", "a", 2, (("n0", 2),), 32, overhead_seconds=0.5),
    Event(9.5, "finish", "a", 0, samples_done=4.0, loss=0.25),
)


@given(events)
def test_both_readers_read_the_same(found: tuple[Event, ...]) -> None:
    data = parquet_bytes(found, EVENT)
    rows = event_rows(data, "events")
    if rows is None:  # it may shy from good files, but only of these
        assert re.search(r"NaN|Infinity|[eE]\+?\d{3}", json.dumps([event.detail for event in found]))
        return
    for row, event in zip(rows, parse_events(data, "events"), strict=True):
        detail = None if row.detail is None else json.loads(row.detail)
        assert row._replace(detail=detail) == tuple(getattr(event, name) for name in EventRow._fields)


def damaged(path: Path, schema: str = "pliant.event/1", **columns: list[Any] | pa.Array) -> bytes:
    table = pq.read_table(pa.BufferReader(parquet_bytes(LOG, EVENT)))
    for name, values in columns.items():
        at = table.column_names.index(name)
        table = table.set_column(at, name, pa.chunked_array([values]))
    pq.write_table(table.replace_schema_metadata({"schema": schema}), path)
    return path.read_bytes()


@pytest.mark.parametrize(
    "columns",
    [
        {"time": [0.0, 0.0, -1.0, 9.5]},
        {"time": [0.0, 0.0, None, 9.5]},
        {"time": [0.0, 0.0, float("nan"), 9.5]},
        {"loss": [None, None, None, float("inf")]},
        {"event": ["decision", "submit", "began", "finish"]},
        {"event": ["decision", "submit", None, "finish"]},
        {"job": [None, "a", None, "a"]},
        {"gpus": pa.array([None, None, -2, 0], pa.int64())},
        {"global_batch": pa.array([None, None, 0, None], pa.int64())},
        {"gpus": ["", "", "2", "0"]},
        {"placement": [None, None, '[["n0", 0]]', None]},
        {"placement": [None, None, '{"n0": 2}', None]},
        {"detail": ['{"policy": "fifo"}', "{}", "[1]", None]},
        {"detail": ['{"policy": "fifo"}', "{}", "no JSON", None]},
        {"detail": ['{"policy": "fifo"}', '{"curve": [[1, NaN]]}', None, None]},
        {"detail": ['{"policy": "fifo"}', '{"curve": [[1, 1e999]]}', None, None]},
    ],
)
def test_what_the_careful_reader_refuses_is_left_to_it(tmp_path: Path, columns: dict[str, Any]) -> None:
    data = damaged(tmp_path / "events.parquet", **columns)
    assert event_rows(data, "events") is None
    with pytest.raises(BadInputError):
        parse_events(data, "events")


def test_files_of_another_kind_or_version_are_left_to_it(tmp_path: Path) -> None:
    for schema in ("pliant.profile/1", "pliant.event/2", "pliant.event/1.1"):
        assert event_rows(damaged(tmp_path / "events.parquet", schema), "events") is None
    io.write_events(LOG, tmp_path / "events.jsonl")
    assert event_rows((tmp_path / "events.jsonl").read_bytes(), "events") is None
    assert event_rows(b"PAR1", "events") is None
