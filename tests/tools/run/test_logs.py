from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pliant.schemas.event import Event
from pliant.tools.run import logs
from pliant.tools.run.journal import submit_event
from pliant.tools.run.layout import StateDir
from pliant.tools.run.logs import job_output
from pliant.tools.run.state import State
from pliant.tools.run.submit import submit
from tests.builders import job


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    with State(tmp_path) as opened:
        opened.record([submit_event(job("a"), 1.0), submit_event(job("b"), 1.0)])
        yield opened


def prints(dirs: StateDir, attempt: int, text: str) -> None:
    path = dirs.job("a").attempt(attempt).launcher_log(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def meanwhile(monkeypatch: pytest.MonkeyPatch, *happenings: Callable[[], None]) -> None:
    """One of these happens in each pause between two looks."""
    left = iter(happenings)
    monkeypatch.setattr(logs.time, "sleep", lambda _: next(left)())


def test_following_shows_each_line_once_and_ends_with_the_job(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt prints its last line between two looks, and the second one has begun by then."""
    prints(state.dirs, 1, "one\n")

    def next_attempt() -> None:
        prints(state.dirs, 1, "two\n")
        prints(state.dirs, 2, "three\n")
        state.record([Event(2.0, "finish", "b", gpus=0)])

    def end() -> None:
        prints(state.dirs, 2, "four\n")
        state.record([Event(3.0, "finish", "a", gpus=0)])

    meanwhile(monkeypatch, next_attempt, end)
    shown = b"".join(job_output(state.dirs.path, "a", follow=True)).decode().splitlines()
    assert shown == [
        *("==> jobs/a/attempts/1/logs/launcher-0.log", "one", "two"),
        *("==> jobs/a/attempts/2/logs/launcher-0.log", "three", "four"),
    ]


def test_following_reads_the_log_once(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Path] = []
    look = logs.Bystander

    def counted(path: Path) -> object:
        looks.append(path)
        return look(path)

    monkeypatch.setattr(logs, "Bystander", counted)
    end = Event(3.0, "finish", "a", gpus=0)
    meanwhile(monkeypatch, lambda: None, lambda: None, lambda: state.record([end]))
    assert b"".join(job_output(state.dirs.path, "a", follow=True)) == b""
    assert len(looks) == 1


def test_a_job_that_no_run_has_taken_up_yet_is_waited_for(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(tmp_path, [job("c", command=("x",))], "jobs", folder=tmp_path, now_s=2e9, check_scripts=False)

    def take_up() -> None:
        state.record([submit_event(job("c"), 2.0)])
        path = state.dirs.job("c").attempt(1).launcher_log(0)
        path.parent.mkdir(parents=True)
        path.write_text("here\n")

    meanwhile(monkeypatch, take_up, lambda: state.record([Event(3.0, "finish", "c", gpus=0)]))
    assert b"".join(job_output(tmp_path, "c", follow=True)).endswith(b"here\n")
