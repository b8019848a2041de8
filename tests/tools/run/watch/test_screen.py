import io
import re
from typing import Any

import pytest
from rich.console import Console

from pliant.schemas.event import Event, EventName
from pliant.tools.run.statedir.log.events import submit_event
from pliant.tools.run.statedir.log.fold import RunLog, fold
from pliant.tools.run.watch.job_status import statuses
from pliant.tools.run.watch.screen import Screen, line, status_text, summary, trouble
from pliant.tools.run.watch.status import Status
from pliant.tools.schedule.predict_start import StartPrediction
from tests.builders import job


def event(time: float, name: EventName, job_id: str = "a", **more: Any) -> Event:
    return Event(time, name, job_id, **more)


def ends(name: EventName, samples: float | None = None, **detail: Any) -> Event:
    """From 20 s on the job holds nothing."""
    return event(20.0, name, gpus=0, placement=(), samples_done=samples, detail=detail or None)


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
SETBACK = event(
    *(15.0, "shrink"),
    gpus=1,
    placement=(("n0", 1),),
    detail={"reason": "the new workers on n1/0 ended", "setback": True},
)
GROWN = event(18.0, "grow", gpus=2, placement=(("n0", 2),), detail={"reason": "more are free"})
RETRY = {"attempt": 1, "reason": "exit code 7", "failures": 2, "retries": 3, "wait_seconds": 10.0}
OVER = {"over": 1, "reason": "its node was taken away", "displacements": 1, "wait_seconds": 10.0}


def at(samples: float) -> Event:
    return event(16.0, "progress", samples_done=samples, loss=0.125, detail={"attempt": 1})


def shown(status: Status, now_s: float, job_id: str = "a") -> list[str]:
    lines = status_text(status, now_s).splitlines()
    return next(re.split(r"  +", line) for line in lines if line.split()[0] == job_id)


def test_a_job_that_has_just_started_shows_for_how_long() -> None:
    assert status_text(Status(log(START)), 13.5).splitlines() == [
        "job  state     GPUs/batch  progress  until  why",
        "a    starting  2           0 %       -      for 2 s",
        "b    waiting   -           -         -      for 1 GPU",
    ]
    seen = Status(log(START), reasons={"a": "its [turn]", "b": "F = 12.5"})
    assert "its [turn]" not in status_text(seen, 16.0)
    assert "F = 12.5" not in status_text(seen, 16.0)
    explained = status_text(seen, 16.0, explain=True).splitlines()
    assert explained[1].endswith("policy: its [turn]")
    assert explained[2].endswith("for 1 GPU; policy: F = 12.5")


@pytest.mark.parametrize(
    ("events", "now_s", "expected"),
    [
        ([FIRST, at(300.0)], 16.0, ["a", "running", "2/64", "30 %", "in 7 s (at 23 s)"]),
        ([FIRST, at(299.0)], 16.0, ["29 %", "in 7 s (at 23 s)"]),
        # all of the work is done only when the job has finished
        ([FIRST, at(999.9)], 16.0, ["99 %", "now (at 16 s)"]),
        ([FIRST, at(1000.0)], 16.0, ["99 %", "now (at 16 s)"]),
        ([FIRST, at(999.9), ends("finish", 999.9)], 90.0, ["100 %", "since 20 s"]),
        ([ends("fail", reason="exit code 7: no [data]")], 90.0, ["since 20 s", "exit code 7: no [data]"]),
        # lost workers are named until the policy changes the job
        ([FIRST, SETBACK], 16.0, ["for 1 s; the new workers on n1/0 ended"]),
        ([FIRST, SETBACK, GROWN], 19.0, ["for 1 s"]),
        ([ends("requeue", **RETRY)], 22.0, ["in 8 s (at 30 s)", "retry 2 of 3 in 8 s: exit code 7"]),
        ([ends("requeue", **RETRY)], 40.0, ["now (at 40 s)", "retry 2 of 3: exit code 7"]),
        ([ends("requeue", **OVER)], 22.0, ["another attempt in 8 s: its node was taken away"]),
    ],
)
def test_the_line_of_a_job_says_how_far_until_when_and_why(events, now_s, expected) -> None:
    assert shown(Status(log(START, *events)), now_s)[-len(expected) :] == expected


def test_a_job_says_for_what_it_waits_or_where_it_is() -> None:
    for expected, starts, brief, why in (
        (StartPrediction(196.0, None, 3), "in 3 min (at 196 s)", "for 1 GPU, 3 ahead", "3 jobs are ahead"),
        (StartPrediction(196.0, None, 1), "in 3 min (at 196 s)", "for 1 GPU, 1 ahead", "1 job is ahead"),
        (StartPrediction(196.0, None, 0), "in 3 min (at 196 s)", "for 1 GPU, next", "it is next"),
        (StartPrediction(), "-", "for 1 GPU", "1 other job waits"),
    ):
        seen = Status(log(), outlook={"b": expected})
        assert shown(seen, 16.0, "b")[-2:] == [starts, brief]
        assert [each.why for each in statuses(seen, 16.0) if each.id == "b"] == [f"waits for 1 GPU; {why}"]

    # By which clock it arrives, whether it is submitted or cancelling.
    jobs = (job("now", at=2e9), job("later", at=2e9 + 60))
    status = Status(log(), submitted=tuple((each, 2e9) for each in jobs))

    def why(now_s: float) -> list[str]:
        return [each.why for each in statuses(status, now_s)][2:]

    due = "no run has taken it up yet"
    assert why(2e9) == [due, "submit_time is in 60 s"]
    assert why(2e9 - 3600) == [due, "submit_time is in 60 s (the clock was set back by 3600 s)"]
    assert why(2e9 + 61) == [due, due]
    status = Status(log(START), submitted=((job("c"), 13.0),), cancelled=frozenset({"a"}))
    states = [line.split()[:2] for line in status_text(status, 13.5).splitlines()[1:]]
    assert states == [["a", "cancelling"], ["b", "waiting"], ["c", "submitted"]]


def test_one_line_counts_jobs_and_launched_ones_run() -> None:
    failed = log(START, ends("requeue", **RETRY))
    assert shown(Status(failed), 22.0)[:2] == ["a", "retrying"]
    logs = (log(START), fold([]), failed, log(START, ends("preempt")))
    assert [line(each) for each in logs] == [
        "1 running, 1 waiting",
        "no job yet",
        "1 waiting, 1 waiting to retry",
        "1 preempted, 1 waiting",
    ]
    first, second = summary(log(START, at(300.0), ends("finish", 1000.0))).splitlines()[1:]
    assert first.split() == ["a", "finished", "2.0", "s", "10.0", "s", "1000", "0.125"]
    assert second.split()[:4] == ["b", "waiting", "-", "-"]
    # A job that was launched is shown as running.
    text = io.StringIO()
    console = Console(file=text, width=100, force_terminal=True)
    with Screen(console, "state directory: x", lambda log: frozenset(log.active)) as screen:
        screen(log(START), 100.0)
    assert "running" in text.getvalue()
    assert "starting" not in text.getvalue()


def followed(*times: float, text: io.StringIO | None = None, **options: Any) -> str:
    text = text or io.StringIO()
    with Screen(Console(file=text, **{"width": 40, **options}), "state directory: [x]") as screen:
        for now_s in times:
            screen(log(START), now_s)
    return text.getvalue()


def test_only_a_terminal_with_a_cursor_gets_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    table = followed(100.0, 100.1, width=100, force_terminal=True)
    assert "starting" in table
    assert "1 running, 1 waiting" not in table
    lines = followed(100.0, 101.0, 109.9, 110.0).splitlines()
    assert lines == ["pliant: state directory: [x]", *["pliant: 1 running, 1 waiting"] * 2]
    assert followed(100.0, quiet=True, force_terminal=True) == ""
    monkeypatch.setenv("TERM", "dumb")
    lines = followed(100.0, 101.0, force_terminal=True).splitlines()
    assert lines == ["pliant: state directory: [x]", "pliant: 1 running, 1 waiting"]


class Gone(io.StringIO):
    writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        raise BrokenPipeError(32, "broken pipe")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_reader_that_is_gone_stops_nothing(terminal: bool) -> None:
    text = Gone()
    assert followed(100.0, 200.0, text=text, force_terminal=terminal) == ""
    assert text.writes == 1


def test_failures_rejections_and_retries_have_a_reason() -> None:
    events = [
        START,
        ends("requeue", reason="exit code 1: KeyError: 7"),
        ends("fail", reason="killed by SIGKILL"),
        event(4.0, "reject", "b", gpus=0, placement=(), detail={"reason": "needs 9 GPUs"}),
        event(5.0, "finish", "c", gpus=0, placement=(), detail={"attempt": 1}),
    ]
    assert list(trouble(events)) == [
        "job a waits again: exit code 1: KeyError: 7",
        "job a failed: killed by SIGKILL",
        "job b is rejected: needs 9 GPUs",
    ]
