"""Plans of jobs as a policy keeps them: by the number of a slot since time 0, and by the names of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np

from pliant.tools.schedule.jobs import NodeGpus, gpus_of
from pliant.tools.schedule.policies.multi_resource.model import Bid, Ints, Plan, Servers


class Row(NamedTuple):
    """What a job holds in one slot."""

    workers: NodeGpus = ()
    servers: NodeGpus = ()

    @property
    def gpus(self) -> int:
        """Workers on all nodes."""
        return gpus_of(self.workers) if self.workers else 0


@dataclass(frozen=True, slots=True)
class Booking:
    """The slots of one job."""

    bid: Bid
    gpu_type: str
    plan: Plan
    """Its slots are numbered from time 0."""
    names: tuple[tuple[str, ...], tuple[str, ...]]
    """Of the nodes of workers, and of those of parameter servers."""

    @classmethod
    def of(cls, bid: Bid, gpu_type: str, plan: Plan, origin: int, servers: Servers) -> Self:
        """A plan of a market whose slot 0 is the slot ``origin``."""
        return cls(
            bid,
            gpu_type,
            replace(plan, first=origin + plan.first),
            (servers.worker_names, servers.ps_names),
        )

    def continuing(self, before: Self, slot: int) -> Self:
        """With what the booking before it has of the present slot, which has begun."""
        alike = (before.gpu_type, before.names) == (self.gpu_type, self.names)
        if not alike or slot >= self.plan.first or not before.at(slot).gpus:
            return self
        gap, row = self.plan.first - slot - 1, slice(slot - before.plan.first, slot - before.plan.first + 1)
        workers, ps = (
            np.concatenate([old[row], np.zeros((gap, old.shape[1]), dtype=np.int64), new])
            for old, new in ((before.plan.workers, self.plan.workers), (before.plan.ps, self.plan.ps))
        )
        return replace(self, plan=Plan(slot, workers, ps))

    def at(self, slot: int) -> Row:
        """What the job holds in a slot."""
        plan = self.plan
        if not plan.first <= slot <= plan.last:
            return Row()
        at = slot - plan.first
        return Row(*(_named(*pair) for pair in zip((plan.workers[at], plan.ps[at]), self.names, strict=True)))

    def sizes_from(self, slot: int) -> list[int]:
        """Workers in each slot from ``slot`` on."""
        sizes: list[int] = self.plan.sizes()[max(0, slot - self.plan.first) :].tolist()
        return [0] * max(0, self.plan.first - slot) + sizes

    def from_slot(self, origin: int) -> Plan | None:
        """The part from the slot ``origin`` on, for a market that begins there; None: there is none."""
        skipped = max(0, origin - self.plan.first)
        if self.plan.first + skipped > self.plan.last:
            return None
        return Plan(self.plan.first + skipped - origin, self.plan.workers[skipped:], self.plan.ps[skipped:])

    def spans(self, slot: int) -> Iterator[tuple[int, int, Row]]:
        """(first slot, slot after the last, what it holds) of slots from ``slot`` on that are alike."""
        begin = at = max(slot, self.plan.first)
        while at <= self.plan.last:
            at += 1
            if at > self.plan.last or self.at(at) != self.at(begin):
                if self.at(begin).gpus:
                    yield begin, at, self.at(begin)
                begin = at

    def dump(self) -> list[Any]:
        """As JSON values."""
        rows = [self.at(slot) for slot in range(self.plan.first, self.plan.last + 1)]
        return [self.gpu_type, self.plan.first, [list(row) for row in rows]]

    @classmethod
    def load(cls, values: Sequence[Any], bid: Bid, servers: Servers) -> Self:
        """Of JSON values; nodes that are not there any more are left out."""
        gpu_type, first, rows = values
        names = (servers.worker_names, servers.ps_names)
        counts = ([_counts(dict(row[side]), names[side]) for row in rows] for side in (0, 1))
        return cls(bid, gpu_type, Plan(first, *(np.array(side, dtype=np.int64) for side in counts)), names)


def row_of(values: Sequence[Any]) -> Row:
    """Of JSON values."""
    return Row(*(tuple((str(name), int(count)) for name, count in place) for place in values))


def _named(counts: Ints, names: Sequence[str]) -> NodeGpus:
    return tuple((names[index], int(counts[index])) for index in np.flatnonzero(counts).tolist())


def _counts(held: Mapping[str, int], names: Sequence[str]) -> list[int]:
    return [held.get(name, 0) for name in names]
