"""From a snapshot to servers and jobs with several resources, and from sizes back to a decision.

A slot of a node is a resource like the others, one a worker. Nodes made without GPUs hold parameter servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pliant.tools.schedule.jobs import JobState, NodeGpus, NodeState
from pliant.tools.schedule.policies.common import Grant, decision_from_grants
from pliant.tools.schedule.policies.multi_resource.fleet import Active, Placed
from pliant.tools.schedule.policies.multi_resource.rules import Holdings
from pliant.tools.schedule.policies.oasis.model import Bid, Floats, Ints, Servers
from pliant.tools.schedule.policy import Decision
from pliant.tools.schedule.snapshot import Snapshot

_PLENTY = 1e18
"""What a node has of what it does not state: it limits nothing."""
_NO_WORTH = np.zeros(0)


@dataclass(frozen=True, slots=True)
class Member:
    """A job that takes part, and the GPU type that it takes part on."""

    job: JobState
    active: Active
    gpu_type: str


class View:
    """The servers of a snapshot, and its jobs as those of the rules."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._nodes = [node for node in snapshot.nodes if not _holds_servers(node)]
        self._ps_nodes = [node for node in snapshot.nodes if _holds_servers(node)]
        self._names = sorted({name for node in snapshot.nodes for name in node.capacities} - {"gpu"})
        self._gpu = any(node.capacities.get("gpu", node.gpus) != node.gpus for node in self._nodes)
        self.servers = Servers(
            ("slot", "gpu", *self._names), self._capacities(self._nodes), self._capacities(self._ps_nodes)
        )
        self._of_type = {
            kind: np.array([node.gpu_type == kind for node in self._nodes])
            for kind in snapshot.gpus_by_type()
        }

    def members(self, jobs: Sequence[JobState], *, requested: bool = False) -> list[Member]:
        """Jobs that run on a type, each on the one that it holds or on the emptiest of those it runs on.

        :param requested: at the requested size alone.
        """
        load = dict.fromkeys(self._of_type, 0)
        gpus = self._snapshot.gpus_by_type()
        found = []
        places = {job.id: place for place, job in enumerate(sorted(jobs, key=lambda job: job.arrival))}
        for job in sorted(jobs, key=lambda job: (not job.gpus, job.arrival)):
            least = job.spec.gpus.requested if requested else job.spec.min_gpus
            kinds = [job.gpu_type] if job.gpus and job.gpu_type in gpus else self._runs_on(job, least, gpus)
            if kinds:
                kind = min(
                    kinds, key=lambda kind: ((load[kind] + least) / max(1, gpus[kind]), kinds.index(kind))
                )
                load[kind] += least
                active = self._active(job, kind, least, places[job.id], requested=requested)
                found.append(Member(job, active, kind))
        return found

    def decision(self, members: Sequence[Member], holdings: Holdings, rejected: dict[str, str]) -> Decision:
        """The sizes of these holdings; the placement step chooses nodes, and a running job keeps its own."""
        grants = {}
        for member in members:
            placed = holdings.get(member.job.id)
            size = self._feasible(member, placed.size) if placed else 0
            if size:
                grants[member.job.id] = Grant(size, member.gpu_type)
        return decision_from_grants(self._snapshot, grants, rejected)

    def _runs_on(self, job: JobState, least: int, gpus: Mapping[str, int]) -> list[str]:
        """Types, the fastest first."""
        rates = [
            (-self._snapshot.speeds.rate(job, least, kind), kind) for kind in gpus if gpus[kind] >= least
        ]
        return [kind for rate, kind in sorted(rates) if rate < 0]

    def _feasible(self, member: Member, size: int) -> int:
        """The largest size up to this one at which the job runs; 0: none."""
        sizes = range(size, member.active.bid.least_workers - 1, -1)
        rate = self._snapshot.speeds.rate
        return next((each for each in sizes if rate(member.job, each, member.gpu_type) > 0), 0)

    def _active(self, job: JobState, kind: str, least: int, place: int, *, requested: bool) -> Active:
        total = self._snapshot.speeds.gpu_types[kind]
        most = least if requested else max(least, job.max_gpus(total))
        demand = job.spec.resources
        bid = Bid(
            id=job.id,
            arrival=place,
            work=most,
            most_workers=most,
            worker=self._amounts(demand.worker, 1.0),
            ps=self._amounts(demand.ps, 0.0),
            worth=_NO_WORTH,
            worker_bandwidth=demand.worker.get("bandwidth", 0.0) if demand.ps else 0.0,
            ps_bandwidth=demand.ps.get("bandwidth", 0.0),
            least_workers=least,
            servers=self._of_type[kind],
        )
        held = None
        if job.gpus:
            held = Placed(_counts(job.placement, self._nodes), _counts(job.servers, self._ps_nodes))
        return Active(bid, most, job.spec.gpus.requested, held)

    def _amounts(self, stated: Mapping[str, float], slots: float) -> Floats:
        gpu = stated.get("gpu", 0.0) if self._gpu else 0.0
        return np.array([slots, gpu, *(stated.get(name, 0.0) for name in self._names)])

    def _capacities(self, nodes: Sequence[NodeState]) -> Floats:
        """[node, resource]; a node that is down has nothing."""
        found = np.zeros((len(nodes), 2 + len(self._names)))
        for row, node in zip(found, nodes, strict=True):
            if node.up:
                gpu = node.capacities.get("gpu", node.gpus) if self._gpu else node.gpus
                row[:] = [node.gpus, gpu, *(node.capacities.get(name, _PLENTY) for name in self._names)]
        return found


def _holds_servers(node: NodeState) -> bool:
    return not node.gpus and not node.capacities.get("gpu")


def _counts(held: NodeGpus, nodes: Sequence[NodeState]) -> Ints:
    by_name = dict(held)
    return np.array([by_name.get(node.name, 0) for node in nodes], dtype=np.int64)
