"""Servers with several resources: what they have, what one worker takes, and who is placed where.

A resource is a column, in one order everywhere and in the units of the papers: numbers, GB and Gbit/s. The
first one is the slots of a node, of which each worker takes one. Slots have a price unless nodes state their
GPUs beside them; the cluster file decides that, so resources stay the same whatever is out of service. The
bandwidth of a worker or parameter server (PS) is a resource where servers limit it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pliant.tools.schedule.jobs import JobState, NodeGpus, NodeState

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

ROUNDING: Final = 1e-9
"""Relative; sums of amounts that should be whole are off by less."""


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of workers, and those of parameter servers (PS); no server hosts both."""

    resources: tuple[str, ...]
    workers: Floats
    """[server, resource] capacities of the servers of workers; infinite: it does not limit."""
    ps: Floats
    """[server, resource] capacities of the servers of PS; there may be none."""
    worker_names: tuple[str, ...] = ()
    ps_names: tuple[str, ...] = ()
    priced: Bools | None = None
    """[resource] whether it has a price; the others only limit what fits. None: all have."""

    @property
    def weights(self) -> Floats:
        """[resource] 1 where it has a price, else 0."""
        return np.ones(len(self.resources)) if self.priced is None else self.priced.astype(np.float64)


@dataclass(frozen=True, slots=True)
class Bid:
    """One job as the market sees it."""

    id: str
    arrival: int
    """The first slot it can use."""
    work: int
    """Worker-slots, or what ``advance`` counts in; 1 or more."""
    most_workers: int
    """At a time, 1 or more."""
    worker: Floats
    """[resource] what one worker takes."""
    ps: Floats
    """[resource] what one PS takes."""
    worth: Floats
    """[slot] its utility if that slot is its last one; never rises, never below 0."""
    worker_bandwidth: float = 0.0
    ps_bandwidth: float = 0.0
    least_workers: int = 1
    """Fewest workers in a slot in which it runs; such a job may do more than its work in the last one."""
    servers: Bools | None = None
    """[server] those that its workers may be on; None: all."""
    advance: Ints | None = None
    """[workers] work that a slot does, 0 if that is not a size of the job; None: one unit a worker."""
    first_part: float = 1.0
    """Part that is left of the slot of its arrival."""
    gpus: int = 1
    """GPUs of each worker: a replica that stays on one node is one worker."""

    @property
    def needs_ps(self) -> bool:
        return bool(np.any(self.ps > 0))

    @property
    def workers_per_ps(self) -> float:
        """Workers that the bandwidth of one PS serves; all of them, where it does not matter."""
        if self.worker_bandwidth > 0 and self.ps_bandwidth > 0:
            return self.ps_bandwidth / self.worker_bandwidth
        return float(self.most_workers)

    @property
    def shortest(self) -> int:
        """Slots that it takes at its fastest throughout, that of its arrival included."""
        first, each = (int(self.advances(is_first=at).max()) for at in (True, False))
        return 1 - (-max(0, self.work - first) // each)

    @property
    def least_worker_slots(self) -> float:
        """Worker-slots that its work takes at the size at which they are fewest."""
        if self.advance is None:
            return float(self.work)
        sizes = np.flatnonzero(self.advance)
        return self.work * float((sizes / self.advance[sizes]).min())

    @property
    def first_price(self) -> float:
        """Of the price of a whole slot, what that of its arrival costs: its part of the work."""
        return int(self.advances(is_first=True).max()) / int(self.advances(is_first=False).max())

    def advances(self, *, is_first: bool) -> Ints:
        """[workers] work that a slot does, that of its arrival or another."""
        whole = np.arange(self.most_workers + 1) if self.advance is None else self.advance
        if not is_first or self.first_part >= 1:
            return whole
        advances: Ints = np.floor(whole * self.first_part * (1 + ROUNDING)).astype(np.int64)
        return advances

    def ps_of(self, workers: Ints) -> Ints:
        """The fewest PS whose bandwidth is that of these workers; one where bandwidth does not matter."""
        if not self.needs_ps:
            return np.zeros_like(workers)
        wanted = np.ceil(workers / self.workers_per_ps * (1 - ROUNDING)).astype(np.int64)
        servers: Ints = np.maximum(wanted, workers > 0)
        return servers


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """Where a job's workers and PS are, slot by slot."""

    first: int
    workers: Ints
    """[slot from first, server]"""
    ps: Ints
    """[slot from first, server]"""

    @property
    def last(self) -> int:
        return self.first + len(self.workers) - 1

    @property
    def slots(self) -> slice:
        """All its slots, idle ones included."""
        return slice(self.first, self.last + 1)

    def sizes(self) -> Ints:
        """[slot from first] workers in all."""
        return np.asarray(self.workers.sum(axis=1), dtype=np.int64)


def sigmoid_worth(value: float, decay: float, target: float, arrival: int, slots: int) -> Floats:
    """[slot] value / (1 + exp(decay·(slot - arrival - target))), the paper's utility; times are in slots."""
    late = np.maximum(np.arange(slots) - arrival, 0) - target
    return np.asarray(value / (1 + np.exp(np.minimum(decay * late, 700.0))))


def whole_fits(free: Floats, demand: Floats, most: int) -> Ints:
    """[…] how many of ``demand`` [resource] fit ``free`` […, resource], ``most`` at the most."""
    taken = demand > 0
    if not taken.any():
        return np.full(free.shape[:-1], most, dtype=np.int64)
    fits = np.floor((free[..., taken] / demand[taken]).min(axis=-1) * (1 + ROUNDING) + ROUNDING)
    whole: Ints = np.clip(fits, 0, most).astype(np.int64)
    return whole


@dataclass(frozen=True, slots=True)
class PlacedWorkers:
    """Where the workers and PS of one job are."""

    workers: Ints
    """[server]"""
    ps: Ints
    """[server]"""

    @property
    def size(self) -> int:
        return int(self.workers.sum())


@dataclass(frozen=True, slots=True)
class Active:
    """A job that has not ended, at one moment."""

    bid: Bid
    left: int
    """Worker-slots, 1 or more."""
    requested: int
    """Workers for a scheduler that does not choose."""
    placed: PlacedWorkers | None = None

    @property
    def order(self) -> tuple[int, str]:
        return self.bid.arrival, self.bid.id

    def slots_left(self, workers: int) -> int:
        return -(-self.left // workers)


class Half:
    """One kind of servers."""

    def __init__(self, capacity: Floats) -> None:
        self.capacity = capacity
        self.free = capacity.copy()
        # The most that is free of each resource on any server.
        self._most = capacity.max(axis=0, initial=0.0)
        self._turn = 0

    def fits(self, demand: Floats, most: int, allowed: Bools | None = None) -> Ints:
        """[server] how many of this demand, up to ``most`` each."""
        fits = whole_fits(self.free, demand, most)
        return fits if allowed is None else np.where(allowed, fits, 0)

    def in_turn(self, demand: Floats, count: int, allowed: Bools | None = None) -> Ints | None:
        """[server] ``count`` places, one a server and lap from where the last ones ended; None if too few."""
        servers = len(self.free)
        if not count:
            return np.zeros(servers, dtype=np.int64)
        if not (demand <= self._most + ROUNDING).all():
            return None
        if count == 1:
            server = self.next_in_turn(demand, allowed)
            return None if server is None else np.bincount([server], minlength=servers)
        fits = self.fits(demand, count, allowed)
        if fits.sum() < count:
            return None
        turn = (self._turn + np.arange(servers)) % max(1, servers)
        laps = np.searchsorted([np.minimum(fits, lap).sum() for lap in range(count + 1)], count)
        counts = np.minimum(fits, max(0, int(laps) - 1))
        last = turn[fits[turn] > counts[turn]][: count - int(counts.sum())]
        counts[last] += 1
        if len(last):
            self._turn = (int(last[-1]) + 1) % servers
        return counts

    def next_in_turn(self, demand: Floats, allowed: Bools | None = None) -> int | None:
        servers = len(self.free)
        for server in range(self._turn, min(self._turn + 3, servers)):  # mostly one of the first has space
            if (allowed is None or allowed[server]) and (self.free[server] >= demand).all():
                self._turn = (server + 1) % servers
                return server
        free = np.flatnonzero(self.fits(demand, 1, allowed))
        if not len(free):
            return None
        server = int(free[np.searchsorted(free, self._turn) % len(free)])
        self._turn = (server + 1) % servers
        return server

    def take(self, counts: Ints, demand: Floats) -> None:
        """Use places, or give them back where counts are below 0."""
        self.free -= counts[:, None] * demand
        self._most = self.free.max(axis=0, initial=0.0)


class Fleet:
    """Both kinds of servers, all free at first."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.workers, self.ps = Half(servers.workers), Half(servers.ps)

    def hold(self, jobs: Iterable[Active]) -> None:
        for job in jobs:
            if job.placed is not None:
                self.take(job.bid, job.placed)

    def take(self, bid: Bid, placed: PlacedWorkers) -> None:
        self.workers.take(placed.workers, bid.worker)
        self.ps.take(placed.ps, bid.ps)

    def in_turn(self, bid: Bid, count: int, held: PlacedWorkers | None = None) -> PlacedWorkers | None:
        """Place and take that many workers beyond ``held``, with the PS for all; None if they do not fit."""
        before = held.size if held else 0
        pair = bid.ps_of(np.array([before, before + count]))
        if pair[1] > before + count:
            return None
        workers = self.workers.in_turn(bid.worker, count, bid.servers)
        ps = self.ps.in_turn(bid.ps, int(pair[1] - pair[0])) if workers is not None else None
        if workers is None or ps is None:
            return None
        self.take(bid, PlacedWorkers(workers, ps))
        return PlacedWorkers(workers + held.workers, ps + held.ps) if held else PlacedWorkers(workers, ps)


def dominant_share(bid: Bid, workers: int, servers: Servers) -> float:
    """The largest part of any resource, of either kind of servers, that these workers and their PS take."""
    of_worker, of_ps = shares_of_one(bid, servers)
    return max(workers * of_worker, int(bid.ps_of(np.array([workers]))[0]) * of_ps)


def shares_of_one(bid: Bid, servers: Servers) -> tuple[float, float]:
    """The largest part of any resource that one worker takes, and one PS."""
    return _part(bid.worker, servers.workers.sum(axis=0)), _part(bid.ps, servers.ps.sum(axis=0))


def _part(amount: Floats, capacity: Floats) -> float:
    taken = amount > 0
    with np.errstate(divide="ignore"):
        return float((amount[taken] / capacity[taken]).max(initial=0.0))


SLOT: Final = "slot"
_UNITS: Final = {"memory": 1e-9, "disk": 1e-9, "bandwidth": 8e-9}


class ServerNodes:
    """The nodes of a cluster as servers: those with GPUs hold workers, those made without hold PS."""

    def __init__(self, nodes: Sequence[NodeState]) -> None:
        self.workers = [node for node in nodes if not node.for_servers]
        self.servers = [node for node in nodes if node.for_servers]
        apart = any(node.capacities.get("gpu", node.made_gpus) != node.made_gpus for node in self.workers)
        named = sorted({name for node in nodes for name in node.capacities if name != "gpu" or apart})
        self.resources = (SLOT, *named)
        self._priced = np.array([not apart, *[True] * len(named)])

    def of_type(self, gpu_type: str) -> Bools:
        return np.array([node.gpu_type == gpu_type for node in self.workers])

    def now(self) -> Servers:
        return Servers(
            self.resources,
            self._capacities(self.workers),
            self._capacities(self.servers),
            tuple(node.name for node in self.workers),
            tuple(node.name for node in self.servers),
            self._priced,
        )

    def worker_gpus(self, job: JobState, gpu_type: str | None) -> int:
        """GPUs of one worker of a bid: those of a replica, if a node of the type has as many."""
        each = job.per_replica
        if each == 1:
            return 1
        most = max((node.made_gpus for node in self.workers if node.gpu_type == gpu_type), default=0)
        return each if each <= most else 1

    def demands(self, job: JobState, gpu_type: str | None = None) -> Bid:
        """What one worker and one parameter server of a job take; the rest of the bid is open."""
        demand, gpus = job.spec.resources, self.worker_gpus(job, gpu_type)
        return Bid(
            id=job.id,
            arrival=0,
            work=1,
            most_workers=1,
            worker=gpus * (self._amounts(demand.worker) + (np.arange(len(self.resources)) == 0)),
            ps=self._amounts(demand.ps),
            worth=np.zeros(0),
            worker_bandwidth=gpus * demand.worker.get("bandwidth", 0.0) if demand.ps else 0.0,
            ps_bandwidth=demand.ps.get("bandwidth", 0.0),
            gpus=gpus,
        )

    def holding(self, job: JobState) -> PlacedWorkers | None:
        if not job.gpus:
            return None
        workers = _counts(job.placement, self.workers) // self.worker_gpus(job, job.gpu_type)
        return PlacedWorkers(workers, _counts(job.servers, self.servers))

    def _amounts(self, stated: Mapping[str, float]) -> Floats:
        return np.array([stated.get(name, 0.0) * _UNITS.get(name, 1.0) for name in self.resources])

    def _capacities(self, nodes: Sequence[NodeState]) -> Floats:
        """[node, resource]; a node that is down has nothing, and what it does not state has no limit."""
        capacities = np.zeros((len(nodes), len(self.resources)))
        for row, node in zip(capacities, nodes, strict=True):
            if node.up:
                stated = (node.capacities.get(name, math.inf) for name in self.resources)
                row[:] = [
                    amount * _UNITS.get(name, 1.0)
                    for name, amount in zip(self.resources, stated, strict=True)
                ]
                row[0] = node.gpus
        return capacities


def _counts(held: NodeGpus, nodes: Sequence[NodeState]) -> Ints:
    by_name = dict(held)
    return np.array([by_name.get(node.name, 0) for node in nodes], dtype=np.int64)
