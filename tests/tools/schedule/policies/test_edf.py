"""Earliest deadline first, at requested sizes and at the fastest ones."""

from __future__ import annotations

from typing import Any

from pliant.schemas.job import Job
from pliant.tools.schedule.policies.edf import Edf, EdfElastic
from tests.builders import cluster, curves, decided, job, opened, session

FALLS = curves(m={1: 10.0, 2: 18.0, 4: 26.0, 8: 20.0})


def due(job_id: str, in_s: float, **more: Any) -> Job:
    """A job with a deadline."""
    return job(job_id, gpu_seconds=1000.0, utility={"shape": "step", "target": in_s}, **more)


def test_the_next_deadlines_run_at_the_sizes_that_they_request():
    """On eight GPUs: b is due first, then a, which does not fit beside it; c fits."""
    jobs = [due("a", 200.0, gpus=6), due("b", 100.0, gpus=4), due("c", 300.0, gpus=4)]
    assert decided(opened(Edf(), cluster(8), *jobs), 0.0) == {"b": 4, "c": 4}


def test_a_job_that_is_due_sooner_takes_the_gpus_of_one_that_runs():
    held = opened(Edf(), cluster(4), due("a", 200.0, gpus=4))
    assert decided(held, 0.0) == {"a": 4}
    held.submit(due("b", 20.0, gpus=2, at=50.0), 50.0)
    assert decided(held, 50.0) == {"b": 2}


def test_deadlines_count_from_the_submission_and_jobs_without_one_come_last():
    """b is due at 170, a at 200, and c, which only gains by ending early, has no deadline."""
    jobs = [
        due("a", 200.0, gpus=2),
        job("c", gpus=2, gpu_seconds=100.0, utility={"shape": "sigmoid", "decay": 0.1, "target": 10.0}),
        due("b", 120.0, gpus=2, at=50.0),
    ]
    held = opened(Edf(), cluster(4), *jobs)
    assert held.jobs["b"].deadline_s == 170.0
    assert decided(held, 50.0) == {"a": 2, "b": 2}
    assert "no deadline" in held.explain(50.0)["c"].reason


def test_a_missed_deadline_keeps_its_place():
    held = opened(Edf(), cluster(2), due("a", 10.0, gpus=2), due("b", 900.0, gpus=2))
    assert decided(held, 500.0) == {"a": 2}
    assert held.explain(500.0)["a"].reason == "its deadline was 490 s ago"


def test_a_higher_priority_comes_before_any_deadline():
    held = opened(Edf(), cluster(2), due("a", 10.0, gpus=2), due("b", 900.0, gpus=2, priority=1.0))
    assert decided(held, 0.0) == {"b": 2}


def test_each_job_gets_the_size_on_which_it_is_fastest_or_the_fastest_that_is_left():
    """Speed falls beyond four GPUs: of twelve, a and b get four each; c is as fast on two of the rest."""
    jobs = [due(name, 100.0 + at, low=1, high=8, model="m") for at, name in enumerate("abc")]
    held = opened(EdfElastic(), cluster(12), *jobs, throughput=FALLS)
    assert decided(held, 0.0) == {"a": 4, "b": 4, "c": 4}
    held = opened(EdfElastic(), cluster(10), *jobs, throughput=FALLS)
    assert decided(held, 0.0) == {"a": 4, "b": 4, "c": 2}


def test_a_job_that_grew_gives_way_to_one_that_is_due_sooner():
    held = session(EdfElastic(), cluster(8))
    held.submit(due("a", 900.0, low=1, high=8), 0.0)
    assert decided(held, 0.0) == {"a": 8}
    held.submit(due("b", 20.0, gpus=6, at=10.0), 10.0)
    assert decided(held, 10.0) == {"a": 2, "b": 6}
