"""No elastic job crawls beside idle GPUs that would end it sooner, under every registered policy."""

from __future__ import annotations

from typing import Final

import pytest

from pliant.schemas.cluster import Cluster
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.registry import make_policy, policy_names
from pliant.tools.schedule.session.session import Session
from tests.builders import job, mixed_cluster

SPEEDS: Final = CurveThroughput({"scales": {1: 1.0, 2: 1.9, 4: 3.6, 8: 6.4}}, {"fast": 2.0})
SETTLED_S: Final = 1800.0
GROW_OTHERWISE: Final = {
    "drl": "a network that was taught decides, not speeds",
    "ones": "jobs grow as they report epochs, which these do not",
}
GROW: Final = [
    name for name in policy_names() if make_policy(name).elasticity != "none" and name not in GROW_OTHERWISE
]
CHOOSE_TYPES: Final = ("shadow-price", "sia")
"""Under the others a job stays on the GPU type that it was given."""


@pytest.mark.parametrize("name", GROW)
def test_a_job_grows_onto_the_gpus_of_one_that_ended(name: str):
    assert settled(name, mixed_cluster(fast=(4, 4))).gpus == 8


@pytest.mark.parametrize("name", CHOOSE_TYPES)
def test_a_job_moves_to_faster_gpus_that_are_idle(name: str):
    long = settled(name, mixed_cluster(slow=(4,), fast=(4,)))
    assert (long.gpu_type, long.gpus) == ("fast", 4)


def settled(name: str, nodes: Cluster) -> JobState:
    """A long job that came beside a short one on four of eight GPUs, half an hour later."""
    held = Session(make_policy(name), nodes, SPEEDS)
    held.submit(job("first", gpus=4, low=4, high=4, model="scales", work={"samples": 2000.0}), 0.0)
    held.decide(0.0)
    held.submit(job("long", low=1, high=8, model="scales", work={"samples": 100_000.0}), 0.0)
    time_s = 0.0
    while time_s <= SETTLED_S:
        held.decide(time_s)
        time_s += 60.0
        for state in [*held.jobs.values()]:
            end_s = state.finish_time_s()
            if end_s is not None and end_s <= time_s:
                held.end(state.id, end_s)
    (long,) = held.jobs.values()
    return long
