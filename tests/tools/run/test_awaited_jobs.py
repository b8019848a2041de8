"""Jobs that start after others, and arrays, in real runs: a service, one that is restarted, and cron."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.schemas.io import write_schedule
from pliant.schemas.job import Awaited
from pliant.tools.run.service.run import run_and_follow, run_once
from pliant.tools.run.service.submit import cancel, order_jobs, submit
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.watch.status import decide_between_runs
from pliant.tools.schedule.decide import Question
from tests.tools.run.scripts import EXIT
from tests.tools.run.site import Site, in_order
from tests.tools.run.test_follow import begin, go_on, nothing, phase, story
from tests.tools.run.test_orders import state_of

pytestmark = pytest.mark.usefixtures("plain_python")


def ask_for(site: Site, *given: tuple[str, dict[str, object]]) -> None:
    jobs = [site.job(job_id, **{"samples": 20, **more}) for job_id, more in given]  # type: ignore[arg-type]
    submit(site.state, jobs, "jobs", folder=site.folder, now_s=0.0)


def after(**jobs: Awaited) -> dict[str, object]:
    return {"after": dict(jobs)}


def test_a_job_starts_after_another_has_ended_though_the_service_was_restarted_between(site: Site) -> None:
    seen: list[tuple[str, str]] = []
    begun = begin(site, "fifo")
    ask_for(site, ("a", {"samples": 1e6}), ("b", after(a="any")), ("c", {}))
    run_and_follow(begun, story((phase("c", "finished"), lambda: seen.append(state_of(site, "b")))))
    assert seen == [("waiting", "waits for job a to end")]
    run_and_follow(
        go_on(site),
        story((nothing, lambda: cancel(site.state, ["a"])), (phase("b", "finished"), lambda: None)),
    )
    assert in_order(["start a 1", "finish c 0", "cancel a 0", "start b 1"], site.story())


def test_jobs_after_one_that_failed_are_cancelled_and_the_log_says_why(site: Site) -> None:
    options = begin(site, "fifo", retries=0)
    ask_for(site, ("a", {"text": EXIT}), ("b", after(a="ok")), ("c", after(b="ok")), ("d", after(a="any")))
    run_and_follow(options, story((phase("d", "finished"), lambda: None)))
    ended = {job_id: (job.phase, job.reason) for job_id, job in site.log().jobs.items()}
    assert ended["b"] == ("cancelled", "was to start after job a, which failed")
    assert ended["c"] == ("cancelled", "was to start after job b, which was cancelled")
    assert state_of(site, "b") == ended["b"]


def test_calls_from_cron_start_a_job_after_another_and_cancel_one_that_waited_in_vain(site: Site) -> None:
    def turn() -> RunLog:
        found = decide_between_runs(str(site.state), Question("fifo"))
        write_schedule(found, site.folder / "next.json")
        return run_once(replace(site.options(None, retries=0), schedule=str(site.folder / "next.json")))[0]

    site.job("z", samples=20)
    run_once(site.options("fifo"))
    ask_for(site, ("a", {"text": EXIT}), ("b", after(a="ok")), ("c", after(a="any")))
    while not site.log().jobs.get("c") or site.log().jobs["c"].phase != "finished":
        turn()
    assert in_order(["submit b", "fail a 0", "cancel b 0", "start c 1", "finish c 0"], site.story())


def test_no_more_jobs_of_an_array_run_at_a_time_than_it_says_and_each_knows_its_number(site: Site) -> None:
    text = "import os; open('said-' + os.environ['PLIANT_ARRAY_INDEX'], 'w').close()"
    place = {"name": "s", "limit": 1}
    options = begin(site, "fifo")
    ask_for(site, *((f"s-{n}", {"text": text, "array": {**place, "index": n}}) for n in (3, 4)))
    steps = ((phase(job_id, "finished"), lambda: None) for job_id in ("s-3", "s-4"))
    run_and_follow(options, story(*steps))
    holding: set[str | None] = set()
    for event in site.events():
        if event.gpus is not None:
            (holding.add if event.gpus else holding.discard)(event.job)
        assert len(holding) < 2
    assert sorted(path.name for path in site.folder.glob("said-*")) == ["said-3", "said-4"]


def test_a_job_that_is_submitted_on_hold_waits_until_it_is_released(site: Site) -> None:
    seen: list[tuple[str, str]] = []

    def release() -> None:
        seen.append(state_of(site, "a"))
        order_jobs(site.state, "release", ["a"])

    options = begin(site, "fifo")
    ask_for(site, ("a", {"hold": True, "user": "ann"}), ("b", {}))
    run_and_follow(options, story((phase("b", "finished"), release), (phase("a", "finished"), lambda: None)))
    ((state, why),) = seen
    assert (state, why.partition(" since")[0]) == ("held", "held by ann")


def test_before_the_first_run_a_job_that_is_cancelled_takes_those_after_it_along(site: Site) -> None:
    ask_for(site, ("a", {}), ("b", after(a="ok")), ("c", after(b="ok")), ("d", after(a="any")))
    cancel(site.state, ["a"])
    left = [job for request in Spool(StateDir(site.state)).requests() for job in request.jobs]
    assert [(job.id, job.after) for job in left] == [("d", {})]
