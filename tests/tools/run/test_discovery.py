import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.parts.slurm_cluster import SlurmCluster
from pliant.schemas.errors import InfeasibleError, ServiceMissingError, UsageError
from pliant.tools.run import discovery
from pliant.tools.run.backends.host import devices_by_node, list_gpus
from pliant.tools.run.backends.slurm import parsing
from pliant.tools.run.backends.slurm.parsing import SlurmNode, SlurmPartition
from pliant.tools.run.discovery import this_machine
from tests.tools.run.fake_nvml import GIB, Card, install


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of four cores with two threads each; this process may run on three of the cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 4, 1, 5, 2})
    for cpu in range(8):
        path = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        write(tmp_path, path, f"{cpu % 4},{cpu % 4 + 4}")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


CGROUP2 = {
    "proc/self/cgroup": "0::/user/job",
    "sys/fs/cgroup/user/job/cpu.max": "max 100000",
    "sys/fs/cgroup/user/cpu.max": "250000 100000",
    "sys/fs/cgroup/user/job/memory.max": "1048576",
    "sys/fs/cgroup/user/memory.max": "max",
}
CGROUP1 = {
    "proc/self/cgroup": "4:memory:/box\n1:cpu,cpuacct:/box\n0::/",
    "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "50000",
    "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000",
    "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "2097152",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
}
NO_QUOTA = {
    "proc/self/cgroup": "1:cpu:/",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
}


@pytest.mark.parametrize(
    ("files", "quota", "cpus", "slots", "memory"),
    [
        ({}, None, 3, 3, None),  # threads of one core count once
        (CGROUP2, 2.5, 2.5, 2, 1 << 20),  # the least limit of a group and of those above it
        (CGROUP1, 0.5, 0.5, 1, 2 << 20),
        (NO_QUOTA, None, 3, 3, None),
    ],
)
def test_a_machine_has_its_cores_within_limits_of_cgroups(
    root: Path, files: dict[str, str], quota: float | None, cpus: float, slots: int, memory: int | None
) -> None:
    for name, text in files.items():
        write(root, name, text)
    found = this_machine(root)
    assert (found.cores, found.quota, found.cpus, found.slots) == (3, quota, cpus, slots)
    assert found.memory == memory if memory else found.memory > 0
    assert this_machine(root / "empty").cores == 5, "a processor is a core by default"


H100 = tuple(Card(f"GPU-{at}") for at in range(4))
T4 = Card("GPU-t", "Tesla T4", 16 * GIB, knows_mig=False)
SLICED = Card("GPU-s", "NVIDIA A100-SXM4-40GB", instances=(("MIG-1", "1g.5gb"), ("MIG-2", "1g.5gb")))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "this_machine", lambda: discovery.Machine(8, None, 64 * GIB))
    monkeypatch.setattr(socket, "gethostname", lambda: "box.lab")


def shown(found: discovery.Found) -> str:
    cluster = found.cluster.model_dump(mode="json", exclude_defaults=True)
    nodes = [json.dumps(node) for node in cluster.pop("nodes")]
    return "\n".join([json.dumps(cluster), *nodes, *(f"note: {note}" for note in found.notes)])


LOCAL: dict[str, tuple[tuple[Card, ...], discovery.Slots | None, str | None]] = {
    "all GPUs": (H100, None, None),
    "those that CUDA may see": ((*H100, Card("GPU-dead", lost=True)), None, "3,1"),
    "two types": ((H100[0], T4, H100[1], H100[2]), "gpu", None),
    "instances": ((SLICED,), None, None),
    "instances by number": ((SLICED,), None, "0"),
    "cores": (H100, "cpu", None),
}


@pytest.mark.parametrize("name", LOCAL)
def test_this_machine_is_a_cluster(name, monkeypatch, golden_text) -> None:
    cards, slots, visible = LOCAL[name]
    install(monkeypatch, *cards)
    found = discovery.discover_local(slots, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    golden_text(shown(found))
    if name == "all GPUs":
        assert devices_by_node(found.cluster, list_gpus().gpus) == [found.cluster.nodes[0].devices]


@pytest.mark.parametrize("why", ["hidden", "none", "no driver"])
def test_without_a_gpu_cores_are_slots_and_a_note_says_why(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, *(H100 if why == "hidden" else ()))
    if why == "no driver":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    env = {"CUDA_VISIBLE_DEVICES": ""} if why == "hidden" else {}
    found = discovery.discover_local(None, env)
    assert found.cluster.slots == "cpu"
    assert found.notes[-1].startswith("CPU slots, not GPUs: ")
    with pytest.raises(ServiceMissingError):
        discovery.discover_local("gpu", env)


def test_names_of_gpus_become_keys() -> None:
    assert discovery.gpu_type("NVIDIA GeForce RTX 3090") == "geforce-rtx-3090"
    assert discovery.gpu_type("Tesla V100-SXM2-16GB") == "v100-sxm2-16gb"
    assert discovery.gpu_type("NVIDIA H200") == "h200"
    assert discovery.gpu_type("™") == "localhost"


RECORDED = Path(__file__).parent / "backends/slurm/recorded"
MAIN = SlurmPartition("main", default=True, up=True, limit="")
BATCH = [replace(MAIN, name="batch")]


def nodes(release: str = "22.05") -> list[SlurmNode]:
    return parsing.nodes((RECORDED / f"{release}-nodes.txt").read_text())


SLURM: dict[str, tuple[str, list[SlurmPartition], dict[str, Any]]] = {
    "nodes out of service": ("22.05", [MAIN], {}),
    "types, features and partitions": (
        "20.11",
        [replace(MAIN, name="gpu", limit="2-00:00:00"), replace(MAIN, name="all", up=False)],
        {"named": True},
    ),
    "several types on a node": ("23.11", BATCH, {}),
    "one of several types": ("23.11", BATCH, {"gres": "gpu:a100"}),
    "cores": ("23.11", BATCH, {"slots": "cpu"}),
}


@pytest.mark.parametrize("name", SLURM)
def test_nodes_of_slurm_are_a_cluster(name: str, golden_text: Callable[[str], None]) -> None:
    release, partitions, options = SLURM[name]
    golden_text(shown(discovery.cluster_of(nodes(release), partitions, **options)))


def test_nodes_partitions_and_levels_of_a_slurm() -> None:
    first, second, third, _ = nodes()
    made = [first, replace(second, gpus=()), replace(third, state=frozenset({"FUTURE"}))]
    found = discovery.cluster_of(made, [MAIN])
    assert [node.name for node in found.cluster.nodes] == ["n0"]
    assert found.notes == ("left out: 1 node with no GPU",)
    with pytest.raises(
        InfeasibleError, match="partition main has no node with GPUs to use; left out: 1 node"
    ):
        discovery.cluster_of(made[1:2], [MAIN], "gpu")
    assert discovery.cluster_of(made[1:2], [MAIN]).cluster.slots == "cpu"
    # Partitions are those named or the default.
    known = [replace(MAIN, name="a", default=False), replace(MAIN, name="b")]
    assert [each.name for each in discovery.choose_partitions(known, [])] == ["b"]
    assert [each.name for each in discovery.choose_partitions(known, ["a", "b", "a"])] == ["a", "b"]
    with pytest.raises(UsageError, match='no partition "c", it has: a, b'):
        discovery.choose_partitions(known, ["c"])
    with pytest.raises(UsageError, match=r"no default partition: name one with --partition, of a$"):
        discovery.choose_partitions(known[:1], [])

    # Levels are those of a topology that tell nodes apart.
    def found(topology: str, most: int = 4) -> discovery.Found:
        return discovery.cluster_of(nodes()[:most], [MAIN], topology=parsing.topology(topology))

    recorded = (RECORDED / "22.05-topology.txt").read_text()
    racks = found(recorded)
    assert racks.cluster.levels == ("switch0",), "all nodes are below the top"
    assert [node.labels["switch0"] for node in racks.cluster.nodes] == ["rack0", "rack0", "rack1", "rack1"]
    assert 'levels of the network, from Slurm\'s topology: "switch0"' in racks.notes
    assert found(recorded, 2).cluster.levels == (), "one rack"
    assert found("").cluster.levels == ()
    rows = ["SwitchName=a Level=0 Nodes=n[0-1]", "SwitchName=b Level=0 Nodes=n[2-3]"]
    crossing = ["SwitchName=x Level=1 Nodes=n[0,2]", "SwitchName=y Level=1 Nodes=n[1,3]"]
    assert found("\n".join([*rows, *crossing])).cluster.levels == ("switch0",), "the other does not nest"
    assert found("\n".join([rows[0], *crossing])).cluster.levels == ("switch1",), "the other misses nodes"


def test_a_real_slurm_is_discovered(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    slurm.command("scontrol", "update", "nodename=n3", "state=drain", "reason=loud fan")
    try:
        found = discovery.discover_slurm(None)
    finally:
        slurm.command("scontrol", "update", "nodename=n3", "state=resume")
    assert {node.name: node.gpus for node in found.cluster.nodes} == slurm.gpus
    assert found.notes == ("n3 is out of service (loud fan); it is in the file for when it is back",)
    own_jobs = discovery.discover_slurm("cpu", ["main"], backend="slurm-jobs").cluster
    assert (own_jobs.total_gpus, own_jobs.backend, own_jobs.minor) == (32, "slurm-jobs", 1)
