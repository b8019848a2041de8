from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job, updated
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policy import Decision, Policy, PolicyError, Target
from pliant.tools.schedule.session.assignment import assign
from pliant.tools.schedule.session.session import Session
from tests.builders import allocated, decided, job, mixed_cluster, opened
from tests.effort import examples
from tests.tools.schedule.session.test_session import opened as everyone
from tests.tools.schedule.session.test_session import steps

NAMES = "abcdef"
POOLS = {"x": (4, 3), "y": (2, 2, 2)}, {"x": (4, 3, 2)}
SIZES = st.lists(st.integers(0, 6), min_size=len(NAMES), max_size=len(NAMES))


class Sizes(Policy):
    """Gives each job the size that the test sets, of any type, as far as the total allows."""

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


def sized(**gpus: tuple[int, ...]) -> Session:
    return opened(Sizes(), mixed_cluster(**gpus), *(job(name, low=1, high=6) for name in NAMES))


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=6), st.sampled_from(POOLS))
def test_each_gets_size_or_of_several_types_keeps_what_it_held(rounds, gpus):
    held = sized(**gpus)
    assert isinstance(held.policy, Sizes)
    for wanted in rounds:
        before = {name: held.jobs[name].placement for name in NAMES}
        held.policy.wanted = dict(zip(NAMES, wanted, strict=True))
        targets = held.policy.decide(held.snapshot(0), held.policy_host.rng).targets
        held.decide(0)
        for name in NAMES:
            state = held.jobs[name]
            assert state.gpus == targets[name].gpus or (len(gpus) > 1 and state.placement == before[name])
            assert len({held.cluster.free.node(node).gpu_type for node, _ in state.placement}) <= 1
        seats = [seat for state in held.jobs.values() for seat in state.placement]
        for node in held.cluster.nodes:
            used = sum(count for name, count in seats if name == node.name)
            assert held.cluster.free.free_on(node.name) == node.gpus - used >= 0


def nodes(*found: dict[str, Any]) -> Cluster:
    named = tuple({"name": f"n{index}", **each} for index, each in enumerate(found))
    return Cluster.model_validate({"nodes": named})


def needy(
    name: str, gpus: int = 1, at: float = 0.0, ps: dict[str, float] | None = None, **worker: float
) -> Job:
    return job(name, gpus=gpus, at=at, gpu_seconds=100, resources={"worker": worker, "ps": ps or {}})


def started(*jobs: Job, on: Cluster) -> Session:
    held = opened(Fifo(), on, *jobs)
    held.decide(0)
    return held


@pytest.mark.parametrize(
    ("spec", "on", "place"),
    [
        (needy("a", 2, memory=8.0), [{"gpus": 2, "memory": 8}, {"gpus": 4, "memory": 16}], (("n1", 2),)),
        (needy("a", 2, cpu=5.0), [{"gpus": 4, "cpus": 8.0}] * 2, (("n0", 1), ("n1", 1))),
        (
            needy("a", 4, memory=16.0),
            [{"gpus": 4, "gpu_type": "fast", "memory": 1}, {"gpus": 4, "gpu_type": "slow", "memory": 64}],
            (("n1", 4),),
        ),
    ],
)
def test_a_job_goes_where_its_demands_are_met(spec: Job, on: list[dict[str, Any]], place: object):
    assert started(spec, on=nodes(*on)).jobs["a"].placement == place


def test_a_job_waits_for_cpus_and_one_without_demands_does_not():
    full = nodes({"gpus": 4, "cpus": 8.0})
    held = started(needy("a", 2, cpu=4.0), needy("b", 1, 1.0, cpu=1.0), on=full)
    assert [held.jobs[name].gpus for name in "ab"] == [2, 0]
    held.end("a", 10)
    held.decide(10)
    assert held.jobs["b"].gpus == 1
    held = started(needy("a", 2, cpu=4.0), job("b", gpus=2, at=1.0), on=full)
    assert [held.jobs[name].gpus for name in "ab"] == [2, 2]
    # One that fails while its node is down runs there again.
    held.maintenance.node_down("n0", 1)
    held.end("a", 2, "failed")
    held.maintenance.node_up("n0", 3)
    held.revive("a", 4)
    assert decided(held, 4) == {"a": 2, "b": 2}
    # A node that has no GPU in service is still of its type.
    held = opened(Fifo(), mixed_cluster(x=(1,), y=(1,)))
    held.cluster.withdraw(f"{held.cluster.nodes[0].name}/0", 0, 9)
    spec = updated(job("c"), {"gpus": {"requested": 1, "types": ["y"]}})
    assert held.submit(spec, 1).types == ("y",)


def test_parameter_servers_sit_on_nodes_without_gpus():
    on = nodes(
        {"gpus": 4}, {"gpus": 0, "cpus": 1.0, "bandwidth": 9}, {"gpus": 0, "cpus": 4.0, "bandwidth": 9}
    )
    held = started(needy("a", 4, ps={"cpu": 1.0, "bandwidth": 2.0}, bandwidth=1.0), on=on)
    assert held.jobs["a"].servers == (("n2", 2),)
    second = needy("b", 1, 5.0, ps={"cpu": 3.0})
    held.submit(second, 5.0)
    held.decide(5)
    assert not held.jobs["b"].gpus  # no GPU is free
    held.end("a", 9)
    held.decide(9)
    assert held.jobs["b"].servers == (("n2", 1),)
    assert [each.id for each in held.maintenance.node_down("n2", 10)] == ["b"]
    held.decide(10)
    assert not held.jobs["b"].gpus, "without its parameter server it waits"
    held.maintenance.node_up("n2", 11)
    held.decide(11)
    assert held.jobs["b"].servers == (("n2", 1),)
    # A policy that names their nodes names enough.
    on = nodes({"gpus": 2}, {"gpus": 0}, {"gpus": 0})
    held = everyone(on, needy("a", 2, ps={"bandwidth": 1.0}, bandwidth=1.0))
    steps(held, 0, a=Target(2, servers=(("n1", 1), ("n2", 1))))
    assert held.jobs["a"].servers == (("n1", 1), ("n2", 1))
    with pytest.raises(PolicyError, match='gives "a" 1 parameter servers, it needs 2'):
        steps(held, 1, a=Target(2, servers=(("n1", 1),)))


@pytest.mark.parametrize("each", [1, 2])
def test_a_place_that_lacks_memory_gives_way_to_another(each: int):
    on = nodes({"gpus": 2, "memory": 1}, {"gpus": 2, "memory": 9})
    demand = {"worker": {"memory": 4.0}}
    held = everyone(on, job("a", gpus=2, each=each, gpu_seconds=100, resources=demand))
    steps(held, 0, a=Target(2, None, None, (("n0", 2),)))
    assert held.jobs["a"].placement == (("n1", 2),)


@pytest.mark.parametrize(("cut", "place"), [((), (("x-1", 2),)), (("a",), (("x-0", 1), ("x-1", 1)))])
def test_a_job_that_has_given_gpus_back_stays_where_it_is(cut, place):
    """Two GPUs on one node would be closer together; but to go there it would have to start again."""
    held = sized(x=(2, 4))
    held.set_allocations([allocated("a", (("x-0", 1),)), allocated("b", (("x-0", 1),))], 0.0)
    targets = {"a": Target(2), "c": Target(2)}
    found = assign(targets, held.jobs, held.cluster.free, held.cluster.speeds, cut=cut)
    assert found["a"] == (place, ())
    assert found["c"] == ((("x-1", 2),), ())
