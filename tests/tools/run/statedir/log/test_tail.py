from __future__ import annotations

from pathlib import Path

import pytest

from pliant.schemas.event import Event
from pliant.schemas.file_io.events import EventWriter
from pliant.tools.run.statedir.log.worker_reports import Tail


def samples(tail: Tail) -> list[float | None]:
    return [event.samples_done for event in tail.read()]


def progress(number: float) -> Event:
    return Event(number, "progress", "a", samples_done=number)


def test_each_event_is_given_out_once(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "progress.jsonl")
    assert samples(tail) == []
    with EventWriter(tmp_path / "progress.jsonl") as writer:
        assert samples(tail) == []
        writer.append([progress(1), progress(2)])
        assert samples(tail) == [1, 2]
        writer.append([progress(3)])
        assert samples(tail) == [3]
        assert samples(tail) == []


def test_a_line_that_is_still_being_written_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    tail = Tail(path)
    with EventWriter(path) as writer:
        writer.append([progress(1), progress(2)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert samples(tail) == [1]
    path.write_bytes(whole)
    assert samples(tail) == [2]


def test_a_successor_skips_what_its_predecessor_saw(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "progress.jsonl", skip=3)
    with EventWriter(tmp_path / "progress.jsonl") as writer:
        writer.append([progress(1), progress(2)])
        assert samples(tail) == []
        writer.append([progress(3), progress(4)])
        assert samples(tail) == [4]


def test_workers_cannot_write_the_launchers_events(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "progress.jsonl")
    with EventWriter(tmp_path / "progress.jsonl") as writer:
        writer.append([Event(1, "finish", "b"), progress(2)])
    assert samples(tail) == [2]


def test_a_file_that_is_no_event_file_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "progress.jsonl").write_text("hello\nworld\n")
    tail = Tail(tmp_path / "progress.jsonl")
    assert samples(tail) == samples(tail) == []
    assert len(caplog.records) == 1
