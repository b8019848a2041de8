"""What no policy does, whatever jobs demand of nodes and however their speed falls with more GPUs."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.parts.mends_speeds import (
    Scattered,
    falling_speeds,
    left_behind,
    mixed_demands,
    slower_sizes,
)
from pliant.schemas.cluster import Cluster, Node
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.replay.run import Run, replay
from pliant.tools.report.read_run import fold
from pliant.tools.schedule.registry import policy_names
from tests.builders import FREE_CHANGES, cluster, curves, job
from tests.tools.replay.world import given as inputs_of

FALLS = curves(m={1: 10.0, 2: 18.0, 4: 26.0, 8: 20.0})
NUMBERS = st.integers(0, 100_000)


def small_and_large() -> Cluster:
    """Two nodes of four fast GPUs and 8 CPUs, one of four slow GPUs and 128 CPUs."""
    fast = [Node(name=f"v{n}", gpus=4, gpu_type="v100", cpus=8) for n in range(2)]
    return Cluster(nodes=(*fast, Node(name="a", gpus=4, gpu_type="a100", cpus=128)))


@pytest.mark.parametrize("policy", policy_names())
def test_a_job_that_demands_cpus_starts_although_one_like_it_without_demands_came_first(policy: str) -> None:
    """The fast nodes have CPUs for one worker of b each; a, which is like it, could have had four on each."""
    shape = {"model": "m", "gpus": 4, "low": 1, "high": 4, "batch": 64, "work": {"samples": 5000.0}}
    jobs = [job("a", **shape), job("b", at=600.0, resources={"worker": {"cpu": 8.0}}, **shape)]
    speeds = CurveThroughput({"m": {1: 1.0, 2: 1.9, 4: 3.5}}, {"a100": 0.5})
    given_ = inputs_of(jobs, small_and_large(), speeds)
    assert replay(given_, Run(policy)).summary.unfinished == ()


@example(0)
@example(13)
@example(19)
@given(NUMBERS)
@settings(max_examples=6, derandomize=True, deadline=None)
def test_no_job_that_fits_the_empty_cluster_is_left_behind(number: int) -> None:
    assert list(left_behind(mixed_demands(number))) == []


@example(0)
@given(NUMBERS)
@settings(max_examples=8, derandomize=True, deadline=None)
def test_no_job_gets_gpus_that_make_it_slower(number: int) -> None:
    assert list(slower_sizes(falling_speeds(number))) == []


def test_what_a_job_cannot_use_goes_to_the_others() -> None:
    """Equal parts of twelve GPUs are six each: a is fastest on four, so b gets eight."""
    jobs = [
        job("a", gpus=4, low=1, high=8, model="m", work={"samples": 2600.0}),
        job("b", gpus=4, low=1, high=8, work={"samples": 800.0}),
    ]
    done = replay(inputs_of(jobs, cluster(12), FALLS), Run("fair-share"))
    assert [(event.job, event.gpus) for event in done.log.events() if event.event == "start"] == [
        ("a", 4),
        ("b", 8),
    ]


def test_a_job_that_requested_too_many_runs_on_fewer_and_a_rigid_one_on_what_it_requested() -> None:
    """On eight GPUs they are slower than on two: the elastic job takes four, the rigid one keeps to eight."""
    jobs = [
        job("elastic", gpus=8, low=1, model="m", work={"samples": 2600.0}),
        job("rigid", at=500.0, gpus=8, model="m", work={"samples": 2000.0}),
    ]
    done = replay(inputs_of(jobs, cluster(8), FALLS), Run("ares", simulated=FREE_CHANGES))
    given_ = [(event.job, event.gpus) for event in done.log.events() if event.event == "start"]
    assert given_ == [("elastic", 4), ("rigid", 8)]
    finished = {each.id: each.jct_s for each in fold(done.log.events()).jobs}
    assert finished == {"elastic": pytest.approx(100.0), "rigid": pytest.approx(100.0)}


def test_a_job_whose_gpus_lie_apart_takes_those_of_one_node() -> None:
    """Two nodes have one GPU free each. Across nodes the job takes twice as long as on one GPU."""
    jobs = [
        job("a", gpus=3, model="linear", work={"samples": 300.0}),
        job("b", gpus=3, model="linear", work={"samples": 300.0}),
        job("c", at=1.0, gpus=2, low=1, high=2, model="m", batch=64, work={"samples": 1000.0}),
    ]
    speeds = Scattered({"m": {1: 10.0, 2: 12.0}}, per_node=2.0)
    done = replay(inputs_of(jobs, cluster(4, 4), speeds), Run("ares"))
    held = [(event.job, event.event, event.gpus) for event in done.log.events() if event.job == "c"]
    assert held[1][1:] == ("start", 1)
    assert ("c", "grow", 2) in held  # once two GPUs of one node are free
