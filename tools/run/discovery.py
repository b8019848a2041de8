"""``pliant cluster discover``: a cluster file for this machine, or for nodes of a Slurm.

This machine has a slot for each GPU or each core that this process may use, by affinity and cgroup limits
(:func:`this_machine`). What the user should know about the file comes with it, as notes.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

import psutil

from pliant.schemas.cluster import Cluster, Node, SlurmOptions
from pliant.schemas.errors import InfeasibleError, ServiceMissingError, UsageError
from pliant.schemas.text import counted, listed
from pliant.tools.run.backends.host import VISIBLE, Gpu, GpuListing, list_gpus, visible_of
from pliant.tools.run.backends.slurm import commands as command_lines
from pliant.tools.run.backends.slurm import parsing
from pliant.tools.run.backends.slurm.commands import ask
from pliant.tools.run.backends.slurm.parsing import SlurmNode, SlurmPartition

Slots = Literal["gpu", "cpu"]
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MAKER: Final = re.compile(r"^(nvidia|tesla)[ -]+", re.IGNORECASE)
_DRIVER: Final = Path("/dev/nvidiactl")
_LONGEST_HOST: Final = 64
"""Maximum length of a host name in the name of a node, which also has a GPU type."""
_MOST_SLOTS: Final = 1024
Kind = Literal["slurm", "slurm-jobs"]
_GPU: Final = "gpu"
_FUTURE: Final = "FUTURE"
"""State of a node that is only planned."""
_UNLIMITED: Final = 1 << 60
"""Bytes; version 1 of cgroups writes a very large number where there is no limit."""


@dataclass(frozen=True, slots=True)
class Found:
    """A cluster, and lines for people about what was left out or could not be known."""

    cluster: Cluster
    notes: tuple[str, ...] = ()


def discover_local(slots: Slots | None, env: Mapping[str, str]) -> Found:
    """A cluster of what this process may use here.

    :param slots: None for GPUs if there are any, else cores.
    :param env: may restrict the GPUs.
    :raises ServiceMissingError: GPUs are requested and there are none, or the driver does not answer.
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
    slots = min(machine.slots, _MOST_SLOTS)
    node = Node(name=host, gpus=slots, gpu_type="cpu", cpus=float(machine.cpus), memory=machine.memory)
    return Cluster(nodes=(node,), slots="cpu")


def of_gpus(host: str, machine: Machine, gpus: Sequence[Gpu]) -> Cluster:
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
    """The driver's name for a GPU as a key: ``h100-80gb-hbm3``, ``a100-sxm4-40gb-mig-1g.5gb``."""
    return node_name(_MAKER.sub("", model)).lower()


def node_name(text: str) -> str:
    return _FOREIGN.sub("-", text).strip("._-")[:_LONGEST_HOST] or "localhost"


def _notes(listed: GpuListing, visible: str | None) -> tuple[str, ...]:
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


@dataclass(frozen=True, slots=True)
class Machine:
    """The part of this machine that this process may use."""

    cores: int
    """Physical cores that this process may run on."""
    quota: float | None
    """Processor time of its cgroup, in processors; None for no limit."""
    memory: int
    """Bytes; the cgroup's limit if that is less than what is installed."""

    @property
    def cpus(self) -> float:
        return self.cores if self.quota is None else min(self.cores, self.quota)

    @property
    def slots(self) -> int:
        """Workers that can have a core each; at least one."""
        return max(1, int(self.cpus))


def this_machine(root: Path = Path("/")) -> Machine:
    """:param root: where ``proc`` and ``sys`` are."""
    folders = list(_cgroups(root))
    quotas = [quota for folder in folders if (quota := _quota(folder)) is not None]
    limits = [limit for folder in folders if (limit := _memory_limit(folder)) is not None]
    return Machine(
        cores=_cores(os.sched_getaffinity(0), root),
        quota=min(quotas, default=None),
        memory=min([psutil.virtual_memory().total, *limits]),
    )


def _cores(cpus: set[int], root: Path) -> int:
    """Physical cores of these logical processors; each is one if the system does not say."""
    topology = root / "sys/devices/system/cpu"
    return len({_text(topology / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus})


def _cgroups(root: Path) -> Iterator[Path]:
    """The folders of this process's cgroups and of those above, whose limits hold too."""
    top = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        base = top / names if names else top
        inside = base / path.lstrip("/")
        yield from (folder for folder in (inside, *inside.parents) if folder.is_relative_to(base))


def _quota(folder: Path) -> float | None:
    limit, _, period = _text(folder / "cpu.max").partition(" ")
    if not limit:
        limit, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    if not (limit.isdecimal() and period.isdecimal() and int(limit) and int(period)):
        return None
    return int(limit) / int(period)


def _memory_limit(folder: Path) -> int | None:
    limit = _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes")
    return int(limit) if limit.isdecimal() and 0 < int(limit) < _UNLIMITED else None


def _text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text().strip()
    return ""


def discover_slurm(
    slots: Slots | None, partitions: Sequence[str] = (), gres: str | None = None, *, backend: Kind = "slurm"
) -> Found:
    """The nodes that Slurm has now.

    :param slots: None for GPUs if there are any, else cores.
    :param partitions: whose nodes; empty for the default partition.
    :param gres: which GPUs, as in ``gpu:a100``; None for all.
    :param backend: the one that the file names.
    :raises UsageError: there is no such partition, or no default one.
    :raises ServiceMissingError: Slurm is not here, or does not answer.
    :raises InfeasibleError: there is no node with such slots.
    """
    known = parsing.partitions(ask(command_lines.show_partitions()))
    chosen = choose_partitions(known, partitions)
    nodes = parsing.nodes(ask(command_lines.show_nodes()))
    discovered = cluster_of(
        nodes, chosen, slots, named=bool(partitions), gres=gres, topology=slurm_topology()
    )
    return replace(discovered, cluster=discovered.cluster.model_copy(update={"backend": backend}))


def slurm_topology() -> Mapping[str, Mapping[str, str]]:
    """By level of Slurm's network, the lowest first, the domain of each node; empty if it tells of none."""
    try:
        return parsing.topology(ask(command_lines.show_topology()))
    except ServiceMissingError:  # the cluster is known without it
        return {}


def choose_partitions(known: Sequence[SlurmPartition], wanted: Sequence[str]) -> list[SlurmPartition]:
    names = ", ".join(each.name for each in known) or "none"
    if not wanted:
        default = [each for each in known if each.default]
        if not default:
            raise UsageError(f"Slurm has no default partition: name one with --partition, of {names}")
        return default
    by_name = {each.name: each for each in known}
    for name in wanted:
        if name not in by_name:
            raise UsageError(f'Slurm has no partition "{name}", it has: {names}')
    return [by_name[name] for name in dict.fromkeys(wanted)]


def cluster_of(
    nodes: Sequence[SlurmNode],
    partitions: Sequence[SlurmPartition],
    slots: Slots | None = None,
    *,
    named: bool = False,
    gres: str | None = None,
    topology: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> Found:
    """A cluster of the nodes of some partitions, which the file names if they were ``named``.

    :param topology: by level of the network, the lowest first, the domain of each node.
    """
    names = {each.name for each in partitions}
    there = [node for node in nodes if names & set(node.partitions) and _FUTURE not in node.state]
    kind = slots or ("gpu" if any(node.gpus for node in there) else "cpu")
    sorted_ = _Sorted(kind, (gres or _GPU).partition(":")[2])
    made = tuple(each for node in there if (each := sorted_.node(node)) is not None)
    where = f"partition {', '.join(sorted(names))}"
    if not made:
        what = "GPUs" if kind == "gpu" else "CPU slots"
        raise InfeasibleError("; ".join([f"{where} has no node with {what} to use", *sorted_.notes()]))
    options = SlurmOptions(
        partition=",".join(each.name for each in partitions) if named else None, gres=gres or _GPU
    )
    levels = levels_of([node.name for node in made], topology)
    labels = {node.name: {level: domains[node.name] for level, domains in levels.items()} for node in made}
    made = tuple(node.model_copy(update={"labels": node.labels | labels[node.name]}) for node in made)
    cluster = Cluster(nodes=made, slots=kind, levels=tuple(levels), backend="slurm", slurm=options)
    said = [f"levels of the network, from Slurm's topology: {listed(list(levels))}"] if levels else []
    return Found(cluster, (*_about(partitions), *said, *sorted_.notes()))


def levels_of(
    names: Sequence[str], topology: Mapping[str, Mapping[str, str]]
) -> dict[str, Mapping[str, str]]:
    """The levels that tell these nodes apart and gather some, each in a domain of the next."""
    levels: dict[str, Mapping[str, str]] = {}
    below: Sequence[str] = names
    for level, domain_of in topology.items():
        here = [domain_of.get(name, "") for name in names]
        domains = set(here)
        nests = len(set(zip(below, here, strict=True))) == len(set(below))
        if "" not in domains and 1 < len(domains) < len(set(below)) and nests:
            levels[level], below = domain_of, here
    return levels


@dataclass(slots=True)
class _Sorted:
    """The nodes of the file, and what there is to say about them and the others."""

    slots: Slots
    gpu_type: str
    """Only GPUs of this type; empty for any."""
    without: int = 0
    mixed: list[str] = field(default_factory=list)
    down: list[tuple[str, str]] = field(default_factory=list)

    def node(self, found: SlurmNode) -> Node | None:
        """The node in the file. Returns None if it is left out."""
        gpus = [(kind, count) for kind, count in found.gpus if self.gpu_type in ("", kind)]
        if self.slots == "cpu":
            gpus = [("cpu", found.cores)]
        if not sum(count for _, count in gpus):
            self.without += 1
            return None
        if len(gpus) > 1:
            self.mixed.append(f"{found.name} ({', '.join(f'{count} {kind}' for kind, count in gpus)})")
            return None
        if found.serves is False:
            self.down.append((found.name, found.reason or " ".join(sorted(found.state)).lower()))
        return _node(found, *gpus[0])

    def notes(self) -> tuple[str, ...]:
        said = [
            f"{name} is out of service ({why}); it is in the file for when it is back"
            for name, why in self.down
        ]
        if self.without:
            gpu = f"no GPU of type {self.gpu_type}" if self.gpu_type else "no GPU"
            what = gpu if self.slots == "gpu" else "no CPU"
            said.append(f"left out: {counted(self.without, 'node')} with {what}")
        if self.mixed:
            why = "several types of GPU, of which Slurm would choose: name one with --gres gpu:TYPE"
            said.append(f"left out: {', '.join(self.mixed)}: {why}")
        return tuple(said)


def _node(found: SlurmNode, kind: str, count: int) -> Node:
    labels = {"partitions": ",".join(found.partitions)}
    if found.features:
        labels["features"] = ",".join(found.features)
    return Node(
        name=found.name,
        gpus=count,
        gpu_type=kind or _GPU,
        address=None if found.address == found.name else found.address,
        cpus=float(found.cpus) or None,
        memory=found.memory_bytes or None,
        labels=labels,
    )


def _about(partitions: Sequence[SlurmPartition]) -> list[str]:
    said = []
    closed = [each.name for each in partitions if not each.up]
    if closed:
        said.append(f"Slurm starts nothing in partition {listed(closed)} now")
    limits = [f"{each.name} ({each.limit})" for each in partitions if each.limit]
    if limits:
        said.append(f"Slurm ends what runs for too long: {', '.join(limits)}")
    return said
