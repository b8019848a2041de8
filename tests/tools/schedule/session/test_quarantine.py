import math

import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.event import Event
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.explain import explanations
from pliant.tools.schedule.from_log import session_from_events
from pliant.tools.schedule.policy import Target
from pliant.tools.schedule.predict_start import copy_of, predictions
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.quarantine import LONG_S, Quarantine
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job, session, sizes
from tests.tools.schedule.histories import submitted
from tests.tools.schedule.session.test_session import Says, opened, steps

GROWS = job("a", low=1, high=4)


def test_policies_see_no_slot_that_is_out_of_service() -> None:
    held = opened(cluster(2, 2), GROWS)
    held.cluster.withdraw("n1/0", 10, until_s=70)
    held.decide(11)
    (seen,) = held.policy.seen
    assert (seen.total_gpus, seen.free_gpus, seen.gpus_by_type()) == (3, {"gpu": 3}, {"gpu": 3})
    assert [node.gpus for node in held.cluster.nodes] == [2, 1]
    held.decide(70)
    seen = held.policy.seen[-1]
    assert (seen.total_gpus, seen.free_gpus) == (4, {"gpu": 4})
    assert [(change.kind, change.gpus) for change in seen.changes] == [("capacity", 1)]
    assert seen.changes[0].time_s == 70
    # A slot is out of service once until the latest time.
    held = opened(cluster(2))
    held.cluster.withdraw("n0/1", 0, until_s=60)
    held.cluster.withdraw("n0/1", 50, until_s=170)
    held.cluster.at(60)
    assert held.cluster.up_gpus == 1
    held.cluster.restore_slot("n0/1", 100)
    assert (held.cluster.up_gpus, held.cluster.free.free_on("n0")) == (2, 2)
    held.cluster.at(200)
    assert held.cluster.up_gpus == 2
    # A node comes back without slots that are out of service.
    held = opened(cluster(2, 1), job("a"))
    held.maintenance.node_down("n0", 1)
    held.cluster.withdraw("n0/1", 2, until_s=60)
    held.maintenance.node_up("n0", 3)
    assert (held.cluster.up_gpus, held.cluster.free.free_on("n0")) == (2, 1)
    held.cluster.at(60)
    assert (held.cluster.up_gpus, held.cluster.free.free_on("n0")) == (3, 2)
    steps(held, 61, a=Target(1, placement=(("n1", 1),)))
    with pytest.raises(ValueError, match="would have -1 of 1 GPUs free"):
        held.cluster.withdraw("n1/0", 62, until_s=90)


def test_a_slot_withheld_from_one_job_goes_to_others() -> None:
    held = opened(cluster(1, 2), GROWS, job("b"))
    held.quarantine.bar("a", "n0/0", 60)
    assert steps(held, 0, a=1) == [("a", "start")]
    assert held.jobs["a"].placement == (("n1", 1),)
    assert steps(held, 1, a=3, b=0) == [], "with the slot of n0 it would be one too few"
    assert steps(held, 2, a=2, b=1) == [("a", "grow"), ("b", "start")]
    assert held.jobs["b"].placement == (("n0", 1),)
    steps(held, 3, b=0)
    assert steps(held, 60, a=3) == [("a", "grow")], "the time is over"
    # A named place is not taken while it is in quarantine.
    held = opened(cluster(1, 1), GROWS, job("b", low=1, high=2))
    steps(held, 0, a=Target(1, placement=(("n0", 1),)), b=Target(1, placement=(("n1", 1),)))
    held.quarantine.bar("a", "n1/0", 60)
    swap = {"a": Target(1, placement=(("n1", 1),)), "b": Target(1, placement=(("n0", 1),))}
    assert steps(held, 1, **swap) == []
    assert sizes(held) == {"a": 1, "b": 1}
    assert steps(held, 61, **swap) == [("a", "move"), ("b", "move")]


def test_a_job_that_is_held_shrinks_but_does_not_grow() -> None:
    held = opened(cluster(4), GROWS)
    steps(held, 0, a=2)
    held.quarantine.hold("a", 60)
    assert steps(held, 1, a=4) == []
    assert steps(held, 2, a=1) == [("a", "shrink")]
    assert steps(held, 60, a=4) == [("a", "grow")]
    # A start that was withheld follows once it may.
    held = session(make_policy("fifo"), cluster(1))
    held.submit(job("a"), 0)
    held.submit(job("b"), 0)
    held.quarantine.hold("a", 60)
    held.decide(0)
    assert sizes(held) == {}
    held.decide(1)
    held.decide(60)
    assert sizes(held) == {"a": 1}, "it has not lost its place in the line"


def test_job_or_slot_that_is_released_changes_nothing_for_others() -> None:
    quarantine = Quarantine()
    quarantine.bar("a", "n0/0", 60)
    quarantine.bar("b", "n0/0", 70)
    quarantine.bar("b", "n1/0", 80)
    quarantine.hold("a", 50)
    quarantine.release("a")
    assert (quarantine.hidden_from("a"), quarantine.held_until_s("a"), quarantine.next_s) == ({}, None, 70)
    assert quarantine.hidden_from("b") == {"n0": 1, "n1": 1}
    assert quarantine.restore_slot("n0/0") is False, "it was withheld from one job, not out of service"
    assert (quarantine.hidden_from("b"), quarantine.next_s) == ({"n1": 1}, 80)
    quarantine.withdraw("n1/0", 90)
    assert quarantine.hidden_from("b") == {}, "its node has one GPU less for all jobs already"
    assert quarantine.restore_slot("n1/0") is True
    assert quarantine.next_s == math.inf
    # Slots that wait for an operator are out for over a day.
    quarantine = Quarantine()
    for slot, until_s in (("n0/0", 2 * LONG_S), ("n0/1", LONG_S), ("n1/0", 2 * LONG_S)):
        quarantine.withdraw(slot, until_s)
    assert quarantine.until_resumed("n0", 10) == ["n0/0"]
    assert quarantine.until_resumed("n0", LONG_S) == [], "a day is left of it, not more"


def test_what_is_withheld_is_rebuilt_from_the_log() -> None:
    nodes, throughput = cluster(2, 2), CurveThroughput()
    events = [
        *submitted(GROWS),
        Event(1, "start", "a", gpus=2, placement=(("n0", 1), ("n1", 1))),
        Event(9, "shrink", "a", gpus=1, placement=(("n0", 1),), detail={"wait_seconds": 30}),
        Event(9, "slot_down", "a", detail={"slot": "n0/1", "seconds": 60}),
        Event(9, "slot_down", None, detail={"slot": "n1/0", "seconds": 60, "by": "a"}),
    ]

    def at(now_s: float, *more: Event) -> Session:
        held = session_from_events([*events, *more], Says(), nodes, throughput, now_s=now_s)
        held.cluster.at(now_s)
        return held

    def state(held: Session) -> tuple[object, ...]:
        return held.cluster.up_gpus, held.quarantine.held_until_s("a"), held.quarantine.hidden_from("a")

    assert state(at(20)) == (3, 39, {"n0": 1})
    assert state(at(40)) == (3, None, {"n0": 1})
    assert at(40).quarantine.next_s == 69
    assert state(at(69)) == (4, None, {})
    assert state(at(20, Event(15, "slot_up", "a", detail={"slot": "n1/0"})))[:2] == (4, None)


# The rules of a cluster against frequent changes.


def ruled(*node_gpus: int, min_run: float = 0.0, cooldown: float = 0.0) -> Cluster:
    rules = {"min_run_seconds": min_run, "cooldown_seconds": cooldown}
    return cluster(*node_gpus).model_copy(update=rules)


def under(policy: str, nodes: Cluster, *jobs) -> Session:
    held = session(make_policy(policy), nodes)
    for each in jobs:
        held.submit(each, each.submit_time)
        held.decide(each.submit_time)
    return held


def test_cooldowns_and_minimum_runs_keep_jobs_as_they_are() -> None:
    held = opened(ruled(4, cooldown=60), GROWS)
    assert steps(held, 0, a=2) == [("a", "start")]
    assert steps(held, 59, a=4) == []
    assert steps(held, 60, a=4) == [("a", "grow")]
    assert steps(held, 100, a=1) == []
    assert steps(held, 120, a=1) == [("a", "shrink")]
    assert steps(held, 121, a=0) == [("a", "preempt")]
    # A cooldown holds a batch and a place as well.
    nodes = ruled(2, 2, cooldown=60)
    held = opened(nodes, job("a", low=1, high=4, elastic="size+batch", batch={"size": 64, "max": 128}))
    assert steps(held, 0, a=2) == [("a", "start")]
    assert steps(held, 30, a=Target(2, global_batch=128)) == []
    assert steps(held, 30, a=Target(2, placement=(("n1", 2),))) == []
    assert steps(held, 60, a=Target(2, global_batch=128)) == [("a", "rebatch")]
    # A minimum run keeps a job from being preempted alone.
    held = opened(ruled(4, min_run=60), GROWS)
    assert steps(held, 0, a=2) == [("a", "start")]
    assert steps(held, 1, a=1) == [("a", "shrink")]
    assert steps(held, 59, a=0) == []
    assert steps(held, 60, a=0) == [("a", "preempt")]
    # once it resumes, it runs for the minimum again
    assert steps(held, 70, a=2) == [("a", "resume")]
    assert steps(held, 129, a=0) == []
    assert steps(held, 130, a=0) == [("a", "preempt")]
    # Ends and lost nodes wait for nothing.
    held = opened(ruled(2, 2, min_run=60, cooldown=60), GROWS)
    steps(held, 0, a=2)
    (lost,) = held.maintenance.node_down("n0", 1)
    assert lost.gpus == 0
    assert steps(held, 2, a=2) == [("a", "resume")]
    assert held.end("a", 3).gpus == 0


def test_a_kept_job_says_until_when_and_what_it_gives_waits() -> None:
    held = under("fair-share", ruled(2, cooldown=60), GROWS, job("b", at=10, low=1, high=4))
    assert sizes(held) == {"a": 2}
    assert held.decided.due_s == 60
    held.decide(60)
    assert sizes(held) == {"a": 1, "b": 1}
    # A place that a policy names may not become free.
    held = opened(ruled(2, cooldown=60), GROWS, job("b", low=1, high=2))
    steps(held, 0, a=2)
    assert steps(held, 10, a=1, b=Target(1, placement=(("n0", 1),))) == []
    assert steps(held, 60, a=1, b=Target(1, placement=(("n0", 1),))) == [("a", "shrink"), ("b", "start")]
    # A job that is kept says until when.
    jobs = (job("a", gpu_seconds=1000), job("b", at=10, gpu_seconds=20))
    held = under("srtf", ruled(1, min_run=60), *jobs)
    assert sizes(held) == {"a": 1}
    assert explanations(held, 10)["a"].reason.endswith("; kept for 50 s more, as the cluster rules")
    assert predictions(copy_of(held), 10)["b"].start_s == 60
    assert list(held.decided.kept_until_s) == ["a"]
    for name in "ab":
        held.end(name, 11)
    assert explanations(held, 11) == {}
