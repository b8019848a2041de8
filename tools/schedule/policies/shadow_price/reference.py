"""The reference of the bound: equal shares in whole GPUs, which a real cluster could follow.

docs/delay-bound.md defines it, and reports compute it by themselves
(:mod:`pliant.tools.report.equal_shares`). Where jobs demand CPUs or memory of nodes, or several
GPUs on one node, the reference has a place for every job, and :class:`NodeRooms` says what nodes have left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Final, NamedTuple

import numpy as np

from pliant.schemas.checks import fitting, replica_on_a_node
from pliant.tools.schedule.jobs import JobState, NodeGpus, NodeState
from pliant.tools.schedule.max_min import equal_shares
from pliant.tools.schedule.policies.shadow_price.curves import Floats, Ints

ROUNDING: Final = 1e-9
SAME_S: Final = 1e-6
"""Times this close are equal: on clocks that begin in 1970 a number of seconds is known to 0.24 µs."""
RatesOf = Callable[[JobState], tuple[Ints, Floats]]
"""Sizes, ascending from 0, and the samples per second of a job on each, 0 where infeasible."""


class NodeRooms:
    """What nodes have left of GPUs, and of all that workers demand."""

    def __init__(self, nodes: Iterable[NodeState]) -> None:
        up = [node for node in nodes if node.up and node.gpus]
        self._free = {node.name: node.gpus for node in up}
        self._left = {node.name: dict(node.capacities) for node in up}
        self._node_gpus = max(self._free.values(), default=0)

    def place(self, job: JobState, gpus: int) -> NodeGpus:
        """Take GPUs on the first nodes with room for whole replicas; empty if there are not as many."""
        unit, picks, missing = replica_on_a_node(job.spec, self._node_gpus), [], gpus
        for name, free in self._free.items():
            count = fitting(self._left[name], job.spec.resources.worker, min(free, missing))
            if count := count - count % unit:
                picks.append((name, count))
                missing -= count
            if not missing:
                place = tuple(picks)
                self.take(job, place)
                return place
        return ()

    def fits(self, job: JobState, place: NodeGpus) -> bool:
        """Whether nodes have all that a place needs; a node that is down has nothing."""
        demand = job.spec.resources.worker
        return all(
            self._free.get(name, 0) >= count and fitting(self._left[name], demand, count) == count
            for name, count in place
        )

    def take(self, job: JobState, place: NodeGpus) -> None:
        for name, count in place:
            self._free[name] -= count
            left = self._left[name]
            for resource, amount in job.spec.resources.worker.items():
                if resource in left:
                    left[resource] -= amount * count


@dataclass(slots=True)
class Sharer:
    """One job in the reference."""

    job: JobState
    enters_s: float
    credit: float = 0.0
    """Samples at the beginning of the deal."""
    service_gpu_s: float = 0.0
    gpus: int = 0
    """GPUs that it has in this deal; of its part, as many as make it fastest."""
    rate: float = 0.0
    target: float = 0.0
    """Samples at the end of the deal."""
    over: float | None = None
    """Samples at which it is done; None while the real job is not."""
    sat_out: int = 0
    """Deals in a row that it sat out."""
    place: NodeGpus | None = None
    """Its GPUs by node, in deals in which nodes matter to some job."""

    def dumped(self) -> list[Any]:
        return [
            *(self.enters_s, self.credit, self.service_gpu_s, self.gpus, self.rate, self.target, self.over),
            *(self.sat_out, self.place),
        ]

    @classmethod
    def loaded(cls, job: JobState, values: Sequence[Any]) -> Sharer:
        enters_s, credit, service_gpu_s, gpus, rate, target, over, sat_out, place = values
        on = None if place is None else tuple((name, count) for name, count in place)
        return cls(job, enters_s, credit, service_gpu_s, gpus, rate, target, over, sat_out, on)

    def turn(self, jobs: int) -> tuple[float, float, float, str]:
        """Sort key: a job that sat out as many deals as there are jobs comes first, so that none waits on."""
        long = self.sat_out if self.sat_out >= jobs else 0
        return -long, self.service_gpu_s, round(self.enters_s / SAME_S), self.job.id


class EqualShares:
    """All GPUs dealt out equally among the jobs, in whole GPUs, deal by deal."""

    def __init__(self, deal_s: float, lost_s: float) -> None:
        self.deal_s = deal_s
        self.lost_s = lost_s
        self._sharers: dict[str, Sharer] = {}
        # None: no deal holds, and the next is not before `_closed_s`.
        self._dealt_s: float | None = None
        self._closed_s = -math.inf

    @property
    def until_s(self) -> float:
        """When the deal ends; infinite if there is none."""
        return math.inf if self._dealt_s is None else self._dealt_s + self.deal_s

    def is_due(self, time_s: float) -> bool:
        """Whether a deal begins or ends by a time."""
        return self._next_s() <= time_s

    def share(self, job_id: str) -> Sharer | None:
        """What a job has in this deal; None if it sits it out, or is not there."""
        sharer = self._sharers.get(job_id)
        return sharer if sharer is not None and sharer.gpus else None

    def enter(self, job: JobState, enters_s: float) -> None:
        self._sharers[job.id] = Sharer(job, enters_s)

    def end(self, job_id: str, over: float) -> None:
        """The real job is done; this one leaves with the deal in which it gets as far."""
        if job_id in self._sharers:
            self._sharers[job_id].over = over

    def withdraw(self, job_id: str) -> None:
        self._sharers.pop(job_id, None)

    def advance(
        self, time_s: float, gpus: int, rates_of: RatesOf, nodes: Sequence[NodeState] = ()
    ) -> Iterator[tuple[float, str]]:
        """Deal out ``gpus`` GPUs, on these nodes, up to a time; (time, id) of those that leave."""
        while (next_s := self._next_s()) <= time_s:
            yield from self.close(next_s)
            if any(each.enters_s <= next_s + SAME_S for each in self._sharers.values()):
                self._deal(next_s, gpus, rates_of, nodes)

    def close(self, time_s: float) -> list[tuple[float, str]]:
        """End the deal that holds, before its time where the GPUs change; (time, id) of those that leave."""
        if self._dealt_s is not None:
            whole = time_s >= self.until_s
            lasted_s = self.deal_s if whole else time_s - self._dealt_s  # exact, so that equal jobs tie
            for each in self._sharers.values():
                trained_s = max(0.0, lasted_s - self.lost_s)
                each.credit = each.target if whole else each.credit + each.rate * trained_s
                each.service_gpu_s += each.gpus * lasted_s
                each.gpus, each.rate, each.target, each.place = 0, 0.0, each.credit, None
        self._dealt_s, self._closed_s = None, time_s
        done = [
            job_id
            for job_id, each in self._sharers.items()
            if each.over is not None and each.credit >= each.over * (1 - ROUNDING)
        ]
        for job_id in done:
            del self._sharers[job_id]
        return [(time_s, job_id) for job_id in done]

    def dump(self) -> dict[str, Any]:
        return {
            "dealt_s": self._dealt_s,
            "closed_s": None if self._closed_s == -math.inf else self._closed_s,
            "jobs": {job_id: each.dumped() for job_id, each in sorted(self._sharers.items())},
        }

    def load(self, state: Mapping[str, Any], jobs: Mapping[str, JobState]) -> None:
        self._dealt_s = state["dealt_s"]
        self._closed_s = -math.inf if state["closed_s"] is None else state["closed_s"]
        self._sharers = {
            job_id: Sharer.loaded(jobs[job_id], values)
            for job_id, values in state["jobs"].items()
            if job_id in jobs
        }

    def _next_s(self) -> float:
        if self._dealt_s is not None:
            return self.until_s
        return max(self._closed_s, min((each.enters_s for each in self._sharers.values()), default=math.inf))

    def _deal(self, time_s: float, gpus: int, rates_of: RatesOf, nodes: Sequence[NodeState]) -> None:
        self._dealt_s = time_s
        there = [each for each in self._sharers.values() if each.enters_s <= time_s + SAME_S]
        order = sorted(there, key=lambda each: each.turn(len(there)))
        asking = [_Asking.of(each, *rates_of(each.job)) for each in order]
        if any(each.sharer.job.room is not None for each in asking):
            _deal_on_nodes(asking, gpus, nodes)
        else:
            _deal_numbers(asking, gpus)
        for each in asking:
            sharer = each.sharer
            sharer.sat_out = 0 if sharer.gpus else sharer.sat_out + 1
            sharer.target = sharer.credit + sharer.rate * max(0.0, self.deal_s - self.lost_s)


class _Asking(NamedTuple):
    """A job that takes part in a deal."""

    sharer: Sharer
    sizes: Ints
    rates: Floats
    least: int
    """0: it has no size that runs."""
    most: int

    @classmethod
    def of(cls, sharer: Sharer, sizes: Ints, rates: Floats) -> _Asking:
        able = np.flatnonzero(rates)
        least = int(sizes[able[0]]) if able.size else 0
        return cls(sharer, sizes, rates, least, int(sizes[rates.argmax()]))

    def takes(self, part: int, place: NodeGpus | None = None) -> None:
        """Of what it got, as many as make it fastest."""
        best = int(self.rates[: int(np.searchsorted(self.sizes, part, side="right"))].argmax())
        self.sharer.gpus, self.sharer.rate = int(self.sizes[best]), float(self.rates[best])
        self.sharer.place = None if place is None else _first(place, self.sharer.gpus)


def _first(place: NodeGpus, gpus: int) -> NodeGpus:
    """The first GPUs of a place, by node."""
    kept_by_node: dict[str, int] = {}
    for name, count in place:
        if kept := min(count, gpus):
            kept_by_node[name] = kept_by_node.get(name, 0) + kept
            gpus -= kept
    return tuple(kept_by_node.items())


def _deal_numbers(asking: Sequence[_Asking], gpus: int) -> None:
    admitted, left = [], gpus
    for each in asking:
        if 0 < each.least <= left:
            left -= each.least
            admitted.append(each)
    parts = equal_shares(gpus, [(each.least, each.most) for each in admitted])
    for each, part in zip(admitted, parts, strict=True):
        each.takes(part)


def _deal_on_nodes(asking: Sequence[_Asking], gpus: int, nodes: Sequence[NodeState]) -> None:
    """One replica at a time: to what is left, it matters which GPUs have been taken."""
    rooms, left = NodeRooms(nodes), gpus
    places: dict[int, NodeGpus] = {}
    parts: dict[int, int] = {}

    def gets(at: int, more: int) -> bool:
        job = asking[at].sharer.job
        bound = job.room is not None
        place = rooms.place(job, more) if bound and more <= left else ()
        if more > left or (bound and not place):
            return False
        parts[at] = parts.get(at, 0) + more
        places[at] = (*places.get(at, ()), *place)
        return True

    for at, each in enumerate(asking):
        if each.least and gets(at, each.least):
            left -= each.least
    waiting = [(part, at) for at, part in parts.items()]
    heapify(waiting)
    while waiting and left:
        part, at = heappop(waiting)
        more = asking[at].sharer.job.per_replica
        if part + more <= asking[at].most and gets(at, more):
            left -= more
            heappush(waiting, (part + more, at))
    rooms, free = NodeRooms(nodes), []
    for at, part in parts.items():
        sharer = asking[at].sharer
        asking[at].takes(part, places[at])
        if sharer.job.room is None:
            free.append(sharer)
        else:
            rooms.take(sharer.job, sharer.place or ())
    for sharer in free:  # nodes matter to none of these: they have what is left
        sharer.place = rooms.place(sharer.job, sharer.gpus)
