"""Jobs of one model of which some demand CPUs of nodes, under every registered policy."""

from __future__ import annotations

import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.tools.schedule.registry import make_policy, policy_names
from pliant.tools.schedule.testing.harness import CheckedSession
from tests.builders import job

NODES = Cluster.model_validate({"nodes": ({"name": "n0", "gpus": 16, "cpus": 8},)})


def elastic(name: str, at: float, cpus: int = 0) -> Job:
    demand = {"worker": {"cpu": cpus}} if cpus else {}
    return job(name, at=at, low=1, high=4, work={"samples": 50_000}, resources=demand)


@pytest.mark.parametrize("name", policy_names())
def test_a_job_that_demands_cpus_starts_beside_one_of_its_model_that_does_not(name: str):
    """The node has CPUs for two of its workers. What is known of the other's four GPUs is not true of it."""
    sizes = sizes_together(name, cpus=4)
    if not sizes and not sizes_together(name, cpus=0):
        pytest.skip("it runs one such job at a time, whatever they demand")
    assert sizes, "12 GPUs are free for good"
    assert sizes["b"] <= 2


def sizes_together(name: str, cpus: int) -> dict[str, int]:
    """What both hold once both run; empty if they never do."""
    held = CheckedSession(make_policy(name), NODES)
    for each in (elastic("a", 0.0), elastic("b", 1.0, cpus)):
        held.session.submit(each, each.submit_time)
    for _ in range(40):
        held.decide()
        sizes = {job_id: state.gpus for job_id, state in held.session.jobs.items()}
        if len(sizes) == 2 and all(sizes.values()):
            return sizes
        if not held.advance([]):
            break
    return {}
