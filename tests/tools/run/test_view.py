from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from pliant.schemas.event import Event, EventName
from pliant.tools.run.fold import RunLog, fold
from pliant.tools.run.journal import submit_event
from pliant.tools.run.screen import Screen
from pliant.tools.run.sight import Sight
from pliant.tools.run.view import line, rows, status_text, summary
from tests.builders import job


def event(time: float, name: EventName, job_id: str = "a", **more: Any) -> Event:
    return Event(time, name, job_id, **more)


def log(*events: Event) -> RunLog:
    return fold([submit_event(job("a"), 10.0, {"samples": 1000.0}), submit_event(job("b"), 11.0), *events])


START = event(12.0, "start", gpus=2, placement=(("n0", 1), ("n1", 1)), detail={"reason": "its [turn]"})
FIRST = event(
    *(14.0, "progress"),
    global_batch=64,
    samples_done=100.0,
    loss=0.25,
    overhead_seconds=2.0,
    detail={"attempt": 1, "after": "start"},
)
SECOND = event(16.0, "progress", samples_done=300.0, loss=0.125, detail={"attempt": 1})


def test_a_job_that_has_just_started_shows_for_how_long_it_has_been_starting() -> None:
    assert status_text(Sight(log(START)), 13.5).splitlines() == [
        "job  phase        slots      batch  progress  speed  stall  loss  left  why",
        "a    start (2 s)  n0:1 n1:1  -      0 %       -      -      -     -     its [turn]",
        "b    waiting      -          -      -         -      -      -     -",
    ]


def test_a_running_job_shows_progress_loss_and_time_left_at_the_measured_speed() -> None:
    shown = status_text(Sight(log(START, FIRST, SECOND)), 16.0).splitlines()[1]
    told = "a running n0:1 n1:1 64 30 % 100/s 2 s 0.125 7 s its [turn]"
    assert shown.split() == told.split()


def test_a_job_that_waits_says_why_and_one_that_nobody_has_taken_up_is_submitted() -> None:
    sight = Sight(
        log(START),
        reasons={"a": "old news", "b": "2 GPUs are taken"},
        submitted=(job("c"),),
        cancelled=frozenset({"a"}),
    )
    rows = [line.split()[:2] for line in status_text(sight, 13.5).splitlines()[1:]]
    assert rows == [["a", "cancelling"], ["b", "waiting"], ["c", "submitted"]]
    assert status_text(sight, 13.5).splitlines()[2].endswith("2 GPUs are taken")
    assert "old news" not in status_text(sight, 13.5)


def test_a_job_that_arrives_later_says_when_and_what_the_clock_has_to_do_with_it() -> None:
    jobs = (job("now", at=2e9), job("later", at=2e9 + 60))
    sight = Sight(log(), submitted=jobs, asked_s={"now": 2e9, "later": 2e9})

    def why(now_s: float) -> list[str]:
        return [row[-1] for row in rows(sight, now_s)][2:]

    assert why(2e9) == ["", "submit_time is in 60 s"]
    assert why(2e9 - 3600) == ["", "submit_time is in 60 s (the clock was set back by 3600 s)"]
    assert why(2e9 + 61) == ["", ""]


def test_one_line_counts_the_jobs() -> None:
    assert line(log(START)) == "1 running, 1 waiting"
    assert line(fold([])) == "no job yet"


def test_the_summary_tells_waiting_and_completion_times() -> None:
    text = io.StringIO()
    ended = event(20.0, "finish", gpus=0, placement=(), samples_done=1000.0)
    Console(file=text, width=100).print(summary(log(START, SECOND, ended)))
    first, second = text.getvalue().splitlines()[1:]
    assert first.split() == ["a", "finished", "2.0", "s", "10.0", "s", "1000", "0.125"]
    assert second.split()[:4] == ["b", "waiting", "-", "-"]


def shown(console: Console, text: io.StringIO, *times: float) -> str:
    with Screen(console, "state directory: [x]") as screen:
        for now_s in times:
            screen(log(START), now_s)
    return text.getvalue()


def test_without_a_terminal_there_is_a_line_every_ten_seconds() -> None:
    text = io.StringIO()
    lines = shown(Console(file=text, width=40), text, 100.0, 101.0, 109.9, 110.0).splitlines()
    assert lines == ["pliant: state directory: [x]", *["pliant: 1 running, 1 waiting"] * 2]


def test_a_terminal_gets_the_table_in_place() -> None:
    text = io.StringIO()
    table = shown(Console(file=text, width=100, force_terminal=True), text, 100.0, 100.1)
    assert "its [turn]" in table
    assert "1 running, 1 waiting" not in table


class Gone(io.StringIO):
    """A reader that has left."""

    writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        raise BrokenPipeError(32, "broken pipe")


@pytest.mark.parametrize("terminal", [True, False])
def test_who_does_not_look_any_more_stops_nothing(terminal: bool) -> None:
    text = Gone()
    assert shown(Console(file=text, width=40, force_terminal=terminal), text, 100.0, 200.0) == ""
    assert text.writes == 1


def test_a_quiet_console_says_nothing() -> None:
    text = io.StringIO()
    assert shown(Console(file=text, quiet=True, force_terminal=True), text, 100.0) == ""


def test_a_job_that_failed_shows_which_retry_comes_next_and_when() -> None:
    detail = {"attempt": 1, "reason": "exit code 7", "failures": 2, "retries": 3, "wait_seconds": 10.0}
    seen = Sight(log(START, event(20.0, "requeue", gpus=0, placement=(), detail=detail)))
    assert status_text(seen, 22.0).splitlines()[1].endswith("retry 2 of 3 in 8 s: exit code 7")
    assert status_text(seen, 40.0).splitlines()[1].endswith("retry 2 of 3: exit code 7")


def test_a_job_that_waits_for_its_retry_is_not_counted_as_preempted() -> None:
    detail = {"attempt": 1, "reason": "exit code 7", "failures": 1, "retries": 3, "wait_seconds": 1.0}
    failed = log(START, event(20.0, "requeue", gpus=0, placement=(), detail=detail))
    preempted = log(START, event(20.0, "preempt", gpus=0, placement=()))
    assert line(failed) == "1 waiting, 1 waiting to retry"
    assert status_text(Sight(failed), 20.5).splitlines()[1].startswith("a    waiting to retry")
    assert line(preempted) == "1 preempted, 1 waiting"
