"""What finished jobs say about the work of others: small cases by hand, and what a scheduler may not know."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.job import Job
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.run import Run, replay
from pliant.tools.schedule.finished_work import FinishedWork, WorkDone
from pliant.tools.schedule.jobs import JobState
from tests.builders import FREE_CHANGES, cluster, curves, job

AMOUNTS = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=8)


def at(done: float, *, gpu_s: float = 1.0, name: str = "a", **fields: object) -> WorkDone:
    return WorkDone(JobState(job(name, **fields), 960, None), done, gpu_s)  # type: ignore[arg-type]


def knowing(*ended: WorkDone) -> FinishedWork:
    found = FinishedWork()
    for each in ended:
        found.learn(each)
    return found


@pytest.mark.parametrize("done", [0.0, 60.0, 6e5])
def test_of_an_unknown_job_the_first_stretch_counts(done: float):
    """It is a quarter of what it has had and 60 GPU-seconds, and ends the job with 1 - 1.25 ** -2 = 0.36."""
    assert FinishedWork().left(at(done)) == pytest.approx((done + 60) * 0.25 / 0.36)


def test_a_job_is_taken_to_be_as_long_as_those_of_its_model_were() -> None:
    known = knowing(*[at(1e6)] * 8)
    assert known.left(at(1e5)) == pytest.approx(9e5, rel=0.02)
    assert known.left(at(9e5)) == pytest.approx(1e5, rel=0.02)
    # Half end after 100, half after 10,000: for 100 samples the chance to end is 0.5.
    known = knowing(*[at(100.0), at(10_000.0)] * 16)
    assert known.left(at(0.0)) == pytest.approx(200.0, rel=0.05)
    assert known.left(at(101.0)) == pytest.approx(9_899.0, rel=0.05)
    known = knowing(*[at(1000.0, user="ann")] * 4, *[at(9000.0, user="bob")] * 4)
    assert known.left(at(0.0, user="ann")) == pytest.approx(1000.0, rel=0.1)
    assert known.left(at(0.0, user="bob")) == pytest.approx(9000.0, rel=0.1)
    known = FinishedWork()
    known.observe([at(100.0, name="a"), at(3000.0, name="b")])
    assert known.left(at(3000.0)) < known.left(at(100.0))


def test_groups_of_the_same_jobs_count_once():
    """All jobs that have ended were ann's: that a job is hers, too, says nothing more about it."""
    known = knowing(*(at(done, user="ann", team="x") for done in (50.0, 400.0, 7000.0)))
    known.observe([at(30.0, user="ann", team="x")])
    hers, his = (at(20.0, user=user, team=team) for user, team in (("ann", "x"), ("bob", "y")))
    assert known.left(hers) == known.left(his)
    known.learn(at(100.0, user="bob", team="y"))
    assert known.left(hers) != known.left(his)


def test_another_model_counts_in_gpu_seconds_and_as_one_job():
    once = knowing(at(5000.0, gpu_s=2.0, model="other"))
    often = knowing(*[at(5000.0, gpu_s=2.0, model="other")] * 9)
    assert once.left(at(0.0)) == often.left(at(0.0))
    nearly = once.left(at(9_990.0))
    assert nearly < 40 < FinishedWork().left(at(9_990.0))


@pytest.mark.parametrize("count", [1, 100])
def test_a_new_job_is_taken_to_come_as_far_as_many_others(count: int):
    """1,400 GPU-hours each, in groups none of which is equal to the next."""
    known, far = FinishedWork(), 5e6
    others = [
        {"team": "other", "user": "bob"},
        {"user": "bob"},
        {"user": "ann"},
        {"user": "bob", "model": "this"},
        {"user": "ann", "model": "this", "gpus": 2},
        {"user": "ann", "model": "this"},
    ]
    known.observe([at(far, **{"model": "its own", **each}) for each in others for _ in range(count)])
    assert far < known.left(at(0.0, user="ann", model="this")) < 2 * far


@settings(deadline=None, max_examples=30)
@given(AMOUNTS, AMOUNTS, st.floats(0.0, 1e6), st.randoms(use_true_random=False))
def test_order_changes_nothing_and_what_is_carried_is_all(ended, so_far, done, chance):
    known = knowing(*map(at, ended))
    known.observe([at(each) for each in so_far])
    same = FinishedWork()
    same.load(json.loads(json.dumps(known.dump())))
    same.observe([at(each) for each in chance.sample(so_far, len(so_far))])
    assert same.left(at(done)) == pytest.approx(known.left(at(done)))
    assert known.left(at(done)) > 0


# What shadow-price makes of it, in replays of jobs whose work is hidden.

SHORT = [200.0, 900.0, 400.0, 700.0, 300.0, 600.0]
LONG = [6000.0, 9000.0, 30_000.0, 70_000.0]


def jobs_of(long: Sequence[float], from_s: float = 0.0) -> list[Job]:
    """Short jobs of two models that end early, and long ones of which none does."""
    works = [*SHORT, *long]
    return [
        job(f"j{n}", at=from_s + 40.0 * n, low=1, high=3, work={"samples": work}, model=f"m{n % 2}")
        for n, work in enumerate(works)
    ]


def decisions(trace: Sequence[Job]) -> list[tuple[float, str, str | None, int | None]]:
    """All events, relative to the first arrival."""
    world = replace(inputs(trace, cluster(4)), throughput=curves())
    run = Run("shadow-price", conditions=Conditions(demand="predicted"), simulated=FREE_CHANGES)
    begin_s = min(each.submit_time for each in trace)
    return [
        (round(event.time - begin_s, 6), event.event, event.job, event.gpus)
        for event in replay(world, run).log.events()
        if event.job is not None
    ]


EARLY_S = 1700.0


def test_decisions_depend_on_no_hidden_work_no_clock_and_no_order_of_the_file():
    trace = jobs_of(LONG)
    seen = decisions(trace)
    early = [each for each in seen if each[0] <= EARLY_S]
    assert sum(event == "finish" for _, event, _, _ in early) == len(SHORT)
    assert {name for _, event, name, _ in early if event == "start"} >= {"j6", "j7", "j8", "j9"}
    other = decisions(jobs_of([70_000.0, 30_000.0, 9000.0, 6000.0]))
    assert [each for each in other if each[0] <= EARLY_S] == early
    assert decisions(jobs_of(LONG, from_s=36_000.0)[::-1]) == seen
