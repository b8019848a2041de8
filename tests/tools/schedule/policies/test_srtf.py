"""Shortest first."""

from __future__ import annotations

import pytest

from pliant.tools.schedule.policies.srtf import Sjf, Srtf
from tests.builders import cluster, curves, decided, job, mixed_cluster, opened

GANGS = ("a", 3), ("b", 2), ("c", 1)


def test_the_job_with_least_to_go_takes_the_gpus_of_a_longer_one():
    held = opened(Srtf(), cluster(2), job("long", gpus=2, gpu_seconds=1000))
    assert decided(held, 0) == {"long": 2}
    held.submit(job("short", at=10, gpus=2, gpu_seconds=100), 10)
    assert decided(held, 10) == {"short": 2}
    held.end("short", 60)
    assert decided(held, 60) == {"long": 2}


def test_what_is_done_counts():
    held = opened(Srtf(), cluster(1), job("a", gpu_seconds=100))
    decided(held, 0)
    held.submit(job("b", at=60, gpu_seconds=50), 60)
    assert decided(held, 60) == {"a": 1}  # 40 to go against 50


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        pytest.param(
            [job("wide", gpus=4, gpu_seconds=120), job("thin", gpu_seconds=100)],
            {"thin": 1},
            id="4 GPUs for 30 s are more than one for 100 s",
        ),
        pytest.param(
            [job(name, gpus=gpus, gpu_seconds=10 * at) for at, (name, gpus) in enumerate(GANGS, start=1)],
            {"a": 3, "c": 1},
            id="a gang that does not fit is passed over",
        ),
        pytest.param(
            [job("a", gpus=4, model="slow", work={"samples": 60}), job("b", gpus=4, work={"samples": 100})],
            {"b": 4},
            id="speed comes from the profile",
        ),
    ],
)
def test_the_least_service_first(jobs, expected):
    assert decided(opened(Srtf(), cluster(4), *jobs, throughput=curves(slow={4: 2.0})), 0) == expected


def test_unknown_work_comes_last_in_order_of_arrival():
    held = opened(Srtf(), cluster(1), job("u", at=0), job("v", at=1), job("k", at=2, gpu_seconds=1e6))
    assert decided(held, 2) == {"k": 1}
    held.end("k", 3)
    assert decided(held, 3) == {"u": 1}


def test_a_running_job_keeps_its_place_when_others_come_and_go():
    held = opened(Srtf(), cluster(4, 4), job("a", gpus=2, gpu_seconds=500), job("b", gpus=4, gpu_seconds=600))
    decided(held, 0)
    place = held.jobs["a"].placement
    held.submit(job("c", at=1, gpus=2, gpu_seconds=10), 1)
    assert decided(held, 1) == {"a": 2, "b": 4, "c": 2}
    assert held.jobs["a"].placement == place


def test_on_two_types_a_running_job_moves_only_when_it_is_pushed_out():
    held = opened(Srtf(), mixed_cluster(x=(2,), y=(2,)), job("a", gpus=2, gpu_seconds=500))
    decided(held, 0)
    assert held.jobs["a"].gpu_type == "x"
    held.submit(job("b", at=1, gpus=2, gpu_seconds=5), 1)
    decided(held, 1)
    assert {state.id: state.gpu_type for state in held.jobs.values()} == {"b": "x", "a": "y"}


def test_sjf_never_preempts():
    held = opened(Sjf(), cluster(2), job("long", gpus=2, gpu_seconds=1000))
    decided(held, 0)
    held.submit(job("short", at=10, gpus=2, gpu_seconds=100), 10)
    held.submit(job("shorter", at=11, gpus=2, gpu_seconds=50), 11)
    assert decided(held, 11) == {"long": 2}
    held.end("long", 500)
    assert decided(held, 500) == {"shorter": 2}


def test_sjf_counts_the_whole_job():
    held = opened(Sjf(), cluster(1), job("a", gpu_seconds=100), job("b", gpu_seconds=50))
    decided(held, 0)
    held.lose("b", 30)
    held.node_down("n0", 30)
    held.submit(job("c", at=31, gpu_seconds=45), 31)
    held.node_up("n0", 40)
    assert decided(held, 40) == {"c": 1}  # b has 20 to go, but 50 in all


def test_the_reason_is_the_service():
    held = opened(Srtf(), cluster(1), job("a", gpu_seconds=100), job("u"))
    held.decide(0)
    why = held.explain(0)
    assert why["a"].reason == "100 GPU-seconds to go"
    assert (why["u"].reason, why["u"].needs_gpus) == ("work unknown, so last in order", 1)
