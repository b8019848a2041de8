"""Orders of jobs that run at the sizes that they request: by work to go, by service, by deadline."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from pliant.schemas.job import Job
from pliant.tools.schedule.policies.edf import Edf, EdfElastic
from pliant.tools.schedule.policies.las import Las
from pliant.tools.schedule.policies.srtf import Sjf, Srtf
from pliant.tools.schedule.policy import Policy
from tests.builders import cluster, curves, decided, job, mixed_cluster, opened, sizes
from tests.tools.schedule.policies.started import joined, started

GANGS = ("a", 3), ("b", 2), ("c", 1)
SPEEDS = curves(slow={4: 2.0}, m={1: 10.0, 2: 18.0, 4: 26.0, 8: 20.0})
"""m falls beyond four GPUs."""


def due(job_id: str, in_s: float, **more: Any) -> Job:
    """A job with a deadline."""
    return job(job_id, gpu_seconds=1000.0, utility={"shape": "step", "target": in_s}, **more)


def falling(*names: str) -> list[Job]:
    return [due(name, 100.0 + at, low=1, high=8, model="m") for at, name in enumerate(names)]


@pytest.mark.parametrize(
    ("policy", "gpus", "jobs", "expected"),
    [
        pytest.param(
            *(Srtf(), 4, [job("wide", gpus=4, gpu_seconds=120), job("thin", gpu_seconds=100)], {"thin": 1}),
            id="4 GPUs for 30 s are more than one for 100 s",
        ),
        pytest.param(
            *(Srtf(), 4, [job(name, gpus=gpus, gpu_seconds=10 * gpus) for name, gpus in GANGS]),
            {"b": 2, "c": 1},
            id="a gang that does not fit is passed over",
        ),
        pytest.param(
            Srtf(),
            4,
            [job("a", gpus=4, model="slow", work={"samples": 60}), job("b", gpus=4, work={"samples": 100})],
            {"b": 4},
            id="speed comes from the profile",
        ),
        pytest.param(
            *(Edf(), 8, [due("a", 200.0, gpus=6), due("b", 100.0, gpus=4), due("c", 300.0, gpus=4)]),
            {"b": 4, "c": 4},
            id="b is due first, then a, which does not fit beside it; c fits",
        ),
        pytest.param(
            *(Edf(), 2, [due("a", 10.0, gpus=2), due("b", 900.0, gpus=2, priority=1.0)], {"b": 2}),
            id="a higher priority comes before any deadline",
        ),
        pytest.param(
            *(EdfElastic(), 12, falling("a", "b", "c"), {"a": 4, "b": 4, "c": 4}),
            id="each job gets the size on which it is fastest",
        ),
        pytest.param(
            *(EdfElastic(), 10, falling("a", "b", "c"), {"a": 4, "b": 4, "c": 2}),
            id="the last one gets the fastest size that is free",
        ),
    ],
)
def test_the_first_in_order_run(policy: Policy, gpus: int, jobs: list[Job], expected: dict[str, int]):
    assert decided(opened(policy, cluster(gpus), *jobs, throughput=SPEEDS), 0) == expected


@pytest.mark.parametrize(
    ("policy", "first", "second", "later"),
    [
        pytest.param(
            *(Srtf(), job("a", gpus=2, gpu_seconds=1000), job("b", at=10, gpus=2, gpu_seconds=100)),
            {"b": 2},
            id="less to go",
        ),
        pytest.param(
            *(Srtf(), job("a", gpus=2, gpu_seconds=100), job("b", at=10, gpus=2, gpu_seconds=90)),
            {"a": 2},
            id="what is done counts: 80 to go",
        ),
        pytest.param(
            *(Sjf(), job("a", gpus=2, gpu_seconds=1000), job("b", at=10, gpus=2, gpu_seconds=100)),
            {"a": 2},
            id="sjf never preempts",
        ),
        pytest.param(
            *(Edf(), due("a", 200.0, gpus=2), due("b", 20.0, gpus=1, at=10)), {"b": 1}, id="due sooner"
        ),
        pytest.param(
            *(EdfElastic(), due("a", 900.0, low=1, high=2), due("b", 20.0, gpus=1, at=10)),
            {"a": 1, "b": 1},
            id="a job that grew gives way",
        ),
    ],
)
def test_a_job_that_runs_may_give_way(policy: Policy, first: Job, second: Job, later: dict[str, int]):
    held = started(policy, cluster(2), first)
    assert sizes(held) == {"a": 2}
    assert joined(held, 10, second) == later
    for name in later.keys() - {"a"}:
        held.end(name, 60)
        assert decided(held, 60) == {"a": 2}


def test_unknown_work_comes_last_in_order_of_arrival():
    jobs = job("u"), job("v", at=1), job("k", at=2, gpu_seconds=1e6)
    held = started(Srtf(), cluster(1), *jobs)
    assert sizes(held) == {"k": 1}
    held.end("k", 3)
    assert decided(held, 3) == {"u": 1}


def test_a_running_job_moves_only_when_it_is_pushed_out():
    jobs = job("a", gpus=2, gpu_seconds=500), job("b", gpus=4, gpu_seconds=600)
    held = started(Srtf(), cluster(4, 4), *jobs)
    place = held.jobs["a"].placement
    assert joined(held, 1, job("c", at=1, gpus=2, gpu_seconds=10)) == {"a": 2, "b": 4, "c": 2}
    assert held.jobs["a"].placement == place

    held = started(Srtf(), mixed_cluster(x=(2,), y=(2,)), job("a", gpus=2, gpu_seconds=500))
    assert held.jobs["a"].gpu_type == "x"
    joined(held, 1, job("b", at=1, gpus=2, gpu_seconds=5))
    assert {state.id: state.gpu_type for state in held.jobs.values()} == {"b": "x", "a": "y"}


def test_sjf_counts_the_whole_job():
    held = started(Sjf(), cluster(1), job("a", gpu_seconds=100), job("b", gpu_seconds=50))
    held.lose("b", 30)
    held.node_down("n0", 30)
    held.submit(job("c", at=31, gpu_seconds=45), 31)
    held.node_up("n0", 40)
    assert decided(held, 40) == {"c": 1}  # b has 20 to go, but 50 in all


def test_deadlines_count_from_the_submission():
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

    held = opened(Edf(), cluster(2), due("a", 10.0, gpus=2), due("b", 900.0, gpus=2))
    assert decided(held, 500.0) == {"a": 2}
    assert held.explain(500.0)["a"].reason == "its deadline was 490 s ago"


def test_jobs_that_are_level_take_turns():
    held = opened(Las(), cluster(1), job("a"), job("b"))
    assert [*chain(*(decided(held, 60.0 * turn) for turn in range(4)))] == ["a", "b", "a", "b"]
    assert held.jobs["a"].attained_service_s(240) == held.jobs["b"].attained_service_s(240) == 120

    held = started(Las(), cluster(4), job("wide", gpus=3), job("thin", gpus=1))
    # new 0, thin 60, wide 180 GPU-seconds: 3 GPUs are not left for wide
    assert joined(held, 60, job("new", at=60, gpus=1)) == {"new": 1, "thin": 1}

    held = started(Las(), cluster(2), job("wide", gpus=2))
    joined(held, 10, job("thin", at=10, gpus=2))
    assert decided(held, 40) == {"wide": 2}, "wide has had 20, thin 60"
