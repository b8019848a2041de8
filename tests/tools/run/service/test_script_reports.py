"""What a script's one small file becomes in the log."""

from __future__ import annotations

from typing import Any

import pytest

from pliant.tools.run import progress as helper
from pliant.tools.run.statedir.contract import plan as contract
from pliant.tools.run.statedir.contract.plan import Member, Plan, Progress
from pliant.tools.run.statedir.log.worker_reports import ScriptReports


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


def test_the_first_step_is_told_at_its_own_time_and_saves_and_speed_once_in_a_while() -> None:
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


@pytest.mark.parametrize(
    ("before", "last", "left"),
    [
        (None, report(9, saved=8), 8),
        (None, report(8, saved=8), None),
        (None, report(9), None),  # where this attempt began is not known
        (report(4, attempt=1), report(9), 4),
    ],
)
def test_work_beyond_the_last_acknowledged_save_is_lost(
    before: Progress | None, last: Progress, left: int | None
) -> None:
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


def test_a_launcher_that_takes_over_repeats_nothing() -> None:
    reports = ScriptReports(plan(), started=True, before=None)
    found = history(
        reports, (1.0, report(9, saved=8, step_seconds=0.2)), (2.0, report(12, saved=8, step_seconds=0.2))
    )
    assert found == []
    assert reports.rewound() is not None


def test_the_helper_of_scripts_and_the_launcher_have_the_same_variables() -> None:
    for name in ("ENV_PROGRESS", "ENV_STOP", "ENV_BATCH"):
        assert getattr(helper, name) == getattr(contract, name)
