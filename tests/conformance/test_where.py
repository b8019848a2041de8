"""Nodes that jobs do not allow: random worlds, of which a benchmark tries more."""

import pytest

from benchmarks.parts.jobs.where import mistakes_of_checks, violations, worlds
from pliant.tools.schedule.registry import make_policy, policy_names
from tests.builders import cluster, decided, job, opened
from tests.effort import examples


@pytest.mark.parametrize("policy", policy_names())
def test_no_job_is_where_it_may_not_be_and_all_that_can_run_end(policy: str) -> None:
    assert [each for given in worlds(examples(12), seed=11) for each in violations(given, policy)] == []


@pytest.mark.parametrize(
    "policy", ["slurm", "sjf", "drf", "edf", "tiresias", "optimus", "ares", "srtf", "fifo"]
)
def test_jobs_that_wait_for_taken_nodes_leave_others_the_rest(policy: str) -> None:
    held = opened(make_policy(policy), cluster(4, 4))
    found = (("x", ("n0",), 4e4), ("a", ("n0",), 4e3), ("b", None, 8e4), ("c", ("n0",), 100))
    for at, (name, only, work) in enumerate(found):
        held.submit(job(name, gpus=4, at=20 * at, only=only, gpu_seconds=work), 20 * at)
        held.decide(20 * at)
    assert all("b" in now and len(now) == 2 for now in (decided(held, at) for at in (90, 180, 240)))


def test_what_no_node_can_run_is_refused_and_nothing_else() -> None:
    assert {mistakes_of_checks(given) for given in worlds(200)} == {(0, 0)}
