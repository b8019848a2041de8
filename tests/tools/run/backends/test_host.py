import errno
import socket
import sys

import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.tools.run.backends import host
from pliant.tools.run.backends import protocol as addresses
from pliant.tools.run.backends.local import LocalBackend
from pliant.tools.run.backends.protocol import free_port, port_to_meet_at
from tests.builders import cluster
from tests.tools.run.fake_nvml import Card, install

PLAIN = tuple(Card(f"GPU-{name}") for name in ("aa11", "ab22", "cc33", "dd44"))
SLICED = Card("GPU-5115", "NVIDIA A100-SXM4-40GB", instances=(("MIG-1", "1g.5gb"), ("MIG-2", "2g.10gb")))


def names(gpus: tuple) -> list[str]:
    return [gpu.name for gpu in gpus]


def test_usable_gpus_and_instances_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, PLAIN[0], SLICED, Card("GPU-old", knows_mig=False))
    result = host.list_gpus()
    assert names(result.gpus) == ["GPU-aa11", "MIG-1", "MIG-2", "GPU-old"]
    assert [gpu.number for gpu in result.gpus] == [0, 1, 1, 2]
    assert result.gpus[1].model == "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    assert (result.gpus[1].card, result.gpus[1].memory) == ("GPU-5115", SLICED.memory // 8)
    install(monkeypatch, Card("GPU-gone", lost=True), PLAIN[0], Card("GPU-empty", instances=()))
    result = host.list_gpus()
    assert names(result.gpus) == ["GPU-aa11"]
    assert result.faults == ("GPU 0: GPU is lost", "GPU 2 is in MIG mode and has no instances")
    install(monkeypatch, Card("GPU-a", pids=(12, 7, 12)), Card("GPU-b"))
    assert host.processes_on(host.list_gpus().gpus) == {"GPU-a": [7, 12], "GPU-b": []}


def test_cuda_s_own_variable_is_read_as_cuda_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, *PLAIN)
    assert names(host.visible_gpus({})) == ["GPU-aa11", "GPU-ab22", "GPU-cc33", "GPU-dd44"]
    for stated, left in {
        "2,0": ["GPU-cc33", "GPU-aa11"],
        " 3 , GPU-cc": ["GPU-dd44", "GPU-cc33"],
        "1,1": ["GPU-ab22"],
        "3,-1,2": ["GPU-dd44"],
        "0,7,1": ["GPU-aa11"],
        "GPU-a,1": [],
        "NoDevFiles": [],
        "": [],
    }.items():
        assert names(host.visible_gpus({"CUDA_VISIBLE_DEVICES": stated})) == left


def test_instances_are_named_by_their_own_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, SLICED, PLAIN[0])
    gpus = host.list_gpus().gpus
    assert names(host.visible_of(gpus, "MIG-2,1")) == ["MIG-2", "GPU-aa11"]
    by_numbers = "MIG-GPU-5115/2/0,MIG-GPU-5115/1/0,1"
    assert names(host.visible_of(gpus, by_numbers)) == ["MIG-2", "MIG-1", "GPU-aa11"]
    assert names(host.visible_of(gpus, "MIG-GPU-5115/3/0,1")) == []
    assert names(host.visible_of(gpus, "0")) == ["MIG-1"]
    assert names(host.visible_of(gpus, "GPU-5115")) == ["MIG-1"]
    assert host.named(gpus, "MIG-") is None


def test_gpus_that_the_caller_may_use_are_given_out_in_order(tmp_path, monkeypatch) -> None:
    def given_out(*counts: int) -> list[object]:
        return [node.devices for node in LocalBackend(cluster(*counts), tmp_path).nodes()]

    install(monkeypatch, *PLAIN)
    assert given_out(2, 2) == [("GPU-aa11", "GPU-ab22"), ("GPU-cc33", "GPU-dd44")]
    with pytest.raises(BadInputError, match="6 GPUs on the local backend, this machine has 4"):
        given_out(4, 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-aa")
    assert given_out(1, 1) == [("GPU-dd44",), ("GPU-aa11",)]
    with pytest.raises(BadInputError, match="6 GPUs on the local backend, this machine has 2"):
        given_out(4, 2)


def test_a_node_gets_the_devices_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def given_out(*devices: tuple[str, ...]) -> list[tuple[str, ...]]:
        nodes = tuple({"name": f"n{at}", "gpus": 2, "devices": own} for at, own in enumerate(devices))
        return host.devices_by_node(Cluster.model_validate({"nodes": nodes}), host.list_gpus().gpus)

    install(monkeypatch, *PLAIN)
    assert given_out((), ("GPU-aa11", "3")) == [("GPU-ab22", "GPU-cc33"), ("GPU-aa11", "GPU-dd44")]
    problem = "the device GPU-zz of node n0 is not there, or CUDA_VISIBLE_DEVICES"
    with pytest.raises(BadInputError, match=problem):
        given_out(("GPU-aa11", "GPU-zz"), ())
    with pytest.raises(BadInputError, match="the device GPU-ab22 is named twice"):
        given_out(("GPU-aa11", "GPU-ab22"), ("GPU-cc33", "1"))


def test_without_the_bindings_gpus_cannot_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(ServiceMissingError, match=r"pip install 'pliant\[gpu\]'"):
        host.list_gpus()


ELSEWHERE = "203.0.113.7"


def test_on_this_machine_a_port_to_meet_at_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    port = port_to_meet_at("127.0.0.1")
    with socket.create_server(("127.0.0.1", port)):
        pass

    def none_left(_address: str) -> int:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(addresses, "free_port", none_left)
    with pytest.raises(OSError, match="in use"):
        port_to_meet_at("127.0.0.1")


def test_elsewhere_it_is_one_that_no_system_gives_itself() -> None:
    """That host cannot be asked; two jobs that begin there at a time are unlikely to get the same."""
    with pytest.raises(OSError, match=r"."):
        free_port(ELSEWHERE)
    result = {port_to_meet_at(ELSEWHERE) for _ in range(20)}
    assert len(result) > 10
    assert all(20_000 <= port < 30_000 for port in result)
