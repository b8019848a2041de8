from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pliant.schemas.errors import UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import read_events
from pliant.tools.report.job_cost import job_cost
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import run_event, submit_event
from pliant.tools.run.statedir.state import State
from pliant.tools.run.watch import output as logs
from pliant.tools.run.watch.output import job_events, job_output, last_events
from pliant.tools.schedule.decide import Question, decide
from tests.builders import cluster, job
from tests.tools.run.stories import Story


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


def test_the_last_lines_come_first_then_whatever_is_printed(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    prints(state.dirs, 1, "one\ntwo\nthree\n")
    meanwhile(
        monkeypatch,
        lambda: prints(state.dirs, 1, "four\n"),
        lambda: state.record([Event(9.0, "finish", "a", gpus=0)]),
    )
    shown = b"".join(job_output(state.dirs.path, "a", follow=True, lines=2)).decode().splitlines()
    assert [line for line in shown if not line.startswith("==>")] == ["two", "three", "four"]


def test_the_last_events_of_a_log_are_an_event_file(tmp_path: Path) -> None:
    story = Story(3)
    story.go_on(40)
    dirs = story.write(tmp_path / "state")
    (tmp_path / "last.jsonl").write_bytes(b"".join(last_events(dirs.path, 5)))
    assert read_events(tmp_path / "last.jsonl") == read_events(dirs.events)[-5:]
    assert b"".join(last_events(dirs.path, 0)).count(b"\n") == 1
    with pytest.raises(UsageError, match="no state directory"):
        list(last_events(tmp_path, 5))


def test_the_events_about_a_job_tell_what_it_cost_as_all_of_them_do(tmp_path: Path) -> None:
    story = Story(4)
    story.go_on(200)
    dirs = story.write(tmp_path / "state")
    everything = read_events(dirs.events)
    found, fewer = tmp_path / "job.jsonl", 0
    for job_id in {event.job for event in everything if event.event == "submit"}:
        found.write_bytes(b"".join(job_events(dirs.path, str(job_id))))
        of_job = read_events(found)
        fewer += len(of_job) < len(everything) / 2
        until_s = everything[-1].time
        assert job_cost(of_job, str(job_id), until_s) == job_cost(everything, str(job_id), until_s)
    assert fewer
    with pytest.raises(UsageError, match="no job nowhere"):
        list(job_events(dirs.path, "nowhere"))


def test_jobs_on_the_same_gpus_are_told_of_and_of_very_many_reports_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MOST_REPORTS", 10)
    two = (("n0", 2),)
    events = [
        *(submit_event(job(name, gpus=2), 0.0) for name in "abc"),
        Event(1.0, "start", "a", gpus=2, placement=two),
        Event(5.0, "start", "b", gpus=2, placement=two, detail={"beside": "a", "more": 1}),
        *(Event(6.0 + i, "progress", "a", samples_done=float(i)) for i in range(100)),
        Event(200.0, "finish", "b", gpus=0),
        Event(300.0, "finish", "a", gpus=0, samples_done=100.0),
    ]
    state = State(tmp_path / "state")
    with state:
        state.record([run_event(decide([], cluster(2), None, Question("fifo")), "hash", 0.0), *events])
    (tmp_path / "job.jsonl").write_bytes(b"".join(job_events(tmp_path / "state", "a")))
    found = read_events(tmp_path / "job.jsonl")
    assert [event.job for event in found if event.event != "progress"] == [None, "a", "a", "b", "b", "b", "a"]
    assert len([event for event in found if event.event == "progress"]) in range(9, 12)
    assert job_cost(found, "a", 300.0).held_gpu_s == 2 * 299 - 195
