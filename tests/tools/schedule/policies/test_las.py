"""Least attained service first."""

from __future__ import annotations

from pliant.tools.schedule.policies.las import Las
from tests.builders import cluster, job, opened, sizes


def test_jobs_that_are_level_take_turns():
    held = opened(Las(), cluster(1), job("a"), job("b"))
    ran = []
    for round_ in range(4):
        held.decide(60.0 * round_)
        ran += list(sizes(held))
    assert ran == ["a", "b", "a", "b"]
    assert held.jobs["a"].attained_service_s(240) == held.jobs["b"].attained_service_s(240) == 120


def test_a_newcomer_takes_the_gpus_of_the_job_that_had_most():
    held = opened(Las(), cluster(4), job("wide", gpus=3), job("thin", gpus=1))
    held.decide(0)
    held.submit(job("new", at=60, gpus=1), 60)
    held.decide(60)  # new 0, thin 60, wide 180 GPU-seconds: 3 GPUs are not left for wide
    assert sizes(held) == {"new": 1, "thin": 1}


def test_gpus_count_not_only_time():
    held = opened(Las(), cluster(2), job("wide", gpus=2))
    held.decide(0)
    held.submit(job("thin", at=10, gpus=2), 10)
    held.decide(10)
    held.decide(40)  # wide received 20, thin 60
    assert sizes(held) == {"wide": 2}


def test_the_reason_is_the_service():
    held = opened(Las(), cluster(2), job("a", gpus=2), job("b", gpus=2))
    held.decide(0)
    why = held.explain(30)
    assert why["a"].reason == "60 GPU-seconds received so far"
    assert (why["b"].reason, why["b"].needs_gpus) == ("0 GPU-seconds received so far", 2)
