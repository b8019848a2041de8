"""Nodes that jobs do not allow: random worlds, of which a benchmark tries more."""

from itertools import islice

import pytest

from benchmarks.parts.jobs.where import mistakes_of_checks, violations, worlds
from pliant.schemas.checks import constraint_of
from pliant.schemas.job import Job
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


@pytest.mark.parametrize(
    ("policy", "gpus"),
    [("fair-share", 4), ("drf", 4), ("dorm", 4), ("elasticflow", 4), ("optimus", 4), ("fifo", 1), ("sjf", 1)],
)
def test_jobs_for_one_node_share_it_and_the_rest_is_for_others(policy: str, gpus: int) -> None:
    jobs = [
        job(name, low=1, high=8, only=("n0",) if name < "x" else None, gpu_seconds=900) for name in "abcdxy"
    ]
    held = opened(make_policy(policy), cluster(4, 4, 4), *jobs)
    assert decided(held, 0) == {**dict.fromkeys("abcd", 1), **dict.fromkeys("xy", gpus)}


@pytest.mark.parametrize(("policy", "bound"), [("drl", {"a": 4}), ("oasis", {"a": 2, "b": 2})])
def test_a_policy_that_leaves_jobs_out_shares_among_the_others(policy: str, bound: dict[str, int]) -> None:
    anywhere = [job(name, low=1, high=8, gpu_seconds=9e4) for name in "abcd"]
    on_n0 = [job(name, low=1, high=8, only=("n0",), gpu_seconds=9e4) for name in "abcd"]
    assert decided(opened(make_policy(policy), cluster(4), *anywhere), 0) == {"a": 4}
    assert decided(opened(make_policy(policy), cluster(4, 4), *on_n0), 0) == bound


@pytest.mark.parametrize("number", [368, 667])
def test_a_job_that_runs_stays_where_another_type_has_no_share(number: int) -> None:
    """In these worlds the policy moves a job to a type of which its nodes have no GPU left."""
    assert violations(next(islice(worlds(number + 1), number, None)), "fair-share") == []


def test_shares_of_a_node_follow_the_jobs_that_are_for_it() -> None:
    held, later = opened(make_policy("fair-share"), cluster(4, 4)), []
    for at, name in enumerate("abc"):
        held.submit(job(name, low=1, high=8, only=("n0",), gpu_seconds=900), at)
        later.append(list(decided(held, at).values()))
    held.end("a", 3)
    assert [*later, list(decided(held, 3).values())] == [[4], [2, 2], [2, 1, 1], [2, 2]]
    assert not held.decide(99)


def test_gpu_types_are_spelled_as_the_cluster_spells_them() -> None:
    asks = Job.model_validate(
        {"id": "a", "gpus": {"requested": 1, "types": ("a100", "t4")}, "command": ("x",)}
    )
    for known, types in ((("A100", "T4"), ("A100", "T4")), (("A100", "a100", "T4"), ("a100", "T4"))):
        constraint = constraint_of(asks, known)
        assert constraint is not None
        assert constraint.types == types


def test_what_no_node_can_run_is_refused_and_nothing_else() -> None:
    assert {mistakes_of_checks(given) for given in worlds(200)} == {(0, 0)}
