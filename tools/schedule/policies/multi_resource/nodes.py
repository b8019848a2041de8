"""From what pliant sees, nodes and jobs, to servers with several resources and what one worker or PS takes.

A resource is a column, in the units of the papers: numbers, GB and Gbit/s. The first one is the slots of
a node, of which each worker takes one. Where nodes do not say how many GPUs they have beside their slots, a
slot is a GPU and has the price; else slots only limit how many workers fit. The cluster file decides that,
so resources stay the same whatever is out of service.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from pliant.tools.schedule.jobs import JobState, NodeGpus, NodeState
from pliant.tools.schedule.policies.multi_resource.fleet import Placed
from pliant.tools.schedule.policies.multi_resource.model import Bid, Bools, Floats, Ints, Servers

SLOT: Final = "slot"
_UNITS: Final = {"memory": 1e-9, "disk": 1e-9, "bandwidth": 8e-9}


class Nodes:
    """The nodes of a cluster as servers: those with GPUs hold workers, those made without hold PS."""

    def __init__(self, nodes: Sequence[NodeState]) -> None:
        self.workers = [node for node in nodes if not node.for_servers]
        self.servers = [node for node in nodes if node.for_servers]
        apart = any(node.capacities.get("gpu", node.made_gpus) != node.made_gpus for node in self.workers)
        named = sorted({name for node in nodes for name in node.capacities if name != "gpu" or apart})
        self.resources = (SLOT, *named)
        self._priced = np.array([not apart, *[True] * len(named)])

    def of_type(self, gpu_type: str) -> Bools:
        """[server] those whose GPUs are of a type."""
        return np.array([node.gpu_type == gpu_type for node in self.workers])

    def now(self) -> Servers:
        """What the nodes that are up have now."""
        return Servers(
            self.resources,
            self._capacities(self.workers),
            self._capacities(self.servers),
            tuple(node.name for node in self.workers),
            tuple(node.name for node in self.servers),
            self._priced,
        )

    def demands(self, job: JobState) -> Bid:
        """What one worker and one parameter server of a job take; the rest of the bid is open."""
        demand = job.spec.resources
        return Bid(
            id=job.id,
            arrival=0,
            work=1,
            most_workers=1,
            worker=self._amounts(demand.worker) + (np.arange(len(self.resources)) == 0),
            ps=self._amounts(demand.ps),
            worth=np.zeros(0),
            worker_bandwidth=demand.worker.get("bandwidth", 0.0) if demand.ps else 0.0,
            ps_bandwidth=demand.ps.get("bandwidth", 0.0),
        )

    def holding(self, job: JobState) -> Placed | None:
        """Where a job is now; None: nowhere."""
        if not job.gpus:
            return None
        return Placed(_counts(job.placement, self.workers), _counts(job.servers, self.servers))

    def _amounts(self, stated: Mapping[str, float]) -> Floats:
        return np.array([stated.get(name, 0.0) * _UNITS.get(name, 1.0) for name in self.resources])

    def _capacities(self, nodes: Sequence[NodeState]) -> Floats:
        """[node, resource]; a node that is down has nothing, and what it does not state has no limit."""
        found = np.zeros((len(nodes), len(self.resources)))
        for row, node in zip(found, nodes, strict=True):
            if node.up:
                stated = (node.capacities.get(name, math.inf) for name in self.resources)
                row[:] = [
                    amount * _UNITS.get(name, 1.0)
                    for name, amount in zip(self.resources, stated, strict=True)
                ]
                row[0] = node.gpus
        return found


def _counts(held: NodeGpus, nodes: Sequence[NodeState]) -> Ints:
    by_name = dict(held)
    return np.array([by_name.get(node.name, 0) for node in nodes], dtype=np.int64)
