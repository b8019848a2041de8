"""What a unit may take of this machine: what its job states that it needs, else its share of the node.

A share goes by GPUs (or CPU slots): a unit with one of a node's four has a quarter of the cores and of the
memory that the cluster file states for the node. What neither the job nor the file states is not limited,
apart from the number of processes and the GPUs of others.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from pliant.schemas.cluster import Cluster, Node
from pliant.tools.run.backends.cgroup import (
    CgroupPlace,
    UnitCgroup,
    find_place,
    gpu_devices,
    number_in,
    remove_empty,
)
from pliant.tools.run.backends.protocol import StartedUnit, Unit

OF_SYSTEM: Final = 0.05
"""The part of a node's memory that is in no unit's share: the system's, and the launcher's."""
LEAST_PROCESSES: Final = 256
"""Processes and threads that any unit may have."""
_KERNEL: Final = Path("/proc/sys/kernel")


def group_name(code_file: str) -> str:
    """The name of the group of a unit. No choice of a job's id gives it that of another."""
    return f"pliant-{hashlib.sha256(os.fsencode(code_file)).hexdigest()[:32]}"


class UnitLimits:
    """The control groups of the units of a cluster that is on this machine."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # UUIDs of the cards that GPUs are, or are instances of, by the names in CUDA_VISIBLE_DEVICES.
        self.cards: dict[str, str] = {}

    def change_cluster(self, cluster: Cluster) -> None:
        if cluster.isolation != self._cluster.isolation:
            self.__dict__.pop("place", None)
        self.__dict__.pop("_nodes", None)
        self._cluster = cluster

    @cached_property
    def place(self) -> CgroupPlace:
        if not self._cluster.isolation:
            return CgroupPlace({})
        place = find_place()
        remove_empty(() if place.scope else place.parents.values())
        return place

    @cached_property
    def devices(self) -> dict[str, str]:
        """The GPUs of this machine: their devices by UUID."""
        return gpu_devices() if "devices" in self.place.parents else {}

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self._cluster.expanded()}

    def group(self, name: str, unit: Unit, gpus: Collection[str]) -> UnitCgroup | None:
        """The group of a unit. Returns None if it gets none.

        :param name: of the group.
        :param gpus: those of its attempt on this machine, whose workers may reach into each other's memory.
        """
        if not self.place.parents:
            return None
        memory = unit.demand.get("memory") or (1 - OF_SYSTEM) * self._share(unit, "memory")
        return self.place.group(
            name,
            memory=int(memory) or None,
            cpus=unit.demand.get("cpu") or self._share(unit, "cpus") or None,
            pids=self._processes(unit.slots),
            denied=self._denied(gpus),
        )

    def _share(self, unit: Unit, what: str) -> float:
        """0 if it is not known."""
        node = self._nodes.get(unit.node)
        whole = None if node is None else getattr(node, what)
        return 0.0 if node is None or not whole or not node.gpus else whole * unit.slots / node.gpus

    def _processes(self, slots: int) -> int:
        """Its part of half of what the machine can have; others have the other half."""
        part = max(1, slots) / max(1, slots, self._cluster.total_gpus)
        return max(LEAST_PROCESSES, int(self._most_processes / 2 * part))

    @cached_property
    def _most_processes(self) -> int:
        """What the machine can have, and the groups that this one is in."""
        own = Path(self.place.parents.get("pids", "/"))
        groups = [folder / "pids.max" for folder in (own, *own.parents)]
        limits = [_KERNEL / "pid_max", _KERNEL / "threads-max", *groups]
        return min((limit for path in limits if (limit := number_in(str(path)))), default=LEAST_PROCESSES)

    def _denied(self, gpus: Iterable[str]) -> list[str]:
        """Devices of all GPUs but these; none if it is not known which these are."""
        cards = {self.cards.get(gpu, gpu) for gpu in gpus}
        if not cards <= self.devices.keys():
            return []
        return [device for card, device in self.devices.items() if card not in cards]

    def share_gpus(self, units: Sequence[StartedUnit]) -> None:
        """Let running units of one attempt have each other's GPUs, and no others."""
        if not self.devices:
            return
        denied = self._denied(gpus_of(units))
        allowed = [device for device in self.devices.values() if device not in denied]
        for unit in units:
            UnitCgroup(unit.groups).set_devices(denied, allowed)


def gpus_of(units: Iterable[Unit | StartedUnit]) -> set[str]:
    """The names of their GPUs in CUDA_VISIBLE_DEVICES."""
    names = (unit.env.get("CUDA_VISIBLE_DEVICES", "").split(",") for unit in units)
    return {name for of_unit in names for name in of_unit if name}
