from __future__ import annotations

import pytest

from pliant.schemas.event import Event
from pliant.schemas.file_io.events import parse_events
from pliant.tools.replay import output
from pliant.tools.replay.engine.log import EventLog
from pliant.tools.replay.output import parquet_bytes

PLACE = (("n0", 2), ("n1", 1))


def small_log() -> EventLog:
    log = EventLog()
    log.add(0.0, "decision", detail='{"policy":"fifo"}')
    log.add(0.5, "submit", "a", detail=lambda: '{"job":{"id":"a"},"words":"größer"}')
    log.add(0.5, "start", "a", gpus=3, placement=PLACE, global_batch=64, samples_done=0.0, overhead_s=1.5)
    log.add(9.0, "finish", "a", gpus=0, samples_done=100.0)
    return log


EVENTS = (
    Event(0.0, "decision", detail={"policy": "fifo"}),
    Event(0.5, "submit", "a", detail={"job": {"id": "a"}, "words": "größer"}),
    Event(0.5, "start", "a", 3, PLACE, 64, samples_done=0.0, overhead_seconds=1.5),
    Event(9.0, "finish", "a", 0, samples_done=100.0),
)


def test_a_log_says_the_same_in_memory_in_json_lines_and_in_parquet() -> None:
    log = small_log()
    assert tuple(log.events()) == EVENTS
    assert parse_events(log.json_lines(), "lines") == EVENTS
    assert parse_events(parquet_bytes(log), "parquet") == EVENTS


def test_a_file_of_many_blocks_is_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_BLOCK", 3)
    assert parse_events(parquet_bytes(small_log()), "parquet") == EVENTS


def test_writing_a_log_does_not_change_it() -> None:
    log = small_log()
    assert parquet_bytes(log) == parquet_bytes(log)
    log.add(10.0, "node_down", detail='{"node":"n0"}')
    assert parse_events(parquet_bytes(log), "parquet")[:-1] == EVENTS
