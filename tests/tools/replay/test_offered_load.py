"""A workload that is too much for its cluster is named before the replay."""

from __future__ import annotations

import pytest

from pliant.tools.replay.batch import offered_load, overload
from pliant.tools.replay.inputs import Inputs, inputs
from tests.builders import cluster, job


def stream(count: int, every_s: float, gpu_seconds: float = 200.0, gpus: int = 2) -> Inputs:
    """Jobs of so many GPU-seconds arrive at a steady pace at ten GPUs."""
    jobs = [job(f"j{n}", at=n * every_s, gpus=gpus, gpu_seconds=gpu_seconds) for n in range(count)]
    return inputs(jobs, cluster(10))


def test_twice_the_capacity_by_hand():
    """41 jobs of 200 GPU-seconds in 400 s, in which ten GPUs have 4000."""
    assert offered_load(stream(41, 10.0)) == pytest.approx(41 * 200 / 4000)
    assert overload(stream(41, 10.0)) == (
        "overload: jobs arrive for 7 min and bring 2.05 times the work that 10 GPUs can do in that time: "
        "the queue grows to the last arrival"
    )


def test_what_a_cluster_can_do_is_no_overload():
    assert overload(stream(41, 20.0)) is None


@pytest.mark.parametrize("few", [stream(10, 1.0), stream(41, 0.0), stream(41, 2.0), stream(0, 1.0)])
def test_a_batch_of_jobs_is_no_stream(few):
    """Few jobs, or jobs that arrive faster than half of them end, wait for each other by design."""
    assert offered_load(few) is None


def test_jobs_that_can_never_run_bring_no_work():
    too_large = stream(41, 10.0, gpus=11)
    assert offered_load(too_large) is None
