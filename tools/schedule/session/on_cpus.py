"""Where jobs start that need no GPU: beside what the policy decides, wherever nodes have what they demand.

None of them starts before a job that waits longer, or is more important, where that one would find too little
of what both demand: else a stream of small jobs would keep a large one waiting for ever. A job that waits for
GPUs counts once enough of them are free for it, on the nodes that they are on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from pliant.schemas.checks import Amounts, Capacities, Constraint, fitting, servers_for
from pliant.tools.schedule.jobs import JobState, NodeState
from pliant.tools.schedule.placement import FreeGpus
from pliant.tools.schedule.session.assignment import Demands
from pliant.tools.schedule.session.quarantine import Quarantine


class _Kind(NamedTuple):
    """What matters of a job without GPUs here."""

    constraint: Constraint | None
    demand: tuple[tuple[str, float], ...]
    hidden: frozenset[str]
    """Nodes that it may not run on for a time."""


class _Awaited(NamedTuple):
    """What the workers, or the parameter servers, of jobs that wait need of nodes."""

    constraint: Constraint | None
    demand: tuple[tuple[str, float], ...]
    most: int
    together: int = 1
    """Number of them on one node."""
    of: Literal["gpus", "servers", "cores"] = "cores"
    """Workers hold GPUs, parameter servers are on nodes made without; jobs that need no GPU are on any."""
    types: tuple[str, ...] | None = None
    hidden: frozenset[str] = frozenset()

    def needed_on(self, node: NodeState, free: FreeGpus) -> int:
        """How many are to have room on a node, were it empty but for the GPUs that jobs hold."""
        if node.name in self.hidden or (self.constraint is not None and not self.constraint.allows(node)):
            return 0
        if self.types is not None and node.gpu_type not in self.types:
            return 0
        if self.of == "servers" and not node.for_servers:
            return 0
        most = min(self.most, free.free_on(node.name)) if self.of == "gpus" else self.most
        count = fitting(node.capacities, dict(self.demand), most)
        return count - count % self.together


class CpuStarts:
    """The starts of one decision. Room only shrinks meanwhile, so no node is looked at twice for one kind."""

    def __init__(
        self,
        nodes: Sequence[NodeState],
        left: Demands,
        free: FreeGpus,
        capacities: Capacities,
        quarantine: Quarantine,
        *,
        confined: Mapping[str, frozenset[str]],
    ) -> None:
        """:param nodes: that are up, those to be taken first first.
        :param confined: nodes that jobs may not use for now.
        """
        self._nodes = nodes
        self._left = left
        self._free = free
        self._capacities = capacities
        self._quarantine = quarantine
        self._confined = confined
        # By kind the first node that may have room.
        self._at: dict[_Kind, int] = {}
        self._awaited: dict[_Awaited, None] = {}

    def starts(
        self, waiting: Iterable[JobState], for_gpus: Iterable[tuple[JobState, int]]
    ) -> Iterator[tuple[JobState, NodeState]]:
        """Jobs that start, and where.

        :param for_gpus: jobs that wait for GPUs, and the fewest that they start on.
        """
        turns = [*((job, 0) for job in waiting), *for_gpus]
        for job, least in sorted(turns, key=lambda turn: turn[0].turn):
            if not job.requested:
                node = self._place(job)
                if node is not None:
                    yield job, node
                continue
            where, needs = self._capacities.constraint_of(job.spec), job.spec.resources
            worker, server = tuple(needs.worker.items()), tuple(needs.ps.items())
            workers = _Awaited(where, worker, least, job.per_replica, "gpus", job.types)
            servers = _Awaited(where, server, servers_for(job.spec, least), of="servers")
            self._awaited |= dict.fromkeys(each for each in (workers, servers) if each.demand)

    def _place(self, job: JobState) -> NodeState | None:
        """Book a node for a job; None if it has to wait."""
        hidden = frozenset(self._quarantine.hidden_from(job.id)) | self._confined.get(job.id, frozenset())
        demand = job.spec.resources.worker
        kind = _Kind(self._capacities.constraint_of(job.spec), tuple(demand.items()), hidden)
        for at in range(self._at.get(kind, 0), len(self._nodes)):
            node = self._nodes[at]
            if node.name in hidden or (kind.constraint is not None and not kind.constraint.allows(node)):
                continue
            if self._left.fits_without_gpus(node.index, demand) and not self._is_awaited(node, demand):
                self._at[kind] = at
                self._left.book(job, ((node.name, 1),), ())
                return node
        self._at[kind] = len(self._nodes)
        self._awaited[_Awaited(kind.constraint, kind.demand, 1, hidden=hidden)] = None
        return None

    def _is_awaited(self, node: NodeState, demand: Amounts) -> bool:
        """Whether an earlier job would find too little on a node once a job takes its demand there."""
        if not self._awaited:
            return False
        left = self._left.left_on(node.index)
        after = {name: amount - demand.get(name, 0.0) for name, amount in left.items()}
        for each in self._awaited:
            both = {name: amount for name, amount in each.demand if demand.get(name)}
            if both and (count := each.needed_on(node, self._free)) > fitting(after, both, count):
                return True
        return False
