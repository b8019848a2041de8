import copy
from dataclasses import replace

import numpy as np
import pytest

from pliant.schemas.job import updated
from pliant.schemas.schedule import PolicyState
from pliant.tools.schedule.jobs import Phase
from pliant.tools.schedule.policy import Decision, Policy, PolicyError, Target
from pliant.tools.schedule.session.allocations import AllocationEvent
from pliant.tools.schedule.session.policy_host import lazy_rng
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Snapshot
from pliant.tools.schedule.testing.harness import as_held
from tests import builders
from tests.builders import allocated, cluster, job, mixed_cluster, sizes


class Says(Policy):
    """Says what the test puts into ``next`` and remembers what it was shown."""

    name = "says"
    elasticity = "size+batch"

    def __init__(self) -> None:
        self.next = Decision()
        self.seen: list[Snapshot] = []

    def decide(self, snapshot, rng):
        self.seen.append(snapshot)
        answer, self.next = self.next, Decision()
        return answer

    def say(self, **targets: Target | int) -> None:
        self.next = Decision({k: Target(v) if isinstance(v, int) else v for k, v in targets.items()})


def steps(held: Session, time: float, **targets: Target | int) -> list[tuple[str, str]]:
    """What a decision leads to: [(job, step)]."""
    held.policy.say(**targets)
    return [(transition.job.id, transition.step) for transition in held.decide(time)]


def adopt(held: Session, time: float, *updates: AllocationEvent) -> list[str]:
    return [transition.step for transition in held.set_allocations(updates, time)]


def opened(nodes, *jobs, throughput=None, policy: type[Says] = Says) -> Session:
    return builders.opened(policy(), nodes, *jobs, throughput=throughput)


def test_jobs_start_resize_and_resume_and_gpus_are_freed_first() -> None:
    held = opened(cluster(4), job("a", low=1, high=4, work={"samples": 1000}))
    assert steps(held, 0, a=1) == [("a", "start")]
    assert steps(held, 10, a=4) == [("a", "grow")]
    assert steps(held, 20, a=2) == [("a", "shrink")]
    assert steps(held, 30, a=0) == [("a", "preempt")]
    assert steps(held, 40, a=1) == [("a", "resume")]
    state = held.jobs["a"]
    assert steps(held, 30) == [], "a clock that steps back stands still"
    assert held.changes.now_s == 40
    assert state.samples_done(50) == 10 * 1 + 10 * 4 + 10 * 2 + 10 * 1
    assert state.attained_service_s(50) == 80
    # What work stated as GPU time comes to follows from the GPUs of the submission, also after an update.
    slow = builders.TimedSteps(lambda _model, _type, place, batch: batch / sum(place) ** 0.5)
    gpu_time = job("a", gpus=4, gpu_seconds=4000.0, elastic="none")
    held = opened(cluster(4), gpu_time, throughput=slow)
    held.update("a", 0.0, updated(gpu_time, {"gpus": {"requested": 1}}))
    assert (held.jobs["a"].requested, held.jobs["a"].total_samples) == (1, 2000.0)
    assert (state.preemptions, state.rescales, state.first_start_s) == (1, 2, 0)
    assert state.finish_time_s() == 50 + 1000 - 80
    # GPUs are freed before they are taken.
    held = opened(cluster(4), job("a", gpus=4), job("b", low=1, high=4), job("c", gpus=2))
    steps(held, 0, b=4)
    assert steps(held, 1, c=2, b=2) == [("b", "shrink"), ("c", "start")]
    assert steps(held, 2, a=4, b=0, c=0) == [("b", "preempt"), ("c", "preempt"), ("a", "start")]
    # No target means no step.
    held = opened(cluster(4), job("a", gpus=2))
    steps(held, 0, a=2)
    place = held.jobs["a"].placement
    assert steps(held, 5) == []
    assert steps(held, 6, a=2) == []
    assert held.jobs["a"].placement == place


def test_a_changed_batch_stays_in_place_and_moves_count_apart() -> None:
    flexible = job("a", gpus=2, elastic="size+batch", batch={"size": 64, "min": 32, "max": 256})
    held = opened(cluster(4), flexible, job("b", low=1, high=3))
    steps(held, 0, a=2, b=1)
    place = held.jobs["a"].placement
    assert steps(held, 1, b=2, a=Target(2, global_batch=128)) == [("a", "rebatch"), ("b", "grow")]
    assert (held.jobs["a"].placement, held.jobs["a"].global_batch) == (place, 128)
    # Moves are counted apart from changes of size and batch.
    held = opened(
        cluster(2, 2), job("a", low=1, high=2, batch={"size": 64, "max": 128}, elastic="size+batch")
    )
    steps(held, 0, a=Target(1, placement=(("n0", 1),)))
    assert steps(held, 10, a=Target(1, placement=(("n1", 1),))) == [("a", "move")]
    assert steps(held, 20, a=Target(1, global_batch=128, placement=(("n1", 1),))) == [("a", "rebatch")]
    assert steps(held, 30, a=Target(1, global_batch=64, placement=(("n0", 1),))) == [("a", "move")]
    assert (held.jobs["a"].moves, held.jobs["a"].rescales) == (1, 2)


def test_jobs_swap_types_and_a_policy_places_itself() -> None:
    held = opened(mixed_cluster(t4=(4,), a100=(4,)), job("a", gpus=4), job("b", gpus=4))
    steps(held, 0, a=Target(4, "t4"), b=Target(4, "a100"))
    assert steps(held, 1, a=Target(4, "a100"), b=Target(4, "t4")) == [("a", "move"), ("b", "move")]
    assert (held.jobs["a"].gpu_type, held.jobs["b"].gpu_type) == ("a100", "t4")
    # A job that no single type can hold keeps its place.
    jobs = (job("a", low=1, high=4), job("b", gpus=1), job("d", gpus=1))
    held = opened(mixed_cluster(t4=(2,), a100=(2,), v100=(1,)), *jobs)
    steps(held, 0, a=Target(1, "t4"), b=Target(1, "a100"))
    before = held.jobs["a"].placement
    assert steps(held, 1, a=3, d=1) == [("d", "start")]  # 3 GPUs would be free, but of two types
    assert held.jobs["a"].placement == before
    assert sum(held.cluster.free.by_type.values()) == 2
    # A policy places itself.
    held = opened(cluster(4, 4), job("a", gpus=2), job("b", gpus=4))
    steps(held, 0, a=Target(2, placement=(("n1", 1), ("n0", 1))))
    assert held.jobs["a"].placement == (("n1", 1), ("n0", 1)), "in the order in which it links them"
    steps(held, 1, a=Target(2, placement=(("n1", 2),)), b=Target(4, placement=(("n0", 4),)))
    assert held.jobs["a"].placement == (("n1", 2),)
    assert held.jobs["b"].placement == (("n0", 4),)


JOBS = (
    job("a", gpus=2),
    job("b", gpus=2, low=2, high=4),
    job("c", gpus=3),
    job("d", elastic="size+batch", batch={"size": 64, "min": 32, "max": 128}),
)
"""On two nodes of four GPUs, and one of another type."""


@pytest.mark.parametrize(
    ("targets", "complaint"),
    [
        ({"a": Target(1)}, "limits are 2 to 2"),
        ({"b": Target(1)}, "limits are 2 to 4"),
        ({"b": Target(5)}, "limits are 2 to 4"),
        ({"b": Target(2, global_batch=64)}, "changes the batch"),
        ({"d": Target(1, global_batch=256)}, "its limits are 32 to 128"),
        ({"a": Target(2, "tpu")}, 'type "tpu", which the cluster lacks'),
        ({"a": Target(2, placement=(("gpu-0", 1),))}, "but places it on"),
        ({"a": Target(2, placement=(("gpu-0", 3), ("gpu-1", -1)))}, "but places it on"),
        ({"a": Target(2, placement=(("gpu-0", 1), ("gpu-0", 1)))}, "expected different nodes"),
        ({"a": Target(2, placement=(("n7", 2),))}, "expected different nodes"),
        ({"a": Target(2, placement=(("gpu-0", 1), ("other-0", 1)))}, "several GPU types"),
        ({"a": Target(2, "other"), "c": Target(3, "other")}, '5 GPUs of type "other", 4 are free'),
        ({"a": 2, "b": 4, "c": 3, "e": 4}, "gives away 13 GPUs, 12 are free"),
        ({"a": Target(2, placement=(("gpu-1", 2),))}, 'places "a"'),  # e is there
        ({"z": Target(1)}, 'names "z", which is not an active job'),
        (Decision(rejected={"z": "no"}), 'names "z", which is not an active job'),
        (Decision({"a": Target(2)}, {"a": "no"}), 'both rejects "a" and gives it GPUs'),
    ],
)
def test_a_rule_broken_is_an_error_that_names_the_policy(targets, complaint):
    held = opened(mixed_cluster(gpu=(4, 4), other=(4,)), *JOBS, job("e", gpus=4))
    if isinstance(targets, Decision):
        held.policy.next = targets
    else:
        held.policy.say(**targets)
    if "e" not in held.policy.next.targets:
        held.set_allocations([allocated("e", (("gpu-1", 4),))], 0)
    with pytest.raises(PolicyError, match=f'policy "says" .*{complaint}'):
        held.decide(0)


def test_a_policy_keeps_to_the_elasticity_it_declares(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Says, "traits", replace(Says.traits, elasticity="none"))
    held = opened(cluster(4), job("a", gpus=2, low=1, high=4))
    with pytest.raises(PolicyError, match="declares no elasticity"):
        steps(held, 0, a=4)


def test_a_rejected_job_and_a_lost_node_free_their_gpus() -> None:
    held = opened(cluster(4), job("a", gpus=4), job("b", gpus=4))
    steps(held, 0, a=4)
    held.policy.next = Decision({"b": Target(4)}, {"a": "too slow"})
    transitions = held.decide(10)
    found = [(each.job.id, each.step, each.reason) for each in transitions]
    assert found == [("a", "reject", "too slow"), ("b", "start", "")]
    assert transitions[0].before == (("n0", 4),)
    assert (sizes(held), list(held.book.ended)) == ({"b": 4}, ["a"])
    # A node takes its jobs down and comes back empty.
    held = opened(cluster(4, 4), job("a", gpus=8), job("b", gpus=1))
    steps(held, 0, a=8)
    assert [lost.id for lost in held.maintenance.node_down("n1", 5)] == ["a"]
    assert (held.cluster.up_gpus, held.cluster.free.by_type, held.jobs["a"].phase) == (
        4,
        {"gpu": 4},
        Phase.PREEMPTED,
    )
    assert held.maintenance.node_down("n1", 6) == []
    with pytest.raises(PolicyError, match="limits are 8 to 4"):
        steps(held, 6, a=8)
    held.maintenance.node_up("n1", 7)
    held.maintenance.node_up("n1", 7)
    assert held.cluster.up_gpus == 8
    assert steps(held, 8, a=8) == [("a", "resume")]
    kinds = [change.kind for snapshot in held.policy.seen for change in snapshot.changes]
    assert kinds == ["arrived", "arrived", "node_down", "lost", "node_up"]


def test_each_change_is_shown_once_and_none_before_earlier_ones() -> None:
    held = opened(cluster(4), job("a"), job("b"))
    held.maintenance.lose("a", 0)  # it holds nothing
    held.decide(0)
    held.end("a", 1, "cancelled")
    held.decide(1)
    held.decide(2)
    shown = [[change.kind for change in snapshot.changes] for snapshot in held.policy.seen]
    assert shown == [["arrived", "arrived"], ["cancelled"], []]
    assert held.changes.seen == 3
    # A late job has its own time but none before earlier changes.
    held = opened(cluster(4), job("a", at=10))
    with pytest.raises(ValueError, match='"a" was submitted before'):
        held.submit(job("a"), 1)
    held.end("a", 50)
    with pytest.raises(ValueError, match='"a" was submitted before'):
        held.submit(job("a"), 3)
    held.submit(job("late", at=20), 60)
    held.submit(job("early", at=99), 60)
    assert [
        (change.time_s, change.kind, change.job and change.job.id) for change in held.changes.entries
    ] == [
        (10, "arrived", "a"),
        (50, "finished", "a"),
        (50, "arrived", "late"),
        (60, "arrived", "early"),
    ]


def test_what_a_log_holds_is_taken_over_without_asking():
    held = opened(cluster(4, 4), job("a", low=1, high=8))
    assert adopt(held, 5, allocated("a", (("n1", 2), ("n0", 1)))) == ["start"]
    assert adopt(held, 6, allocated("a", (("n1", 2), ("n0", 1)))) == []
    assert held.jobs["a"].placement == (("n1", 2), ("n0", 1))
    assert adopt(held, 7, allocated("a", (("n1", 2),))) == ["shrink"]
    assert adopt(held, 8, allocated("a", (("n0", 2),))) == ["move"]
    assert adopt(held, 9, allocated("a")) == ["preempt"]
    assert adopt(held, 9, allocated("a", (), 64)) == []
    assert held.cluster.free.by_type == {"gpu": 8}
    assert held.jobs["a"].attained_service_s(9) == 2 * 3 + 1 * 2 + 1 * 2


class Counts(Says):
    name = "counts"
    total = 0

    def decide(self, snapshot, rng):
        self.total += len(snapshot.changes)
        return Decision()

    def dump_state(self):
        return {"total": self.total}

    def load_state(self, state, jobs):
        self.total = state["total"]


@pytest.mark.parametrize(
    ("carried", "total"),
    [
        (PolicyState(policy="counts", state={"total": 9}, changes_seen=1), 10),
        (None, 2),
        (PolicyState(policy="counts", state=None, changes_seen=1), 2),
        (PolicyState(policy="other", state={"total": 9}, changes_seen=1), 2),
        (PolicyState(policy="counts", version=2, state={"total": 9}, changes_seen=1), 2),
        (PolicyState(policy="counts", state={"total": 9}, changes_seen=3), 2),
    ],
)
def test_state_that_fits_is_shown_only_what_came_after_it(carried: PolicyState | None, total: int):
    held = opened(cluster(4), job("a"), job("b"), policy=Counts)
    assert held.restore_state(carried) is (total == 10)
    held.decide(1)
    assert (held.policy.total, held.changes.seen) == (total, 2)


def test_draws_go_on_in_a_copy_and_unexecuted_ends_are_shown() -> None:
    drawn, expected = lazy_rng(7), np.random.default_rng(7)
    fresh = copy.deepcopy(drawn)
    assert [drawn.random() for _ in range(3)] == [expected.random() for _ in range(3)]
    assert drawn.permutation(9).tolist() == expected.permutation(9).tolist()
    used = copy.deepcopy(drawn)
    assert fresh.random() == lazy_rng(7).random()
    assert used.random() == drawn.random()
    # After a decision that was not executed ends are shown.
    held = opened(cluster(4), job("a", gpus=2, low=1), job("b", gpus=1))
    steps(held, 0.0, a=1, b=1)
    before = as_held(held.jobs["a"], 0.0)
    held.policy.next = Decision({"a": Target(2)}, outlasts_ends=True)
    held.submit(job("c", at=1.0), 1.0)
    held.decide(1.0)
    held.rollback([before], 1.0)
    held.end("b", 2.0)
    assert not held.leaves_unasked(2.0)
