"""The nodes of Slurm as a cluster, from what its releases print and from a real one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pliant.schemas.cluster import SlurmOptions
from pliant.schemas.errors import InfeasibleError, UsageError
from pliant.tools.run.backends.slurm import parsing
from pliant.tools.run.backends.slurm.parsing import SlurmNode, SlurmPartition
from pliant.tools.run.discovery import choose_partitions, cluster_of, discover_slurm
from tests.slurm_cluster import SlurmCluster

RECORDED = Path(__file__).parents[1] / "backends/slurm/recorded"
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
