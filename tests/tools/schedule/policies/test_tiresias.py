import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.policies.tiresias import Services, Tiresias, TiresiasGittins
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, decided, job, mixed_cluster, opened, sizes
from tests.tools.schedule.policies.started import joined, started

HOUR = 3600.0
TIMES = st.lists(st.floats(1, 1e5), max_size=8)


def ran_at(held: Session, *hours: float) -> list[str]:
    return [name for hour in hours for name in decided(held, hour * HOUR)]


def test_a_job_runs_to_the_threshold_and_queues_count_gpus() -> None:
    held = opened(Tiresias(queue_gpu_hours="1"), cluster(1), job("a"), job("b", at=1))
    hours = (hour + 1 / HOUR for hour in (0.0, 0.5, 0.99, 1.0, 1.5, 2.0, 2.5))
    assert ran_at(held, *hours) == ["a", "a", "a", "b", "b", "a", "a"], "at level queues: first in, first out"
    # Service counts GPUs.
    jobs = (job("wide", gpus=4), job("thin"), job("late", at=1, gpus=8))
    held = opened(Tiresias(queue_gpu_hours="1"), cluster(4, 4), *jobs)
    assert decided(held, 1) == {"thin": 1, "wide": 4}
    # wide is in the second queue, late does not fit beside thin
    assert decided(held, HOUR / 4 + 1) == {"thin": 1, "wide": 4}
    assert decided(held, HOUR + 1) == {"late": 8}
    # The second queue is in order of entry.
    held = opened(Tiresias(queue_gpu_hours="1"), cluster(4), job("a"), job("b", gpus=2))
    for hour in (0, 0.5, 1):  # b is demoted first, then a
        held.decide(hour * HOUR)
    assert held.policy.dump_state() == {"b": [1, HOUR / 2, 0.0, None], "a": [1, HOUR, 0.0, None]}
    assert joined(held, HOUR + 1, job("c", at=HOUR, gpus=2)) == {"b": 2, "c": 2}


def test_thresholds_promotion_and_the_order_of_nodes() -> None:
    held = opened(Tiresias(queue_gpu_hours="1,2"), cluster(1), job("a"), job("b", at=1))
    ran_at(held, *range(8))
    assert held.explain(7 * HOUR)["a"].reason.startswith("queue 3 of 3, place 1, with ")
    # No job starves where promotion is on.
    held = started(Tiresias(queue_gpu_hours="1", promote_after=2.0), cluster(1), job("old"))
    assert joined(held, HOUR, job("new0", at=HOUR)) == {"new0": 1}
    for number, hour in enumerate((1.9, 2.8)):
        held.end(f"new{number}", hour * HOUR)
        joined(held, hour * HOUR, job(f"new{number + 1}", at=hour * HOUR))
    assert sizes(held) == {"new2": 1}
    # old ran for one hour and has waited for two: promoted behind new2
    assert decided(held, 3 * HOUR) == {"new2": 1}
    held.end("new2", 3.5 * HOUR)
    assert joined(held, 3.5 * HOUR, job("new3", at=3.5 * HOUR)) == {"old": 1}
    # Emptiest nodes first in that order.
    held = started(Tiresias(placement="emptiest"), cluster(2, 4, 4, 4), job("a"), job("b", gpus=9))
    assert held.jobs["a"].placement == (("n1", 1),)
    assert held.jobs["b"].placement == (("n2", 4), ("n3", 4), ("n1", 1)), "of equal ones the first"


def test_a_skewed_model_has_few_nodes_or_gives_up_its_gpus() -> None:
    jobs = (job("a", gpus=3), job("b", gpus=3), job("s", gpus=2, model="vgg"))
    held = started(Tiresias(skewed="vgg"), cluster(4, 4), *jobs)
    assert sizes(held) == {"a": 3, "b": 3}, "two GPUs are free, one on each node"
    held.end("a", 60)
    held.decide(60)
    assert held.jobs["s"].placement == (("n0", 2),)
    assert decided(opened(Tiresias(), cluster(4, 4), *jobs), 0) == {"a": 3, "b": 3, "s": 2}

    held = started(Tiresias(skewed="vgg"), cluster(4, 1, 1), job("s", gpus=6, model="vgg"))
    assert sizes(held) == {"s": 6}, "two nodes of four would be fewer, but there is one"
    held = opened(Tiresias(skewed="vgg"), cluster(4, 4), job("s", gpus=3, model="vgg"))
    held.maintenance.node_down("n0", 0)
    held.decide(0)
    assert held.jobs["s"].placement == (("n1", 3),)

    # What it held is given to others by then: once, GPUs of two types were given away twice.
    policy, nodes = Tiresias(skewed="vgg", queue_gpu_hours="1.5"), mixed_cluster(slow=(4,), fast=(2, 2))
    held = opened(policy, nodes, throughput=CurveThroughput({}, {"fast": 2.5}))
    for each in (*map(job, "abcd"), job("s", gpus=2, model="vgg"), job("w", gpus=4, at=1)):
        joined(held, each.submit_time, each)
    assert held.jobs["s"].gpu_type == "slow", "the four small ones have all that is fast"
    (first, stays), (second, stays_too) = (
        [one for one in "abcd" if held.jobs[one].placement == ((node, 1),)] for node in ("fast-0", "fast-1")
    )
    for name in (first, second):
        held.end(name, HOUR)
    result = decided(held, HOUR)  # s is demoted behind w by now
    assert result == {stays: 1, stays_too: 1, "w": 4}, "two fast ones are free, on two nodes"


def test_it_says_until_when_rounds_may_be_left_out():
    held = opened(Tiresias(queue_gpu_hours="1"), cluster(4), job("a", gpus=2), job("b"))
    for hour, until_s in ((0, HOUR / 2), (0.5, HOUR), (1, float("inf"))):
        held.decide(hour * HOUR)
        assert held.decided.quiet_until_s == until_s

    held = started(TiresiasGittins(queue_gpu_hours="1"), cluster(1), job("a"))
    assert held.decided.quiet_until_s == HOUR
    joined(held, 60, job("b", at=60))
    assert held.decided.quiet_until_s == -float("inf")


@given(TIMES, TIMES, st.lists(st.floats(0, 1e5), min_size=1, max_size=5), st.floats(1, 1e5))
def test_services_that_come_later_count_as_if_known_before(before, after, attained, quantum):
    grown = Services(before)
    grown.add(after)
    at_once = Services([*before, *after]).indices(np.array(attained), quantum)
    assert grown.indices(np.array(attained), quantum).tolist() == at_once.tolist()
    for index, had in zip(at_once.tolist(), attained, strict=True):
        left = [service - had for service in (*before, *after) if service > had]
        chance = sum(each <= quantum for each in left) / len(left) if left else 0.0
        cost = sum(min(each, quantum) for each in left) / len(left) if left else 1.0
        assert index == pytest.approx(chance / cost, rel=1e-4)


def test_jobs_about_to_finish_go_first_and_teach_that() -> None:
    held = opened(TiresiasGittins(quantum_gpu_hours=1.0, history_gpu_hours="1,10,10"), cluster(1), job("a"))
    assert ran_at(held, 0, 0.5) == ["a", "a"]
    held.submit(job("b", at=0.5 * HOUR), 0.5 * HOUR)
    assert ran_at(held, 0.5, 0.9, 1) == ["a", "a", "b"], "an hour has passed and a has not finished"
    held.end("b", 1.5 * HOUR, "cancelled")
    assert ran_at(held, 1.5, 10) == ["a", "a"]
    held.submit(job("c", at=10 * HOUR), 10 * HOUR)
    assert ran_at(held, 10) == ["a"], "after nine hours and a half it is sure to finish within the next"

    held = opened(TiresiasGittins(queue_gpu_hours="1"), cluster(1), job("a"), job("b", at=1))
    assert ran_at(held, 0.1, 0.5, 1.05, 1.2, 2.2) == ["a", "a", "a", "b", "a"]

    policy = TiresiasGittins(queue_gpu_hours="1", quantum_gpu_hours=1.0, history_gpu_hours="2")
    held = opened(policy, cluster(1), job("a"))
    assert ran_at(held, 0, 1) == ["a", "a"]
    held.submit(job("b", at=HOUR), HOUR)
    assert ran_at(held, 1) == ["b"], "a is sure to be over in an hour, but in the second queue"
    # It learns from jobs that finish and from no others.
    for outcome, then in (("finished", "new"), ("cancelled", "old"), ("failed", "old")):
        held = opened(TiresiasGittins(quantum_gpu_hours=2.0), cluster(1, 1), job("old"), job("x"))
        assert ran_at(held, 0) == ["old", "x"]
        held.end("x", HOUR, outcome)
        held.maintenance.node_down("n1", HOUR)
        held.submit(job("new", at=HOUR), HOUR)
        # one job took an hour: a new one is over by then, old is beyond
        assert decided(held, HOUR) == {then: 1}
