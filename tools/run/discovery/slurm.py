"""The nodes of a Slurm cluster, or of some of its partitions, as a cluster file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from pliant.schemas.cluster import Cluster, Node, SlurmOptions
from pliant.schemas.errors import InfeasibleError, UsageError
from pliant.schemas.text.wording import counted, listed
from pliant.tools.run.backends.slurm import command_lines, parsing
from pliant.tools.run.backends.slurm.ask import ask
from pliant.tools.run.backends.slurm.parsing import SlurmNode, SlurmPartition
from pliant.tools.run.discovery.found import Found

Slots = Literal["gpu", "cpu"]
Kind = Literal["slurm", "slurm-jobs"]
_GPU: Final = "gpu"
_FUTURE: Final = "FUTURE"
"""State of a node that is only foreseen."""


def discover_slurm(
    slots: Slots | None, partitions: Sequence[str] = (), gres: str | None = None, *, backend: Kind = "slurm"
) -> Found:
    """The nodes that Slurm has now.

    :param slots: None: GPUs if there are any, else cores.
    :param partitions: whose nodes; none: the default one's.
    :param gres: which GPUs, as in ``gpu:a100``; None: all.
    :param backend: which of those for Slurm the file is for.
    :raises UsageError: there is no such partition, or no default one.
    :raises ServiceMissingError: Slurm is not here, or does not answer.
    :raises InfeasibleError: there is no node with such slots.
    """
    known = parsing.partitions(ask(command_lines.show_partitions()))
    chosen = choose_partitions(known, partitions)
    nodes = parsing.nodes(ask(command_lines.show_nodes()))
    found = cluster_of(nodes, chosen, slots, named=bool(partitions), gres=gres)
    return replace(found, cluster=found.cluster.model_copy(update={"backend": backend}))


def choose_partitions(known: Sequence[SlurmPartition], wanted: Sequence[str]) -> list[SlurmPartition]:
    """The partitions of these names; of none the default one.

    :raises UsageError: as :func:`discover_slurm`.
    """
    names = ", ".join(each.name for each in known) or "none"
    if not wanted:
        found = [each for each in known if each.default]
        if not found:
            raise UsageError(f"Slurm has no default partition: name one with --partition, of {names}")
        return found
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
) -> Found:
    """A cluster file for the nodes of some partitions.

    :param named: ask Slurm for these partitions by name; otherwise it takes its default.
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
    cluster = Cluster(nodes=made, slots=kind, backend="slurm", slurm=options)
    return Found(cluster, (*_about(partitions), *sorted_.notes()))


@dataclass(slots=True)
class _Sorted:
    """Nodes that become part of the file, and what is to be said about them and the others."""

    slots: Slots
    gpu_type: str
    """Only GPUs of this type; empty: of any."""
    without: int = 0
    mixed: list[str] = field(default_factory=list)
    down: list[tuple[str, str]] = field(default_factory=list)

    def node(self, found: SlurmNode) -> Node | None:
        """The node in the file; None: it is left out."""
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
        """For people, a line each."""
        said = [
            f"{name} is out of service ({why}); it is in the file for when it is back"
            for name, why in self.down
        ]
        if self.without:
            what = (
                f"no GPU{f' of type {self.gpu_type}' if self.gpu_type else ''}"
                if self.slots == "gpu"
                else "no CPU"
            )
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
