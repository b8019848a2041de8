from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pliant.schemas.event import Event, EventName
from pliant.schemas.file_io.events import event_lines, read_event
from pliant.schemas.io import profile_hash, profile_to_columns
from pliant.schemas.profile import ProfileRow
from pliant.schemas.schedule import PolicyUse, Schedule
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.run.service.allocation import Slot
from pliant.tools.run.service.members import Ending, Setback
from pliant.tools.run.service.reports import AttemptEnded, Hindered, Said, report_events
from pliant.tools.run.statedir.failures import FailureRecord
from pliant.tools.run.statedir.log.events import (
    decision_event,
    on_clock,
    release_event,
    run_event,
    submit_event,
)
from pliant.tools.run.statedir.log.fold import JobLog, RunLog, allocation_of, fold
from pliant.tools.run.watch.status import Status, closed_lines
from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.from_log import apply_events
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job


def event(time: float, name: EventName, **more: Any) -> Event:
    return Event(time, name, "a", **more)


def log(*events: Event) -> RunLog:
    return fold([submit_event(job("a"), 10.0, {"samples": 1000.0}), *events])


def of(*events: Event) -> JobLog:
    return log(*events).jobs["a"]


START = event(
    11.0, "start", gpus=2, placement=(("n0", 2),), global_batch=8, detail={"accum": 2, "lr_scale": 1.5}
)
CANCEL = event(12.0, "cancel", gpus=0, placement=())


def progress(time: float, samples: float, attempt: int = 1, **detail: Any) -> Event:
    return event(time, "progress", samples_done=samples, loss=0.5, detail={"attempt": attempt, **detail})


def test_a_job_waits_runs_and_waits_again() -> None:
    found = of()
    assert (found.phase, found.submitted_s, found.gpus, found.total_samples) == ("waiting", 10.0, 0, 1000.0)
    found.add(START)
    assert (found.phase, found.gpus, found.started_s) == ("running", 2, 11.0)
    assert (found.allocation.placement, found.allocation.cut) == ((("n0", 2),), (8, 2, 1.5))
    found.add(event(12.0, "preempt", gpus=0, placement=()))
    assert (found.phase, found.gpus, found.placement, found.ended) == ("preempted", 0, (), False)


def test_a_change_is_open_until_its_first_step_was_measured() -> None:
    assert of(START).change == ("start", 11.0)
    assert of(START, progress(12.0, 8.0)).change == ("start", 11.0)
    assert of(START, progress(12.0, 8.0, after="start")).change is None


def test_worker_events_are_counted_by_attempt_so_that_none_is_read_twice() -> None:
    found = of(START, progress(12.0, 8.0), progress(13.0, 16.0), progress(14.0, 24.0, attempt=2))
    assert found.seen == {1: 2, 2: 1}


def test_speed_is_measured_between_the_newest_two_reports_of_one_allocation() -> None:
    assert of(START, progress(12.0, 8.0), progress(14.0, 28.0)).samples_per_second == 10.0
    assert of(START, progress(12.0, 8.0)).samples_per_second is None
    grown = event(15.0, "grow", gpus=3, placement=(("n0", 3),))
    assert of(START, progress(12.0, 8.0), progress(14.0, 28.0), grown).samples_per_second is None


def failed(time: float, attempt: int) -> Event:
    return event(time, "requeue", gpus=0, placement=(), detail={"attempt": attempt, "reason": "exit code 1"})


def test_failures_without_progress_add_up() -> None:
    found = of(START, progress(12.0, 50.0), failed(13.0, 1), START, progress(14.0, 50.0, 2), failed(15.0, 2))
    assert (found.failures, found.failed_attempt, found.next_failure(16.0)) == (2, 2, FailureRecord(3, 3))


def test_an_attempt_that_is_over_without_having_failed_counts_for_nothing() -> None:
    over = {"over": 1, "reason": "its node was taken away"}
    found = of(START, progress(12.0, 50.0), event(13.0, "requeue", gpus=0, placement=(), detail=over))
    assert (found.phase, found.gpus, found.reason) == ("preempted", 0, "its node was taken away")
    assert (found.failures, found.failed_attempt, found.over_attempt, found.retry_s) == (0, 0, 1, None)
    assert found.displacements == 0, "older logs do not say how often it was so"
    assert of(START, failed(13.0, 2)).over_attempt == 2


def end(known: RunLog, verdict: Ending, time_s: float, attempt: int, retries: int = 3) -> Event:
    """An attempt ends; what the log says of it."""
    (told,) = report_events(AttemptEnded("a", attempt, verdict), known, time_s, retries)
    known.add(told)
    return told


DISPLACED = Ending("displaced", "its node was taken away")
FELL = Ending("failed", "it fell")


def test_a_job_whose_place_is_taken_away_in_each_attempt_has_failed_from_the_fourth_time_on() -> None:
    """A script that sends SIGTERM to all processes of its group, as it fails, looks like that."""
    known, told = log(), list[Event]()
    for attempt in range(1, 7):
        known.add(replace(START, time=1000.0 * attempt))
        told.append(end(known, DISPLACED, 1000.0 * attempt + 10.0, attempt, retries=2))
    details = [one.detail or {} for one in told]
    assert [detail.get("wait_seconds") for detail in details] == [1.0, 2.0, 4.0, 8.0, 16.0, None]
    assert [detail.get("failures", 0) for detail in details] == [0, 0, 0, 1, 2, 3]
    assert [one.event for one in told] == ["requeue"] * 5 + ["fail"]
    assert known.jobs["a"].reason.startswith("its node was taken away (or its script, which signals")
    assert known.jobs["a"].reason.endswith("6 times without progress")


def test_a_place_where_nothing_starts_counts_for_nothing_however_often() -> None:
    known, verdict = log(), Ending("displaced", "nothing starts on node n0", began=False)
    for attempt in range(1, 9):
        known.add(replace(START, time=100.0 * attempt))
        end(known, verdict, 100.0 * attempt + 30.0, attempt, retries=0)
    found = known.jobs["a"]
    assert (found.phase, found.failures, found.displacements, found.retry_s) == ("preempted", 0, 0, None)
    assert found.over_attempt == 8


@pytest.mark.parametrize("reports", [True, False], ids=["it gets on", "it says nothing for an hour"])
def test_a_job_that_gets_on_may_lose_its_place_as_often_as_it_likes(reports: bool) -> None:
    known = log()
    for attempt in range(1, 9):
        begin_s = 10000.0 * attempt
        end_s = begin_s + (10.0 if reports else 3600.0)
        known.add(replace(START, time=begin_s))
        if reports:
            known.add(progress(begin_s + 5.0, 100.0 * attempt, attempt))
        end(known, DISPLACED, end_s, attempt)
    found = known.jobs["a"]
    assert (found.failures, found.displacements, found.over_attempt) == (0, 1, 8)
    assert found.retry_s == end_s + 1.0, "it is not started at once"


def test_a_job_that_crashes_a_little_further_each_time_makes_no_progress() -> None:
    found = of(START, progress(12.0, 50.0), failed(13.0, 1), START, progress(14.0, 52.0, 2), failed(15.0, 2))
    assert found.failures == 2
    found.add(progress(16.0, 55.0, 3))
    assert found.next_failure(17.0) == FailureRecord(3, 3)
    found.add(progress(16.0, 61.0, 3))
    assert found.next_failure(17.0) == FailureRecord(1, 3), "together a hundredth of the work"


def test_a_job_that_trained_further_for_as_long_as_between_two_checkpoints_made_progress() -> None:
    resume = event(100.0, "resume", gpus=2, placement=(("n0", 2),))
    found = of(START, progress(12.0, 50.0), failed(13.0, 1), resume, progress(159.0, 51.0, 2))
    assert [found.next_failure(time_s).failures for time_s in (159.0, 160.0)] == [2, 1]


def test_retries_wait_longer_each_time_and_the_log_says_until_when() -> None:
    known, waits = log(START), []
    for attempt in (1, 2, 3):
        told = end(known, FELL, 20.0 * attempt, attempt)
        waits.append((told.detail or {})["wait_seconds"])
        job = known.jobs["a"]
        assert job.retry_s == 20.0 * attempt + waits[-1]
    assert waits == [1.0, 2.0, 4.0]
    assert (job.failures, job.retries) == (3, 3)
    last = end(known, FELL, 80.0, 4)
    assert (last.event, (last.detail or {})["reason"]) == ("fail", "it fell")


def test_a_job_that_fails_too_often_within_an_hour_is_given_up_however_far_it_gets() -> None:
    known, ends = log(START), list[str]()
    while "fail" not in ends:
        attempt = len(ends) + 1
        known.add(progress(20.0 * attempt, 50.0 * attempt, attempt))
        ends.append(end(known, FELL, 20.0 * attempt, attempt, retries=1).event)
    assert ends == ["requeue"] * 10 + ["fail"]
    assert known.jobs["a"].reason == "failed 11 times within an hour: it fell"


def test_a_job_that_went_back_to_its_checkpoint_is_where_it_is_and_has_made_no_progress() -> None:
    found = of(START, progress(12.0, 90.0), failed(13.0, 1), START, progress(14.0, 60.0, 2))
    assert (found.samples_done, found.next_failure(15.0).failures) == (60.0, 2)


def test_an_interruption_is_no_failure() -> None:
    found = of(
        START, event(12.0, "requeue", gpus=0, placement=(), detail={"reason": "interrupted by SIGINT"})
    )
    assert (found.phase, found.failures) == ("preempted", 0)


@pytest.mark.parametrize(
    ("name", "phase"),
    [("finish", "finished"), ("fail", "failed"), ("reject", "rejected"), ("cancel", "cancelled")],
)
def test_ended_jobs_are_active_no_more(name: EventName, phase: str) -> None:
    found = log(START, event(12.0, name, gpus=0, placement=()))
    assert (found.jobs["a"].phase, found.active) == (phase, {})
    late = AttemptEnded("a", 1, Ending("failed", "late"))
    assert report_events(late, found, 20.0, 3) == [], "reports about them leave no trace"


def test_a_clean_end_becomes_finish_a_stop_nothing_a_failure_requeue_or_fail() -> None:
    running = log(START)
    done = report_events(AttemptEnded("a", 1, Ending("done", "", 1000.0)), running, 20.0, 3)
    assert [(e.event, e.gpus, e.samples_done) for e in done] == [("finish", 0, 1000.0)]
    assert report_events(AttemptEnded("a", 1, Ending("stopped")), running, 20.0, 3) == []
    broke = AttemptEnded("a", 1, Ending("failed", "exit code 1"))
    assert [e.event for e in report_events(broke, running, 20.0, 1)] == ["requeue"]
    assert [e.event for e in report_events(broke, running, 20.0, 0)] == ["fail"]


def hindered(gpus: int, *slots: str) -> Hindered:
    left = allocation_of("a", (("n0", gpus),) if gpus else (), (8, 1, 1.0))
    return Hindered("a", 1, Setback(tuple(map(Slot.parse, slots)), "no memory"), left)


def test_a_job_that_could_not_grow_shrinks_in_the_log_and_does_not_get_the_slot_for_a_while() -> None:
    known = log(START)
    shrink, down = report_events(hindered(1, "n0/1"), known, 20.0, 3)
    assert shrink.detail is not None
    assert (shrink.event, shrink.gpus, shrink.placement) == ("shrink", 1, (("n0", 1),))
    assert shrink.detail == {
        "reason": "no memory; n0/1 is left out for 60 s",
        "accum": 1,
        "lr_scale": 1.0,
        "setback": True,
    }
    assert (down.event, down.job) == ("slot_down", "a")
    for each in (shrink, down):
        known.add(each)
    assert (known.jobs["a"].gpus, known.jobs["a"].reason) == (1, shrink.detail["reason"])
    (again,) = report_events(hindered(1, "n0/1"), known, 90.0, 3)
    assert (again.detail or {})["seconds"] == 120.0


def test_a_job_with_too_few_workers_left_waits_and_has_not_failed() -> None:
    known = log(START)
    requeue, *_ = report_events(hindered(0, "n0/0", "n0/1"), known, 20.0, 3)
    known.add(requeue)
    assert (requeue.event, known.jobs["a"].phase, known.jobs["a"].failures) == ("requeue", "preempted", 0)


def test_a_job_that_could_not_grow_on_three_slots_keeps_its_size() -> None:
    shrink, *_ = report_events(hindered(1, "n0/1", "n0/2", "n0/3"), log(START), 20.0, 3)
    assert (shrink.detail or {})["wait_seconds"] == 60.0


def test_the_first_step_after_a_change_carries_what_the_change_cost() -> None:
    said = Said("a", 1, (progress(15.0, 8.0), progress(16.0, 16.0)), settled=True)
    first, second = report_events(said, log(START), 20.0, 3)
    assert (first.overhead_seconds, first.detail) == (4.0, {"attempt": 1, "after": "start"})
    assert (second.overhead_seconds, second.detail) == (None, {"attempt": 1})


def test_a_measured_speed_belongs_to_what_the_job_holds_and_to_nothing_before() -> None:
    """The first report is of the step that ends the change; one of three workers is old."""
    reports = [progress(14.0 + number, 8.0 * number, step_seconds=0.5) for number in range(3)]
    first, second, third = (
        replace(report, gpus=gpus) for report, gpus in zip(reports, (2, 2, 3), strict=True)
    )
    told = report_events(Said("a", 1, (first, second, third), settled=True), log(START), 20.0, 3)
    seen = {"placement": [2], "local_batch": 2, "accum": 2, "step_seconds": 0.5}
    assert [(event.detail or {}).get("observed") for event in told] == [None, seen, None]
    leaving = report_events(Said("a", 1, (second,), settled=False), log(START), 20.0, 3)
    assert "observed" not in (leaving[0].detail or {})


def test_a_gang_on_its_way_out_measures_nothing_and_says_nothing_about_gpus() -> None:
    saved = event(15.0, "checkpoint", gpus=2, samples_done=8.0, overhead_seconds=0.3)
    (found,) = report_events(Said("a", 1, (saved,), settled=False), log(START), 20.0, 3)
    assert (found.overhead_seconds, found.gpus, found.samples_done) == (None, None, 8.0)
    (found,) = report_events(Said("a", 1, (saved,), settled=True), log(START), 20.0, 3)
    assert found.overhead_seconds == 0.3


def test_the_log_is_utc_and_reads_back_on_the_clock_of_the_schedule() -> None:
    submitted = submit_event(job("a", at=5.0), 1005.0)
    assert (submitted.detail or {})["job"]["submit_time"] == 1005.0
    (back, started) = on_clock([submitted, Event(1010.0, "start", "a", gpus=1)], 1000.0)
    assert (back.time, (back.detail or {})["job"]["submit_time"], started.time) == (5.0, 5.0, 10.0)


def test_the_first_decision_names_the_run_and_later_ones_tell_the_clock() -> None:
    schedule = Schedule(time=0.0, policy=PolicyUse(name="fifo", seed=3), cluster=cluster(2))
    found = fold([run_event(schedule, "hash", 5.0), decision_event(6.0, 4.5, "fifo", 0.01)])
    assert found.info is not None
    assert (found.info.policy, found.info.seed, found.info.simulated) == ("fifo", 3, False)
    assert (found.origin_s, found.last_s) == (4.5, 6.0)


def test_a_worker_with_a_wrong_clock_moves_no_time_of_the_log() -> None:
    """Its events happened between the last look and now, whatever its machine says."""

    def told(time_s: float, since_s: float = 0.0) -> float:
        said = Said("a", 1, (Event(time_s, "checkpoint", "a"),), settled=True)
        (event,) = report_events(said, log(START), 20.0, 3, since_s)
        return event.time

    assert told(3600.0) == 20.0
    assert told(19.5, since_s=19.0) == 19.5
    assert told(1.0, since_s=19.0) == 19.0
    assert told(1.0) == START.time


@pytest.mark.parametrize(
    ("events", "left"),
    [
        ([START, CANCEL], ["a"]),
        ([START, CANCEL, release_event("a", 13.0)], []),
        ([CANCEL], []),  # it was never started
        ([START, event(12.0, "fail", gpus=0, detail={"reason": "internal error"})], ["a"]),
        ([START, event(12.0, "fail", gpus=0, detail={"attempt": 1, "reason": "exit code 1"})], []),
    ],
)
def test_something_may_be_left_of_a_job_that_is_broken_off_until_its_release(
    events: list[Event], left: list[str]
) -> None:
    assert list(log(*events).may_be_there()) == left
    assert of(*events, release_event("a", 14.0)) == of(*events), "a release changes nothing else"


def test_the_first_event_is_small_however_large_the_profile_is() -> None:
    rows = [
        ProfileRow(
            *("train", f"model-{number}", "gpu", 1, 1, "1", 8, 1),
            step_seconds=1.0, iterations=9, feasible=True, source="measured",
        )
        for number in range(2000)
    ]  # fmt: skip
    columns = profile_to_columns(rows)
    found = decide([job("a")], cluster(2), None, Question("fifo")).model_copy(update={"profile": columns})
    first = run_event(found, "0" * 64, 0.0)
    assert (first.detail or {})["profile_hash"] == profile_hash(columns)
    assert len(event_lines([first])) < 2000


def test_a_log_can_hold_that_a_slot_is_bad_for_all_jobs() -> None:
    """The workers of a second job died on it: the event is of no job."""
    found = log(START)
    found.suspects.died("b", "n0/1")
    events = report_events(hindered(1, "n0/1"), found, 20.0, 3)
    assert [(each.event, each.job) for each in events] == [("shrink", "a"), ("slot_down", None)]
    lines = event_lines(events).splitlines()
    assert [read_event(line).event for line in lines] == ["shrink", "slot_down"]


def test_a_slot_on_which_workers_of_three_jobs_died_gets_no_job_until_its_node_is_resumed() -> None:
    found = log(START)
    for other in "bc":
        found.suspects.died(other, "n0/1")
    events = report_events(hindered(1, "n0/1"), found, 20.0, 3)
    assert (events[0].detail or {})["reason"] == "no memory; n0/1 is left out until pliant resume n0"
    session = Session(Fifo(), cluster(2), CurveThroughput())
    for each in events:
        found.add(each)
    apply_events(session, [events[1]])
    later_s = 20.0 + 365 * 86400
    (left,) = found.out_of_service(later_s).values()
    assert left.reason == "new workers of 3 jobs died there, last of a: no memory"
    session.advance(later_s)
    assert session.up_gpus == 1
    resumed = Event(later_s, "undrain", detail={"node": "n0", "user": "ada", "order": 1})
    found.add(resumed)
    apply_events(session, [resumed])
    assert (found.out_of_service(later_s), session.up_gpus) == ({}, 2)
    assert not found.suspects.deaths_on("n0/1")
    line = closed_lines(Status(fold(events)), 30.0)
    assert line == [f"slot n0/1 gets no job until pliant resume n0: {left.reason}"]


@pytest.mark.parametrize("why", ["it shares", "another job comes"])
def test_a_slot_that_another_job_has_is_withheld_from_this_one_alone(why: str) -> None:
    found = log(START)
    found.suspects.died("b", "n0/1")
    report = hindered(0, "n0/1")
    if why == "it shares":
        found.jobs["a"].beside = "b"
    else:
        report = replace(report, held=frozenset({Slot("n0", 1)}))
    events = report_events(report, found, 20.0, 3)
    assert [(each.event, each.job) for each in events] == [("requeue", "a"), ("slot_down", "a")]


def test_two_jobs_on_the_same_gpus_are_beside_each_other_until_one_leaves() -> None:
    jobs = [submit_event(job(name), 10.0, {"samples": 1000.0}) for name in "ab"]
    place = (("n0", 2),)
    starts = [
        Event(11.0, "start", "a", gpus=2, placement=place),
        Event(12.0, "start", "b", gpus=2, placement=place, detail={"beside": "a"}),
    ]
    found = fold([*jobs, *starts]).jobs
    assert (found["a"].beside, found["b"].beside) == ("b", "a")
    found = fold([*jobs, *starts, Event(13.0, "finish", "a", gpus=0)]).jobs
    assert (found["a"].beside, found["b"].beside) == (None, None)


@pytest.mark.parametrize(
    ("name", "gpus", "said", "why"),
    [
        ("requeue", 0, {"reason": "node n0 is down"}, "node n0 is down"),
        ("shrink", 1, {"reason": "new workers died", "setback": True}, "new workers died"),
        ("move", 2, {"reason": "a slow worker", "straggled": "n0/1"}, "a slow worker"),
        ("shrink", 1, {"reason": "the policy says so"}, ""),
        ("preempt", 0, {"reason": "the policy says so"}, ""),
    ],
)
def test_what_a_job_lost_gpus_for_stays_in_sight_until_the_policy_changes_them(
    name: EventName, gpus: int, said: dict[str, Any], why: str
) -> None:
    found = of(START, event(12.0, name, gpus=gpus, placement=(("n1", gpus),) if gpus else (), detail=said))
    assert (found.trouble, found.reason, found.straggled) == (why, said["reason"], said.get("straggled", ""))
    found.add(event(13.0, "priority", detail={"priority": 2.0, "reason": "an order"}))
    found.add(event(13.0, "hold", detail={"user": "ada", "uid": 7}))
    found.add(progress(14.0, 8.0, reason="what a script says"))
    assert (found.trouble, found.reason, found.held_by) == (why, said["reason"], 7)
    found.add(event(15.0, "unhold", detail={"user": "ada"}))
    assert (found.held, found.held_by, found.job.priority) == (None, None, 2.0)
    found.add(event(16.0, "grow", gpus=3, placement=(("n0", 3),), detail={"reason": "free GPUs"}))
    assert (found.trouble, found.reason) == ("", "free GPUs")
    assert found.straggled == said.get("straggled", ""), "it leaves such a slot once in its life"


def test_the_totals_count_each_kind_of_event_and_no_other() -> None:
    """The failures of jobs whose attempt failed; no orders, and nothing that a workers' event says."""
    place, gone = (("n0", 2),), {"gpus": 0, "placement": ()}
    events = [
        START,
        *(event(12.0, name, gpus=2, placement=place) for name in ("grow", "shrink", "shrink", "move")),
        event(13.0, "preempt", **gone, detail={"reason": "the policy", "attempt": 1}),
        event(14.0, "resume", gpus=2, placement=place),
        event(15.0, "requeue", **gone, detail={"reason": "interrupted"}),
        event(16.0, "resume", gpus=2, placement=place),
        failed(17.0, 3),
        event(18.0, "hold", detail={"user": "ada"}),
        progress(19.0, 8.0),
        event(20.0, "fail", **gone, detail={"attempt": 4, "reason": "it fell"}),
        decision_event(21.0, 0.0, "fifo", 0.5, error="no answer"),
    ]
    schedule = Schedule(time=0.0, policy=PolicyUse(name="fifo"), cluster=cluster(2))
    first = [run_event(schedule, "hash", 5.0), submit_event(job("a"), 10.0, {"samples": 1000.0})]
    counts = fold([*first, *events]).counts
    assert (counts.submitted, counts.starts, counts.rescales, counts.preemptions) == (1, 3, 4, 1)
    assert (counts.failures, counts.decisions, counts.policy_errors) == (2, 1, 1)


def test_a_job_that_ends_twice_is_counted_by_its_last_end_alone() -> None:
    """It failed while it was cancelled: what was left of it did something else."""
    broken = event(13.0, "fail", gpus=0, placement=(), detail={"attempt": 1, "reason": "it fell"})
    found = log(START, CANCEL, broken)
    assert {phase: count for phase, count in found.ends.items() if count} == {"failed": 1}
    assert (found.jobs["a"].phase, found.active) == ("failed", {})


def test_work_is_repeated_from_where_a_first_step_began_at_the_speed_that_was_measured() -> None:
    """100 samples in 10 s on two GPUs; it goes back from 200 to 150, and the step did 10 of them."""
    again = {"attempt": 2, "after": "resume", "first_step": True}
    events = [START, progress(12.0, 100.0), progress(22.0, 200.0), failed(23.0, 1)]
    back = event(30.0, "progress", samples_done=160.0, global_batch=10, detail=again)
    resume = event(24.0, "resume", gpus=2, placement=(("n0", 2),))
    assert log(*events, resume, back).counts.lost_gpu_seconds == {"repeats": pytest.approx(50 * 2 / 10)}
    later = event(30.0, "epoch", samples_done=200.0, detail={"attempt": 2})
    assert log(*events, resume, later).counts.lost_gpu_seconds == {}, "nothing is repeated"
    saved = event(31.0, "checkpoint", overhead_seconds=0.25, detail={"attempt": 2})
    assert log(*events, resume, saved).counts.lost_gpu_seconds == {"checkpoints": 0.25 * 2}


def test_only_progress_measures_the_speed() -> None:
    found = of(
        START, progress(12.0, 100.0), event(14.0, "checkpoint", samples_done=110.0), progress(22.0, 200.0)
    )
    assert found.samples_per_second == 10.0
