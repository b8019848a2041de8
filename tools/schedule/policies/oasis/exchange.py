"""From what pliant sees, jobs and nodes, to what the market of OASiS trades: bids and servers.

A resource is a column, in the paper's units: numbers, GB and Gbit/s. Where nodes do not say how many GPUs
they have beside their slots, a slot is a GPU and has the price; else slots only limit how many workers fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from pliant.tools.schedule.jobs import JobState, NodeState
from pliant.tools.schedule.policies.oasis.model import Bid, Floats, Servers
from pliant.tools.schedule.speeds import Speeds

SLOT: Final = "slot"
_UNITS: Final = {"memory": 1e-9, "disk": 1e-9, "bandwidth": 8e-9}
_PLENTY: Final = 1e4
_ROUNDING: Final = 1e-6
"""Worker-slots by which the work that is left may be more than a whole number and count as that."""


class Exchange:
    """The nodes of a cluster as servers, and jobs as bids.

    :param nodes: all of them; those without GPUs hold parameter servers.
    :param slot_s: seconds of a slot.
    """

    def __init__(self, nodes: Sequence[NodeState], speeds: Speeds, slot_s: float) -> None:
        self._speeds = speeds
        self._slot_s = slot_s
        self.workers = [node for node in nodes if not node.for_servers]
        self.servers = [node for node in nodes if node.for_servers]
        apart = any(node.capacities.get("gpu", node.gpus) != node.gpus for node in self.workers)
        named = sorted({name for node in nodes for name in node.capacities if name != "gpu" or apart})
        self.resources = (SLOT, *named)
        self._priced = np.array([not apart, *[True] * len(named)])
        self._of_type = {
            kind: np.array([node.gpu_type == kind for node in self.workers])
            for kind, gpus in speeds.gpu_types.items()
            if gpus
        }

    @property
    def gpu_types(self) -> Iterable[str]:
        """Of all nodes that hold workers."""
        return self._of_type

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

    def bid(self, job: JobState, gpu_type: str, time_s: float, slots: tuple[int, int]) -> Bid | None:
        """What a job asks for on one GPU type; None: it does not run there.

        :param slots: the first slot of the market, and how many it has.
        """
        sizes = self._sizes(job, gpu_type)
        if sizes is None or job.total_samples is None:
            return None
        least, most = sizes
        work = max(1, math.ceil(self.worker_slots(job, gpu_type, time_s) - _ROUNDING))
        return replace(
            self.demands(job),
            work=least * -(-work // least) if least == most else work,
            most_workers=most,
            least_workers=least,
            worth=self._worths(job, *slots),
            servers=self._of_type[gpu_type],
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

    def worker_slots(self, job: JobState, gpu_type: str, time_s: float) -> float:
        """The work that is left, at the speed of one worker where a worker is slowest; infinite: unknown."""
        sizes, remaining = self._sizes(job, gpu_type), job.remaining_samples(time_s)
        if sizes is None or remaining is None:
            return math.inf
        rate = min(self._speeds.rate(job, size, gpu_type) / size for size in sizes)
        return remaining / (rate * self._slot_s)

    def _worths(self, job: JobState, first: int, count: int) -> Floats:
        """[slot] what a job is worth that ends with each of ``count`` slots from ``first`` on."""
        since_s = ((first + 1 + slot) * self._slot_s - job.spec.submit_time for slot in range(count))
        return np.array([job.spec.utility.worth(max(0.0, each_s)) for each_s in since_s])

    def _sizes(self, job: JobState, gpu_type: str) -> tuple[int, int] | None:
        """The smallest and the largest number of workers that runs on a type; None: none does."""
        total = self._speeds.gpu_types[gpu_type]
        if job.spec.elastic == "none":
            able = [job.spec.gpus.requested]
        else:
            able = list(range(job.spec.min_gpus, job.max_gpus(total) + 1))
        runs = [size for size in able if size <= total and self._speeds.rate(job, size, gpu_type) > 0]
        return (runs[0], runs[-1]) if runs else None

    def _amounts(self, stated: Mapping[str, float]) -> Floats:
        return np.array([stated.get(name, 0.0) * _UNITS.get(name, 1.0) for name in self.resources])

    def _capacities(self, nodes: Sequence[NodeState]) -> Floats:
        """[node, resource]; a node that is down has nothing.

        What a node does not state limits nothing there: it counts as plenty.
        """
        found = np.zeros((len(nodes), len(self.resources)))
        for row, node in zip(found, nodes, strict=True):
            if node.up:
                stated = ((node.capacities.get(name), _UNITS.get(name, 1.0)) for name in self.resources)
                row[:] = [_PLENTY if amount is None else amount * unit for amount, unit in stated]
                row[0] = node.gpus
        return found
