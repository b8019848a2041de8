"""What is left of CPUs, memory and bandwidth while the jobs of a decision are placed.

Policies count GPUs. Where jobs demand more than that, the step that places them looks at what is left, for
all policies alike: GPUs that a job cannot use are hidden from it, and its parameter servers find nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pliant.schemas.resources import MANY, Amounts, Capacities, fitting, servers_for
from pliant.tools.schedule.free_gpus import FreeGpus
from pliant.tools.schedule.jobs import JobState, NodeGpus, gpus_of


class Demands:
    """What jobs that hold GPUs leave of each node.

    :param jobs: those that hold GPUs and keep them; what they hold is taken.
    """

    def __init__(self, capacities: Capacities, index: Mapping[str, int], jobs: Iterable[JobState]) -> None:
        self._capacities = capacities
        self._index = index
        self._left: dict[int, dict[str, float]] = {}
        """By node, where jobs hold something."""
        for job in jobs:
            self._book(job, job.placement, job.servers)

    def hidden_from(self, job: JobState, free: FreeGpus) -> NodeGpus:
        """GPUs that are free and of no use to the job: their node lacks what its workers need."""
        demand = job.spec.resources.worker
        found = []
        for index, node in enumerate(self._capacities.nodes):
            spare = free.free_on(node.name)
            if spare and (useless := spare - fitting(self._left_on(index), demand, spare)):
                found.append((node.name, useless))
        return tuple(found)

    def fits(self, job: JobState, place: NodeGpus) -> bool:
        """Whether nodes have what that many workers need of them."""
        demand = job.spec.resources.worker
        return all(fitting(self._left_on(self._index[name]), demand, count) == count for name, count in place)

    def take(
        self, job: JobState, place: NodeGpus, wished: NodeGpus | None, free: FreeGpus
    ) -> NodeGpus | None:
        """Book a place, and return nodes for the parameter servers that it needs; None: they lack room.

        :param wished: the nodes that a policy has chosen for them.
        """
        servers = self._servers(job, gpus_of(place), wished, free)
        if servers is not None:
            self._book(job, place, servers)
        return servers

    def _servers(
        self, job: JobState, workers: int, wished: NodeGpus | None, free: FreeGpus
    ) -> NodeGpus | None:
        demand = job.spec.resources.ps
        missing = servers_for(job.spec, workers)
        up = {node.name for node in free.nodes if node.up}
        for chosen in (wished, job.servers):
            suits = chosen and gpus_of(chosen) == missing and up.issuperset(dict(chosen))
            if suits and all(self._room(name, demand, count) == count for name, count in chosen or ()):
                return chosen
        found = []
        for index in self._server_nodes(demand) if missing else ():
            name = self._capacities.nodes[index].name
            if name in up and (count := self._room(name, demand, missing)):
                found.append((index, name, count))
                missing -= count
            if not missing:
                break
        return None if missing else tuple((name, count) for _, name, count in sorted(found))

    def _server_nodes(self, demand: Amounts) -> Sequence[int]:
        """Nodes without GPUs, those with most room first, so that jobs keep out of each other's way."""
        servers = [index for index, node in enumerate(self._capacities.nodes) if not node.gpus]
        return sorted(servers, key=lambda index: (-fitting(self._left_on(index), demand, MANY), index))

    def _room(self, name: str, demand: Amounts, most: int) -> int:
        return fitting(self._left_on(self._index[name]), demand, most)

    def _left_on(self, index: int) -> Amounts:
        return self._left.get(index, self._capacities.of_node[index])

    def _book(self, job: JobState, place: NodeGpus, servers: NodeGpus) -> None:
        for each, demand in ((place, job.spec.resources.worker), (servers, job.spec.resources.ps)):
            for name, count in each if demand else ():
                index = self._index[name]
                left = self._left.setdefault(index, dict(self._capacities.of_node[index]))
                for resource, amount in demand.items():
                    if resource in left:
                        left[resource] -= amount * count
