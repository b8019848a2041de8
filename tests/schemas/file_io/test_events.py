# ruff: noqa: E501 (one case a line reads better)

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from pliant.schemas import io
from pliant.schemas.errors import BadInputError, ServiceMissingError, UsageError
from pliant.schemas.event import EVENT, Event
from pliant.schemas.file_io import parquet
from pliant.schemas.file_io.events import EventColumns, EventWriter, columns_of, event_columns, parse_events
from pliant.schemas.file_io.parquet import parquet_bytes
from tests.strategies import events

SUBMIT = Event(0.0, "submit", "a", detail={"name": "träin"})
START = Event(1.0, "start", "a", 2, (("n0", 2),), 32)
FINISH = Event(9.5, "finish", "a", 0)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    with EventWriter(path) as writer:
        writer.append([SUBMIT, START])
        writer.append([FINISH])
    return path


def test_events_of_two_sessions_are_one_log(log: Path) -> None:
    with EventWriter(log) as writer:
        writer.append(iter([SUBMIT]))
        writer.append([])
    assert io.read_events(log) == (SUBMIT, START, FINISH, SUBMIT)
    assert log.read_text().count("schema") == 1


def test_a_crash_at_any_byte_loses_only_the_line_it_cut(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = log.read_bytes()
    ends = [at for at, byte in enumerate(whole) if byte == ord("\n")]
    for length in range(1, len(whole) + 1):
        log.write_bytes(whole[:length])
        caplog.clear()
        kept = sum(end <= length for end in ends[1:])  # a line is whole with or without its line end
        assert io.read_events(log) == (SUBMIT, START, FINISH)[:kept]
        torn = length not in ends and length - 1 not in ends
        assert ("the last line is torn" in caplog.text) == torn


def test_opening_mends_a_log_as_readers_saw_it(log: Path) -> None:
    whole = log.read_bytes()
    for length in range(len(whole) + 1):
        log.write_bytes(whole[:length])
        seen = io.read_events(log) if length else ()
        with EventWriter(log) as writer:
            writer.append([FINISH])
        assert io.read_events(log) == (*seen, FINISH)


def test_a_torn_last_line_is_cut_and_an_earlier_one_is_an_error(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = log.read_bytes()
    log.write_bytes(before + b'{"time": 3, "detail": "' + b"x" * 200_000)
    EventWriter(log).close()
    assert log.read_bytes() == before
    assert "the last line is torn (a crash while writing) and is cut off" in caplog.text
    log.write_bytes(log.read_bytes() + b'{"time": 3\n')
    with pytest.raises(BadInputError, match=r"events\.jsonl:5: not valid JSON"):
        io.read_events(log)


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_appends_nothing_and_the_log_goes_on(call, log: Path, monkeypatch) -> None:
    real = getattr(os, call)
    before = log.read_bytes()
    with EventWriter(log) as writer:

        def fail(descriptor: int, *data: Any) -> int:
            real(descriptor, *(part[:7] for part in data))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, call, fail)
        with pytest.raises(ServiceMissingError, match="no space left on device"):
            writer.append([START])
        monkeypatch.undo()
        assert log.read_bytes() == before
        writer.append([START])
    assert io.read_events(log) == (SUBMIT, START, FINISH, START)


def test_an_append_is_one_write_and_one_force_to_disk(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for call in ("write", "fsync"):
        real = getattr(os, call)

        def note(*arguments: Any, call: str = call, real: Any = real) -> Any:
            calls.append(call)
            return real(*arguments)

        monkeypatch.setattr(os, call, note)
    with EventWriter(log) as writer:
        writer.append([SUBMIT, START, FINISH])
    assert calls == ["write", "fsync"]


def test_a_file_of_another_kind_and_bad_events_are_not_appended(tmp_path: Path, log: Path) -> None:
    io.write_jobs([], tmp_path / "jobs.jsonl")
    with pytest.raises(BadInputError, match="this is a 'job' file, expected an 'event' file"):
        EventWriter(tmp_path / "jobs.jsonl")
    (tmp_path / "notes").write_text("not ended by a line end")
    with pytest.raises(BadInputError, match="is not a schema identifier"):
        EventWriter(tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "not ended by a line end"
    with pytest.raises(UsageError, match="no such file or directory"):
        EventWriter(tmp_path / "none" / "events.jsonl")
    # An event that no reader accepts is not appended.
    before = log.read_bytes()
    with EventWriter(log) as writer, pytest.raises(ValueError, match="breaks the schema"):
        writer.append([START, Event(-1.0, "finish", "a")])
    assert log.read_bytes() == before


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"time": -1, "event": "start", "job": "a"}', "/time: -1 is below 0, expected 0 or more"),
        ('{"time": 1, "event": "decision", "gpus": "2"}', '/gpus: "2" has the wrong type, expected an integer'),
        ('{"time": 1, "event": "start"}', "/job: is null in a 'start' event, expected a job id"),
        ('{"event": "decision"}', "/time: is missing"),
        ('{"time": 1, "event": "decision", "x": 1}', "/x: is not a field that this version knows"),
        ('{"time": 1, "event": "decision", "detail": {"a": [NaN]}}', "/detail/a/0: NaN and infinities are not allowed, expected a finite number"),
        ('{"time": 1, "event": "decision", "placement": [["n", 0]]}', "/placement/0/1: 0 is below 1, expected 1 or more"),
        ('{"time": 1, "event": "decision", "placement": [["n"]]}', "/placement/0/1: is missing"),
    ],
)  # fmt: skip
def test_a_wrong_event_names_its_line(log: Path, line: str, expected: str) -> None:
    log.write_text(log.read_text() + line + "\n")
    with pytest.raises(BadInputError) as caught:
        io.read_events(log)
    assert str(caught.value) == f"{log}:5: {expected}"


def test_finished_events_and_broken_details_are_told_by_content(tmp_path: Path, log: Path) -> None:
    io.write_events(io.read_events(log), tmp_path / "e.parquet")
    (tmp_path / "e.parquet").rename(tmp_path / "events.txt")
    assert io.read_events(tmp_path / "events.txt") == (SUBMIT, START, FINISH)
    # A broken detail in Parquet names its row.
    path = tmp_path / "e.parquet"
    io.write_events(io.read_events(log), path)
    table = pq.read_table(path)
    at = table.column_names.index("detail")
    pq.write_table(table.set_column(at, table.schema.field("detail"), [["{}", '{"a": NaN}', "{"]]), path)
    with pytest.raises(BadInputError) as caught:
        io.read_events(path)
    first, second = str(caught.value).splitlines()
    assert first == f"{path}: row 2: /detail/a: NaN and infinities are not allowed, expected a finite number"
    assert second.startswith(f"{path}: row 3: /detail: ")


LOG = (
    Event(0.0, "decision", detail={"policy": "fifo"}),
    Event(0.0, "submit", "a", detail={"curve": [[1, 2.5]]}),
    Event(1.0, "start", "a", 2, (("n0", 2),), 32, overhead_seconds=0.5),
    Event(9.5, "finish", "a", 0, samples_done=4.0, loss=0.25),
)


@given(events)
def test_both_readers_read_the_same(result: tuple[Event, ...]) -> None:
    data = parquet_bytes(result, EVENT)
    try:
        blocks = list(event_columns(data, "events"))
    except BadInputError:  # it may shy from good files, but only of these
        assert re.search(r"NaN|Infinity|[eE]\+?\d{3}", json.dumps([event.detail for event in result]))
        return
    rows = [row for block in blocks for row in rows_of(block)]
    assert rows == rows_of(columns_of(parse_events(data, "events")))


def rows_of(block: EventColumns) -> list[tuple[Any, ...]]:
    """NaN, of which none is like another, as text."""
    jobs = [None if number < 0 else block.job_ids[number] for number in block.job.tolist()]
    details = [json.loads(result) if isinstance(result, str) else result for result in block.detail]
    numbers = (column.tolist() for column in (block.time_s, block.event, block.gpus, block.global_batch))
    floats = (map(repr, column.tolist()) for column in (block.samples_done, block.loss, block.overhead_s))
    return [*zip(jobs, details, *numbers, *floats, strict=True)]


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
    assert is_left_to_the_careful_reader(data)
    with pytest.raises(BadInputError):
        parse_events(data, "events")


def is_left_to_the_careful_reader(data: bytes) -> bool:
    try:
        list(event_columns(data, "events"))
    except BadInputError:
        return True
    return False


def test_a_row_group_is_read_when_its_turn_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pq.read_table(pa.BufferReader(damaged(tmp_path / "events.parquet")))
    wrong = table.set_column(0, "time", pa.chunked_array([[-1.0] * len(LOG)]))
    with pq.ParquetWriter(tmp_path / "two.parquet", table.schema) as writer:
        writer.write_table(table)
        writer.write_table(wrong.cast(table.schema))
    assert is_left_to_the_careful_reader((tmp_path / "two.parquet").read_bytes()), "small ones come together"
    monkeypatch.setattr(parquet, "_GROUP_ROWS", 1)
    blocks = event_columns((tmp_path / "two.parquet").read_bytes(), "events")
    assert rows_of(next(blocks)) == rows_of(columns_of(LOG))
    with pytest.raises(BadInputError):
        next(blocks)
    with pytest.raises(BadInputError, match="row 5: /time"):
        io.read_events(tmp_path / "two.parquet")


def test_small_row_groups_and_files_of_another_version(tmp_path: Path) -> None:
    table = pq.read_table(pa.BufferReader(damaged(tmp_path / "events.parquet")))
    pq.write_table(table, tmp_path / "small.parquet", row_group_size=1)
    data = (tmp_path / "small.parquet").read_bytes()
    assert [len(result) for result in parquet.row_groups(data, "events", "event")] == [len(LOG)]
    (block,) = event_columns(data, "events")
    assert rows_of(block) == rows_of(columns_of(LOG))
    # Files of another kind or version are left to it.
    for schema in ("pliant.profile/1", "pliant.event/2", "pliant.event/1.1"):
        assert is_left_to_the_careful_reader(damaged(tmp_path / "events.parquet", schema))
    io.write_events(LOG, tmp_path / "events.jsonl")
    assert is_left_to_the_careful_reader((tmp_path / "events.jsonl").read_bytes())
    assert is_left_to_the_careful_reader(b"PAR1")
