"""What of a machine is ours, on trees of files that stand for the system's; machine and Slurm as clusters."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pliant.schemas.cluster import SlurmOptions
from pliant.schemas.errors import InfeasibleError, ServiceMissingError, UsageError
from pliant.tools.run import discovery as local
from pliant.tools.run.backends.machine import devices_by_node, list_gpus
from pliant.tools.run.backends.slurm import parsing
from pliant.tools.run.backends.slurm.parsing import SlurmNode, SlurmPartition
from pliant.tools.run.discovery import (
    Machine,
    choose_partitions,
    cluster_of,
    discover_local,
    discover_slurm,
    gpu_type,
    this_machine,
)
from tests.slurm_cluster import SlurmCluster
from tests.tools.run.fake_nvml import GIB, Card, install


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of four cores with two threads each; this process may run on three of the cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 4, 1, 5, 2})
    for cpu in range(8):
        write(
            tmp_path,
            f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list",
            f"{cpu % 4},{cpu % 4 + 4}",
        )
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_threads_of_one_core_count_once(root: Path) -> None:
    found = this_machine(root)
    assert (found.cores, found.quota, found.cpus, found.slots) == (3, None, 3, 3)
    assert found.memory > 0


def test_where_the_system_does_not_say_each_processor_is_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3, 9})
    assert this_machine(tmp_path).cores == 2


def test_the_least_limit_of_a_cgroup_and_of_those_above_it_counts(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/user/job")
    write(root, "sys/fs/cgroup/user/job/cpu.max", "max 100000")
    write(root, "sys/fs/cgroup/user/cpu.max", "250000 100000")
    write(root, "sys/fs/cgroup/user/job/memory.max", "1048576")
    write(root, "sys/fs/cgroup/user/memory.max", "max")
    found = this_machine(root)
    assert (found.cpus, found.slots, found.memory) == (2.5, 2, 1048576)


def test_cgroups_of_the_first_version_count_too(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/box\n1:cpu,cpuacct:/box\n0::/")
    write(root, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "50000")
    write(root, "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000")
    write(root, "sys/fs/cgroup/memory/box/memory.limit_in_bytes", "2097152")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    found = this_machine(root)
    assert (found.cpus, found.slots, found.memory) == (0.5, 1, 2097152)


def test_no_quota_of_the_first_version_is_minus_one(root: Path) -> None:
    write(root, "proc/self/cgroup", "1:cpu:/")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert this_machine(root).quota is None


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


RECORDED = Path(__file__).parent / "backends/slurm/recorded"
MAIN = SlurmPartition("main", default=True, up=True, limit="")


def nodes(release: str) -> list[SlurmNode]:
    return parsing.nodes((RECORDED / f"{release}-nodes.txt").read_text())


def partition(name: str, **more: object) -> SlurmPartition:
    return replace(MAIN, name=name, **more)  # type: ignore[arg-type]


def test_nodes_have_what_slurm_says_and_those_out_of_service_are_named() -> None:
    found = cluster_of(nodes("22.05"), [MAIN])
    assert [(node.name, node.gpus, node.gpu_type) for node in found.cluster.nodes] == [
        (name, 4, "gpu") for name in ("n0", "n1", "n2", "n3")
    ]
    first = found.cluster.nodes[0]
    assert (first.address, first.cpus, first.memory) == ("127.0.0.1", 8.0, 1000 << 20)
    assert (found.cluster.backend, found.cluster.slurm) == ("slurm", SlurmOptions())
    assert found.notes == (
        "n1 is out of service (cooling); it is in the file for when it is back",
        "n2 is out of service (disk = bad); it is in the file for when it is back",
    )


def test_types_features_and_partitions_are_kept_and_limits_said() -> None:
    chosen = [partition("gpu", limit="2-00:00:00"), partition("all", up=False)]
    found = cluster_of(nodes("20.11"), chosen, named=True)
    first = found.cluster.nodes[0]
    assert (first.name, first.gpus, first.gpu_type, first.address) == ("gpu01", 4, "v100", None)
    assert first.labels == {"partitions": "gpu,all", "features": "v100"}
    assert found.cluster.slurm.partition == "gpu,all"
    assert found.notes[:2] == (
        'Slurm starts nothing in partition "all" now',
        "Slurm ends what runs for too long: gpu (2-00:00:00)",
    )


def test_a_node_of_several_types_of_gpu_needs_the_type_to_be_named() -> None:
    batch = [partition("batch")]
    found = cluster_of(nodes("23.11"), batch)
    assert [node.name for node in found.cluster.nodes] == ["a100-02"]
    assert found.notes[0].startswith("left out: a100-01 (6 a100, 14 1g.10gb): several types of GPU")
    by_type = cluster_of(nodes("23.11"), batch, gres="gpu:a100").cluster
    assert [(node.name, node.gpus) for node in by_type.nodes] == [("a100-01", 6), ("a100-02", 8)]
    assert by_type.slurm.gres == "gpu:a100"


def test_cores_are_slots_where_that_is_asked_for_or_there_are_no_gpus() -> None:
    cores = cluster_of(nodes("23.11"), [partition("batch")], "cpu").cluster
    assert (cores.slots, [(node.gpus, node.gpu_type) for node in cores.nodes]) == (
        "cpu",
        [(63, "cpu"), (64, "cpu")],
    )
    bare = [replace(node, gpus=()) for node in nodes("22.05")]
    assert cluster_of(bare, [MAIN]).cluster.slots == "cpu"


def test_nodes_without_gpus_and_those_only_foreseen_are_left_out() -> None:
    first, second, third, _ = nodes("22.05")
    made = [first, replace(second, gpus=()), replace(third, state=frozenset({"FUTURE"}))]
    found = cluster_of(made, [MAIN])
    assert [node.name for node in found.cluster.nodes] == ["n0"]
    assert found.notes == ("left out: 1 node with no GPU",)
    with pytest.raises(
        InfeasibleError, match=r"partition main has no node with GPUs to use; left out: 1 node"
    ):
        cluster_of(made[1:2], [MAIN], "gpu")


def test_partitions_are_those_named_or_the_default() -> None:
    known = [partition("a", default=False), partition("b")]
    assert [each.name for each in choose_partitions(known, [])] == ["b"]
    assert [each.name for each in choose_partitions(known, ["a", "b", "a"])] == ["a", "b"]
    with pytest.raises(UsageError, match='no partition "c", it has: a, b'):
        choose_partitions(known, ["c"])
    with pytest.raises(UsageError, match=r"no default partition: name one with --partition, of a$"):
        choose_partitions(known[:1], [])


def test_levels_are_those_of_slurms_topology_that_tell_the_nodes_apart() -> None:
    topology = parsing.topology((RECORDED / "22.05-topology.txt").read_text())
    found = cluster_of(nodes("22.05"), [MAIN], topology=topology)
    assert found.cluster.levels == ("switch0",), "all nodes are below the top"
    labels = [node.labels["switch0"] for node in found.cluster.nodes]
    assert labels == ["rack0", "rack0", "rack1", "rack1"]
    assert 'levels of the network, from Slurm\'s topology: "switch0"' in found.notes
    assert cluster_of(nodes("22.05")[:2], [MAIN], topology=topology).cluster.levels == (), "one rack"
    assert cluster_of(nodes("22.05"), [MAIN], topology=parsing.topology("")).cluster.levels == ()


def test_a_level_that_does_not_nest_or_misses_a_node_is_left_out() -> None:
    rows = ["SwitchName=a Level=0 Nodes=n[0-1]", "SwitchName=b Level=0 Nodes=n[2-3]"]
    crossing = ["SwitchName=x Level=1 Nodes=n[0,2]", "SwitchName=y Level=1 Nodes=n[1,3]"]
    found = cluster_of(nodes("22.05"), [MAIN], topology=parsing.topology("\n".join([*rows, *crossing])))
    assert found.cluster.levels == ("switch0",)
    found = cluster_of(nodes("22.05"), [MAIN], topology=parsing.topology("\n".join([*rows[:1], *crossing])))
    assert found.cluster.levels == ("switch1",)


def test_a_real_slurm_is_discovered(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    slurm.command("scontrol", "update", "nodename=n3", "state=drain", "reason=loud fan")
    try:
        found = discover_slurm(None)
    finally:
        slurm.command("scontrol", "update", "nodename=n3", "state=resume")
    assert {node.name: node.gpus for node in found.cluster.nodes} == slurm.gpus
    assert found.notes == ("n3 is out of service (loud fan); it is in the file for when it is back",)
    own_jobs = discover_slurm("cpu", ["main"], backend="slurm-jobs").cluster
    assert (own_jobs.total_gpus, own_jobs.backend, own_jobs.minor) == (32, "slurm-jobs", 1)
