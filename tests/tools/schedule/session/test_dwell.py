"""A cluster's rules against flapping: what a policy wants and does not get yet."""

from __future__ import annotations

from pliant.schemas.cluster import Cluster
from pliant.tools.schedule.explain import explanations
from pliant.tools.schedule.policy import Target
from pliant.tools.schedule.predict_start import predictions
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job, session, sizes
from tests.tools.schedule.session.test_session import opened, steps

GROWS = job("a", low=1, high=4)


def ruled(*node_gpus: int, min_run: float = 0.0, cooldown: float = 0.0) -> Cluster:
    rules = {"min_run_seconds": min_run, "cooldown_seconds": cooldown}
    return cluster(*node_gpus).model_copy(update=rules)


def under(policy: str, nodes: Cluster, *jobs) -> Session:
    held = session(make_policy(policy), nodes)
    for each in jobs:
        held.submit(each, each.submit_time)
        held.decide(each.submit_time)
    return held


def test_a_job_keeps_its_gpus_until_the_cooldown_is_over() -> None:
    held = opened(ruled(4, cooldown=60), GROWS)
    assert steps(held, 0, a=2) == [("a", "start")]
    assert steps(held, 59, a=4) == []
    assert steps(held, 60, a=4) == [("a", "grow")]
    assert steps(held, 100, a=1) == []
    assert steps(held, 120, a=1) == [("a", "shrink")]


def test_a_cooldown_holds_a_batch_and_a_place_as_well() -> None:
    nodes = ruled(2, 2, cooldown=60)
    held = opened(nodes, job("a", low=1, high=4, elastic="size+batch", batch={"size": 64, "max": 128}))
    assert steps(held, 0, a=2) == [("a", "start")]
    assert steps(held, 30, a=Target(2, global_batch=128)) == []
    assert steps(held, 30, a=Target(2, placement=(("n1", 2),))) == []
    assert steps(held, 60, a=Target(2, global_batch=128)) == [("a", "rebatch")]


def test_a_cooldown_does_not_keep_a_job_from_being_preempted_nor_a_minimum_run_from_shrinking() -> None:
    held = opened(ruled(4, cooldown=60), GROWS)
    assert steps(held, 0, a=2) == [("a", "start")]
    assert steps(held, 1, a=0) == [("a", "preempt")]
    held = opened(ruled(4, min_run=60), GROWS)
    assert steps(held, 0, a=2) == [("a", "start")]
    assert steps(held, 1, a=1) == [("a", "shrink")]
    assert steps(held, 59, a=0) == []
    assert steps(held, 60, a=0) == [("a", "preempt")]
    # once it resumes, it runs for the minimum again
    assert steps(held, 70, a=2) == [("a", "resume")]
    assert steps(held, 129, a=0) == []
    assert steps(held, 130, a=0) == [("a", "preempt")]


def test_what_another_job_was_to_get_is_not_there_and_it_waits() -> None:
    held = under("fair-share", ruled(2, cooldown=60), GROWS, job("b", at=10, low=1, high=4))
    assert sizes(held) == {"a": 2}
    assert held.ask_again_s == 60
    held.decide(60)
    assert sizes(held) == {"a": 1, "b": 1}


def test_a_place_that_a_policy_names_may_not_become_free() -> None:
    held = opened(ruled(2, cooldown=60), GROWS, job("b", low=1, high=2))
    steps(held, 0, a=2)
    assert steps(held, 10, a=1, b=Target(1, placement=(("n0", 1),))) == []
    assert steps(held, 60, a=1, b=Target(1, placement=(("n0", 1),))) == [("a", "shrink"), ("b", "start")]


def test_ends_and_lost_nodes_wait_for_nothing() -> None:
    held = opened(ruled(2, 2, min_run=60, cooldown=60), GROWS)
    steps(held, 0, a=2)
    (lost,) = held.node_down("n0", 1)
    assert lost.gpus == 0
    assert steps(held, 2, a=2) == [("a", "resume")]
    assert held.end("a", 3).gpus == 0


def test_a_job_that_is_kept_says_so_and_until_when_and_a_prediction_heeds_the_rules() -> None:
    jobs = (job("a", gpu_seconds=1000), job("b", at=10, gpu_seconds=20))
    held = under("srtf", ruled(1, min_run=60), *jobs)
    assert sizes(held) == {"a": 1}
    assert explanations(held, 10)["a"].reason.endswith("; kept for 50 s more, as the cluster rules")
    assert predictions(held, 10)["b"].start_s == 60


def test_a_job_that_has_ended_since_it_was_kept_needs_no_explanation() -> None:
    held = opened(ruled(4, cooldown=60), GROWS)
    steps(held, 0, a=2)
    steps(held, 1, a=4)
    assert list(held.kept_until_s) == ["a"]
    held.end("a", 2)
    assert explanations(held, 2) == {}
