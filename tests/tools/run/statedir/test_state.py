from __future__ import annotations

import errno
import multiprocessing
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from pliant.schemas.errors import LockedError, ServiceMissingError, UsageError
from pliant.schemas.event import Event
from pliant.tools.run.statedir.directory import Lock
from pliant.tools.run.statedir.log.events import submit_event
from pliant.tools.run.statedir.state import State, read_log
from tests.builders import job


def submitted(job_id: str) -> Event:
    return submit_event(job(job_id), 1.0)


def test_a_sink_hears_of_what_is_on_disk_and_one_that_fails_breaks_nothing(tmp_path: Path) -> None:
    heard: list[list[str]] = []

    def deaf(events: Sequence[Event]) -> None:
        raise OSError(28, os.strerror(28))

    with State(tmp_path / "new" / "state") as state:
        state.add_sink(deaf)
        state.add_sink(lambda events: heard.append(list(read_log(state.dirs.path).jobs)) if events else None)
        state.record([submitted("a")])
        state.record([submitted("b")])
        state.record([])
    assert heard == [["a"], ["a", "b"]]
    with State(tmp_path / "new" / "state") as state:
        assert list(state.log.jobs) == ["a", "b"]


def test_a_torn_last_line_costs_only_itself(tmp_path: Path) -> None:
    with State(tmp_path) as state:
        state.record([submitted("a"), submitted("b")])
        path = state.dirs.events
    path.write_bytes(path.read_bytes()[:-5])
    with State(tmp_path) as state:
        assert list(state.log.jobs) == ["a"]
        state.record([submitted("c")])
    assert list(read_log(tmp_path).jobs) == ["a", "c"]


def hold(folder: Path, ready: threading.Event, done: threading.Event) -> None:
    lock = Lock(folder / "lock")
    lock.acquire()
    ready.set()
    done.wait(30)
    lock.release()


def test_a_second_writer_is_turned_away_and_told_who_is_there(tmp_path: Path) -> None:
    ready, done = multiprocessing.Event(), multiprocessing.Event()
    holder = multiprocessing.Process(target=hold, args=(tmp_path, ready, done))
    holder.start()
    try:
        assert ready.wait(30)
        with pytest.raises(LockedError, match=f"by process {holder.pid}"):
            State(tmp_path)
        assert LockedError.exit_code == 75
    finally:
        done.set()
        holder.join()


def test_a_writer_that_waits_gets_its_turn(tmp_path: Path) -> None:
    with State(tmp_path) as first:
        turns: list[str] = []
        second = threading.Thread(
            target=lambda: turns.append("second") if State(tmp_path, wait_s=60) else None
        )
        second.start()
        first.record([submitted("a")])
        turns.append("first")
    second.join(30)
    assert turns == ["first", "second"]


def test_a_full_disk_is_a_missing_service_and_nothing_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with State(tmp_path) as state:
        state.record([submitted("a")])

        def full(descriptor: int, data: object) -> int:
            raise OSError(28, os.strerror(28))

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(ServiceMissingError, match="no space left"):
            state.record([submitted("b")])
        monkeypatch.undo()
        assert list(state.log.jobs) == ["a"]
    assert list(read_log(tmp_path).jobs) == ["a"]


def test_a_disk_that_is_full_before_the_first_word_is_a_missing_service_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cron's next turn is worth a try, as after any service that was missing; no usage was wrong."""

    def full(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ServiceMissingError, match="cannot be used as state directory: file too large"):
        State(tmp_path)
    monkeypatch.undo()
    with State(tmp_path) as state:
        assert not state.log.jobs


def test_a_folder_that_cannot_be_made_or_has_no_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be used as state directory"):
        State(tmp_path / "file")
    with pytest.raises(UsageError, match="no state directory"):
        read_log(tmp_path)
