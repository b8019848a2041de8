"""OASiS over real jobs: admission on arrival, slots of a second, and what status and log say of them."""

from __future__ import annotations

import pytest

from pliant.schemas.event import Event
from pliant.schemas.io import read_schedule
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.run import run_and_follow
from pliant.tools.run.service.submit import cancel
from pliant.tools.schedule.decide import Question
from tests.tools.run.site import QUICK, Site
from tests.tools.run.test_follow import ask, nobody_is_left, nothing, phase, story, trains

pytestmark = pytest.mark.usefixtures("plain_python")
IN_TIME = {"shape": "sigmoid", "value": 9.0, "decay": 0.01, "target": 60.0}


def begin(site: Site) -> RunOptions:
    question = Question("oasis", {"slot_seconds": 1.0})
    return RunOptions(
        site.state, question=question, cluster=str(site.folder / "cluster.json"), timeouts=QUICK
    )


def said_of(events: tuple[Event, ...], job_id: str) -> dict[str, object]:
    """What the log says last of the admission of a job."""
    found: dict[str, object] = {}
    for event in events:
        detail = event.detail or {}
        if event.event == "decision":
            found = detail.get("admissions", {}).get(job_id, found)
        elif event.job == job_id:
            found = detail.get("admission", found)
    return found


def test_a_job_is_admitted_runs_in_its_slots_and_one_that_cannot_end_is_rejected(site: Site) -> None:
    plans: list[str] = []

    def note() -> None:
        found = read_schedule(site.state / "schedule.json")
        plans.extend(given.reason for given in found.allocations if given.job == "long")
        ask(site, "late", samples=1e5, high=2, utility=IN_TIME)

    run_and_follow(
        begin(site),
        story(
            (nothing, lambda: ask(site, "a", samples=20, high=2, utility=IN_TIME)),
            (phase("a", "finished"), lambda: ask(site, "long", samples=1e6, high=2)),
            (trains("long"), note),
            (phase("late", "rejected"), lambda: cancel(site.state, ["long"])),
            (nobody_is_left(site), lambda: None),
        ),
    )
    assert site.of("a")[0] == "submit a"
    assert site.of("a")[-1] == "finish a 0"
    said = said_of(site.events(), "a")
    assert said["admitted"] is True
    assert float(str(said["payoff"])) > 0
    assert said_of(site.events(), "late") == {"admitted": False}
    assert [event.detail for event in site.events() if event.event == "reject"] == [
        {"reason": "does not end within the 100 slots of 1 s ahead", "admission": {"admitted": False}}
    ]
    assert plans
    assert all("worker" in plan and "ends within" in plan for plan in plans), plans
