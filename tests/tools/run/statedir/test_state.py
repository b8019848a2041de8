from __future__ import annotations

import errno
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
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


def test_a_sink_gets_what_is_on_disk_and_may_fail(tmp_path: Path) -> None:
    got: list[list[str]] = []

    def fails(events: Sequence[Event]) -> None:
        raise OSError(28, os.strerror(28))

    with State(tmp_path / "new" / "state") as state:
        state.add_sink(fails)
        state.add_sink(lambda events: got.append(list(read_log(state.dirs.path).jobs)) if events else None)
        state.record([submitted("a")])
        state.record([submitted("b")])
        state.record([])
    assert got == [["a"], ["a", "b"]]
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


def test_a_second_writer_is_refused_with_the_process_that_writes(tmp_path: Path) -> None:
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
    """Cron's next turn is worth a try; no usage was wrong."""

    def full(number: int) -> Callable[..., int]:
        def write(*_: object) -> int:
            raise OSError(number, os.strerror(number))

        return write

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full(errno.EFBIG))
        with pytest.raises(ServiceMissingError, match="cannot be used as state directory: file too large"):
            State(tmp_path)
    with State(tmp_path) as state:
        assert not state.log.jobs
        state.record([submitted("a")])
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full(errno.ENOSPC))
            with pytest.raises(ServiceMissingError, match="no space left"):
                state.record([submitted("b")])
        assert list(state.log.jobs) == ["a"]
    assert list(read_log(tmp_path).jobs) == ["a"]


def test_a_folder_that_cannot_be_made_or_has_no_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be used as state directory"):
        State(tmp_path / "file")
    with pytest.raises(UsageError, match="no state directory"):
        read_log(tmp_path)
