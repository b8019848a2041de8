"""What the log and the policy get of what workers report, by the records alone."""

from __future__ import annotations

from typing import Any

import pytest

from pliant.schemas.event import Event, EventName
from pliant.schemas.job import Job
from pliant.tools.run import progress as helper
from pliant.tools.run.service.allocation import Assignment, Slot
from pliant.tools.run.service.members import WorkerFailure
from pliant.tools.run.service.reports import (
    Displaced,
    Idled,
    Lost,
    MovedOff,
    NewProgress,
    StartFailed,
    WorkerEvents,
    change_event,
    progress_event,
    report_events,
)
from pliant.tools.run.statedir.contract import plan as contract
from pliant.tools.run.statedir.contract.plan import Member, Plan, Progress
from pliant.tools.run.statedir.log.events import submit_event
from pliant.tools.run.statedir.log.fold import RunLog, allocation_of, fold
from pliant.tools.run.statedir.log.worker_reports import ScriptReports
from tests.builders import job

N0 = (("n0", 2),)
STEP: dict[str, Any] = {"attempt": 1, "after": "start"}


def running(spec: Job | None = None, *, measured: bool = True) -> RunLog:
    """A job of 1 to 4 GPUs that trains on two since 11 s; ``measured``: its first step is known."""
    start = Event(11.0, "start", "a", gpus=2, placement=N0, global_batch=8, detail={"accum": 2})
    first = Event(12.0, "progress", "a", samples_done=8.0, detail=STEP)
    found = [submit_event(spec or job("a", low=1, high=4, gpus=2), 10.0), start]
    return fold([*found, *([first] if measured else [])])


def log_of(log: RunLog, name: EventName, *, settled: bool = True, **detail: Any) -> list[Event]:
    event = Event(15.0, name, "a", gpus=2, samples_done=16.0, overhead_seconds=3.0, detail=detail)
    return report_events(WorkerEvents("a", 1, (event,), settled), log, 20.0, 3)


@pytest.mark.parametrize("attempt", [9, "9", None])
@pytest.mark.parametrize("name", ["progress", "epoch", "checkpoint"])
def test_workers_say_nothing_that_only_the_service_can_know(name: EventName, attempt: object) -> None:
    """A script writes the file that their events are read from."""
    forged = {
        "attempt": attempt,
        "observed": {"placement": [8], "local_batch": 1, "accum": 1, "step_seconds": 0.001},
        "lost_workers": ["n0/0"],
        "idle": 0.1,
        "straggler": {"slot": "n0/0", "times": 9.0},
        "after": "grow",
    }
    for settled in (True, False):
        (found,) = log_of(running(measured=False), name, settled=settled, **forged, step=7)
        is_first = settled and name == "progress"
        assert found.detail == {"step": 7, "attempt": 1, **({"after": "start"} if is_first else {})}
        log = running(measured=False)
        log.add(found)
        job = log.jobs["a"]
        assert (job.attempt.change is None, job.use.idle, job.use.stragglers) == (is_first, None, {})


@pytest.mark.parametrize(("said", "is_kept"), [(5.0, True), (0.0, False), (-1.0, False), ("much", False)])
def test_a_noise_scale_is_a_positive_number(said: object, is_kept: bool) -> None:
    (found,) = log_of(running(), "progress", noise_scale=said)
    assert ("noise_scale" in (found.detail or {})) == is_kept


def test_the_cost_of_a_checkpoint_counts_while_training_alone() -> None:
    def costs(name: EventName, **more: Any) -> list[float | None]:
        return [each.overhead_seconds for each in log_of(running(), name, **more)]

    assert (costs("checkpoint"), costs("epoch")) == ([3.0], [None])
    assert costs("checkpoint", settled=False) == [None]
    assert costs("checkpoint", settled=False, count=2) == [3.0]


def learned(log: RunLog, *, settled: bool = True, **measured: Any) -> dict[str, Any]:
    fields = {"job": "a", "attempt": 1, "generation": 1, "step": 3, "samples_done": 24.0, "global_batch": 8}
    own = {"schema": "pliant.progress/1", "gpus": 2, "epoch": 0, "rank": 0, **fields, **measured}
    found = progress_event(NewProgress("a", Progress.model_validate(own), settled), log.jobs["a"], 9.0)
    assert (found.time, found.event, found.job, found.samples_done) == (9.0, "progress", "a", 24.0)
    return found.detail or {}


def test_the_policy_learns_a_speed_of_what_the_job_holds() -> None:
    seen = {"placement": [2], "local_batch": 2, "accum": 2, "step_seconds": 0.5}
    assert learned(running(), step_seconds=0.5) == {"observed": seen}
    assert learned(running(), step_seconds=0.5, noise_scale=7.0) == {"observed": seen, "noise_scale": 7.0}
    assert learned(running()) == {}
    assert learned(running(), settled=False, step_seconds=0.5) == {}, "under the plan before"
    assert learned(running(), gpus=3, step_seconds=0.5) == {}, "of another size"
    assert learned(running(measured=False), step_seconds=0.5) == {}, "its last change is not over"


def left(gpus: int) -> Any:
    return allocation_of("a", (("n0", gpus),) if gpus else (), (8, 2, 1.5))


SLOT = WorkerFailure((Slot("n0", 1),), "no memory")


@pytest.mark.parametrize(
    ("report", "name", "gpus"),
    [
        (Displaced("a", "gone", left(1)), "shrink", 1),
        (Displaced("a", "gone", left(0)), "requeue", 0),
        (Idled("a", "idle", left(1), 60.0), "shrink", 1),
        (MovedOff("a", "n0/1", "slow", left(2)), "move", 2),
        (Lost("a", 1, (Slot("n0", 1),), "fell"), "progress", 2),
    ],
)
def test_the_log_says_what_a_job_holds_after_a_report(report: Any, name: str, gpus: int) -> None:
    log = running()
    first, *others = report_events(report, log, 20.0, 3)
    assert (first.event, {each.event for each in others} - {"slot_down"}) == (name, set())
    for each in (first, *others):
        log.add(each)
    found = log.jobs["a"]
    assert (found.gpus, found.placement) == (gpus, (("n0", gpus),) if gpus else ())
    assert (found.samples_done, found.phase) == (8.0, "running" if gpus else "preempted")
    if name in ("shrink", "move"):
        assert (found.global_batch, found.attempt.accum, found.attempt.lr_scale) == (8, 2, 1.5)


def test_what_a_job_cannot_train_on_or_never_held_is_not_logged() -> None:
    (waits, *_) = report_events(
        Displaced("a", "gone", left(1)), running(job("a", low=2, high=4, gpus=2)), 20.0, 3
    )
    assert (waits.event, waits.gpus, waits.placement) == ("requeue", 0, ())
    (down,) = report_events(StartFailed("a", 1, SLOT, left(2)), running(), 20.0, 3)
    assert (down.event, down.job) == ("slot_down", "a"), "the policy had taken the slot from it meanwhile"
    log = running()
    log.add(Event(19.0, "cancel", "a", gpus=0, placement=()))
    for job_id in ("a", "z"):  # ended, and never there
        assert report_events(Lost(job_id, 1, (), "fell"), log, 20.0, 3) == []


def test_what_a_job_gives_up_is_logged_as_nothing_held() -> None:
    spec = job("a", low=1, high=4, gpus=2)
    before = Assignment.of(spec, (Slot("n0", 0), Slot("n0", 1)), (8, 2, 1.5))
    log = running()
    gone = change_event("a", before, None, log, 20.0, reason="the policy says so")
    assert (gone.event, gone.gpus, gone.placement, gone.detail) == (
        *("preempt", 0, ()),
        {"reason": "the policy says so"},
    )
    log.add(gone)
    log.add(change_event("a", None, before, log, 20.0))
    assert log.jobs["a"].allocation == before.allocation


# What a script's one small file becomes in the log.


def plan(workers: int = 2) -> Plan:
    members = tuple(Member(slot=f"n0/{i}", node="n0", address="127.0.0.1") for i in range(workers))
    return Plan(job="a", generation=1, attempt=2, members=members)


def report(step: int, saved: int | None = None, **more: Any) -> Progress:
    fields = {"job": "a", "attempt": 2, "generation": 1, "gpus": 2, "global_batch": 8, "epoch": 0, "rank": 0}
    checkpoint = {"step": saved, "samples_done": 8.0 * (saved or 0), "seconds": 0.5, "age_s": 0.0}
    own = {"step": step, "samples_done": 8.0 * step, "checkpoint": checkpoint if saved is not None else None}
    return Progress.model_validate({"schema": "pliant.progress/1", **fields, **own, **more})


def history(reports: ScriptReports, *found: tuple[float, Progress]) -> list[tuple[str, float, Any]]:
    """(name, time, detail) of the events of reports that were written at these times."""
    return [
        (event.event, event.time, event.detail)
        for at_s, each in found
        for event in reports.events(each, at_s)
    ]


def test_saves_and_speed_are_logged_once_in_a_while() -> None:
    reports = ScriptReports(plan(), started=False, before=None)
    found = history(
        reports,
        (100.0, report(3, since_first_step_s=2.0)),
        (101.0, report(9, saved=8, step_seconds=0.2)),
        (102.0, report(14, saved=12, step_seconds=0.2)),
        (403.0, report(90, saved=88, step_seconds=0.2, epoch=1)),
    )
    assert found == [
        ("progress", 98.0, {"first_step": True, "generation": 1, "workers": 2}),
        ("progress", 101.0, {"step_seconds": 0.2}),
        ("checkpoint", 101.0, {"step": 8, "count": 1}),
        ("progress", 403.0, {"step_seconds": 0.2}),
        ("epoch", 403.0, {"epoch": 0}),
        ("checkpoint", 403.0, {"step": 88, "count": 2}),
    ]


def test_a_launcher_that_takes_over_repeats_nothing() -> None:
    reports = ScriptReports(plan(), started=True, before=None)
    saved = [report(step, saved=8, step_seconds=0.2) for step in (9, 12)]
    assert history(reports, (1.0, saved[0]), (2.0, saved[1])) == []
    assert reports.rewound() is not None


@pytest.mark.parametrize(
    ("before", "last", "left"),
    [
        (None, report(9, saved=8), 8),
        (None, report(8, saved=8), None),
        (None, report(9), None),  # where this attempt began is not known
        (report(4, attempt=1), report(9), 4),
    ],
)
def test_work_beyond_the_last_known_save_is_lost(before: Progress | None, last: Progress, left: int | None):
    reports = ScriptReports(plan(), started=False, before=before)
    reports.events(last, 1.0)
    found = reports.rewound()
    assert (None if found is None else (found.step, found.samples_done)) == (left and (left, 8.0 * left))
    if found is not None:
        lost = reports.loss(found, 2.0)
        assert (lost.samples_done, lost.detail) == (
            8.0 * found.step,
            {"step": left, "lost_samples": 8.0 * (9 - found.step)},
        )


def test_several_trainings_in_one_job_are_warned_of_once() -> None:
    """Lightning with one device in a job of two GPUs: each worker is rank 0 of a training of its own."""
    reports = ScriptReports(plan(), started=True, before=None)
    history(reports, (0.0, report(1, gpus=1)))
    found = history(reports, (1.0, report(1, gpus=1, rank=1)), (2.0, report(2, gpus=1, rank=1)))
    (said,) = (detail["warning"] for _, _, detail in found if "warning" in detail)
    assert said.startswith("several of its 2 workers train for themselves, each a whole training")
    alone = ScriptReports(plan(1), started=False, before=None)
    assert not [detail for _, _, detail in history(alone, (0.0, report(1, gpus=1))) if "warning" in detail]


def test_scripts_and_launcher_have_the_same_variables() -> None:
    for name in ("ENV_PROGRESS", "ENV_STOP", "ENV_BATCH"):
        assert getattr(helper, name) == getattr(contract, name)
