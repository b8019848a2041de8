"""Nodes as servers with several resources."""

from __future__ import annotations

import math

import pytest

from pliant.schemas.cluster import Cluster
from pliant.tools.schedule.jobs import node_states
from pliant.tools.schedule.policies.multi_resource.fleet import ServerNodes
from pliant.tools.schedule.registry import make_policy
from tests.builders import job, session
from tests.tools.schedule.policies.started import started

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


def test_slots_have_a_price_where_nodes_state_no_gpus() -> None:
    assert ServerNodes(node_states(CLUSTER)).now().weights.tolist() == [1, 1, 1, 1]
    first = CLUSTER.nodes[0].model_copy(update={"resources": {"gpu": 2}})
    stating = CLUSTER.model_copy(update={"nodes": (first,)})
    servers = ServerNodes(node_states(stating)).now()
    assert dict(zip(servers.resources, servers.weights.tolist(), strict=True))["slot"] == 0
    assert dict(zip(servers.resources, servers.workers[0].tolist(), strict=True))["gpu"] == 2


def test_a_slot_out_of_service_leaves_resources_as_they_were() -> None:
    held = session(make_policy("fifo"), CLUSTER)
    before = ServerNodes(held.nodes).now()
    held.withdraw("w0/0", 0.0, 60.0)
    after = ServerNodes(held.nodes).now()
    assert after.resources == before.resources
    assert after.weights.tolist() == before.weights.tolist()
    assert [row[0] for row in after.workers.tolist()] == [3, 2]


def test_a_job_takes_a_slot_a_worker_and_what_it_demands() -> None:
    demand = {"worker": {"cpu": 2, "bandwidth": 1.25e8}, "ps": {"cpu": 1, "bandwidth": 2.5e8}}
    held = started(make_policy("fifo"), CLUSTER, job("j", gpus=3, resources=demand))
    nodes = ServerNodes(held.nodes)
    bid = nodes.demands(held.jobs["j"])
    assert bid.worker == pytest.approx([1, 1, 2, 0])
    assert bid.ps == pytest.approx([0, 2, 1, 0])
    assert (bid.worker_bandwidth, bid.ps_bandwidth) == (1.25e8, 2.5e8)
    placed = nodes.holding(held.jobs["j"])
    assert (placed.workers.tolist(), placed.ps.tolist()) == ([3, 0], [2])
