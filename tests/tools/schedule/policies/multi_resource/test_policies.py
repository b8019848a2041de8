import math
from typing import Any

import pytest

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.job import Job
from pliant.tools.schedule.jobs import node_states
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policies.multi_resource.fleet import ServerNodes
from pliant.tools.schedule.policies.multi_resource.policies import Drf, FifoDemands, Rrh
from pliant.tools.schedule.registry import make_policy
from tests.builders import decided, job, session, sizes
from tests.tools.schedule.policies.started import joined, started

NODES = Cluster(nodes=(Node(name="n", gpus=8, gpu_type="t4", cpus=12),))
LATE = {"shape": "sigmoid", "value": 100, "decay": 1, "target": 100}
"""Worth nothing a few seconds after the hundredth."""


def demanding(name: str, cpus: float, gpus: int = 4, **limits: int) -> Job:
    return job(name, gpus=gpus, resources={"worker": {"cpu": cpus}}, **limits)


def elastic(name: str, cpus: float) -> Job:
    return demanding(name, cpus, low=1, high=8)


def rigid(name: str, seconds: float, at: float = 0.0, **utility: Any) -> Job:
    return job(name, at=at, gpus=8, gpu_seconds=8 * seconds, utility=utility)


def test_drf_levels_shares_and_rrh_earns_most() -> None:
    # Workers of 4 and of 1 CPU, 12 in all and 8 slots: parts of a third and an eighth.
    assert sizes(started(Drf(), NODES, elastic("a", 4), elastic("b", 1))) == {"a": 2, "b": 4}

    # A worker takes a third of the CPUs or a seventh of the slots.
    held = session(Drf(), NODES)
    held.cluster.withdraw("n/0", 0.0, 60.0)
    assert joined(held, 0.0, elastic("a", 4), elastic("b", 0)) == {"a": 2, "b": 5}
    # RRH rejects what would make another late.
    held = started(Rrh(), NODES, rigid("a", 90, **LATE), rigid("b", 500, value=50))
    assert sizes(held) == {"a": 8}
    assert set(held.jobs) == {"a"}
    admitted = {name: statement["admitted"] for name, statement in held.decided.admissions.items()}
    assert admitted == {"a": True, "b": False}
    assert held.decided.admissions["b"]["payoff"] < 0 < held.decided.admissions["a"]["payoff"]
    # RRH pauses for a job that earns more per second.
    held = started(Rrh(), NODES, rigid("a", 500, value=50))
    assert joined(held, 10, rigid("b", 90, at=10, value=60)) == {"b": 8}
    assert set(held.jobs) == {"a", "b"}
    held.end("b", 100)
    assert decided(held, 100) == {"a": 8}
    # RRH goes on with what earns nothing any more on an idle cluster.
    held = started(Rrh(), NODES, rigid("a", 90, shape="step", value=10, target=100))
    assert joined(held, 10, rigid("b", 90, at=10, value=1000)) == {"b": 8}
    held.end("b", 100)
    assert decided(held, 100) == {"a": 8}, "80 seconds are left, and its target is now"


def test_fifo_over_demands_lets_no_job_pass_one_that_lacks_cpus() -> None:
    """GPUs are free for b and c; CPUs are not for b, and c comes after it."""
    jobs = demanding("a", 4, gpus=2), demanding("b", 3, gpus=2), demanding("c", 1, gpus=1)
    assert sizes(started(Fifo(), NODES, *jobs)) == {"a": 2, "c": 1}
    held = started(FifoDemands(), NODES, *jobs)
    assert sizes(held) == {"a": 2}
    held.end("a", 50.0, "finished")
    assert decided(held, 50.0) == {"b": 2, "c": 1}


CLUSTER = Cluster.model_validate(
    {
        "nodes": (
            {"name": "w0", "gpus": 4, "gpu_type": "a", "cpus": 16, "memory": 64_000_000_000},
            {"name": "w1", "gpus": 2, "gpu_type": "b", "cpus": 8},
            {"name": "p0", "gpus": 0, "cpus": 4, "bandwidth": 2.5e9},
        )
    }
)


def test_what_a_node_states_is_in_the_units_of_the_papers() -> None:
    states = node_states(CLUSTER)
    nodes = ServerNodes(states)
    servers = nodes.now()
    assert servers.resources == ("slot", "bandwidth", "cpu", "memory")
    assert servers.workers.tolist() == [[4, math.inf, 16, 64], [2, math.inf, 8, math.inf]]
    assert servers.ps.tolist() == [[0, 20, 4, math.inf]]
    assert (servers.worker_names, servers.ps_names) == (("w0", "w1"), ("p0",))
    assert nodes.of_type("b").tolist() == [False, True]

    states[0].up = False
    assert not ServerNodes(states).now().workers[0].any()


def test_slots_have_prices_and_jobs_take_slots_and_demands() -> None:
    assert ServerNodes(node_states(CLUSTER)).now().weights.tolist() == [1, 1, 1, 1]
    first = CLUSTER.nodes[0].model_copy(update={"resources": {"gpu": 2}})
    stating = CLUSTER.model_copy(update={"nodes": (first,)})
    servers = ServerNodes(node_states(stating)).now()
    assert dict(zip(servers.resources, servers.weights.tolist(), strict=True))["slot"] == 0
    assert dict(zip(servers.resources, servers.workers[0].tolist(), strict=True))["gpu"] == 2
    # A slot out of service leaves resources as they were.
    held = session(make_policy("fifo"), CLUSTER)
    before = ServerNodes(held.cluster.nodes).now()
    held.cluster.withdraw("w0/0", 0.0, 60.0)
    after = ServerNodes(held.cluster.nodes).now()
    assert after.resources == before.resources
    assert after.weights.tolist() == before.weights.tolist()
    assert [row[0] for row in after.workers.tolist()] == [3, 2]
    # A job takes a slot a worker and what it demands.
    demand = {"worker": {"cpu": 2, "bandwidth": 1.25e8}, "ps": {"cpu": 1, "bandwidth": 2.5e8}}
    held = started(make_policy("fifo"), CLUSTER, job("j", gpus=3, resources=demand))
    nodes = ServerNodes(held.cluster.nodes)
    bid = nodes.demands(held.jobs["j"])
    assert bid.worker == pytest.approx([1, 1, 2, 0])
    assert bid.ps == pytest.approx([0, 2, 1, 0])
    assert (bid.worker_bandwidth, bid.ps_bandwidth) == (1.25e8, 2.5e8)
    placed = nodes.holding(held.jobs["j"])
    assert (placed.workers.tolist(), placed.ps.tolist()) == ([3, 0], [2])
