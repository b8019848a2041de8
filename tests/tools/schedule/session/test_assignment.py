"""Seating all jobs of a decision at once, on nodes of two types."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.tools.schedule.policy import Decision, Policy, Target
from pliant.tools.schedule.session.session import Session
from tests.builders import job, mixed_cluster, session

NAMES = "abcdef"
SIZES = st.lists(st.integers(0, 6), min_size=len(NAMES), max_size=len(NAMES))


class Sizes(Policy):
    """Gives everybody the size that the test says, of any type, as far as the total allows."""

    name = "sizes"
    elasticity = "size"

    def __init__(self) -> None:
        self.wanted: dict[str, int] = {}

    def decide(self, snapshot, rng):
        left, targets = snapshot.total_gpus, {}
        for name, gpus in self.wanted.items():
            targets[name] = Target(gpus if gpus <= left else 0)
            left -= targets[name].gpus
        return Decision(targets)


def opened() -> Session:
    held = session(Sizes(), mixed_cluster(x=(4, 3), y=(2, 2, 2)))
    for name in NAMES:
        held.submit(job(name, low=1, high=6), 0)
    return held


@settings(max_examples=60, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=6))
def test_everybody_gets_the_size_or_keeps_what_was_held(rounds: list[list[int]]):
    held = opened()
    assert isinstance(held.policy, Sizes)
    for wanted in rounds:
        before = {name: held.jobs[name].placement for name in NAMES}
        held.policy.wanted = dict(zip(NAMES, wanted, strict=True))
        targets = held.policy.decide(held.snapshot(0), held.rng).targets
        held.decide(0)
        for name in NAMES:
            state = held.jobs[name]
            assert state.gpus == targets[name].gpus or state.placement == before[name]
            assert len({held.free.node(node).gpu_type for node, _ in state.placement}) <= 1
        seats = [seat for state in held.jobs.values() for seat in state.placement]
        for node in held.nodes:
            used = sum(count for name, count in seats if name == node.name)
            assert held.free.free_on(node.name) == node.gpus - used >= 0


@settings(max_examples=60, deadline=None)
@given(SIZES, SIZES)
def test_on_one_type_everybody_gets_the_size(first: list[int], second: list[int]):
    held = session(Sizes(), mixed_cluster(x=(4, 3, 2)))
    assert isinstance(held.policy, Sizes)
    for name in NAMES:
        held.submit(job(name, low=1, high=6), 0)
    for wanted in (first, second):
        held.policy.wanted = dict(zip(NAMES, wanted, strict=True))
        targets = held.policy.decide(held.snapshot(0), held.rng).targets
        held.decide(0)
        assert {name: held.jobs[name].gpus for name in NAMES} == {n: t.gpus for n, t in targets.items()}
