"""A cluster file for this machine: a slot for each of its GPUs, or for each of its cores."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.errors import ServiceMissingError
from pliant.schemas.text.wording import counted
from pliant.tools.run.backends.devices import VISIBLE, Gpu, Listed, list_gpus, visible_of
from pliant.tools.run.discovery.cores import Machine, this_machine
from pliant.tools.run.discovery.found import Found

Slots = Literal["gpu", "cpu"]
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MAKER: Final = re.compile(r"^(nvidia|tesla)[ -]+", re.IGNORECASE)
_DRIVER: Final = Path("/dev/nvidiactl")
_LONGEST_HOST: Final = 64
"""A name of a node has room for the type of its GPUs behind this."""
_MOST_SLOTS: Final = 1024
"""Of one node in a cluster file."""


def discover_local(slots: Slots | None, env: Mapping[str, str]) -> Found:
    """Make a cluster of what this process may use here.

    :param slots: None: GPUs if there are any, else cores.
    :param env: may restrict the GPUs.
    :raises ServiceMissingError: GPUs are asked for and there are none, or the driver cannot be asked.
    """
    machine, host = this_machine(), node_name(socket.gethostname())
    if slots == "cpu":
        return Found(of_cores(host, machine))
    try:
        listed = list_gpus()
    except ServiceMissingError as error:
        if slots == "gpu":
            raise
        why = str(error) if _DRIVER.exists() else "this machine has no NVIDIA driver"
        return Found(of_cores(host, machine), (f"CPU slots, not GPUs: {why}",))
    gpus, notes = visible_of(listed.gpus, env.get(VISIBLE)), _notes(listed, env.get(VISIBLE))
    if gpus:
        return Found(of_gpus(host, machine, gpus), notes)
    why = f"{VISIBLE}={env[VISIBLE]} leaves no GPU" if listed.gpus else "this machine has no GPU to use"
    if slots == "gpu":
        raise ServiceMissingError("; ".join([why, *notes]))
    return Found(of_cores(host, machine), (*notes, f"CPU slots, not GPUs: {why}"))


def of_cores(host: str, machine: Machine) -> Cluster:
    """A node with a slot for each core."""
    slots = min(machine.slots, _MOST_SLOTS)
    node = Node(name=host, gpus=slots, gpu_type="cpu", cpus=float(machine.cpus), memory=machine.memory)
    return Cluster(nodes=(node,), slots="cpu")


def of_gpus(host: str, machine: Machine, gpus: Sequence[Gpu]) -> Cluster:
    """A node with the GPUs, which it names; where they are of several types, a node for each type."""
    types: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        types.setdefault(gpu_type(gpu.model), []).append(gpu)
    return Cluster(
        nodes=tuple(
            Node(
                name=host if len(types) == 1 else f"{host}-{kind}",
                gpus=len(own),
                gpu_type=kind,
                cpus=machine.cpus * len(own) / len(gpus),
                memory=machine.memory * len(own) // len(gpus),
                gpu_memory=min(gpu.memory for gpu in own),
                devices=tuple(gpu.name for gpu in own),
            )
            for kind, own in types.items()
        )
    )


def gpu_type(model: str) -> str:
    """The name that the driver has for a GPU, as a key: ``h100-80gb-hbm3``, ``a100-sxm4-40gb-mig-1g.5gb``."""
    return node_name(_MAKER.sub("", model)).lower()


def node_name(text: str) -> str:
    """The text with what a name of a node may not have replaced."""
    return _FOREIGN.sub("-", text).strip("._-")[:_LONGEST_HOST] or "localhost"


def _notes(listed: Listed, visible: str | None) -> tuple[str, ...]:
    notes = [f"left out: {fault}" for fault in listed.faults]
    if visible is None:
        return tuple(notes)
    hidden = len(listed.gpus) - len(visible_of(listed.gpus, visible))
    if hidden:
        notes.append(f"{VISIBLE}={visible} leaves out {counted(hidden, 'GPU')}")
    by_number = any(name.strip().isdecimal() for name in visible.split(","))
    if by_number and any(gpu.name != gpu.card for gpu in visible_of(listed.gpus, visible)):
        notes.append("a number means the first instance of a GPU in MIG mode: name instances by UUID")
    return tuple(notes)
