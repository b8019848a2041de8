"""Configurations: the bundles of GPUs that jobs choose from, and the nodes that the chosen ones get.

Sia (SOSP '23), sections 3.1 and 3.2. Within a node a configuration is a power of two of its GPUs, beyond one
it is whole nodes. Powers of two, the larger ones placed first, fit whenever their number does: jobs of at
least s GPUs occupy multiples of s, so there is room for another as long as they have fewer GPUs than the
nodes have in multiples of s (:meth:`GpuType.limits`). Where nodes have a power of two of GPUs, that says no
more than that GPUs suffice; for others it stands for the paper's virtual nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush, nsmallest
from typing import NamedTuple

from pliant.tools.profile.throughput import Placement
from pliant.tools.schedule.jobs import JobState, NodeGpus, NodeState


class Configuration(NamedTuple):
    """(n, r, t) of the paper: r GPUs of a type on n nodes."""

    nodes: int
    gpus: int
    gpu_type: str
    listed: bool = True
    """Whether it is one of the type's own; else a job has no other size, and takes what GPUs remain."""

    @property
    def is_whole(self) -> bool:
        return self.listed and self.nodes > 1


class Limit(NamedTuple):
    """GPUs that the configurations of at least ``least`` GPUs may have together."""

    least: int
    gpus: int
    node_gpus: int
    """GPUs that a whole node counts for."""


@dataclass(frozen=True, eq=False)
class GpuType:
    """The nodes of one type that are up."""

    name: str
    nodes: Sequence[NodeState]
    gpus: int = field(init=False)
    node_gpus: int = field(init=False)
    """GPUs of the largest nodes, which alone count as whole nodes."""

    def __post_init__(self) -> None:
        sizes = [node.gpus for node in self.nodes]
        object.__setattr__(self, "gpus", sum(sizes))
        object.__setattr__(self, "node_gpus", max(sizes, default=0))

    @cached_property
    def whole_nodes(self) -> int:
        return sum(node.gpus == self.node_gpus for node in self.nodes)

    @cached_property
    def configurations(self) -> tuple[Configuration, ...]:
        """Ascending: 1, 2, 4, … up to a node's GPUs, then whole nodes."""
        sizes = [1 << power for power in range(self.node_gpus.bit_length())]
        inside = [Configuration(1, size, self.name) for size in sizes]
        first = 2 if self.node_gpus in sizes else 1
        whole = range(first, self.whole_nodes + 1)
        return (*inside, *(Configuration(n, n * self.node_gpus, self.name) for n in whole))

    @cached_property
    def limits(self) -> tuple[Limit, ...]:
        """The first counts all GPUs; others follow where multiples of a size leave some out."""
        limits = [Limit(1, self.gpus, self.node_gpus)]
        for power in range(1, self.node_gpus.bit_length()):
            size = 1 << power
            room = sum(node.gpus - node.gpus % size for node in self.nodes)
            if room < self.gpus:
                limits.append(Limit(size, room, self.node_gpus - self.node_gpus % size))
        room = self.whole_nodes * self.node_gpus
        if room < self.gpus:
            limits.append(Limit(self.node_gpus, room, self.node_gpus))
        return tuple(limits)

    def counted(self, chosen: Configuration, limit: Limit) -> int:
        """What a configuration takes of a limit, in GPUs."""
        if limit.least == 1:
            return chosen.gpus
        if not chosen.listed or chosen.gpus < limit.least:
            return 0
        if chosen.gpus % self.node_gpus == 0 and chosen.gpus >= self.node_gpus:
            return chosen.gpus // self.node_gpus * limit.node_gpus
        return chosen.gpus

    def for_job(self, sizes: Sequence[int], each: int) -> tuple[Configuration, ...]:
        """What a job may get that runs on ``sizes``, ascending, in replicas of ``each``.

        If none of the configurations suits it, its least size, if the type has as many GPUs.
        """
        allowed = tuple(one for one in self.configurations if one.gpus in sizes and self._holds(one, each))
        if allowed or not sizes or sizes[0] > self.gpus:
            return allowed
        return (Configuration(-(-sizes[0] // self.node_gpus), sizes[0], self.name, listed=False),)

    def _holds(self, one: Configuration, each: int) -> bool:
        """Whether whole replicas are on each node, or none is on one node."""
        per_node = one.gpus // one.nodes
        return per_node % each == 0 or (each > self.node_gpus and one.gpus % each == 0)


def gpu_types(nodes: Iterable[NodeState]) -> dict[str, GpuType]:
    """Types with nodes that are up and have GPUs, in order of the first node of each."""
    nodes_by_type: dict[str, list[NodeState]] = {}
    for node in nodes:
        if node.up and node.gpus:
            nodes_by_type.setdefault(node.gpu_type, []).append(node)
    return {name: GpuType(name, tuple(members)) for name, members in nodes_by_type.items()}


def held_configuration(job: JobState) -> Configuration:
    """What a running job holds, as if it were no listed one."""
    return Configuration(len(job.placement), job.gpus, job.gpu_type or "", listed=False)


def placement_of(one: Configuration, node_gpus: int) -> Placement:
    """GPUs by node, descending."""
    if one.listed:
        return (one.gpus // one.nodes,) * one.nodes
    whole, rest = divmod(one.gpus, node_gpus)
    return (node_gpus,) * whole + ((rest,) if rest else ())


# Places.


class Seat(NamedTuple):
    """A job that is to be placed on nodes of its type."""

    job_id: str
    configuration: Configuration
    held: NodeGpus
    """Where it sits now, if it shall keep as many GPUs of that type; else empty."""
    per_replica: int = 1
    """GPUs that are on one node, if a node has as many."""

    @property
    def rank(self) -> tuple[bool, int]:
        """Those that are placed first have the largest."""
        return self.configuration.listed, self.configuration.gpus


def place(kind: GpuType, seats: Sequence[Seat]) -> dict[str, NodeGpus]:
    """Nodes for all jobs of a type, whose configurations keep to its limits.

    A job keeps its nodes unless a larger one needs them (rule c of section 3.1: few are evicted).
    """
    room = _Room(kind)
    waiting: list[Seat] = []
    for seat in seats:
        if seat.held and all(room.free.get(name, 0) >= count for name, count in seat.held):
            room.take(seat, seat.held)
        else:
            waiting.append(seat)
    order = {seat.job_id: number for number, seat in enumerate(seats)}

    def turn(seat: Seat) -> tuple[bool, int, int]:
        return not seat.configuration.listed, -seat.configuration.gpus, order[seat.job_id]

    queue = [(turn(seat), seat) for seat in waiting]
    heapify(queue)
    while queue:
        _, seat = heappop(queue)
        evicted, nodes = room.choose(seat)
        for left in evicted:
            heappush(queue, (turn(left), left))
        if nodes:
            room.take(seat, nodes)
    return room.places


class _Room:
    """The nodes of a type while jobs are placed."""

    def __init__(self, kind: GpuType) -> None:
        self.kind = kind
        self.free = {node.name: node.gpus for node in kind.nodes}
        self.places: dict[str, NodeGpus] = {}
        self._sitting: dict[str, list[Seat]] = {node.name: [] for node in kind.nodes}

    def take(self, seat: Seat, place: NodeGpus) -> None:
        self.places[seat.job_id] = place
        for name, count in place:
            self.free[name] -= count
            self._sitting[name].append(seat)

    def choose(self, seat: Seat) -> tuple[list[Seat], NodeGpus]:
        """Jobs that have to leave, and the place that is free then; empty if there is none."""
        wanted = seat.configuration
        if not wanted.listed:
            return [], self._anywhere(wanted.gpus, seat.per_replica)
        each = wanted.gpus // wanted.nodes
        nodes = [
            node.name
            for node in self.kind.nodes
            if node.gpus >= each and (not wanted.is_whole or node.gpus == each)
        ]
        open_to: dict[str, tuple[int, int]] = {}
        for name in nodes:
            if (cost := self._cost(name, each, seat)) is not None:
                open_to[name] = cost
                if wanted.nodes == 1 and cost == (0, 0):
                    break
        if len(open_to) < wanted.nodes:
            return [], ()
        chosen = nsmallest(wanted.nodes, open_to, key=open_to.__getitem__)
        leaving = [left for name in chosen for left in self._leaving(name, each, seat)]
        return self._evict(leaving), tuple((name, each) for name in sorted(chosen, key=nodes.index))

    def _cost(self, name: str, each: int, seat: Seat) -> tuple[int, int] | None:
        """GPUs that have to be left for the seat, then GPUs that stay free; None: there is no room."""
        left = self.free[name] - each
        if left >= 0:
            return 0, left
        leaving = self._leaving(name, each, seat)
        freed = sum(dict(self.places[other.job_id])[name] for other in leaving)
        left += freed
        return (sum(other.configuration.gpus for other in leaving), left) if left >= 0 else None

    def _leaving(self, name: str, each: int, seat: Seat) -> list[Seat]:
        """The smallest jobs of a node, as many as make room; all smaller ones if that does not."""
        leaving: list[Seat] = []
        free = self.free[name]
        for other in sorted(self._sitting[name], key=lambda other: other.rank):
            if free >= each or other.rank >= seat.rank:
                break
            free += dict(self.places[other.job_id])[name]
            leaving.append(other)
        return leaving

    def _evict(self, leaving: Iterable[Seat]) -> list[Seat]:
        evicted = list({seat.job_id: seat for seat in leaving}.values())
        for seat in evicted:
            for name, count in self.places.pop(seat.job_id):
                self.free[name] += count
                self._sitting[name].remove(seat)
        return evicted

    def _anywhere(self, gpus: int, per_replica: int) -> NodeGpus:
        """The fullest node with room for all, else the emptiest nodes one after the other."""
        each = per_replica if per_replica <= self.kind.node_gpus else 1
        free = {name: count - count % each for name, count in self.free.items()}
        fitting = [name for name, count in free.items() if count >= gpus]
        if fitting:
            return ((min(fitting, key=lambda name: self.free[name]), gpus),)
        picks: dict[str, int] = {}
        for name in sorted(free, key=lambda name: -free[name]):
            if gpus and free[name]:
                picks[name] = min(gpus, free[name])
                gpus -= picks[name]
        return () if gpus else tuple((name, picks[name]) for name in free if name in picks)
