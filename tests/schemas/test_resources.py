from typing import Any

import pytest

from pliant.schemas.checks import MANY, Capacities, fitting, oversized, servers_for
from pliant.schemas.cluster import Cluster
from pliant.schemas.io import document_bytes, read_cluster
from pliant.schemas.job import Job
from tests.builders import job

GB = 10**9


def cluster_of(*nodes: dict[str, Any]) -> Cluster:
    named = tuple({"name": f"n{index}", **node} for index, node in enumerate(nodes))
    return Cluster.model_validate({"nodes": named})


def demanding(gpus: int = 1, ps: dict[str, float] | None = None, **worker: float) -> Job:
    return job("j", gpus=gpus, resources={"worker": worker, "ps": ps or {}})


@pytest.mark.parametrize(
    ("free", "each", "asked", "fit"),
    [
        ({"cpu": 8.0, "memory": 32.0}, {"cpu": 1.0, "memory": 10.0}, 9, 3),  # the scarcest resource says
        ({}, {"cpu": 100.0}, 4, 4),  # what a node does not state limits nothing
        ({"cpu": 0.3}, {"cpu": 0.1}, 9, 3),
        ({"memory": 1e9}, {"memory": 1e-300}, 4, 4),
    ],
)
def test_how_many_fit(free, each, asked, fit):
    assert fitting(free, each, asked) == fit


def test_room_is_known_by_node_most_first():
    nodes = cluster_of(
        {"gpus": 4, "cpus": 9.0, "count": 2, "name": "m{}"},
        {"gpus": 4, "cpus": 12.0},
        {"gpus": 4, "cpus": 3.0},
    )
    capacities = Capacities(nodes.nodes)
    assert capacities.room_for(demanding(cpu=4.0)).by_node == {"gpu": ((3, 1), (2, 2), (0, 1))}
    assert capacities.room(demanding(cpu=4.0)) == {"gpu": 7}


@pytest.mark.parametrize(("workers", "needed"), [(1, 1), (3, 1), (4, 2), (0, 0)])
def test_parameter_servers_have_the_bandwidth_of_all_workers(workers, needed):
    assert servers_for(demanding(4, ps={"bandwidth": 3.0}, bandwidth=1.0), workers) == needed


def test_servers_without_bandwidth_are_more_than_any_cluster() -> None:
    asks = demanding(4, ps={"bandwidth": 1e-300}, bandwidth=1e300)
    assert servers_for(asks, 4) == MANY
    nodes = cluster_of({"gpus": 4}, {"gpus": 0, "bandwidth": 1e9})
    assert Capacities(nodes.nodes).room(asks) == {"gpu": 0}
    assert oversized([asks], nodes)["j"].endswith("expected at most one for each worker")
    # Accepted jobs are not checked for fit.
    capacities = Capacities(cluster_of({"gpus": 4, "cpus": 8.0}).nodes)
    fits, never = demanding(4, cpu=2.0), demanding(4, cpu=3.0)
    assert capacities.without_what_never_fits(fits) is fits
    assert not capacities.limits(capacities.without_what_never_fits(never))
    on_cpus = job("c", gpus=0, resources={"worker": {"cpu": 9.0}})
    assert capacities.without_what_never_fits(on_cpus) is on_cpus


@pytest.mark.parametrize(
    ("asks", "reason"),
    [
        (demanding(memory=64.0 * GB), "needs a worker with 64 GB memory, the nodes have room for 0"),
        (demanding(3, cpu=5.0), "needs 3 workers with 5 cpu each, the nodes have room for 2"),
        (
            demanding(2, ps={"cpu": 1.0}),
            "needs parameter servers, and no node without GPUs is there to hold them",
        ),
    ],
)
def test_a_job_that_can_never_fit_is_rejected_with_the_reason(asks, reason):
    nodes = cluster_of(*[{"gpus": 4, "cpus": 8.0, "memory": 32 * GB}] * 2)
    assert oversized([asks], nodes)["j"].startswith(reason)


def test_further_capacities_and_servers_slower_than_workers(tmp_path) -> None:
    nodes = cluster_of({"gpus": 4}, {"gpus": 0})
    asks = demanding(2, ps={"bandwidth": 1.0}, bandwidth=2.0)
    reason = "needs 4 parameter servers for 2 workers, expected at most one for each worker"
    assert oversized([asks], nodes) == {"j": reason}
    # Further capacities name their version.
    nodes = cluster_of({"gpus": 4, "resources": {"disk": 1e12}})
    (tmp_path / "cluster.json").write_bytes(document_bytes(nodes, "cluster"))
    assert '"pliant.cluster/1.2"' in (tmp_path / "cluster.json").read_text()
    assert read_cluster(tmp_path / "cluster.json") == nodes


BY_THREES = job("j", gpus=3, low=3, high=12, each=3)
TWICE = [{"gpus": 4, "cpus": 6.0}] * 2
FOUR = [{"gpus": 16, "resources": {"gpu": 4.0}}]


@pytest.mark.parametrize(
    ("nodes", "asks", "room"),
    [
        pytest.param(TWICE, demanding(cpu=4.0), 2, id="each node by itself"),
        pytest.param(FOUR, demanding(gpu=0.0), 16, id="without a GPU by slots"),
        pytest.param(FOUR, demanding(gpu=2.0), 2, id="GPUs that are stated"),
        pytest.param(
            [{"gpus": 8}, {"gpus": 0, "bandwidth": 6.0}],
            demanding(8, ps={"bandwidth": 3.0}, bandwidth=1.0),
            6,
            id="parameter servers",
        ),
        *(
            pytest.param([{"gpus": gpus} for gpus in nodes], BY_THREES, room, id=why)
            for nodes, room, why in (
                ((4, 4), 6, "a replica on each node"),
                ((8, 4), 9, "replicas leave GPUs idle"),
                ((2, 2, 2), 6, "no node holds a replica, so they span nodes"),
                ((3, 2, 2), 3, "one node holds a replica, so the others stay empty"),
            )
        ),
    ],
)
def test_room_for_workers_and_replicas(nodes, asks, room):
    assert Capacities(cluster_of(*nodes).nodes).room(asks) == {"gpu": room}


def test_a_job_whose_replicas_fit_no_node_says_so():
    cluster = cluster_of({"gpus": 4}, {"gpus": 4}, {"gpus": 4})
    result = oversized([job("j", gpus=12, each=3)], cluster)
    assert result == {"j": "needs 4 replicas of 3 GPUs, each on one node, the nodes have room for 3"}
