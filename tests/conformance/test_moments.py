"""Small moments under every registered policy: demands of nodes, idle GPUs, jobs without a profile."""

from __future__ import annotations

from typing import Any, Final

import pytest

from pliant.schemas.cluster import Cluster
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.registry import make_policy, policy_class, policy_names
from pliant.tools.schedule.testing.harness import CheckedSession
from tests import builders
from tests.builders import cluster, job, mixed_cluster

NODES = Cluster.model_validate({"nodes": ({"name": "n0", "gpus": 16, "cpus": 8},)})


@pytest.mark.parametrize("name", policy_names())
def test_a_job_that_demands_cpus_starts_beside_one_that_does_not(name: str):
    """The node has CPUs for two of its workers. What is known of the other's four GPUs is not true of it."""
    sizes = sizes_together(name, cpus=4)
    if not sizes and not sizes_together(name, cpus=0):
        pytest.skip("it runs one such job at a time, whatever they demand")
    assert sizes, "12 GPUs are free for good"
    assert sizes["b"] <= 2


def sizes_together(name: str, cpus: int) -> dict[str, int]:
    """What both hold once both run; empty if they never do."""
    held = CheckedSession(make_policy(name), NODES)
    for job_id, at, demand in (("a", 0.0, {}), ("b", 1.0, {"worker": {"cpu": cpus}} if cpus else {})):
        spec = job(job_id, at=at, low=1, high=4, work={"samples": 50_000}, resources=demand)
        held.session.submit(spec, at)
    for _ in range(40):
        held.decide()
        if len(sizes := builders.sizes(held.session)) == 2:
            return sizes
        if not held.advance([]):
            break
    return {}


SPEEDS: Final = CurveThroughput({"scales": {1: 1.0, 2: 1.9, 4: 3.6, 8: 6.4}}, {"fast": 2.0})
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
    first = job("first", gpus=4, low=4, high=4, model="scales", work={"samples": 2000.0})
    held = builders.opened(make_policy(name), nodes, first, throughput=SPEEDS)
    held.decide(0.0)
    held.submit(job("long", low=1, high=8, model="scales", work={"samples": 100_000.0}), 0.0)
    for time_s in range(0, 1801, 60):
        held.decide(time_s)
        for state in [*held.jobs.values()]:
            end_s = state.finish_time_s()
            if end_s is not None and end_s <= time_s + 60.0:
                held.end(state.id, end_s)
    (long,) = held.jobs.values()
    return long


ADMITS = {name for name in policy_names() if policy_class(name).trusts_guesses}
"""These admit jobs by what they are worth, and refuse those of unknown work."""


def gpus_given(policy: str, first: dict, later: dict, **both: Any) -> tuple[int, int]:
    """GPUs of two jobs of two on two slots, the one submitted a second before the other."""
    jobs = [
        job(name, at=at, batch=64, gpus=2, **both, **own)
        for name, at, own in (("z", 0, first), ("a", 1, later))
    ]
    schedule = decide(jobs, cluster(2), None, Question(policy), now_s=1.0)
    given = {each.job: each.gpus for each in schedule.allocations}
    return given.get("z", 0), given.get("a", 0)


LIMITS: Final = pytest.mark.parametrize("limits", [{}, {"low": 1, "high": 2}], ids=["rigid", "elastic"])


@LIMITS
@pytest.mark.parametrize("policy", policy_names())
def test_of_two_equal_jobs_the_earlier_one_is_not_worse_off(policy: str, limits: dict):
    for work in ({"iterations": 1000}, *([] if policy in ADMITS else [None])):
        first, later = gpus_given(policy, {"work": work}, {"work": work}, **limits)
        assert first >= max(later, 1)


@LIMITS
@pytest.mark.parametrize("policy", sorted({*policy_names()} - ADMITS))
def test_fewer_iterations_of_another_model_do_not_come_first(policy: str, limits: dict):
    """A hundred iterations of one model may take longer than a thousand of another."""
    more, fewer = ({"work": {"iterations": count}, "model": f"of-{count}"} for count in (1000, 100))
    first, later = gpus_given(policy, more, fewer, **limits)
    assert first >= later


@pytest.mark.parametrize("policy", ["ares", "srtf", "sjf", "shadow-price"])
def test_gpu_seconds_say_how_long_a_job_takes(policy: str):
    assert gpus_given(policy, {"gpu_seconds": 9e4}, {"gpu_seconds": 900}) == (0, 2)
