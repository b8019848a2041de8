"""Where measurements are made."""

from __future__ import annotations

import socket

import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.tools.profile.measuring.plan import node_to_measure
from tests.builders import cluster, mixed_cluster


def test_the_largest_node_stands_for_a_cluster_that_this_host_is_not_in() -> None:
    site = node_to_measure(cluster(2, 8, 4), devices=8)
    assert (site.workers, site.cluster_gpus) == (8, 14)
    assert "up to 8 of the cluster's 14 slots" in site.notes[0]


def test_this_host_is_measured_where_the_cluster_names_it() -> None:
    nodes = [
        {"name": "big", "gpus": 8, "gpu_type": "a100"},
        {"name": "small", "gpus": 2, "gpu_type": "t4", "address": socket.gethostname()},
    ]
    site = node_to_measure(Cluster.model_validate({"nodes": tuple(nodes)}), devices=8)
    assert (site.gpu_type, site.workers) == ("t4", 2)


def test_other_types_are_left_to_another_run() -> None:
    site = node_to_measure(mixed_cluster(a100=(8,), t4=(4,)), devices=8)
    assert site.notes[0] == 'measuring "a100"; run profile on the others too: t4'


def test_nodes_of_a_local_cluster_share_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert node_to_measure(cluster(8), devices=2).workers == 2
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(3)))
    assert node_to_measure(cluster(1, 1, slots="cpu"), devices=0).workers == 2
    assert node_to_measure(cluster(*[1] * 64, slots="cpu"), devices=0).workers == 3
    assert node_to_measure(cluster(1, 1), devices=2).workers == 2


def test_nodes_with_addresses_are_elsewhere() -> None:
    nodes = tuple({"name": f"n{i}", "gpus": 2, "address": f"10.0.0.{i}"} for i in range(3))
    assert node_to_measure(Cluster.model_validate({"nodes": nodes}), devices=8).workers == 2


def test_cpu_slots_need_no_gpu() -> None:
    site = node_to_measure(cluster(4, slots="cpu", gpu_type="cpu"), devices=0)
    assert (site.slots, site.workers, site.notes) == ("cpu", 4, ())


def test_a_cluster_without_gpus_here_or_at_all_is_refused() -> None:
    with pytest.raises(ServiceMissingError, match="this machine has none"):
        node_to_measure(cluster(8), devices=0)
    with pytest.raises(BadInputError, match="nothing to measure on"):
        node_to_measure(cluster(0), devices=1)


def test_without_a_cluster_the_machine_itself_is_measured() -> None:
    assert node_to_measure(None, devices=3).workers == 3
    assert node_to_measure(None, devices=0).slots == "cpu"


@pytest.mark.parametrize(
    ("slots", "stated", "limit"),
    [
        ("cpu", {"gpu_memory": 5}, 5),
        ("cpu", {"memory": 12}, 3),
        ("cpu", {}, None),
        ("gpu", {"gpu_memory": 5}, 5),
        ("gpu", {"memory": 12}, None),
    ],
)
def test_the_memory_of_one_slot(slots: str, stated: dict[str, int], limit: int | None) -> None:
    nodes = ({"name": "n", "gpus": 4, **stated},)
    assert (
        node_to_measure(Cluster.model_validate({"nodes": nodes, "slots": slots}), devices=4).memory_limit
        == limit
    )
