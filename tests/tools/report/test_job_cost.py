"""What a job cost: every GPU second that it held is trained or lost to something that is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pliant.schemas.event import Event
from pliant.tools.report.job_cost import JobCost, job_cost
from tests.builders import cluster, job
from tests.tools.report.runs import begin, submit

CURVE = ((1, 10.0), (2, 19.0), (4, 30.0))
ELASTIC = job("a", gpus=2, low=1, high=4)
PROFILED: Mapping[str, Any] = {"simulated": False, "profile_hash": "ab" * 32}


def held(at_s: float, name: Any, gpus: int, **more: Any) -> Event:
    return Event(at_s, name, "a", gpus=gpus, placement=(("n0", gpus),) if gpus else (), **more)


def stepped(at_s: float, samples: float, after: str = "", cost_s: float | None = None) -> Event:
    detail = {"after": after} if after else {}
    return Event(at_s, "progress", "a", samples_done=samples, overhead_seconds=cost_s, detail=detail)


def cost(*events: Event, until_s: float, spec: Any = ELASTIC, **info: Any) -> JobCost:
    first = begin(cluster(4), **(PROFILED | info))
    return job_cost([first, submit(spec, 4000.0, CURVE), *events], "a", until_s)


def test_each_second_is_trained_or_lost_to_what_is_named() -> None:
    found = cost(
        held(10.0, "start", 2),
        stepped(15.0, 1.0, "start", 5.0),  # 2 GPUs for 5 s
        Event(100.0, "checkpoint", "a", samples_done=1000.0, overhead_seconds=2.0),  # 4 GPU seconds
        held(110.0, "grow", 4),
        stepped(111.0, 1200.0, "grow", 0.5),  # 4 GPUs for half a second
        held(210.0, "preempt", 0, samples_done=4000.0),
        held(300.0, "resume", 2),
        stepped(306.0, 4001.0, "resume", 6.0),  # what a preemption costs is a change
        held(310.0, "finish", 0, samples_done=4100.0),
        until_s=1000.0,
    )
    assert found.held_gpu_s == 2 * 100 + 4 * 100 + 2 * 10
    assert found.lost_gpu_s == {"starts": 10.0, "changes": 2.0 + 12.0, "checkpoints": 4.0, "failures": 0.0}
    assert found.trained_gpu_s == 620 - 28
    assert (found.preemptions, found.rescales, found.restarts) == (1, 1, 0)
    assert (found.cheapest_gpus, found.cheapest_gpu_s) == (1, 0.1)
    predicted = 19 * (100 - 7) + 30 * 99.5 + 19 * 4
    assert found.speed == pytest.approx(4100 / predicted)
    assert found.gpu_s_per_sample == 620 / 4100


def test_a_replay_says_what_a_change_costs_in_the_change_and_it_is_paid_on_the_new_gpus() -> None:
    found = cost(
        held(0.0, "start", 2, overhead_seconds=5.0),
        held(10.0, "grow", 4, samples_done=95.0, overhead_seconds=1.0),
        held(20.0, "finish", 0, samples_done=365.0),
        until_s=20.0,
        simulated=True,
    )
    assert found.lost_gpu_s == {"starts": 10.0, "changes": 4.0, "checkpoints": 0.0, "failures": 0.0}
    assert (found.held_gpu_s, found.trained_gpu_s) == (60.0, 46.0)


def test_time_is_lost_once_where_a_job_falls_back_behind_where_it_was_before() -> None:
    """To 100 samples, of 1,000 s, and then to 50, of 505 s: the newer checkpoint was damaged."""
    found = cost(
        held(0.0, "start", 1),
        stepped(10.0, 0.0, "start"),
        stepped(1000.0, 100.0),
        held(2000.0, "requeue", 0, samples_done=200.0),
        held(3000.0, "resume", 1),
        stepped(3010.0, 100.0, "resume"),
        held(4010.0, "requeue", 0, samples_done=200.0),
        held(5000.0, "resume", 1),
        stepped(5010.0, 50.0, "resume"),
        held(6000.0, "finish", 0, samples_done=1000.0),
        until_s=6000.0,
    )
    assert found.lost_gpu_s is not None
    assert found.lost_gpu_s["failures"] == (2000 - 505) + (4010 - 3000)
    assert (found.trained_gpu_s, found.repeated_samples) == (505 + 1000, 100 + 150)


def test_a_failure_costs_what_is_trained_again_and_the_attempts_that_never_trained() -> None:
    found = cost(
        held(0.0, "start", 2),
        stepped(10.0, 0.0, "start", 10.0),
        Event(60.0, "checkpoint", "a", samples_done=500.0),
        held(110.0, "requeue", 0, samples_done=1000.0),
        held(120.0, "resume", 2),
        held(125.0, "requeue", 0),  # 10 GPU seconds, and no step
        held(140.0, "resume", 2),
        stepped(148.0, 500.0, "resume", 8.0),  # from the checkpoint: the last 50 s are trained again
        held(200.0, "finish", 0, samples_done=1500.0),
        until_s=200.0,
    )
    assert found.lost_gpu_s == {"starts": 20.0, "changes": 0.0, "checkpoints": 0.0, "failures": 100 + 10 + 16}
    assert found.repeated_samples == 500.0
    assert found.samples == 1500.0
    assert found.trained_gpu_s == 2 * (110 + 5 + 60) - 146


def test_a_job_that_has_just_started_has_lost_its_time_to_the_start() -> None:
    found = cost(held(10.0, "start", 4), until_s=30.0)
    assert found.held_gpu_s == 80.0
    assert found.lost_gpu_s is not None
    assert found.lost_gpu_s["starts"] == 80.0
    assert found.trained_gpu_s == 0.0
    assert found.speed is None
    assert found.no_speed == "it has not trained yet"


def test_what_is_not_known_says_why() -> None:
    silent = cost(held(0.0, "start", 2), until_s=50.0, spec=job("a", gpus=2))
    assert (silent.held_gpu_s, silent.lost_gpu_s, silent.trained_gpu_s) == (100.0, None, None)
    assert silent.no_speed == "its script reports no steps"
    blind = cost(held(0.0, "start", 2), stepped(5.0, 1.0, "start", 5.0), until_s=50.0, profile_hash=None)
    assert (blind.speed, blind.no_speed) == (None, "there is no profile")
    assert (blind.cheapest_gpus, blind.no_cheapest) == (None, "there is no profile")


def test_of_equally_cheap_sizes_the_fastest_is_named_and_only_those_that_the_job_can_run_on() -> None:
    linear = ((1, 10.0), (2, 20.0), (4, 40.0), (8, 80.0))
    events = [begin(cluster(8), **PROFILED), submit(ELASTIC, 4000.0, linear), held(0.0, "start", 2)]
    assert job_cost(events, "a", 10.0).cheapest_gpus == 4
