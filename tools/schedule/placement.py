"""Which GPUs: free GPUs by node, and the topology-aware choice among them.

A job that fits one node goes to the node with the fewest free GPUs that still fits. A larger one takes the
nodes with most free GPUs first and puts the rest on the node that it fits best: the fewest nodes possible
(Ares, section 4, workflow step 5). Among equal numbers of nodes a single switch is preferred, there the one
with the fewest free GPUs. One job never mixes GPU types. A job that grows or shrinks keeps as much of its
place as leaves it no less consolidated than a new place.

On a cluster whose network has levels, a job that no node holds goes to a domain of the lowest level that
holds it, there to the fewest nodes; of equal domains to the one with the fewest free GPUs. One that spreads
over several domains takes the fewest of them, as it does with nodes.
"""

from __future__ import annotations

import copy
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Final, TypeVar

from pliant.tools.schedule.jobs import NodeGpus, NodeState, Place

K = TypeVar("K", bound=Hashable)
_MANY: Final = 8
"""Nodes from which on it pays to move those that change alike together."""
_MOST_KNOWN: Final = 1 << 12
"""Places on many nodes that are kept."""
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
        self._index_of = {node.name: node.index for node in nodes}
        self._gpu_types = [node.gpu_type for node in nodes]
        self._free = [0] * len(nodes)
        # As the nodes say, in service: of many at once they are read faster here.
        self._gpus = [node.gpus for node in nodes]
        self._topology = _Topology(nodes)
        self.by_type: dict[str, int] = dict.fromkeys(self._topology.types, 0)
        # GPUs of the largest node of each type, up or down, in service or not.
        self._largest: dict[str, int] = {}
        self._places = _Places([node.name for node in nodes])
        # Indices of the nodes that are down.
        self._down: set[int] = set()
        for node in nodes:
            self._largest[node.gpu_type] = max(node.made_gpus, self._largest.get(node.gpu_type, 0))
            if node.up:
                self._set(node, node.gpus)
            else:
                self._down.add(node.index)

    @property
    def all_up(self) -> bool:
        return not self._down

    def node(self, name: str) -> NodeState:
        return self._by_name[name]

    def free_on(self, node: str) -> int:
        """0 for a node that is down."""
        return self._free[self._by_name[node].index]

    def take(self, placement: NodeGpus) -> None:
        """:raises ValueError: a node has fewer free."""
        if len(placement) >= _MANY:
            self._set_all(placement, -1)
            return
        for name, count in placement:
            node = self._by_name[name]
            self._set(node, self._free[node.index] - count)

    def give(self, placement: NodeGpus) -> None:
        """GPUs of nodes that are down stay away.

        :raises ValueError: a node would have more free than it has.
        """
        if len(placement) >= _MANY:
            self._set_all(placement, 1)
            return
        for name, count in placement:
            node = self._by_name[name]
            if node.up:
                self._set(node, self._free[node.index] + count)

    def _hide(self, indices: Iterable[int]) -> NodeGpus:
        """Take all free GPUs of some nodes; ``give`` them back."""
        hidden = tuple(
            [(self.nodes[index].name, self._free[index]) for index in indices if self._free[index]]
        )
        self.take(hidden)
        return hidden

    def bars(self, placement: NodeGpus, barred: Sequence[int]) -> bool:
        """Whether a placement has a node of these indices."""
        return bool(barred) and any(self._index_of[name] in barred for name, _ in placement)

    def lose(self, node: NodeState) -> None:
        """A node went down: none of its GPUs is free. Call it before ``give`` for its jobs."""
        self._set(node, 0)
        self._down.add(node.index)

    def regain(self, node: NodeState) -> None:
        self._down.discard(node.index)
        self._set(node, node.gpus)

    def refit(self, index: int, gpus: int, free: int, *, up: bool) -> None:
        """A node of a part of the cluster has as many GPUs now, and as many of them free."""
        node = self.nodes[index]
        if (node.gpus, self._free[index], node.up) != (gpus, free, up):
            self._set(node, 0)
            self.resize(node, gpus - node.gpus)
            node.up = up
            (self._down.discard if up else self._down.add)(index)
            self._set(node, free)

    def resize(self, node: NodeState, more: int) -> None:
        """A node has more GPUs in service, or fewer."""
        node.gpus += more
        self._gpus[node.index] = node.gpus

    def choose(
        self,
        gpus: int,
        gpu_types: Iterable[str],
        keep: NodeGpus = (),
        *,
        per_replica: int = 1,
        stays: bool = False,
        barred: Sequence[int] = (),
    ) -> NodeGpus | None:
        """A placement for ``gpus`` GPUs on the first type that has them; None if none has.

        ``keep`` is what the job holds now (marked free here): of two equally consolidated places the one
        around it wins.

        :param per_replica: GPUs that are on one node, if a node of the type has as many.
        :param stays: the place around ``keep`` wins wherever there is one.
        :param barred: nodes that it may not be on, by index.
        """
        if barred:
            types = [kind for kind in gpu_types if self._open(kind, barred) >= gpus]
            if types and not stays and (place := self._on_one_open_node(gpus, types[0], keep, barred)):
                return place
            hidden = self._hide(barred) if types else ()
            place = self.choose(gpus, types, keep, per_replica=per_replica, stays=stays)
            self.give(hidden)
            return place
        for gpu_type in gpu_types:
            each = 1 if per_replica == 1 else self.on_one_node(per_replica, gpu_type)
            if self._usable(gpu_type, each) >= gpus:
                topology, places = self._topology, self._places
                shelf, flat = topology.types[gpu_type], topology.is_flat
                if gpus > _MANY and flat and not keep and (place := places.of_empty_nodes(gpus, shelf, each)):
                    return place
                fresh = shelf.pick(gpus, each) if flat else topology.pick(gpus, gpu_type, each)
                kept = self._around(gpus, gpu_type, keep, each) if keep else []
                if kept and (stays or self._spread(kept) <= self._spread(fresh)):
                    fresh = kept
                return places.named(sorted(fresh) if len(fresh) > 1 else fresh)
        return None

    def _open(self, gpu_type: str, barred: Sequence[int]) -> int:
        """Free GPUs of a type on all nodes but these."""
        free, kinds = self._free, self._gpu_types
        barred_gpus = sum([free[index] for index in barred if kinds[index] == gpu_type])
        return self.by_type.get(gpu_type, 0) - barred_gpus

    def _on_one_open_node(
        self, gpus: int, gpu_type: str, keep: NodeGpus, barred: Sequence[int]
    ) -> NodeGpus | None:
        """As :meth:`choose`, where one node holds them and neither switches nor levels count; else None.

        Hiding most nodes of a large cluster takes ten times as long.
        """
        topology, places = self._topology, self._places
        shelf = topology.types[gpu_type]
        if not topology.is_flat or (index := shelf.first(gpus, barred)) is None or self.bars(keep, barred):
            return None
        own = [self._by_name[name] for name, _ in keep]
        if any(node.gpu_type == gpu_type and self._free[node.index] >= gpus for node in own):
            return places.named(self._around_in(gpus, gpu_type, keep, 1, shelf))
        return places.named([(index, gpus)])

    def on_one_node(self, per_replica: int, gpu_type: str) -> int:
        """GPUs of a replica that are on one node: all, or 1 if no node of the type has as many."""
        return per_replica if per_replica > 1 and per_replica <= self._largest.get(gpu_type, 0) else 1

    def splits(self, placement: NodeGpus, per_replica: int) -> bool:
        """Whether a placement has a replica on several nodes that one node would hold."""
        return any(
            count % self.on_one_node(per_replica, self._by_name[name].gpu_type) for name, count in placement
        )

    def after(self, leaving: Iterable[NodeGpus]) -> FreeGpus:
        """A copy in which the GPUs of these placements are free, too."""
        other = copy.copy(self)
        other._free, other.by_type = list(self._free), dict(self.by_type)
        other._topology = _Topology(self.nodes, self._topology)
        for placement in leaving:
            other.give(placement)
        return other

    def with_places(self, placements: Iterable[NodeGpus]) -> tuple[dict[str, int], list[int]]:
        """GPUs by type, and by index of the node, that are free or of these placements."""
        by_type, by_node = dict(self.by_type), list(self._free)
        for name, count in chain.from_iterable(placements):
            index = self._index_of[name]
            by_node[index] += count
            by_type[self._gpu_types[index]] += count
        return by_type, by_node

    # Other orders, for a policy that places itself; switches and levels do not count. The type must have as
    # many free.

    def tightest(self, gpus: int, gpu_type: str, *, per_replica: int = 1) -> NodeGpus:
        """GPUs of few nodes, the last part on the fullest that has room for it.

        :param per_replica: as in :meth:`choose`; empty if replicas do not fit the nodes.
        """
        each = self.on_one_node(per_replica, gpu_type)
        has_room = self._usable(gpu_type, each) >= gpus
        return self._places.named(self._topology.types[gpu_type].pick(gpus, each)) if has_room else ()

    def emptiest(self, gpus: int, gpu_type: str, *, per_replica: int = 1) -> NodeGpus:
        """GPUs of the nodes with most free, one after the other; of equal ones the first.

        :param per_replica: as in :meth:`tightest`.
        """
        each = self.on_one_node(per_replica, gpu_type)
        has_room = self._usable(gpu_type, each) >= gpus
        return self._places.named(self._topology.types[gpu_type].emptiest(gpus, each)) if has_room else ()

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
        return self.by_type.get(gpu_type, 0) if each == 1 else self._topology.types[gpu_type].usable(each)

    def _set(self, node: NodeState, free: int) -> None:
        if not 0 <= free <= node.gpus:
            raise _too_many(node, free)
        index = node.index
        before, self._free[index] = self._free[index], free
        self.by_type[node.gpu_type] += free - before
        for shelf in self._topology.of_node[index]:
            shelf.move(index, before, free)

    def _set_all(self, placement: NodeGpus, sign: int) -> None:
        """As :meth:`give` (``sign`` 1) and :meth:`take` (-1): nodes that change alike move together.

        :raises ValueError: as :meth:`_set`; then nothing has changed.
        """
        frees = self._free
        if isinstance(placement, Place) and not (self._down and sign > 0):
            indices, span, now = placement.indices, placement.span, frees[placement.indices[0]]
            here = [frees[index] for index in indices] if span is None else frees[span]
            if placement.each and here.count(now) == len(here):
                then = now + sign * placement.each
                if not 0 <= then <= now:
                    self._check_room(indices, then, span)
                self._move_alike(indices, now, then, span)
                return
        alike = defaultdict[tuple[int, int, str], list[int]](list)
        for name, count in placement:
            index = self._index_of[name]
            if sign < 0 or index not in self._down:
                alike[frees[index], count, self._gpu_types[index]].append(index)
        for (before, count, _), those in alike.items():
            self._check_room(those, before + sign * count)
        for (before, count, _), those in alike.items():
            self._move_alike(those, before, before + sign * count)

    def _check_room(self, indices: Sequence[int], free: int, span: slice | None = None) -> None:
        """:raises ValueError: these nodes cannot have that many GPUs free."""
        gpus = [self._gpus[index] for index in indices] if span is None else self._gpus[span]
        if gpus.count(free) == len(gpus):  # all of them are free then, as most often
            return
        if not 0 <= free <= min(gpus):
            nodes = [self.nodes[index] for index in indices]
            raise _too_many(next(node for node in nodes if not 0 <= free <= node.gpus), free)

    def _move_alike(self, indices: Sequence[int], before: int, free: int, span: slice | None = None) -> None:
        """Nodes of one type that had one number of GPUs free have another."""
        frees, gpu_type = self._free, self._gpu_types[indices[0]]
        self.by_type[gpu_type] += (free - before) * len(indices)
        self._topology.types[gpu_type].move_all(indices, before, free, span)
        if span is not None:
            frees[span] = [free] * len(indices)
        else:
            for index in indices:
                frees[index] = free
        if not self._topology.is_flat:
            for index in indices:
                for shelf in self._topology.of_node[index][1:]:
                    shelf.move(index, before, free)

    def _spread(self, picks: _Picks) -> tuple[int, ...]:
        """How scattered a place is: domains from the highest level down, then nodes, then switches."""
        nodes = [self.nodes[index] for index, _ in picks]
        domains = [len({node.domains[level] for node in nodes}) for level in nodes[0].domains]
        return *reversed(domains), len(nodes), len({node.switch for node in nodes})

    def _around(self, gpus: int, gpu_type: str, keep: NodeGpus, each: int) -> _Picks:
        """The best place on the nodes held, and beyond them for what they lack; empty if none is held.

        Where the network has levels, the best of those in domains that have room for all of it, and of that
        anywhere; of equal ones the one with most of the GPUs held.
        """
        anywhere = self._around_in(gpus, gpu_type, keep, each, self._topology.types[gpu_type])
        if not self._topology.levels[gpu_type]:
            return anywhere
        own: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for name, count in keep:
            if self._by_name[name].gpu_type == gpu_type:
                for where in self._by_name[name].domains.items():
                    own.setdefault(where, []).append((name, count))
        places = [anywhere]
        for (level, domain), held in own.items():
            shelf = self._topology.levels[gpu_type][level][domain]
            if shelf.usable(each) >= gpus:
                places.append(self._around_in(gpus, gpu_type, held, each, shelf))
        before = {self._by_name[name].index: count for name, count in keep}

        def worth(picks: _Picks) -> tuple[tuple[int, ...], int]:
            kept = sum(min(count, before.get(index, 0)) for index, count in picks)
            return self._spread(picks), -kept

        return min(filter(None, places), key=worth, default=[])

    def _around_in(
        self, gpus: int, gpu_type: str, keep: Sequence[tuple[str, int]], each: int, shelf: _Shelf
    ) -> _Picks:
        parts = [(self._by_name[name], count) for name, count in keep]
        parts = [(node, count) for node, count in parts if node.gpu_type == gpu_type and node.up]
        held = [(node.index, min(count, self._free[node.index])) for node, count in parts]
        largest_part_first = sorted(held, key=lambda item: (-item[1], item[0]))
        most_room_first = sorted(held, key=lambda item: (-self._free[item[0]], -item[1], item[0]))
        orders = (largest_part_first, most_room_first)
        best = min((self._fill(gpus, order, each) for order in orders), key=len)
        missing = gpus - sum(count for _, count in best)
        return self._extend(best, missing, shelf, each) if best and missing else best

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

    def _extend(self, picks: _Picks, missing: int, shelf: _Shelf, each: int) -> _Picks:
        used = self._places.named(picks)
        self.take(used)  # all that these nodes have, so that nothing of them is picked again
        more = shelf.pick(missing, each)
        self.give(used)
        return picks + more


def _too_many(node: NodeState, free: int) -> ValueError:
    return ValueError(f"node {node.name} would have {free} of {node.gpus} GPUs free")


class _Places:
    """Placements by their picks: large jobs often get the same nodes again."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        # Keys are picks; of empty nodes, the GPUs and the nodes.
        self._known: dict[tuple[object, ...], Place] = {}

    def named(self, picks: _Picks) -> NodeGpus:
        names = self._names
        if len(picks) < _MANY:
            return tuple([(names[index], count) for index, count in picks])
        key = tuple(picks)
        return self._known.get(key) or self._keep(key, picks)

    def of_empty_nodes(self, gpus: int, shelf: _Shelf, each: int) -> Place | None:
        """What :meth:`_Shelf.pick` finds where many empty nodes have just as many GPUs."""
        indices = shelf.empty_nodes(gpus, each)
        if len(indices) < _MANY:
            return None
        key = (gpus, *indices)
        return self._known.get(key) or self._keep(key, [(index, gpus // len(indices)) for index in indices])

    def _keep(self, key: tuple[object, ...], picks: _Picks) -> Place:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        place = self._known[key] = Place.of(self._names, picks)
        return place


class _Topology:
    """Shelves of the nodes of each type, and there of each switch and of each domain of the network.

    :param source: shelves to copy; None: nodes are on none yet.
    """

    def __init__(self, nodes: Sequence[NodeState], source: _Topology | None = None) -> None:
        self._nodes = nodes
        self.types: dict[str, _Shelf] = {}
        self._switches: dict[str, dict[str, _Shelf]] = {}
        # By type and level, the lowest first: the shelf of each domain.
        self.levels: dict[str, dict[str, dict[int, _Shelf]]] = {}
        if source is not None:
            self.types = _copied(source.types)
            self._switches = {kind: _copied(shelves) for kind, shelves in source._switches.items()}
            self.levels = {
                kind: {level: _copied(shelves) for level, shelves in levels.items()}
                for kind, levels in source.levels.items()
            }
        # By index of a node: the shelves that it is on, of its type, its switch and its domains.
        self.of_node = [tuple(self._shelves_of(node)) for node in nodes]
        # Whether neither switches nor levels part the nodes of a type.
        self.is_flat = all(len(shelves) == 1 for shelves in self.of_node)

    def _shelves_of(self, node: NodeState) -> Iterator[_Shelf]:
        kind, levels = node.gpu_type, self.levels.setdefault(node.gpu_type, {})
        yield self.types.setdefault(kind, _Shelf())
        if node.switch is not None:
            yield self._switches.setdefault(kind, {}).setdefault(node.switch, _Shelf())
        for level, domain in node.domains.items():
            yield levels.setdefault(level, {}).setdefault(domain, _Shelf())

    def pick(self, gpus: int, gpu_type: str, each: int) -> _Picks:
        """The most consolidated place; there must be enough free."""
        shelf = self.types[gpu_type]
        if levels := self.levels[gpu_type]:
            return self._under_levels(gpus, shelf, list(levels.items()), each)
        switches: Mapping[str, _Shelf] | None = self._switches.get(gpu_type)
        if switches and len(switches) > 1 and (needed := shelf.nodes_needed(gpus, each)) > 1:
            fitting = [
                (near.total, name)
                for name, near in switches.items()
                if near.usable(each) >= gpus and near.nodes_needed(gpus, each) == needed
            ]
            if fitting:
                shelf = switches[min(fitting)[1]]
        return shelf.pick(gpus, each)

    def _under_levels(
        self, gpus: int, shelf: _Shelf, levels: Sequence[tuple[str, Mapping[int, _Shelf]]], each: int
    ) -> _Picks:
        """A place in a domain of the lowest level that holds it."""
        tightest = shelf.tightest(gpus)
        if tightest is not None:
            fits = [(near.total, name) for name, near in levels[0][1].items() if near.has(tightest)]
            return levels[0][1][min(fits)[1]].pick(gpus, each)
        for place, (level, domains) in enumerate(levels):
            fitting = [
                (near.nodes_needed(gpus, each), near.total, name)
                for name, near in domains.items()
                if near.total >= gpus and near.usable(each) >= gpus
            ]
            if fitting:
                _, _, name = min(fitting)
                below = levels[place - 1][1] if place else {}
                parts = [part for low, part in below.items() if self._nodes[low].domains[level] == name]
                return _fewest(gpus, parts or [domains[name]], each).pick(gpus, each)
        return _fewest(gpus, list(levels[-1][1].values()), each).pick(gpus, each)


def _copied(shelves: Mapping[K, _Shelf]) -> dict[K, _Shelf]:
    return {name: shelf.copy() for name, shelf in shelves.items()}


def _fewest(gpus: int, domains: Sequence[_Shelf], each: int) -> _Shelf:
    """The fewest of some domains that hold a job together: most free first, the last the best fit."""
    left = [(near.usable(each), turn) for turn, near in enumerate(domains)]
    left.sort(key=lambda item: (-item[0], item[1]))
    turns: list[int] = []
    for usable, turn in left:
        if usable >= gpus:
            turns.append(min((more, n) for more, n in left if more >= gpus and n not in turns)[1])
            break
        turns.append(turn)
        gpus -= usable
    return domains[turns[0]] if len(turns) == 1 else _Shelf.of(domains[turn] for turn in turns)


class _Shelf:
    """Nodes by the number of GPUs free on them."""

    __slots__ = ("_buckets", "total")

    def __init__(self) -> None:
        # Node indices in ascending order, by free GPUs; those with none are left out.
        self._buckets: list[list[int]] = [[]]
        self.total = 0

    def move(self, index: int, before: int, free: int) -> None:
        buckets = self._buckets
        if before:
            bucket = buckets[before]
            del bucket[bisect_left(bucket, index)]
        if free:
            while len(buckets) <= free:
                buckets.append([])
            insort(buckets[free], index)
        self.total += free - before

    def move_all(self, indices: Sequence[int], before: int, free: int, span: slice | None = None) -> None:
        """As :meth:`move`, for many nodes: O(nodes of both numbers).

        :param span: where they follow each other.
        """
        buckets = self._buckets
        if before and buckets[before][: len(indices)] == indices:  # as ``pick`` finds them
            del buckets[before][: len(indices)]
        elif before:
            gone = set(indices)
            buckets[before] = [index for index in buckets[before] if index not in gone]
        if free:
            while len(buckets) <= free:
                buckets.append([])
            bucket = buckets[free]
            at = len(bucket) if span is None else bisect_left(bucket, span.start)
            bucket[at:at] = indices
            if span is None:
                bucket.sort()
        self.total += (free - before) * len(indices)

    # ``each``: of every node as many GPUs count as are a multiple of it, and sizes are multiples of it.

    def usable(self, each: int) -> int:
        if each == 1:
            return self.total
        return sum(len(bucket) * (free - free % each) for free, bucket in enumerate(self._buckets))

    def nodes_needed(self, gpus: int, each: int) -> int:
        """The fewest nodes with ``gpus`` free GPUs together; they must exist."""
        return sum(count for _, count in self._runs(gpus, each))

    def tightest(self, gpus: int) -> int | None:
        """What the fullest node that holds ``gpus`` GPUs has free; None if none does."""
        buckets = self._buckets
        for free in range(gpus, len(buckets)):
            if buckets[free]:
                return free
        return None

    def first(self, gpus: int, barred: Sequence[int]) -> int | None:
        """The fullest node that holds ``gpus`` GPUs and is none of these; None if there is none."""
        return next(
            (index for bucket in self._buckets[gpus:] for index in bucket if index not in barred), None
        )

    def has(self, free: int) -> bool:
        """Whether a node has just that many GPUs free."""
        return free < len(self._buckets) and bool(self._buckets[free])

    def pick(self, gpus: int, each: int) -> _Picks:
        """The fewest nodes for ``gpus`` GPUs, the last part on the fullest node that has room for it."""
        for bucket in self._buckets[gpus:]:  # as ``tightest``, which this asks most
            if bucket:
                return [(bucket[0], gpus)]
        if indices := self.empty_nodes(gpus, each):
            return list(zip(indices, repeat(gpus // len(indices)), strict=False))
        picks: _Picks = []
        runs = self._runs(gpus, each)
        rest = gpus
        for free, count in runs:
            use = free - free % each
            picks += zip(self._buckets[free][:count], repeat(use), strict=False)
            rest -= use * count
        rest += picks[-1][1]
        fuller = next((bucket[0] for bucket in self._buckets[rest : runs[-1][0]] if bucket), picks[-1][0])
        return [*picks[:-1], (fuller, rest)]

    def empty_nodes(self, gpus: int, each: int) -> list[int]:
        """The first of the nodes with most GPUs free, where some of them have just ``gpus``; else none."""
        buckets, most = self._buckets, len(self._buckets) - 1
        if not most or gpus % most or most % each or len(buckets[most]) < gpus // most:
            return []
        return buckets[most][: gpus // most]

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

    @classmethod
    def of(cls, shelves: Iterable[_Shelf]) -> _Shelf:
        """The nodes of several."""
        made = cls()
        for shelf in shelves:
            made._buckets += [[] for _ in shelf._buckets[len(made._buckets) :]]
            for bucket, more in zip(made._buckets, shelf._buckets, strict=False):
                bucket.extend(more)
            made.total += shelf.total
        for bucket in made._buckets:
            bucket.sort()
        return made

    def copy(self) -> _Shelf:
        other = _Shelf()
        other._buckets, other.total = [list(bucket) for bucket in self._buckets], self.total
        return other

    def _runs(self, gpus: int, each: int) -> list[tuple[int, int]]:
        """(free GPUs, number of such nodes) from the top, until ``gpus`` are together."""
        runs = []
        for free in range(len(self._buckets) - 1, each - 1, -1):
            if here := len(self._buckets[free]):
                use = free - free % each
                count = min(here, -(-gpus // use))
                runs.append((free, count))
                gpus -= use * count
                if gpus <= 0:
                    break
        return runs
