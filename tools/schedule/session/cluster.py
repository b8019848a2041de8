"""The nodes of a session: free GPUs, nodes that are down or drained, slots in quarantine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pliant.schemas.checks import Capacities
from pliant.schemas.cluster import MOST_OF_NODE, Cluster
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import Throughput
from pliant.tools.schedule.jobs import JobState, NodeGpus, NodeState, node_states
from pliant.tools.schedule.placement import FreeGpus
from pliant.tools.schedule.rates import GpuSharing, Speeds
from pliant.tools.schedule.session.changes import SessionChanges
from pliant.tools.schedule.session.part import SessionPart
from pliant.tools.schedule.session.quarantine import Quarantine, node_of


class Timer(Protocol):
    """What happens to nodes at certain times."""

    next_s: float
    """When the next of it is due."""

    def pass_borders(self, now_s: float) -> None:
        """Let all of it happen that is due."""


@dataclass(slots=True)
class NodesState:
    """How the nodes differ from the cluster file."""

    drained: dict[str, bool] = field(default_factory=dict)
    """Nodes that get no further work, and whether their jobs must leave at the next decision."""
    vanished: dict[str, float] = field(default_factory=dict)
    """Drained nodes that are down, and since when."""
    changed: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """GPUs in service and whether the node is up, of nodes that differ from the cluster file."""
    reserved: dict[str, bool] = field(default_factory=dict)
    """Nodes that are drained for a reservation, and whether they were drained anyway."""


class ClusterNodes(SessionPart[NodesState]):
    """Every GPU in service is free, or held by one job or by two that share it."""

    def __init__(
        self,
        spec: Cluster,
        throughput: Throughput,
        changes: SessionChanges,
        quarantine: Quarantine,
        *,
        physics: Throughput | None = None,
    ) -> None:
        """:param physics: how fast jobs train where that is simulated; None: as is known of them."""
        self.spec = spec
        self.state = NodesState()
        self.nodes: Sequence[NodeState] = node_states(spec)
        sharing = GpuSharing(spec, throughput) if spec.shares_gpus else None
        # What is known of speeds, for decisions; and how fast jobs train.
        self.speeds = self.training_speeds = Speeds(throughput, self.nodes, sharing)
        if physics is not None:
            sharing = GpuSharing(spec, physics) if spec.shares_gpus else None
            self.training_speeds = Speeds(physics, self.nodes, sharing)
        self.free = FreeGpus(self.nodes)
        # CPUs, memory and bandwidth of nodes, for jobs that state demands.
        self.capacities = Capacities(spec.expanded())
        # GPUs of the nodes that are up.
        self.up_gpus = sum(node.gpus for node in self.nodes)
        self.index: Mapping[str, int] = {node.name: node.index for node in self.nodes}
        # Nodes that reservations keep jobs from for now.
        self.confined: dict[str, frozenset[str]] = {}
        self.windows: Timer | None = None
        self._changes = changes
        self._quarantine = quarantine

    def restore(self, state: NodesState) -> None:
        super().restore(state)
        for name, (gpus, up) in state.changed.items():
            node = self.free.node(name)
            node.gpus, node.up = gpus, up
        self.free = FreeGpus(self.nodes)
        self.up_gpus = sum(node.gpus for node in self.nodes if node.up)

    @property
    def now_s(self) -> float:
        """Present time on the caller's clock."""
        return self._changes.now_s

    @property
    def drained(self) -> Mapping[str, bool]:
        return self.state.drained

    def at(self, time_s: float) -> float:
        """Let time pass; returns the present time, which never steps back.

        Slots whose quarantine is over go back into service.
        """
        clock = self._changes.state
        if time_s > clock.now_s:
            clock.now_s = time_s
        else:
            time_s = clock.now_s
        if time_s >= self._quarantine.next_s:
            self._changes.note_cpus()
            for until_s, slot in self._quarantine.expire(time_s):
                self._put_back(slot, until_s)
        if self.windows is not None and time_s >= self.windows.next_s:
            self.windows.pass_borders(time_s)
        return time_s

    def where(self, job: JobState) -> Job:
        """The job as it may run now: it excludes nodes that reservations keep it from."""
        if (names := self.confined.get(job.id)) is None:
            return job.spec
        return job.spec.model_copy(update={"exclude": (*job.spec.exclude, *sorted(names))})

    # Slots.

    def withdraw(self, slot: str, time_s: float, until_s: float) -> None:
        """Take a slot (``node/index``) that no job holds out of service until a time.

        :raises KeyError: there is no such node.
        :raises ValueError: no GPU of the node is free.
        """
        node, time_s = self.free.node(node_of(slot)), self.at(time_s)
        if slot not in self._quarantine.out_of_service and is_of_gpu(slot):
            if node.up:
                self.free.take(((node.name, 1),))
            self.resize(node, -1, time_s)
        self._quarantine.withdraw(slot, until_s)

    def restore_slot(self, slot: str, time_s: float) -> None:
        """A slot proved good: every job may get it again."""
        time_s = self.at(time_s)
        if self._quarantine.restore_slot(slot):
            self._put_back(slot, time_s)

    def resume_slots(self, node: str, time_s: float) -> None:
        """Slots of a node that wait for an operator go back into service."""
        for slot in self._quarantine.until_resumed(node, time_s):
            self.restore_slot(slot, time_s)

    def _put_back(self, slot: str, time_s: float) -> None:
        node = self.free.node(node_of(slot))
        if is_of_gpu(slot):
            self.resize(node, 1, time_s)
            self.free.give(((node.name, 1),))

    # Nodes.

    def take_away(self, node: NodeState, time_s: float) -> None:
        self.free.lose(node)
        node.up = False
        self.up_gpus -= node.gpus
        self._record(node)
        self._changes.note("node_down", time_s, node=node, gpus=-node.gpus)

    def bring_back(self, node: NodeState, time_s: float) -> None:
        node.up = True
        self.up_gpus += node.gpus
        self.free.regain(node)
        self._record(node)
        self._changes.note("node_up", time_s, node=node, gpus=node.gpus)

    def resize(self, node: NodeState, gpus: int, time_s: float) -> None:
        """Change the GPUs in service of a node; one that is down counts them when it is up again."""
        self.free.resize(node, gpus)
        self._record(node)
        if node.up:
            self.up_gpus += gpus
            self._changes.note("capacity", time_s, node=node, gpus=gpus)

    def _record(self, node: NodeState) -> None:
        if node.up and node.gpus == node.made_gpus:
            self.state.changed.pop(node.name, None)
        else:
            self.state.changed[node.name] = (node.gpus, node.up)

    def in_service(self, placement: NodeGpus) -> NodeGpus:
        """The part of a placement on nodes that are not drained."""
        drained = self.state.drained
        if not drained:
            return placement
        return tuple((name, count) for name, count in placement if name not in drained)

    def binding(self, job: JobState) -> str | None:
        """The drained node that a job may finish on; None if it holds none, or must leave one."""
        drained = self.state.drained
        held = [name for name, _ in job.placement if name in drained]
        return held[0] if held and not any(drained[name] for name in held) else None

    def update_room(self, jobs: Iterable[JobState]) -> None:
        """Recompute how many workers of these jobs the nodes that are up have room for."""
        demanding = [job for job in jobs if job.room is not None]
        if not demanding:
            return
        capacities = None
        if not self.free.all_up:
            nodes = zip(self.capacities.nodes, self.nodes, strict=True)
            capacities = Capacities([node for node, state in nodes if state.up], self.capacities)
        for job in demanding:
            job.room_now = job.room if capacities is None else capacities.room(self.where(job))


def is_of_gpu(slot: str) -> bool:
    """Whether a slot is one of the node's GPUs, and not a place of a job without GPUs, which come behind."""
    return int(slot.rpartition("/")[2]) < MOST_OF_NODE
