"""Where measurements are made: one node of the cluster, and what it can hold."""

from __future__ import annotations

import os
import platform
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.errors import BadInputError, ServiceMissingError

LOOPBACK: Final = (None, "localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class MeasuredNode:
    """The node that stands for its type."""

    gpu_type: str
    slots: Literal["cpu", "gpu"]
    workers: int
    """Most workers that can be measured here."""
    cluster_gpus: int
    """All GPUs (or CPU slots) of the cluster."""
    memory_limit: int | None = None
    """Bytes that one worker may use; None: whatever there is."""
    notes: tuple[str, ...] = ()
    """What the person at the terminal should know."""


def node_to_measure(cluster: Cluster | None, devices: int | None = None) -> MeasuredNode:
    """The node to measure on: this host by name if it is in the cluster, else the node with the most GPUs.

    :param devices: GPUs of this machine; None: look.
    :raises BadInputError: the cluster is empty.
    :raises ServiceMissingError: the cluster has GPUs and this machine has none.
    """
    found = visible_gpus() if devices is None else devices
    if cluster is None:
        return _this_machine(found)
    node = _node(cluster)
    workers = _workers(cluster, node, found)
    if not workers:
        what = 'the cluster has slots of kind "gpu" but this machine has none to measure on'
        raise ServiceMissingError(f'{what}; run profile on one of its nodes, or state "slots": "cpu"')
    total = cluster.total_gpus
    return MeasuredNode(
        node.gpu_type, cluster.slots, workers, total, _memory(cluster, node), _notes(cluster, node, workers)
    )


def visible_gpus() -> int:
    """Number of GPUs that this process may use, without asking a driver."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return len([part for part in chosen.split(",") if part.strip() not in ("", "-1")])
    return len([path for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)])


def _this_machine(devices: int) -> MeasuredNode:
    if devices:
        return MeasuredNode("gpu", "gpu", devices, devices)
    cores = len(os.sched_getaffinity(0))
    return MeasuredNode("cpu", "cpu", cores, cores)


def _node(cluster: Cluster) -> Node:
    nodes = [node for node in cluster.expanded() if node.gpus]
    if not nodes:
        raise BadInputError("the cluster has no GPUs or CPU slots: there is nothing to measure on")
    names = {socket.gethostname(), platform.node(), socket.gethostname().partition(".")[0]}
    here = [node for node in nodes if {node.name, node.address} & names]
    return max(here or nodes, key=lambda node: node.gpus)


def _workers(cluster: Cluster, node: Node, devices: int) -> int:
    """How many this machine can run at a time: all nodes without an address of a local cluster are here."""
    alike = [other for other in cluster.expanded() if other.gpu_type == node.gpu_type]
    here = cluster.backend == "local" and all(other.address in LOOPBACK for other in alike)
    slots = sum(other.gpus for other in alike) if here else node.gpus
    if cluster.slots == "gpu":
        return min(slots, devices)
    return max(node.gpus, min(slots, len(os.sched_getaffinity(0))))


def _memory(cluster: Cluster, node: Node) -> int | None:
    if node.gpu_memory or cluster.slots == "gpu":
        return node.gpu_memory or None
    return node.memory // node.gpus if node.memory else None


def _notes(cluster: Cluster, node: Node, workers: int) -> tuple[str, ...]:
    notes = []
    others = sorted({other.gpu_type for other in cluster.nodes} - {node.gpu_type})
    if others:
        notes.append(f'measuring "{node.gpu_type}"; run profile on the others too: {", ".join(others)}')
    if cluster.total_gpus > workers:
        notes.append(
            f"measuring up to {workers} of the cluster's {cluster.total_gpus} slots: those of this machine; "
            "larger sizes are offered only where all-reduce rows reach that far"
        )
    return tuple(notes)
