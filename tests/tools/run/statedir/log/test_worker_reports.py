"""Events and measurements that workers report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.event import Event, EventName
from pliant.schemas.file_io.events import EventWriter
from pliant.tools.run.service.members import Ending
from pliant.tools.run.service.reports import AttemptEnded, report_events
from pliant.tools.run.statedir.contract.plan import write_progress
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import submit_event
from pliant.tools.run.statedir.log.fold import RunLog, fold
from pliant.tools.run.statedir.log.worker_reports import Reports, Tail, refined, reported, with_progress
from pliant.tools.run.statedir.state import State, read_log
from pliant.tools.run.watch.screen import status_text
from pliant.tools.run.watch.status import Status
from tests.builders import job
from tests.tools.run.statedir.contract.test_folders import report


def event(time: float, name: EventName, **more: Any) -> Event:
    return Event(time, name, "a", **more)


START = event(12.0, "start", gpus=2, placement=(("n0", 2),), global_batch=8)
FIRST = event(
    *(14.0, "progress"),
    samples_done=8.0,
    loss=0.25,
    overhead_seconds=2.0,
    detail={"attempt": 1, "after": "start"},
)
REQUEUE = event(20.0, "requeue", gpus=0, placement=(), detail={"attempt": 1, "reason": "it fell"})


def log(*events: Event) -> RunLog:
    return fold([submit_event(job("a"), 10.0, {"samples": 1000.0}), *events])


def test_a_report_refines_a_job_on_gpus_in_its_newest_attempt() -> None:
    """And ``status`` shows it."""
    result = log(START, FIRST)
    result.newest["a"] = report(300.0, loss=0.125, samples_per_second=100.0)
    shown = status_text(Status(result), 16.0).splitlines()[1]
    assert shown.split() == ["a", "running", "2/8", "30", "%", "in", "7", "s", "(at", "23", "s)"]
    later = event(30.0, "progress", samples_done=8.0, detail={"attempt": 2})
    for last in (later, REQUEUE):
        known = log(START, FIRST, last).jobs["a"]
        assert refined(known, report(300.0)) == known
    grow = event(15.0, "grow", gpus=4, placement=(("n0", 4),))
    known = refined(log(START, FIRST, grow).jobs["a"], report(300.0, samples_per_second=100.0))
    assert (known.samples_done, known.samples_per_second) == (300.0, None), "not at the speed of before"


def test_an_event_of_the_log_says_how_far_its_job_was(tmp_path: Path) -> None:
    result = log(START, FIRST)
    result.newest["a"] = report(300.0, loss=0.125)
    shrink = event(16.0, "shrink", gpus=1, placement=(("n0", 1),))
    done = event(17.0, "finish", gpus=0, placement=(), samples_done=400.0)
    logged = [with_progress(each, result) for each in (shrink, REQUEUE, done, FIRST)]
    assert [(each.samples_done, each.loss) for each in logged[:3]] == [
        (300, 0.125),
        (300, 0.125),
        (400, None),
    ]
    assert logged[3] == FIRST
    with State(tmp_path / "state") as state:
        state.record([submit_event(job("a"), 10.0), START, FIRST])
        state.log.newest["a"] = report(300.0)
        state.record([REQUEUE])
        assert read_log(tmp_path / "state").jobs == state.log.jobs
        assert state.log.jobs["a"].furthest == 300.0


def test_a_failure_after_reported_progress_is_a_first_one() -> None:
    result, again = log(START, FIRST, REQUEUE), event(21.0, "resume", gpus=2, placement=(("n0", 2),))
    result.add(again)
    result.newest["a"] = report(300.0, attempt=2)
    failed = report_events(AttemptEnded("a", 2, Ending("failed", "it fell")), result, 22.0, 3)
    assert failed[0].detail is not None
    assert failed[0].detail["failures"] == 1
    for each in [with_progress(each, result) for each in failed]:
        result.add(each)
    assert (result.jobs["a"].failures, result.jobs["a"].furthest) == (1, 300.0)


def test_an_observer_and_a_policy_from_cron_read_the_reports(tmp_path: Path) -> None:
    dirs, result = StateDir(tmp_path), log(START, FIRST)
    reports = Reports(dirs)
    reports.lay_over(result)
    assert result.newest == {}
    dirs.job("a").path.mkdir(parents=True)
    newest = report(300.0, noise_scale=12.0)
    write_progress(dirs.job("a").progress, newest)
    reports.lay_over(result)
    assert result.newest == {"a": newest}
    (seen,) = reported(dirs, log(START, FIRST), 50.0)
    assert (seen.time, seen.event, seen.samples_done) == (50.0, "progress", 300.0)
    assert seen.detail == {"noise_scale": 12.0}


def samples(tail: Tail) -> list[float | None]:
    return [event.samples_done for event in tail.read()]


def progress(number: float) -> Event:
    return Event(number, "progress", "a", samples_done=number)


def test_each_event_is_read_once_when_its_line_is_whole(tmp_path: Path) -> None:
    """A successor skips those that were seen."""
    path = tmp_path / "progress.jsonl"
    tail, successor = Tail(path), Tail(path, skip=3)
    assert samples(tail) == []
    with EventWriter(path) as writer:
        assert samples(tail) == []
        writer.append([progress(1), Event(1, "finish", "b"), progress(2)])
        assert samples(tail) == [1, 2], "workers cannot write the launcher's events"
        assert samples(successor) == []
        writer.append([progress(3), progress(4)])
        assert samples(tail) == [3, 4]
        assert samples(tail) == []
        assert samples(successor) == [4]
    path = tmp_path / "torn.jsonl"
    tail = Tail(path)
    with EventWriter(path) as writer:
        writer.append([progress(1), progress(2)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert samples(tail) == [1]
    path.write_bytes(whole)
    assert samples(tail) == [2]


def test_a_file_of_no_events_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "progress.jsonl").write_text("hello\nworld\n")
    tail = Tail(tmp_path / "progress.jsonl")
    assert samples(tail) == samples(tail) == []
    assert len(caplog.records) == 1
