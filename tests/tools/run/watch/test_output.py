import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pliant.schemas.errors import UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import read_events
from pliant.tools.report.job_cost import job_cost
from pliant.tools.run.backends import supervisor
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import run_event, submit_event
from pliant.tools.run.statedir.state import State
from pliant.tools.run.watch import output as logs
from pliant.tools.run.watch.output import OutputFile, ends_of, job_events, job_output, last_events
from pliant.tools.schedule.decide import Question, decide
from tests.builders import cluster, job
from tests.cli.calling import call
from tests.tools.run.stories import Story

MOST = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stdout.log"


def whole_of(pieces: Iterable[bytes | int]) -> bytes:
    return b"".join(piece for piece in pieces if isinstance(piece, bytes))


def test_output_is_read_once_and_what_was_taken_away_counted(path: Path) -> None:
    # A file that is not there has none.
    output = OutputFile(path)
    assert list(output.rest()) == []
    with path.open("ab", buffering=0) as file:
        for line in (b"one\n", b"two\n"):
            file.write(line)
            assert list(output.rest()) == [line]
            assert list(output.rest()) == []
    size = logs.PIECE
    whole = os.urandom(3 * size + 5)
    path.write_bytes(whole)
    expected = [whole[:size], whole[size : 2 * size], whole[2 * size : 3 * size], whole[-5:]]
    assert list(OutputFile(path).rest()) == expected
    # What was taken away before it was read is counted.
    output, whole = OutputFile(path), bytes(range(1, 251)) * (4 * MOST // 250)
    path.write_bytes(whole[:1000])
    assert list(output.rest()) == [whole[:1000]]
    path.write_bytes(whole)
    supervisor.trim(str(path), MOST)
    gone, *rest = output.rest()
    assert isinstance(gone, int)
    assert whole_of(rest) == whole[1000 + gone :]
    assert MOST // 2 <= len(whole) - 1000 - gone <= MOST
    assert list(output.rest()) == []


def test_what_is_taken_away_is_no_row_of_zeros(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, read = b"x" * (4 * MOST), os.pread
    path.write_bytes(whole)
    monkeypatch.setattr(os, "pread", lambda *place: (supervisor.trim(str(path), MOST), read(*place))[1])
    gone, *rest = OutputFile(path).rest()
    assert isinstance(gone, int)
    assert whole_of(rest) == whole[gone:]


def test_the_last_lines_are_read_in_pieces_of_any_size(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, lines, shown in (
        ("one\ntwo\nthree\n", 2, b"two\nthree\n"),
        ("one\ntwo\nthree", 2, b"two\nthree"),
        ("one\n\n\n", 2, b"\n\n"),
        ("one\n", 5, b"one\n"),
        ("one\n", 0, b""),
        ("", 3, b""),
    ):
        path.write_text(text)
        for piece in (1, 2, 3, 1 << 20):
            monkeypatch.setattr(logs, "PIECE", piece)
            output = OutputFile(path)
            output.skip_all_but(lines)
            assert whole_of(output.rest()) == shown


def test_the_last_lines_of_a_large_file_need_no_look_at_the_rest(path: Path) -> None:
    with path.open("wb") as file:
        file.seek(1 << 40)
        file.write(b"x\nlast\n")
    output = OutputFile(path)
    output.skip_all_but(1)
    assert list(output.rest()) == [b"last\n"]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    with State(tmp_path) as opened:
        opened.record([submit_event(job("a"), 1.0), submit_event(job("b"), 1.0)])
        yield opened


def prints(dirs: StateDir, attempt: int, text: str, job_id: str = "a") -> None:
    path = dirs.job(job_id).attempt(attempt).launcher_log(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def ends(state: State, job_id: str) -> None:
    state.record([Event(9.0, "finish", job_id, gpus=0)])


def meanwhile(monkeypatch: pytest.MonkeyPatch, *happenings: Callable[[], None]) -> None:
    """One of these happens in each pause between two looks."""
    left = iter(happenings)
    # not time.sleep itself, which threads of other tests may call
    monkeypatch.setattr(logs, "time", SimpleNamespace(sleep=lambda _: next(left)()))


def test_following_shows_each_line_once(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt prints its last line between two looks, and the second one has begun by then."""
    prints(state.dirs, 1, "one\n")

    def next_attempt() -> None:
        prints(state.dirs, 1, "two\n")
        prints(state.dirs, 2, "three\n")
        ends(state, "b")

    def end() -> None:
        prints(state.dirs, 2, "four\n")
        ends(state, "a")

    meanwhile(monkeypatch, next_attempt, end)
    shown = b"".join(job_output(state.dirs.path, "a", follow=True)).decode().splitlines()
    assert shown == [
        *("==> jobs/a/attempts/1/logs/launcher-0.log", "one", "two"),
        *("==> jobs/a/attempts/2/logs/launcher-0.log", "three", "four"),
    ]


def test_output_that_was_taken_away_is_counted_in_its_place(state: State) -> None:
    prints(state.dirs, 1, "x" * (4 * MOST))
    supervisor.trim(str(state.dirs.job("a").attempt(1).launcher_log(0)), MOST)
    _, note, rest = b"".join(job_output(state.dirs.path, "a")).split(b"\n", 2)
    assert int(note.split()[1].replace(b",", b"")) + rest.count(b"x") == 4 * MOST


def test_a_job_that_no_run_has_taken_up_yet_is_waited_for(state: State, tmp_path, monkeypatch) -> None:
    submit(tmp_path, [job("c", command=("x",))], "jobs", folder=tmp_path, now_s=2e9, check_scripts=False)

    def take_up() -> None:
        state.record([submit_event(job("c"), 2.0)])
        prints(state.dirs, 1, "here\n", "c")

    meanwhile(monkeypatch, take_up, lambda: ends(state, "c"))
    assert b"".join(job_output(tmp_path, "c", follow=True)).endswith(b"here\n")


def test_the_last_lines_come_first_then_the_next(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    prints(state.dirs, 1, "one\ntwo\nthree\n")
    meanwhile(monkeypatch, lambda: prints(state.dirs, 1, "four\n"), lambda: ends(state, "a"))
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


def test_the_events_about_a_job_give_its_cost_as_all_events_do(tmp_path: Path) -> None:
    story = Story(4)
    story.go_on(100)
    dirs = story.write(tmp_path / "state")
    everything = read_events(dirs.events)
    own, fewer, until_s = tmp_path / "job.jsonl", 0, everything[-1].time
    for job_id in {str(event.job) for event in everything if event.event == "submit"}:
        own.write_bytes(b"".join(job_events(dirs.path, job_id)))
        of_job = read_events(own)
        fewer += len(of_job) < len(everything) / 2
        assert job_cost(of_job, job_id, until_s) == job_cost(everything, job_id, until_s)
    assert fewer
    with pytest.raises(UsageError, match="no job nowhere"):
        list(job_events(dirs.path, "nowhere"))


def test_events_of_a_job_name_those_that_share_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with State(tmp_path / "state") as state:
        state.record([run_event(decide([], cluster(2), None, Question("fifo")), "hash", 0.0), *events])
    (tmp_path / "job.jsonl").write_bytes(b"".join(job_events(tmp_path / "state", "a")))
    own = read_events(tmp_path / "job.jsonl")
    assert [event.job for event in own if event.event != "progress"] == [None, "a", "a", "b", "b", "b", "a"]
    assert len([event for event in own if event.event == "progress"]) in range(9, 12)
    assert job_cost(own, "a", 300.0).held_gpu_s == 2 * 299 - 195


def test_pliant_wait_names_each_job_once_with_its_end(state: State) -> None:
    waits = ends_of(state.dirs.path, ["a"])
    assert next(waits) is None
    failure = {"attempt": 1, "reason": "exit code 1: no data"}
    state.record([Event(9.0, "fail", "b", gpus=0, placement=(), detail=failure)])
    assert next(waits) is None
    ends(state, "a")
    assert [job.phase for job in waits if job is not None] == ["finished"]
    place = ("--state", str(state.dirs.path))
    waited = call("wait", "b", "a", "a", *place)
    assert waited.exit_code == 5
    assert sorted(waited.stdout.splitlines()) == ["a finished", "b failed: exit code 1: no data"]
    assert "1 of 2 jobs did not finish" in waited.stderr
    assert call("wait", "a", *place).exit_code == 0
    refused = call("wait", "a", "other", *place)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "other" in refused.stderr
