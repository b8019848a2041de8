"""Which GPUs: free GPUs by node, and the topology-aware choice among them.

A job that fits one node goes to the node with the fewest free GPUs that still fits. A larger one takes the
nodes with most free GPUs first and puts the rest on the node that it fits best: the fewest nodes possible
(Ares, section 4, workflow step 5). Among equal numbers of nodes a single switch is preferred, there the one
with the fewest free GPUs. One job never mixes GPU types. A job that grows or shrinks keeps as much of its
place as leaves it no less consolidated than a new place.
"""

from __future__ import annotations

import copy
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence

from pliant.tools.schedule.jobs import NodeGpus, NodeState

_Picks = list[tuple[int, int]]
"""(node index, GPUs taken from it)."""


class FreeGpus:
    """Free GPUs of every node that is up, indexed by type, switch and number free.

    ``take`` and ``give`` cost O(log nodes) for each node named; choosing a place costs O(GPUs of the largest
    node + nodes used), on a cluster with several switches for each of them.
    """

    def __init__(self, nodes: Sequence[NodeState]) -> None:
        self.nodes = nodes
        self._by_name = {node.name: node for node in nodes}
        self._free = [0] * len(nodes)
        self._types: dict[str, _Shelf] = {}
        self._switches: dict[str, dict[str, _Shelf]] = {}
        for node in nodes:
            self._types.setdefault(node.gpu_type, _Shelf())
            if node.switch is not None:
                self._switches.setdefault(node.gpu_type, {}).setdefault(node.switch, _Shelf())
        self.by_type: dict[str, int] = dict.fromkeys(self._types, 0)
        self._largest: dict[str, int] = {}
        """GPUs of the largest node of each type, up or down, in service or not."""
        for node in nodes:
            self._largest[node.gpu_type] = max(node.made_gpus, self._largest.get(node.gpu_type, 0))
            if node.up:
                self._set(node, node.gpus)

    def node(self, name: str) -> NodeState:
        return self._by_name[name]

    def free_on(self, node: str) -> int:
        """0 for a node that is down."""
        return self._free[self._by_name[node].index]

    def take(self, placement: NodeGpus) -> None:
        """:raises ValueError: a node has fewer free."""
        for name, count in placement:
            node = self._by_name[name]
            self._set(node, self._free[node.index] - count)

    def give(self, placement: NodeGpus) -> None:
        """GPUs of nodes that are down stay away.

        :raises ValueError: a node would have more free than it has.
        """
        for name, count in placement:
            node = self._by_name[name]
            if node.up:
                self._set(node, self._free[node.index] + count)

    def lose(self, node: NodeState) -> None:
        """A node went down: none of its GPUs is free. Call it before ``give`` for its jobs."""
        self._set(node, 0)

    def regain(self, node: NodeState) -> None:
        self._set(node, node.gpus)

    def refit(self, index: int, gpus: int, free: int, *, up: bool) -> None:
        """A node of a part of the cluster has as many GPUs now, and as many of them free."""
        node = self.nodes[index]
        if (node.gpus, self._free[index], node.up) != (gpus, free, up):
            self._set(node, 0)
            node.gpus, node.up = gpus, up
            self._set(node, free)

    def choose(
        self, gpus: int, gpu_types: Iterable[str], keep: NodeGpus = (), *, per_replica: int = 1
    ) -> NodeGpus | None:
        """A placement for ``gpus`` GPUs on the first type that has them; None if none has.

        ``keep`` is what the job holds now (marked free here): of two equally consolidated places the one
        around it wins.

        :param per_replica: GPUs that are on one node, if a node of the type has as many.
        """
        for gpu_type in gpu_types:
            each = self.on_one_node(per_replica, gpu_type)
            if self._usable(gpu_type, each) >= gpus:
                fresh = self._fresh(gpus, gpu_type, each)
                kept = self._around(gpus, gpu_type, keep, each) if keep else []
                if kept and self._spread(kept) <= self._spread(fresh):
                    fresh = kept
                return self._named(sorted(fresh))
        return None

    def on_one_node(self, per_replica: int, gpu_type: str) -> int:
        """GPUs of a replica that are on one node: all, or 1 if no node of the type has as many."""
        return per_replica if 1 < per_replica <= self._largest.get(gpu_type, 0) else 1

    def splits(self, placement: NodeGpus, per_replica: int) -> bool:
        """Whether a placement has a replica on several nodes that one node would hold."""
        return any(
            count % self.on_one_node(per_replica, self._by_name[name].gpu_type) for name, count in placement
        )

    def after(self, leaving: Iterable[NodeGpus]) -> FreeGpus:
        """A copy in which the GPUs of these placements are free, too."""
        other = copy.copy(self)
        other._free, other.by_type = list(self._free), dict(self.by_type)
        other._types = {kind: shelf.copy() for kind, shelf in self._types.items()}
        other._switches = {
            kind: {name: shelf.copy() for name, shelf in shelves.items()}
            for kind, shelves in self._switches.items()
        }
        for placement in leaving:
            other.give(placement)
        return other

    # Other orders, for a policy that places itself; switches do not count. The type must have as many free.

    def tightest(self, gpus: int, gpu_type: str, *, per_replica: int = 1) -> NodeGpus:
        """GPUs of few nodes, the last part on the fullest that has room for it.

        :param per_replica: as in :meth:`choose`; empty if replicas do not fit the nodes.
        """
        each = self.on_one_node(per_replica, gpu_type)
        has_room = self._usable(gpu_type, each) >= gpus
        return self._named(self._types[gpu_type].pick(gpus, each)) if has_room else ()

    def emptiest(self, gpus: int, gpu_type: str, *, per_replica: int = 1) -> NodeGpus:
        """GPUs of the nodes with most free, one after the other; of equal ones the first.

        :param per_replica: as in :meth:`tightest`.
        """
        each = self.on_one_node(per_replica, gpu_type)
        has_room = self._usable(gpu_type, each) >= gpus
        return self._named(self._types[gpu_type].emptiest(gpus, each)) if has_room else ()

    def together(self, gpus: int, gpu_type: str, *, per_replica: int = 1) -> NodeGpus | None:
        """As :meth:`emptiest`; None if an empty cluster could do with fewer nodes."""
        place = self.emptiest(gpus, gpu_type, per_replica=per_replica)
        each = self.on_one_node(per_replica, gpu_type)
        sizes = sorted(
            (node.gpus - node.gpus % each for node in self.nodes if node.up and node.gpu_type == gpu_type),
            reverse=True,
        )
        return place if place and sum(sizes[: len(place) - 1]) < gpus else None

    def _usable(self, gpu_type: str, each: int) -> int:
        """Free GPUs of a type, on each node as many as are a multiple of ``each``."""
        return self.by_type.get(gpu_type, 0) if each == 1 else self._types[gpu_type].usable(each)

    def _named(self, picks: _Picks) -> NodeGpus:
        return tuple((self.nodes[index].name, count) for index, count in picks)

    def _set(self, node: NodeState, free: int) -> None:
        if not 0 <= free <= node.gpus:
            raise ValueError(f"node {node.name} would have {free} of {node.gpus} GPUs free")
        before = self._free[node.index]
        self._free[node.index] = free
        self.by_type[node.gpu_type] += free - before
        self._types[node.gpu_type].move(node.index, before, free)
        if node.switch is not None:
            self._switches[node.gpu_type][node.switch].move(node.index, before, free)

    def _spread(self, picks: _Picks) -> tuple[int, int]:
        """How scattered a place is: nodes, then switches."""
        return len(picks), len({self.nodes[index].switch for index, _ in picks})

    def _fresh(self, gpus: int, gpu_type: str, each: int) -> _Picks:
        shelf = self._types[gpu_type]
        switches: Mapping[str, _Shelf] = self._switches.get(gpu_type, {})
        if len(switches) > 1 and (needed := shelf.nodes_needed(gpus, each)) > 1:
            fitting = [
                (near.total, name)
                for name, near in switches.items()
                if near.usable(each) >= gpus and near.nodes_needed(gpus, each) == needed
            ]
            if fitting:
                shelf = switches[min(fitting)[1]]
        return shelf.pick(gpus, each)

    def _around(self, gpus: int, gpu_type: str, keep: NodeGpus, each: int) -> _Picks:
        """The best place on the nodes held, and beyond them for what they lack; empty if none is held."""
        parts = [(self._by_name[name], count) for name, count in keep]
        parts = [(node, count) for node, count in parts if node.gpu_type == gpu_type and node.up]
        held = [(node.index, min(count, self._free[node.index])) for node, count in parts]
        largest_part_first = sorted(held, key=lambda item: (-item[1], item[0]))
        most_room_first = sorted(held, key=lambda item: (-self._free[item[0]], -item[1], item[0]))
        orders = (largest_part_first, most_room_first)
        best = min((self._fill(gpus, order, each) for order in orders), key=len)
        missing = gpus - sum(count for _, count in best)
        return self._extend(best, missing, gpu_type, each) if best and missing else best

    def _fill(self, gpus: int, held: Sequence[tuple[int, int]], each: int) -> _Picks:
        """As much of ``gpus`` as the nodes of ``held`` have room for, in its order.

        The last part goes where the smallest sufficient part is held, so that larger ones come free.
        """
        picks: _Picks = []
        for turn, (index, _) in enumerate(held):
            if self._free[index] >= gpus:
                fitting = [item for item in held[turn:] if self._free[item[0]] >= gpus]
                last = min(fitting, key=lambda item: (item[1] < gpus, abs(item[1] - gpus), item[0]))
                return [*picks, (last[0], gpus)]
            if count := self._free[index] - self._free[index] % each:
                picks.append((index, count))
                gpus -= count
        return picks

    def _extend(self, picks: _Picks, missing: int, gpu_type: str, each: int) -> _Picks:
        used = self._named(picks)
        self.take(used)  # all that these nodes have, so that nothing of them is picked again
        more = self._types[gpu_type].pick(missing, each)
        self.give(used)
        return picks + more


class _Shelf:
    """Nodes by the number of GPUs free on them."""

    __slots__ = ("_buckets", "total")

    def __init__(self) -> None:
        self._buckets: list[list[int]] = [[]]
        """Node indices in ascending order, by free GPUs; those with none are left out."""
        self.total = 0

    def move(self, index: int, before: int, free: int) -> None:
        if before:
            self._buckets[before].pop(bisect_left(self._buckets[before], index))
        while len(self._buckets) <= free:
            self._buckets.append([])
        if free:
            insort(self._buckets[free], index)
        self.total += free - before

    # ``each``: of every node as many GPUs count as are a multiple of it, and sizes are multiples of it.

    def usable(self, each: int) -> int:
        if each == 1:
            return self.total
        return sum(len(bucket) * (free - free % each) for free, bucket in enumerate(self._buckets))

    def nodes_needed(self, gpus: int, each: int) -> int:
        """The fewest nodes with ``gpus`` free GPUs together; they must exist."""
        return sum(count for _, count in self._runs(gpus, each))

    def pick(self, gpus: int, each: int) -> _Picks:
        """The fewest nodes for ``gpus`` GPUs, the last part on the fullest node that has room for it."""
        fullest = next((bucket[0] for bucket in self._buckets[gpus:] if bucket), None)
        if fullest is not None:
            return [(fullest, gpus)]
        picks: _Picks = []
        runs = self._runs(gpus, each)
        for free, count in runs:
            picks += [(index, free - free % each) for index in self._buckets[free][:count]]
        rest = gpus - sum(free for _, free in picks[:-1])
        fuller = next((bucket[0] for bucket in self._buckets[rest : runs[-1][0]] if bucket), picks[-1][0])
        return [*picks[:-1], (fuller, rest)]

    def emptiest(self, gpus: int, each: int) -> _Picks:
        """The nodes with most GPUs free first; there must be enough free."""
        picks: _Picks = []
        for free in range(len(self._buckets) - 1, each - 1, -1):
            for index in self._buckets[free]:
                picks.append((index, min(free - free % each, gpus)))
                gpus -= picks[-1][1]
                if not gpus:
                    return picks
        return picks

    def copy(self) -> _Shelf:
        other = _Shelf()
        other._buckets, other.total = [list(bucket) for bucket in self._buckets], self.total
        return other

    def _runs(self, gpus: int, each: int) -> list[tuple[int, int]]:
        """(free GPUs, number of such nodes) from the top, until ``gpus`` are together."""
        runs = []
        for free in range(len(self._buckets) - 1, each - 1, -1):
            use = free - free % each
            count = min(len(self._buckets[free]), -(-gpus // use))
            if count > 0:
                runs.append((free, count))
                gpus -= use * count
        return runs
