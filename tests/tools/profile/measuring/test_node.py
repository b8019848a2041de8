"""Where measurements are made."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.tools.profile.measuring.plan import node_to_measure
from tests.builders import cluster, mixed_cluster


def of(*nodes: dict[str, Any], **more: Any) -> Cluster:
    return Cluster.model_validate({"nodes": nodes, **more})


ELSEWHERE = of(*({"name": f"n{i}", "gpus": 2, "address": f"10.0.0.{i}"} for i in range(3)))
NAMED = of(
    {"name": "big", "gpus": 8, "gpu_type": "a100"},
    {"name": "small", "gpus": 2, "gpu_type": "t4", "address": socket.gethostname()},
)


@pytest.mark.parametrize(
    ("nodes", "devices", "expected"),
    [
        pytest.param(cluster(2, 8, 4), 8, {"workers": 8, "cluster_gpus": 14}, id="the largest node"),
        pytest.param(NAMED, 8, {"gpu_type": "t4", "workers": 2}, id="the node that is this host"),
        pytest.param(ELSEWHERE, 8, {"workers": 2}, id="nodes with addresses are elsewhere"),
        pytest.param(cluster(8), 2, {"workers": 2}, id="no more workers than devices"),
        pytest.param(cluster(1, 1, slots="cpu"), 0, {"workers": 2}, id="nodes share this machine"),
        pytest.param(cluster(*[1] * 64, slots="cpu"), 0, {"workers": 3}, id="as far as it has cores"),
        pytest.param(cluster(1, 1), 2, {"workers": 2}, id="and devices"),
        pytest.param(
            cluster(4, slots="cpu"), 0, {"slots": "cpu", "workers": 4, "notes": ()}, id="no GPU for CPU slots"
        ),
        pytest.param(None, 3, {"workers": 3, "slots": "gpu"}, id="without a cluster the machine itself"),
        pytest.param(None, 0, {"slots": "cpu"}, id="which may have no GPU"),
    ],
)
def test_which_node_is_measured(monkeypatch, nodes, devices, expected):
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(3)))
    site = node_to_measure(nodes, devices=devices)
    assert {name: getattr(site, name) for name in expected} == expected


def test_what_is_not_measured_is_named() -> None:
    assert "up to 8 of the cluster's 14 slots" in node_to_measure(cluster(2, 8, 4), devices=8).notes[0]
    site = node_to_measure(mixed_cluster(a100=(8,), t4=(4,)), devices=8)
    assert site.notes[0] == 'measuring "a100"; run profile on the others too: t4'


def test_a_cluster_without_gpus_here_or_at_all_is_refused() -> None:
    with pytest.raises(ServiceMissingError, match="this machine has none"):
        node_to_measure(cluster(8), devices=0)
    with pytest.raises(BadInputError, match="nothing to measure on"):
        node_to_measure(cluster(0), devices=1)


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
    assert (
        node_to_measure(of({"name": "n", "gpus": 4, **stated}, slots=slots), devices=4).memory_limit == limit
    )
