"""This machine as a cluster."""

from __future__ import annotations

import socket
import sys

import pytest

from pliant.schemas.errors import ServiceMissingError
from pliant.tools.run import discovery as local
from pliant.tools.run.backends.machine import devices_by_node, list_gpus
from pliant.tools.run.discovery import Machine, discover_local, gpu_type
from tests.tools.run.fake_nvml import GIB, Card, install

H100 = tuple(Card(f"GPU-{at}") for at in range(4))
T4 = Card("GPU-t", "Tesla T4", 16 * GIB, knows_mig=False)
SLICED = Card("GPU-s", "NVIDIA A100-SXM4-40GB", instances=(("MIG-1", "1g.5gb"), ("MIG-2", "1g.5gb")))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "this_machine", lambda: Machine(8, None, 64 * GIB))
    monkeypatch.setattr(socket, "gethostname", lambda: "box.lab")


def test_the_gpus_of_a_machine_are_one_node_that_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, *H100)
    found = discover_local(None, {})
    (node,) = found.cluster.nodes
    assert (node.name, node.gpus, node.gpu_type) == ("box.lab", 4, "h100-80gb-hbm3")
    assert (node.cpus, node.memory, node.gpu_memory) == (8.0, 64 * GIB, 80 * GIB)
    assert node.devices == ("GPU-0", "GPU-1", "GPU-2", "GPU-3")
    assert found.notes == ()
    assert devices_by_node(found.cluster, list_gpus().gpus) == [node.devices]


def test_what_cuda_may_not_see_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, *H100, Card("GPU-dead", lost=True))
    found = discover_local(None, {"CUDA_VISIBLE_DEVICES": "3,1"})
    assert found.cluster.nodes[0].devices == ("GPU-3", "GPU-1")
    assert found.notes == ("left out: GPU 4: GPU is lost", "CUDA_VISIBLE_DEVICES=3,1 leaves out 2 GPUs")


def test_gpus_of_several_types_are_a_node_for_each_type(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, H100[0], T4, H100[1], H100[2])
    nodes = discover_local("gpu", {}).cluster.nodes
    assert [(node.name, node.gpus, node.cpus) for node in nodes] == [
        ("box.lab-h100-80gb-hbm3", 3, 6.0),
        ("box.lab-t4", 1, 2.0),
    ]
    assert [node.devices for node in nodes] == [("GPU-0", "GPU-1", "GPU-2"), ("GPU-t",)]


def test_each_instance_of_a_gpu_in_mig_mode_is_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, SLICED)
    (node,) = discover_local(None, {}).cluster.nodes
    assert (node.gpus, node.devices) == (2, ("MIG-1", "MIG-2"))
    assert node.gpu_type == "a100-sxm4-40gb-mig-1g.5gb"
    assert node.gpu_memory == SLICED.memory // 8
    by_number = discover_local(None, {"CUDA_VISIBLE_DEVICES": "0"})
    assert by_number.cluster.nodes[0].devices == ("MIG-1",)
    assert "name instances by UUID" in by_number.notes[-1]


def test_cores_are_slots_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, *H100)
    found = discover_local("cpu", {})
    (node,) = found.cluster.nodes
    assert (found.cluster.slots, node.gpus, node.gpu_type, node.cpus) == ("cpu", 8, "cpu", 8.0)
    assert (node.devices, found.notes) == ((), ())


@pytest.mark.parametrize("why", ["hidden", "none", "no driver"])
def test_without_a_gpu_cores_are_slots_and_the_reason_is_said(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, *(H100 if why == "hidden" else ()))
    if why == "no driver":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    env = {"CUDA_VISIBLE_DEVICES": ""} if why == "hidden" else {}
    found = discover_local(None, env)
    assert found.cluster.slots == "cpu"
    assert found.notes[-1].startswith("CPU slots, not GPUs: ")
    with pytest.raises(ServiceMissingError):
        discover_local("gpu", env)


def test_names_of_gpus_become_keys() -> None:
    assert gpu_type("NVIDIA GeForce RTX 3090") == "geforce-rtx-3090"
    assert gpu_type("Tesla V100-SXM2-16GB") == "v100-sxm2-16gb"
    assert gpu_type("NVIDIA H200") == "h200"
    assert gpu_type("™") == "localhost"
