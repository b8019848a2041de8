from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.event import Event, EventName
from pliant.schemas.events import typed
from pliant.schemas.file_io.events import EventWriter, event_lines, read_event
from pliant.schemas.io import profile_hash, profile_to_columns, read_events
from pliant.schemas.job import ArrayPlace
from pliant.schemas.profile import ProfileRow
from pliant.schemas.schedule import PolicyUse, Schedule
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.report.job_cost import job_cost
from pliant.tools.report.read_run import read_run
from pliant.tools.run.service.allocation import Slot
from pliant.tools.run.service.endings import Ending
from pliant.tools.run.service.members import WorkerFailure
from pliant.tools.run.service.reports import AttemptEnded, StartFailed, WorkerEvents, report_events
from pliant.tools.run.statedir.contract.plan import write_progress
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import (
    decision_event,
    on_clock,
    release_event,
    run_event,
    submit_event,
)
from pliant.tools.run.statedir.log.fold import JobLog, RunLog, allocation_of, fold, jobs_of_spent_arrays
from pliant.tools.run.statedir.log.worker_reports import Reports, Tail, refined, reported, with_progress
from pliant.tools.run.statedir.slot_faults import (
    FIRST_S,
    LONGEST_SUSPICION_S,
    FailureRecord,
    QuarantineRule,
    SlotFaults,
)
from pliant.tools.run.statedir.state import State, read_log
from pliant.tools.run.watch.screen import status_text
from pliant.tools.run.watch.status import Status, closed_lines
from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.from_log import apply_events
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job
from tests.tools.run.statedir.contract.test_folders import report


def event(time: float, name: EventName, **more: Any) -> Event:
    return Event(time, name, "a", **more)


def holds(time: float, name: EventName, gpus: int, **detail: Any) -> Event:
    """From then on the job holds so many GPUs of n0."""
    return event(time, name, gpus=gpus, placement=(("n0", gpus),) if gpus else (), detail=detail or None)


def log(*events: Event) -> RunLog:
    return fold([submit_event(job("a"), 10.0, {"samples": 1000.0}), *events])


def of(*events: Event) -> JobLog:
    return log(*events).jobs["a"]


START = replace(holds(11.0, "start", 2, accum=2, lr_scale=1.5), global_batch=8)
CANCEL = holds(12.0, "cancel", 0)


def progress(time: float, samples: float, attempt: int = 1, **detail: Any) -> Event:
    return event(time, "progress", samples_done=samples, loss=0.5, detail={"attempt": attempt, **detail})


FIRST = progress(14.0, 8.0, after="start")
REQUEUE = holds(20.0, "requeue", 0, attempt=1, reason="it fell")


def failed(time: float, attempt: int) -> Event:
    return holds(time, "requeue", 0, attempt=attempt, reason="exit code 1")


def test_a_job_waits_runs_reports_and_waits_again() -> None:
    known = of()
    assert (known.phase, known.submitted_s, known.gpus, known.total_samples) == ("waiting", 10.0, 0, 1000.0)
    known.add(typed(START))
    assert (known.phase, known.gpus, known.started_s) == ("running", 2, 11.0)
    assert (known.allocation.placement, known.allocation.cut) == ((("n0", 2),), (8, 2, 1.5))
    known.add(typed(holds(12.0, "preempt", 0)))
    assert (known.phase, known.gpus, known.placement, known.ended) == ("preempted", 0, (), False)
    assert of(START).attempt.change == ("start", 11.0)
    assert of(START, progress(12.0, 8.0)).attempt.change == ("start", 11.0)
    assert of(START, progress(12.0, 8.0, after="start")).attempt.change is None
    known = of(START, progress(12.0, 8.0), progress(13.0, 16.0), progress(14.0, 24.0, attempt=2))
    assert known.attempt.seen == {1: 2, 2: 1}
    assert of(START, progress(12.0, 8.0)).use.samples_per_second is None
    assert of(START, progress(12.0, 8.0), progress(14.0, 28.0)).use.samples_per_second == 10.0
    grown = holds(15.0, "grow", 3)
    assert of(START, progress(12.0, 8.0), progress(14.0, 28.0), grown).use.samples_per_second is None
    saved = event(14.0, "checkpoint", samples_done=110.0)
    assert of(START, progress(12.0, 100.0), saved, progress(22.0, 200.0)).use.samples_per_second == 10.0


def test_failures_add_up_until_a_job_made_progress() -> None:
    once = [START, progress(12.0, 50.0), failed(13.0, 1)]
    known = of(*once, START, progress(14.0, 50.0, 2), failed(15.0, 2))
    assert (known.retry.failures, known.retry.failed_attempt, known.next_failure(16.0)) == (
        2,
        2,
        FailureRecord(3, 3),
    )
    known = of(*once, START, progress(14.0, 52.0, 2), failed(15.0, 2), progress(16.0, 55.0, 3))
    assert (known.retry.failures, known.next_failure(17.0)) == (2, FailureRecord(3, 3))
    known.add(typed(progress(16.0, 61.0, 3)))
    assert known.next_failure(17.0) == FailureRecord(1, 3), "together a hundredth of the work"
    known = of(*once, holds(100.0, "resume", 2), progress(159.0, 51.0, 2))
    assert [known.next_failure(time_s).failures for time_s in (159.0, 160.0)] == [2, 1], (
        "a minute of training"
    )
    known = of(START, progress(12.0, 90.0), failed(13.0, 1), START, progress(14.0, 60.0, 2))
    assert (known.samples_done, known.next_failure(15.0).failures) == (60.0, 2), "back at its checkpoint"


def test_attempts_that_are_over_or_displaced_are_no_failures() -> None:
    over = holds(13.0, "requeue", 0, over=1, reason="its node was taken away")
    known = of(START, progress(12.0, 50.0), over)
    assert (known.phase, known.gpus, known.reason) == ("preempted", 0, "its node was taken away")
    assert (
        known.retry.failures,
        known.retry.failed_attempt,
        known.attempt.over_attempt,
        known.retry.retry_s,
    ) == (0, 0, 1, None)
    assert known.retry.displacements == 0, "older logs do not say how often it was so"
    assert of(START, failed(13.0, 2)).attempt.over_attempt == 2
    interrupted = of(START, holds(12.0, "requeue", 0, reason="interrupted by SIGINT"))
    assert (interrupted.phase, interrupted.retry.failures) == ("preempted", 0)
    # As by a script that sends SIGTERM to its group as it fails. Where nothing starts, none counts.
    known, ends = log(), list[Event]()
    for attempt in range(1, 7):
        known.add(replace(START, time=1000.0 * attempt))
        ends.append(end(known, DISPLACED, 1000.0 * attempt + 10.0, attempt, retries=2))
    details = [one.detail or {} for one in ends]
    assert [detail.get("wait_seconds") for detail in details] == [1.0, 2.0, 4.0, 8.0, 16.0, None]
    assert [detail.get("failures", 0) for detail in details] == [0, 0, 0, 1, 2, 3]
    assert [one.event for one in ends] == ["requeue"] * 5 + ["fail"]
    assert known.jobs["a"].reason.startswith("its node was taken away (or its script, which signals")
    assert known.jobs["a"].reason.endswith("6 times without progress")
    known, verdict = log(), Ending("displaced", "nothing starts on node n0", began=False)
    for attempt in range(1, 9):
        known.add(replace(START, time=100.0 * attempt))
        end(known, verdict, 100.0 * attempt + 30.0, attempt, retries=0)
    last = known.jobs["a"]
    assert (last.phase, last.retry.failures, last.retry.displacements, last.retry.retry_s) == (
        "preempted",
        0,
        0,
        None,
    )
    assert last.attempt.over_attempt == 8


def end(known: RunLog, verdict: Ending, time_s: float, attempt: int, retries: int = 3) -> Event:
    """An attempt ends; what the log says of it."""
    (logged,) = report_events(AttemptEnded("a", attempt, verdict), known, time_s, retries)
    known.add(logged)
    return logged


DISPLACED = Ending("displaced", "its node was taken away")
FELL = Ending("failed", "it fell")


@pytest.mark.parametrize("reports", [True, False], ids=["it gets on", "it says nothing for an hour"])
def test_a_job_that_gets_on_may_be_displaced_any_number_of_times(reports: bool) -> None:
    known = log()
    for attempt in range(1, 9):
        begin_s = 10000.0 * attempt
        end_s = begin_s + (10.0 if reports else 3600.0)
        known.add(replace(START, time=begin_s))
        if reports:
            known.add(progress(begin_s + 5.0, 100.0 * attempt, attempt))
        end(known, DISPLACED, end_s, attempt)
    last = known.jobs["a"]
    assert (last.retry.failures, last.retry.displacements, last.attempt.over_attempt) == (0, 1, 8)
    assert last.retry.retry_s == end_s + 1.0, "it is not started at once"


def test_retries_wait_longer_and_end_after_eleven_within_an_hour() -> None:
    known, waits = log(START), []
    for attempt in (1, 2, 3):
        waits.append((end(known, FELL, 20.0 * attempt, attempt).detail or {})["wait_seconds"])
        known_job = known.jobs["a"]
        assert known_job.retry.retry_s == 20.0 * attempt + waits[-1]
    assert waits == [1.0, 2.0, 4.0]
    assert (known_job.retry.failures, known_job.retry.retries) == (3, 3)
    last = end(known, FELL, 80.0, 4)
    assert (last.event, (last.detail or {})["reason"]) == ("fail", "it fell")
    known, ends = log(START), list[str]()
    while "fail" not in ends:
        attempt = len(ends) + 1
        known.add(progress(20.0 * attempt, 50.0 * attempt, attempt))
        ends.append(end(known, FELL, 20.0 * attempt, attempt, retries=1).event)
    assert ends == ["requeue"] * 10 + ["fail"]
    assert known.jobs["a"].reason == "failed 11 times within an hour: it fell"


CODE_7 = Ending("failed", "exit code 7: nothing on stderr", exit_code=7, by_itself=True)
MISUSED = replace(CODE_7, message="exit code 2: t.py: error: no", exit_code=2, is_final=True)
KILLED = Ending("failed", "killed by SIGKILL", exit_code=-9)
AT_RANK = replace(CODE_7, message="rank 1 crashed: bad row at 0x7f01")
ELSEWHERE = replace(AT_RANK, message="rank 0 crashed: bad row at 0x7f02")


@pytest.mark.parametrize(
    ("verdicts", "lasted_s", "step", "ends"),
    [
        ([MISUSED], 5.0, 0.0, "exit code 2: t.py: error: no"),
        ([CODE_7] * 2, 5.0, 0.0, "failed twice in the same way: exit code 7: nothing on stderr"),
        ([AT_RANK, ELSEWHERE], 5.0, 0.0, "failed twice in the same way: rank 0 crashed: bad row at 0x7f02"),
        ([CODE_7, AT_RANK, CODE_7, AT_RANK], 5.0, 0.0, AT_RANK.message),
        ([KILLED] * 4, 5.0, 0.0, "killed by SIGKILL"),
        ([CODE_7] * 4, 90.0, 0.0, "exit code 7: nothing on stderr"),
        ([CODE_7] * 4, 5.0, 0.5, "exit code 7: nothing on stderr"),
    ],
    ids=["misused", "equal", "but for its rank", "other reasons", "killed", "long, steps unknown", "further"],
)
def test_a_failure_that_is_certain_is_not_repeated(verdicts, lasted_s, step, ends) -> None:
    """A script that reports nothing, or trains half a sample further each time, at 0.1 a second."""
    known = log()
    for attempt, verdict in enumerate(verdicts, 1):
        assert known.jobs["a"].phase != "failed"
        known.add(replace(START, time=1000.0 * attempt))
        if step:
            found = report(step * attempt, attempt=attempt, samples_per_second=0.1)
            known.newest["a"] = found
        end(known, verdict, 1000.0 * attempt + lasted_s, attempt)
    last = known.jobs["a"]
    assert (last.phase, last.reason, last.attempt.exit_code) == (
        "failed",
        ends,
        verdicts[-1].exit_code,
    )


@pytest.mark.parametrize(
    ("fields", "verdict", "ends"),
    [
        ({"no_retry_on": (7,)}, CODE_7, ["fail"]),
        ({"retry_on": (-9,)}, CODE_7, ["fail"]),
        ({"retry_on": (-9,), "retries": 1}, KILLED, ["requeue", "fail"]),
        ({"retry_on": (7, 2)}, CODE_7, ["requeue"] * 3 + ["fail"]),
        ({"retry_on": (2,), "retries": 1}, MISUSED, ["requeue", "fail"]),
        ({"retries": 0}, KILLED, ["fail"]),
    ],
)
def test_a_job_says_which_failures_are_retried(fields: Any, verdict: Ending, ends: list[str]) -> None:
    known = log()
    known.jobs["a"].job = known.jobs["a"].job.model_copy(update=fields)
    found = []
    for attempt in range(1, len(ends) + 1):
        known.add(replace(START, time=1000.0 * attempt))
        found.append(end(known, verdict, 1000.0 * attempt + 5.0, attempt).event)
    assert found == ends


def test_ended_jobs_are_not_active_any_more() -> None:
    """Reports about them leave no trace, as those of attempts that were asked to stop."""
    ends: dict[EventName, str] = {
        "finish": "finished",
        "fail": "failed",
        "reject": "rejected",
        "cancel": "cancelled",
    }
    for name, phase in ends.items():
        known = log(START)
        done = report_events(AttemptEnded("a", 1, Ending("done", "", 1000.0)), known, 20.0, 3)
        assert [(e.event, e.gpus, e.samples_done) for e in done] == [("finish", 0, 1000.0)]
        assert report_events(AttemptEnded("a", 1, Ending("stopped")), known, 20.0, 3) == []
        known.add(holds(12.0, name, 0))
        assert (known.jobs["a"].phase, known.active) == (phase, {})
        assert report_events(AttemptEnded("a", 1, FELL), known, 20.0, 3) == []


def hindered(gpus: int, *slots: str) -> StartFailed:
    left = allocation_of("a", (("n0", gpus),) if gpus else (), (8, 1, 1.0))
    return StartFailed("a", 1, WorkerFailure(tuple(map(Slot.parse, slots)), "no memory"), left)


def test_a_job_that_could_not_grow_shrinks_or_waits() -> None:
    """It gets the slot again after a while, and has not failed."""
    known = log(START)
    shrink, down = report_events(hindered(1, "n0/1"), known, 20.0, 3)
    reason = "no memory; n0/1 is left out for 60 s"
    assert (shrink.event, shrink.gpus, shrink.placement) == ("shrink", 1, (("n0", 1),))
    assert shrink.detail == {"reason": reason, "accum": 1, "lr_scale": 1.0, "setback": True}
    assert (down.event, down.job) == ("slot_down", "a")
    for each in (shrink, down):
        known.add(each)
    assert (known.jobs["a"].gpus, known.jobs["a"].reason) == (1, reason)
    (again,) = report_events(hindered(1, "n0/1"), known, 90.0, 3)
    assert (again.detail or {})["seconds"] == 120.0
    shrink, *_ = report_events(hindered(1, "n0/1", "n0/2", "n0/3"), log(START), 20.0, 3)
    assert (shrink.detail or {})["wait_seconds"] == 60.0, "after three slots it keeps its size"
    known = log(START)
    requeue, *_ = report_events(hindered(0, "n0/0", "n0/1"), known, 20.0, 3)
    known.add(requeue)
    assert (requeue.event, known.jobs["a"].phase, known.jobs["a"].retry.failures) == (
        "requeue",
        "preempted",
        0,
    )


def said(*events: Event, settled: bool = True, since_s: float = 0.0) -> list[Event]:
    """What the log gets of what workers say, 20 s after the epoch."""
    return report_events(WorkerEvents("a", 1, events, settled), log(START), 20.0, 3, since_s)


def test_what_workers_measure_belongs_to_what_the_job_holds() -> None:
    """Not to the first step after a change, to three workers (it is old), or to a gang that leaves."""
    first, second = said(progress(15.0, 8.0), progress(16.0, 16.0))
    assert (first.overhead_seconds, first.detail) == (4.0, {"attempt": 1, "after": "start"})
    assert (second.overhead_seconds, second.detail) == (None, {"attempt": 1})
    reports = [
        replace(progress(14.0 + number, 8.0 * number, step_seconds=0.5), gpus=gpus)
        for number, gpus in enumerate((2, 2, 3))
    ]
    seen = {"placement": [2], "local_batch": 2, "accum": 2, "step_seconds": 0.5}
    assert [(each.detail or {}).get("observed") for each in said(*reports)] == [None, seen, None]
    (second,) = said(replace(progress(15.0, 8.0, step_seconds=0.5), gpus=2), settled=False)
    assert "observed" not in (second.detail or {})
    saved = event(15.0, "checkpoint", gpus=2, samples_done=8.0, overhead_seconds=0.3)
    (leaving,) = said(saved, settled=False)
    assert (leaving.overhead_seconds, leaving.gpus, leaving.samples_done) == (None, None, 8.0)
    (staying,) = said(saved)
    assert staying.overhead_seconds == 0.3


def test_workers_clocks_move_no_time_and_the_log_is_utc() -> None:
    # Its events happened between the last look and now, whatever its machine says.
    for time_s, since_s, logged_s in (
        *((3600.0, 0.0, 20.0), (19.5, 19.0, 19.5), (1.0, 19.0, 19.0)),
        (1.0, 0.0, START.time),
    ):
        (logged,) = said(event(time_s, "checkpoint"), since_s=since_s)
        assert logged.time == logged_s
    # The log is UTC and knows the clock of the schedule.
    submitted = submit_event(job("a", at=5.0), 1005.0)
    assert (submitted.detail or {})["job"]["submit_time"] == 1005.0
    (back, started) = on_clock([submitted, Event(1010.0, "start", "a", gpus=1)], 1000.0)
    assert (back.time, (back.detail or {})["job"]["submit_time"], started.time) == (5.0, 5.0, 10.0)
    schedule = Schedule(time=0.0, policy=PolicyUse(name="fifo", seed=3), cluster=cluster(2))
    known = fold([run_event(schedule, "hash", 5.0), decision_event(6.0, 4.5, "fifo", 0.01)])
    assert known.info is not None
    assert (known.info.policy, known.info.seed, known.info.simulated) == ("fifo", 3, False)
    assert (known.origin_s, known.last_s) == (4.5, 6.0)


def test_a_broken_job_may_be_there_until_its_release() -> None:
    for events, left in (
        ([START, CANCEL], ["a"]),
        ([START, CANCEL, release_event("a", 13.0)], []),
        ([CANCEL], []),  # it was never started
        ([START, holds(12.0, "fail", 0, reason="internal error")], ["a"]),
        ([START, holds(12.0, "fail", 0, attempt=1, reason="exit code 1")], []),
    ):
        assert list(log(*events).may_be_there()) == left
        assert of(*events, release_event("a", 14.0)) == of(*events), "a release changes nothing else"


def test_the_first_event_is_small_however_large_the_profile_is() -> None:
    rows = [
        ProfileRow(
            *("train", f"model-{number}", "gpu", 1, 1, "1", 8, 1),
            step_seconds=1.0, iterations=9, feasible=True, source="measured",
        )
        for number in range(200)
    ]  # fmt: skip
    columns = profile_to_columns(rows)
    decided = decide([job("a")], cluster(2), None, Question("fifo")).model_copy(update={"profile": columns})
    first = run_event(decided, "0" * 64, 0.0)
    assert (first.detail or {})["profile_hash"] == profile_hash(columns)
    assert len(event_lines([first])) < 2000


@pytest.mark.parametrize("why_not", ["", "it shares its GPUs", "another job comes"])
def test_a_slot_where_two_jobs_died_is_bad_for_all_jobs(why_not: str) -> None:
    """The event is of no job, unless the other one can be why."""
    known, report = log(START), hindered(0, "n0/1")
    known.slot_faults.died("b", "n0/1")
    if why_not == "another job comes":
        report = replace(report, held=frozenset({Slot("n0", 1)}))
    elif why_not:
        known.jobs["a"].beside = "b"
    events = report_events(report, known, 20.0, 3)
    assert [(each.event, each.job) for each in events] == [
        ("requeue", "a"),
        ("slot_down", "a" if why_not else None),
    ]
    assert [read_event(line) for line in event_lines(events).splitlines()] == events


def test_slots_that_failed_wait_and_shared_gpus_are_shared() -> None:
    known = log(START)
    for other in "bc":
        known.slot_faults.died(other, "n0/1")
    events = report_events(hindered(1, "n0/1"), known, 20.0, 3)
    assert (events[0].detail or {})["reason"] == "no memory; n0/1 is left out until pliant resume n0"
    session = Session(Fifo(), cluster(2), CurveThroughput())
    for each in events:
        known.add(each)
    apply_events(session, [events[1]])
    later_s = 20.0 + 365 * 86400
    (out,) = known.out_of_service(later_s).values()
    assert out.reason == "new workers of 3 jobs died there, last of a: no memory"
    session.cluster.at(later_s)
    assert session.cluster.up_gpus == 1
    resumed = Event(later_s, "undrain", detail={"node": "n0", "user": "ada", "order": 1})
    known.add(resumed)
    apply_events(session, [resumed])
    assert (known.out_of_service(later_s), session.cluster.up_gpus) == ({}, 2)
    assert not known.slot_faults.deaths_on("n0/1")
    line = closed_lines(Status(fold(events)), 30.0)
    assert line == [f"slot n0/1 gets no job until pliant resume n0: {out.reason}"]
    # Two jobs on the same GPUs share them until one leaves.
    known = log(START, submit_event(job("b"), 11.0))
    known.add(replace(holds(12.0, "start", 2, beside="a"), job="b"))
    assert [known.jobs[name].beside for name in "ab"] == ["b", "a"]
    known.add(holds(13.0, "finish", 0))
    assert [known.jobs[name].beside for name in "ab"] == [None, None]


@pytest.mark.parametrize(
    ("name", "gpus", "detail", "why"),
    [
        ("requeue", 0, {"reason": "node n0 is down"}, "node n0 is down"),
        ("shrink", 1, {"reason": "new workers died", "setback": True}, "new workers died"),
        ("move", 2, {"reason": "a slow worker", "straggled": "n0/1"}, "a slow worker"),
        ("shrink", 1, {"reason": "the policy says so"}, ""),
        ("preempt", 0, {"reason": "the policy says so"}, ""),
    ],
)
def test_why_gpus_were_lost_is_shown_until_a_change(name, gpus, detail, why) -> None:
    known = of(START, holds(12.0, name, gpus, **detail))
    reason, straggled = detail["reason"], detail.get("straggled", "")
    assert (known.retry.trouble, known.reason, known.use.straggled) == (why, reason, straggled)
    known.add(typed(event(13.0, "priority", detail={"priority": 2.0, "reason": "an order"})))
    known.add(typed(event(13.0, "hold", detail={"user": "ada", "uid": 7})))
    known.add(typed(progress(14.0, 8.0, reason="what a script says")))
    assert (known.retry.trouble, known.reason, known.held_by) == (why, reason, 7)
    known.add(typed(event(15.0, "unhold", detail={"user": "ada"})))
    assert (known.held, known.held_by, known.job.priority) == (None, None, 2.0)
    known.add(typed(holds(16.0, "grow", 3, reason="free GPUs")))
    assert (known.retry.trouble, known.reason) == ("", "free GPUs")
    assert known.use.straggled == straggled, "it leaves such a slot once in its life"


def test_totals_count_each_event_and_a_job_by_its_last_end() -> None:
    # The failures of jobs whose attempt failed; no orders, and nothing that a workers' event says.
    changes: list[EventName] = ["grow", "shrink", "shrink", "move"]
    events = [
        START,
        *(holds(12.0, name, 2) for name in changes),
        holds(13.0, "preempt", 0, reason="the policy", attempt=1),
        holds(14.0, "resume", 2),
        holds(15.0, "requeue", 0, reason="interrupted"),
        holds(16.0, "resume", 2),
        failed(17.0, 3),
        event(18.0, "hold", detail={"user": "ada"}),
        progress(19.0, 8.0),
        holds(20.0, "fail", 0, attempt=4, reason="it fell"),
        decision_event(21.0, 0.0, "fifo", 0.5, error="no answer"),
    ]
    schedule = Schedule(time=0.0, policy=PolicyUse(name="fifo"), cluster=cluster(2))
    first = [run_event(schedule, "hash", 5.0), submit_event(job("a"), 10.0, {"samples": 1000.0})]
    counts = fold([*first, *events]).counts
    assert (counts.submitted, counts.starts, counts.rescales, counts.preemptions) == (1, 3, 4, 1)
    assert (counts.failures, counts.decisions, counts.policy_errors) == (2, 1, 1)

    # It failed while it was cancelled: what was left of it did something else.
    known = log(START, CANCEL, holds(13.0, "fail", 0, attempt=1, reason="it fell"))
    assert {phase: count for phase, count in known.ends.items() if count} == {"failed": 1}
    assert (known.jobs["a"].phase, known.active) == ("failed", {})


def test_repeated_work_and_reports_belong_to_their_attempt() -> None:
    # 100 samples in 10 s on two GPUs; it goes back from 200 to 150, and the step did 10 of them.
    events = [START, progress(12.0, 100.0), progress(22.0, 200.0), failed(23.0, 1), holds(24.0, "resume", 2)]

    def lost(last: Event) -> dict[str, float]:
        return dict(log(*events, last).counts.lost_gpu_seconds)

    back = replace(progress(30.0, 160.0, 2, after="resume", first_step=True), global_batch=10)
    assert lost(back) == {"repeats": pytest.approx(50 * 2 / 10)}
    assert lost(event(30.0, "epoch", samples_done=200.0, detail={"attempt": 2})) == {}, "nothing is repeated"
    saved = event(31.0, "checkpoint", overhead_seconds=0.25, detail={"attempt": 2})
    assert lost(saved) == {"checkpoints": 0.25 * 2}
    # And ``status`` shows it.
    result = log(START, FIRST)
    result.newest["a"] = report(300.0, loss=0.125, samples_per_second=100.0)
    shown = status_text(Status(result), 16.0).splitlines()[1]
    assert shown.split() == ["a", "running", "2/8", "30", "%", "in", "7", "s", "(at", "23", "s)"]
    for last in (progress(30.0, 8.0, 2), REQUEUE):
        known = of(START, FIRST, last)
        assert refined(known, report(300.0)) == known
    known = refined(of(START, FIRST, holds(15.0, "grow", 4)), report(300.0, samples_per_second=100.0))
    assert (known.samples_done, known.use.samples_per_second) == (300.0, None), "not at the speed of before"


def test_an_event_of_the_log_says_how_far_its_job_was(tmp_path: Path) -> None:
    result = log(START, FIRST)
    result.newest["a"] = report(300.0, loss=0.125)
    done = replace(holds(17.0, "finish", 0), samples_done=400.0)
    events = [holds(16.0, "shrink", 1), REQUEUE, done, FIRST]
    logged = [with_progress(each, result) for each in events]
    numbers = [(each.samples_done, each.loss) for each in logged]
    assert numbers == [(300, 0.125), (300, 0.125), (400, None), (8, 0.5)]
    assert logged[3] == FIRST
    with State(tmp_path / "state") as state:
        state.record([submit_event(job("a"), 10.0), START, FIRST])
        state.log.newest["a"] = report(300.0)
        state.record([REQUEUE])
        assert read_log(tmp_path / "state").jobs == state.log.jobs
        assert state.log.jobs["a"].retry.furthest == 300.0


def test_a_stop_of_a_job_that_cannot_save_says_what_it_loses(tmp_path: Path) -> None:
    """All that was held since the last change; nothing of a job that saves, or that has ended."""
    nodes = cluster(4)
    stops: list[Event] = []
    for name, more in (("a", {}), ("b", {"preemptible": True})):
        start = Event(0.0, "start", name, 2, (("n0", 2),))
        stops += [submit_event(job(name, gpus=2, **more), 0.0), start]  # type: ignore[arg-type]
    stops.append(Event(1800.0, "move", "a", 2, (("n0", 2),)))
    stops += [Event(3600.0, "preempt", each, 0, ()) for each in "ab"]
    stops += [Event(5400.0, "resume", "a", 2, (("n0", 2),)), Event(9000.0, "cancel", "a", 0, ())]
    schedule = Schedule(time=0.0, policy=PolicyUse(name="fifo"), cluster=nodes)
    with State(tmp_path / "state") as state:
        for each in (run_event(schedule, "hash", 0.0), *stops):
            state.record([each])
        found = [(each.event, each.detail) for each in read_events(state.dirs.events) if each.job == "a"]
        known = state.log
    lost = [(name, detail["lost_gpu_hours"]) for name, detail in found[1:] if detail]
    assert lost == [("move", 1.0), ("preempt", 1.0)]
    assert (known.jobs["a"].use.lost_gpu_s, known.jobs["b"].use.lost_gpu_s) == (7200.0, 0.0)
    assert known.counts.lost_gpu_seconds == {"stops": 7200.0}
    record = read_run(tmp_path / "state" / "events.jsonl")
    assert record.unsaved_gpu_s == 7200.0
    assert job_cost([*read_events(tmp_path / "state" / "events.jsonl")], "a", 9000.0).stopped_gpu_s == 7200.0


def test_a_failure_after_reported_progress_is_a_first_one() -> None:
    result = log(START, FIRST, REQUEUE, holds(21.0, "resume", 2))
    result.newest["a"] = report(300.0, attempt=2)
    (fell,) = report_events(AttemptEnded("a", 2, FELL), result, 22.0, 3)
    assert (fell.detail or {})["failures"] == 1
    result.add(with_progress(fell, result))
    assert (result.jobs["a"].retry.failures, result.jobs["a"].retry.furthest) == (1, 300.0)


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


def test_each_event_is_read_once_when_its_line_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    tail, successor = Tail(path), Tail(path, skip=3)
    assert samples(tail) == []
    with EventWriter(path) as writer:
        assert samples(tail) == []
        writer.append([progress(1.0, 1.0), Event(1, "finish", "b"), progress(2.0, 2.0)])
        assert samples(tail) == [1, 2], "workers cannot write the launcher's events"
        assert samples(successor) == []
        writer.append([progress(3.0, 3.0), progress(4.0, 4.0)])
        assert samples(tail) == [3, 4]
        assert samples(tail) == []
        assert samples(successor) == [4]
    path = tmp_path / "torn.jsonl"
    tail = Tail(path)
    with EventWriter(path) as writer:
        writer.append([progress(1.0, 1.0), progress(2.0, 2.0)])
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


def test_deaths_keep_a_job_from_a_slot_and_more_of_them_all_jobs() -> None:
    """One death for a while, each further one for twice as long; a third job's until an operator acts."""
    known = SlotFaults()
    for times in (1, 2, 4, 8):
        assert known.next_death("a", "n0/1") == QuarantineRule(FIRST_S * times, for_all=False)
        known.died("a", "n0/1")
    assert known.next_death("a", "n0/2") == QuarantineRule(FIRST_S, for_all=False)
    for _ in range(20):
        known.died("a", "n0/1")
    assert known.next_death("a", "n0/1").seconds == LONGEST_SUSPICION_S
    known = SlotFaults()
    known.died("a", "n0/1")
    assert known.next_death("b", "n0/1") == QuarantineRule(2 * FIRST_S, for_all=True)
    known = SlotFaults()
    known.died("a", "n0/1")
    known.died("b", "n0/1")
    assert not known.next_death("b", "n0/1").is_sick, "two jobs may both be at fault"
    assert known.next_death("c", "n0/1").is_sick


def test_a_job_that_fails_on_slot_after_slot_keeps_its_size() -> None:
    known, waits = SlotFaults(), []
    for slot in ("n0/1", "n0/2", "n0/3", "n0/1"):
        waits.append(known.wait_s("a", [slot]))
        known.died("a", slot)
    assert waits == [None, None, FIRST_S, 2 * FIRST_S]
    before = known.deaths_on("n0/1")
    known.grew_old("a", "n0/3")
    assert known.deaths_on("n0/3") == 0
    assert known.deaths_on("n0/1") == before > 0, "it failed there, and can grow: the slot stays suspect"
    assert known.wait_s("a", ["n0/3"]) is None
    known = SlotFaults()
    for slot in ("n0/1", "n0/2"):
        known.died("b", slot)
        known.died("a", slot)
    assert known.wait_s("a", ["n0/3"]) is None


def test_an_array_is_spent_once_too_many_of_its_jobs_have_failed() -> None:
    """Those of another array of that name, which was submitted at another time, do not count."""

    def array(at_s: float, most: int | None) -> list[Event]:
        jobs = [
            job(f"{at_s:.0f}-{index}", at=at_s).model_copy(
                update={"array": ArrayPlace(name="s", index=index, max_failures=most)}
            )
            for index in range(4)
        ]
        return [submit_event(each, at_s) for each in jobs]

    known = fold([*array(5.0, None), *array(9.0, 1)])
    for at_s, job_id in enumerate(("5-0", "5-1", "9-0"), 10):
        known.add(Event(float(at_s), "fail", job_id))
        assert jobs_of_spent_arrays(known) == {}
    known.add(Event(20.0, "fail", "9-2"))
    reason = "2 jobs of array s failed, 1 are allowed"
    assert jobs_of_spent_arrays(known) == {"9-1": reason, "9-3": reason}
