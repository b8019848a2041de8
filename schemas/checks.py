"""Do the jobs fit the cluster, with all that they need beside GPUs; does the profile know their models?"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Final, NamedTuple, Protocol

from pliant.schemas.cluster import Cluster, Node, Shares, UserLimit, expanded, names_of
from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.job import Job, ResourceDemand
from pliant.schemas.node_labels import condition
from pliant.schemas.text import counted, in_gpus, listed, similar

Amounts = Mapping[str, float]
"""By the name of the resource, in the units of job and cluster files."""
RECORDED_TYPES: Final = ("gpu_type", "gpu_spec")
"""The labels of an imported job that hold the GPU type on which it ran, or the types that it asked for."""
_SLACK: Final = 1e-9
"""Part of a worker that sums of fractions may miss by rounding."""

MANY: Final = 10_000_000
"""An unlimited count: no cluster holds as many, and sums of it stay exact."""


class NodeGpus(Protocol):
    """What a node says of itself and its GPUs."""

    @property
    def name(self) -> str: ...
    @property
    def gpus(self) -> int: ...
    @property
    def gpu_type(self) -> str: ...
    @property
    def gpu_memory(self) -> int | None: ...
    @property
    def labels(self) -> Mapping[str, str]: ...


class Constraint(NamedTuple):
    """Which nodes a job may run on: those that it :meth:`allows`."""

    types: tuple[str, ...] | None = None
    memory: int | None = None
    labels: tuple[str, ...] = ()
    """Expressions that hold of all of its nodes, those of parameter servers included, as its names do."""
    only: frozenset[str] | None = None
    exclude: frozenset[str] = frozenset()

    def allows(self, node: NodeGpus) -> bool:
        return self.allows_name(node.name) and self.allows_alike(node)

    def allows_name(self, name: str) -> bool:
        return name not in self.exclude and (self.only is None or name in self.only)

    def allows_alike(self, node: NodeGpus) -> bool:
        """Whether it allows nodes of other names that are as this one.

        A node that does not state its gpu_memory has not enough.
        """
        if node.gpus and self.types is not None and node.gpu_type not in self.types:
            return False
        if node.gpus and self.memory is not None and (node.gpu_memory or 0) < self.memory:
            return False
        return all(condition(text)(node.labels) for text in self.labels)

    @property
    def words(self) -> str:
        """``of type a100 or h100 with 40 GB on nodes with "nvlink"``."""
        return " ".join(
            filter(
                None,
                (
                    "" if self.types is None else f"of type {' or '.join(self.types)}",
                    "" if self.memory is None else f"with {self.memory / 1e9:.4g} GB",
                    "" if not self.labels else f"on nodes with {' and '.join(map(_quoted, self.labels))}",
                    "" if self.only is None else f"on {_named(self.only)}",
                    "" if not self.exclude else f"not on {_named(self.exclude)}",
                ),
            )
        )


def _quoted(text: str) -> str:
    return f'"{text}"'


def _named(names: Collection[str]) -> str:
    return listed(sorted(names))


def constraint_of(job: Job, known: Collection[str]) -> Constraint | None:
    """Where a job may run. Returns None if it may run anywhere.

    An imported job that does not say where it may run stays on the type that its trace recorded.

    :param known: GPU types of the cluster.
    """
    types, memory = job.gpus.types, job.gpus.memory
    if types is None and len(known) > 1:
        types = recorded_types(job, known) or None
    elif types is not None and not all(kind in known for kind in types):
        types = tuple(_spelled(kind, known) for kind in types)
    if not job.names_nodes:
        return None if types is None and memory is None else Constraint(types, memory)
    only = None if job.only is None else frozenset(job.only)
    return Constraint(types, memory, job.nodes, only, frozenset(job.exclude))


def _spelled(gpu_type: str, known: Collection[str]) -> str:
    """A GPU type as the cluster spells it, where none of its types differ by case alone."""
    alike = [kind for kind in known if kind.casefold() == gpu_type.casefold()]
    return alike[0] if len(alike) == 1 else gpu_type


def recorded_type(job: Job) -> str:
    """The GPU type that the trace of an imported job states, or several of them; empty if none."""
    labels = job.labels
    if not labels or "trace" not in labels:
        return ""
    return next((kind for name in RECORDED_TYPES if (kind := labels.get(name))), "")


def recorded_types(job: Job, known: Collection[str]) -> tuple[str, ...]:
    """The GPU types on which the trace of an imported job says that it ran, or may run, of the cluster's."""
    if not (recorded := recorded_type(job)):
        return ()
    if recorded in known:  # as of most
        return (recorded,)
    return tuple(kind for kind in re.split("[,|]", recorded) if kind in known)


def why_nowhere(job: Job, nodes: Iterable[NodeGpus]) -> str | None:
    """Why a job may run on none of these nodes, as a clause. Returns None if it may run on one."""
    there = [node for node in nodes if node.gpus]
    known = sorted({node.gpu_type for node in there})
    constraint = constraint_of(job, known)
    if constraint is None or not there or any(map(constraint.allows, there)):
        return None
    types, memory = constraint.types, constraint.memory
    same_type = [node for node in there if types is None or node.gpu_type in types]
    if types is not None and not same_type:
        return f"may run on GPUs of type {' or '.join(types)} alone, the cluster has {listed(known)}"
    of_type = Constraint(types, memory)
    if not any(map(of_type.allows, same_type)):
        most = max(node.gpu_memory or 0 for node in same_type)
        have = (
            f"the largest there have {most / 1e9:.4g} GB" if most else "no node there states its gpu_memory"
        )
        return f"needs GPUs {of_type.words} of memory, {have}"
    return _why_not_by_name_or_label(constraint, there)


def _why_not_by_name_or_label(constraint: Constraint, nodes: Sequence[NodeGpus]) -> str:
    for text in constraint.labels:
        if not any(condition(text)(node.labels) for node in nodes):
            labels = {pair for each in nodes for pair in each.labels.items()}
            have = sorted(f"{name}={value}" if value else name for name, value in labels)
            what = f"the nodes have {listed(have, 8)}" if have else "the nodes have no labels"
            return f'needs nodes with "{text}": {what}'
    return f"needs GPUs {constraint.words}: no node meets that"


class _NodeKind(NamedTuple):
    """What equal nodes have in common."""

    gpu_type: str
    gpus: int
    stated: tuple[tuple[str, float], ...]
    gpu_memory: int | None


def capacities(node: Node) -> dict[str, float]:
    """A resource that a node does not state limits no job."""
    stated = {"gpu": node.gpus, "cpu": node.cpus, "memory": node.memory, "bandwidth": node.bandwidth}
    return {name: float(amount) for name, amount in (stated | node.resources).items() if amount is not None}


def fitting(left: Amounts, demand: Amounts, most: int) -> int:
    """How many demands fit, at most ``most``."""
    for name, amount in demand.items():
        if amount > 0 and name in left:
            most = math.floor(min(most, left[name] / amount + _SLACK))
    return max(0, most)


def servers_for(job: Job, workers: int) -> int:
    """Parameter servers for that many workers; at least one if the job has any, at most :data:`MANY`."""
    ps, worker = job.resources.ps, job.resources.worker
    if not ps or not workers:
        return 0
    needed, each = worker.get("bandwidth", 0.0) * workers, ps.get("bandwidth", 0.0)
    return max(1, math.ceil(min(needed / each, MANY) - _SLACK)) if each else 1


RoomByNode = Mapping[str, Sequence[tuple[int, int]]]
"""By GPU type the most workers on an empty node, in whole replicas, and how many nodes have room for as many;
most workers first."""


class JobRoom(NamedTuple):
    """What empty nodes have room for of a job."""

    by_type: Mapping[str, int]
    """Workers by GPU type, in whole replicas, parameter servers included."""
    by_node: RoomByNode
    barred: Sequence[int]
    """The nodes with GPUs, by index, that it may not run on although it may on others of their types."""


class Capacities:
    """The nodes of a cluster, and how many workers of a job fit them while they are empty."""

    def __init__(self, nodes: Sequence[Node], whole: Capacities | None = None) -> None:
        """:param whole: those of all nodes, where these are the ones that are up."""
        self.nodes = nodes
        self.node_gpus: Mapping[str, int] = most_on_a_node(nodes) if whole is None else whole.node_gpus
        self.of_node = [capacities(node) for node in nodes]
        stated = (tuple(sorted(of_one.items())) for of_one in self.of_node)
        self._kind_of = [
            _NodeKind(node.gpu_type, node.gpus, amounts, node.gpu_memory)
            for node, amounts in zip(nodes, stated, strict=True)
        ]
        # Equal nodes are counted together: jobs are checked often.
        self._kinds = self._counted(None)
        self._where: dict[Constraint, Mapping[_NodeKind, int]] = {}
        self._rooms: dict[Hashable, JobRoom] = {}

    def _counted(self, constraint: Constraint | None) -> Mapping[_NodeKind, int]:
        """How many nodes of each kind it allows; all kinds, in their order."""
        counts = Counter(dict.fromkeys(self._kind_of, 0))
        for node, kind in zip(self.nodes, self._kind_of, strict=True):
            if constraint is None:
                counts[kind] += node.count or 1
            elif constraint.allows_alike(node):
                counts[kind] += sum(map(constraint.allows_name, names_of(node)))
        return counts

    def _allowed(self, constraint: Constraint | None) -> Mapping[_NodeKind, int]:
        if constraint is None:
            return self._kinds
        if constraint not in self._where:
            self._where[constraint] = self._counted(constraint)
        return self._where[constraint]

    def _barred(self, constraint: Constraint) -> Sequence[int]:
        allowed = [constraint.allows(node) for node in self.nodes]
        good = zip(self.nodes, allowed, strict=True)
        types = {node.gpu_type for node, may_run in good if may_run and node.gpus}
        return [
            index
            for index, node in enumerate(self.nodes)
            if not allowed[index] and node.gpus and node.gpu_type in types
        ]

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(name for node in self.nodes for name in names_of(node))

    def why_unknown(self, job: Job) -> str | None:
        """Which nodes a job names that are not there, as a clause. Returns None if it names none."""
        named = (*(job.only or ()), *job.exclude)
        missing = [name for name in named if name not in self._names]
        if not missing:
            return None
        return (
            f"names nodes that the cluster does not have: {listed(missing)}{_near(missing[0], self._names)}"
        )

    def limits(self, job: Job) -> bool:
        """Whether the job demands more than GPUs, several of them on one node, or certain nodes."""
        return job.takes_room or self.constraint_of(job) is not None

    @cached_property
    def _stated(self) -> frozenset[str]:
        return frozenset(name for kind in self._kinds for name, _ in kind.stated) - {"gpu"}

    def limits_demands(self, job: Job) -> bool:
        """Whether nodes state how much they have of what the job demands beside GPUs."""
        return not self._stated.isdisjoint((*job.resources.worker, *job.resources.ps))

    def constraint_of(self, job: Job) -> Constraint | None:
        """Which of these nodes the job may run on. Returns None if it may run on all."""
        return constraint_of(job, self.node_gpus)

    def room(self, job: Job) -> Mapping[str, int]:
        """Most workers by GPU type on empty nodes, in whole replicas, parameter servers included."""
        return self.room_for(job).by_type

    def room_for(self, job: Job) -> JobRoom:
        """Looked up once for all jobs that need the same of a node."""
        constraint = self.constraint_of(job)
        demand = (tuple(job.resources.worker.items()), tuple(job.resources.ps.items()))
        alike = (constraint, demand, job.gpus.per_replica, job.gpus.sizes)
        room = self._rooms.get(alike)
        if room is None:
            by_node = self._by_node(job, constraint)
            barred = () if constraint is None else self._barred(constraint)
            room = self._rooms[alike] = JobRoom(self._by_type(job, constraint, by_node), by_node, barred)
        return room

    def _by_node(self, job: Job, constraint: Constraint | None) -> RoomByNode:
        nodes_by_size: dict[str, Counter[int]] = {}
        for node, count in self._allowed(constraint).items():
            together = replica_on_a_node(job, self.node_gpus[node.gpu_type])
            each = fitting(dict(node.stated), job.resources.worker, node.gpus) if count else 0
            nodes_by_size.setdefault(node.gpu_type, Counter())[each - each % together] += count
        return {kind: tuple(sorted(nodes.items(), reverse=True)) for kind, nodes in nodes_by_size.items()}

    def _by_type(self, job: Job, constraint: Constraint | None, by_node: RoomByNode) -> Mapping[str, int]:
        gpus_by_type = Counter(
            {kind: sum(each * count for each, count in nodes) for kind, nodes in by_node.items()}
        )
        if job.resources.ps:
            servers = sum(
                count * fitting(dict(node.stated), job.resources.ps, MANY)
                for node, count in self._allowed(constraint).items()
                if not node.gpus
            )
            gpus_by_type = Counter(
                {kind: _served(job, workers, servers) for kind, workers in gpus_by_type.items()}
            )
        return {kind: job.gpus.whole(workers) for kind, workers in gpus_by_type.items()}

    def without_what_never_fits(self, job: Job) -> Job:
        """The job, without its demands if no node has room for them even at its smallest size.

        A job that needs no GPU keeps them, since it asks for nothing else: it waits.
        """
        if job.on_cpus or self.why_too_large(job) is None:
            return job
        return job.model_copy(update={"resources": ResourceDemand()})

    def why_too_large(self, job: Job) -> str | None:
        """Why the smallest size fits no GPU type, as a clause. Returns None if only GPUs are too few."""
        if job.on_cpus:
            return self._why_no_node(job)
        least = job.min_gpus
        if not self.limits(job) or max(self.room(job).values(), default=0) >= least:
            return None
        if (why := why_nowhere(job, expanded(self.nodes)) or self._why_few_allowed(job)) is not None:
            return why
        if job.gpus.per_replica > 1 and not job.resources.worker and not job.resources.ps:
            return self._why_no_replica(job)
        workers = "a worker" if least == 1 else f"{least} workers"
        for name, amount in sorted(job.resources.worker.items()):
            alone = ResourceDemand(worker={name: amount})
            room = max(self.room(job.model_copy(update={"resources": alone})).values(), default=0)
            if room < least:
                each = f"{amount_text(name, amount)}{'' if least == 1 else ' each'}"
                return f"needs {workers} with {each}, the nodes have room for {room}"
        if not job.resources.ps:
            return f"needs {workers} with all of their demands together, more than the nodes have room for"
        if all(node.gpus for node in self.nodes):
            return "needs parameter servers, and no node without GPUs is there to hold them"
        needed = servers_for(job, least)
        if needed > least:
            return f"needs {needed} parameter servers for {workers}, expected at most one for each worker"
        return (
            f"needs {needed} parameter servers for {workers}, more than the nodes without GPUs have room for"
        )

    def _why_no_node(self, job: Job) -> str | None:
        """Why no node ever has what a job without GPUs needs."""
        constraint, worker = self.constraint_of(job), job.resources.worker
        nodes = [node for node in expanded(self.nodes) if constraint is None or constraint.allows(node)]
        has = [capacities(node) for node in nodes]
        if any(fitting(each, worker, 1) for each in has):
            return None
        if not nodes:
            if constraint is None:
                return "needs a node, the cluster has none"
            return _why_not_by_name_or_label(constraint, expanded(self.nodes))
        for name, amount in sorted(worker.items()):
            most = max(each.get(name, math.inf) for each in has)
            if most < amount:
                needs, has_most = amount_text(name, amount), amount_text(name, most)
                return f"needs {needs} on one node, the largest has {has_most}"
        return "needs all of its demands together on one node, which none has"

    def _why_few_allowed(self, job: Job) -> str | None:
        """Why the GPUs that the job may run on are too few for it."""
        if (constraint := self.constraint_of(job)) is None:
            return None
        gpus = Counter[str]()
        for node, count in self._allowed(constraint).items():
            gpus[node.gpu_type] += node.gpus * count
        if (most := max(gpus.values(), default=0)) >= job.min_gpus:
            return None
        return f"needs {in_gpus(job.min_gpus)} {constraint.words}, the cluster has {most}"

    def _why_no_replica(self, job: Job) -> str | None:
        least, each = job.min_gpus, job.gpus.per_replica
        gpus = Counter[str]()
        for node, count in self._kinds.items():
            gpus[node.gpu_type] += node.gpus * count
        if max(gpus.values(), default=0) < least:
            return None
        room = max(self.room(job).values(), default=0) // each
        replicas = counted(least // each, "replica")
        return f"needs {replicas} of {each} GPUs, each on one node, the nodes have room for {room}"


def most_on_a_node(nodes: Iterable[Node]) -> dict[str, int]:
    """GPUs of the largest node of each type."""
    largest: dict[str, int] = {}
    for node in nodes:
        largest[node.gpu_type] = max(node.gpus, largest.get(node.gpu_type, 0))
    return largest


def replica_on_a_node(job: Job, node_gpus: int) -> int:
    """GPUs that must be on one node: those of a replica, or 1 where not even the largest node holds it."""
    return job.gpus.per_replica if job.gpus.per_replica <= node_gpus else 1


def _served(job: Job, workers: int, servers: int) -> int:
    served = bisect_right(range(workers + 1), servers, key=partial(servers_for, job)) - 1
    # bandwidth grows alike for workers and servers, so a job either always has too many servers, or never
    return served if servers_for(job, served) <= served else 0


def amount_text(name: str, amount: float) -> str:
    """An amount in words: ``8 cpu``, ``32 GB memory``, ``2 Gbit/s bandwidth``."""
    if name in ("memory", "disk"):
        return f"{amount / 1e9:.4g} GB {name}"
    if name == "bandwidth":
        return f"{amount * 8 / 1e9:.4g} Gbit/s bandwidth"
    return f"{amount:.4g} {name}"


class Room(NamedTuple):
    """What a job can get of a cluster at most."""

    gpus: int
    types: int
    """Number of GPU types."""
    limit_of: Callable[[str], UserLimit | None] = lambda _: None
    capacities: Capacities | None = None
    """What jobs with further demands can get, if nodes state capacities."""
    shares: Shares | None = None

    @classmethod
    def of(cls, cluster: Cluster) -> Room:
        by_type: Counter[str] = Counter()
        for node in cluster.nodes:
            by_type[node.gpu_type] += node.gpus * (node.count or 1)
        most = max(by_type.values(), default=0)
        return cls(most, len(by_type), cluster.limit_of, Capacities(cluster.nodes), cluster.shares)


def check_fits(jobs: Iterable[Job], cluster: Cluster | Room, source: str) -> None:
    """Refuse jobs whose smallest size exceeds every GPU type; a job never mixes types.

    :raises BadInputError: one problem a job.
    """
    _refuse([f'job "{job_id}" {reason}' for job_id, reason in oversized(jobs, cluster).items()], source)


def oversized(jobs: Iterable[Job], cluster: Cluster | Room) -> dict[str, str]:
    """The jobs that do not fit a GPU type, the nodes or the limit of their user, and why, as a clause."""
    room = cluster if isinstance(cluster, Room) else Room.of(cluster)
    of_one_type = " of one type" if room.types > 1 else ""
    reasons = {}
    for job in jobs:
        limit = room.limit_of(job.user)
        if job.min_gpus > room.gpus:
            reasons[job.id] = f"needs {in_gpus(job.min_gpus)}{of_one_type}, the cluster has {room.gpus}"
        elif limit is not None and limit.gpus is not None and job.gpus.requested > limit.gpus:
            requested = in_gpus(job.gpus.requested)
            reasons[job.id] = f'requests {requested}, user "{job.user}" may hold {limit.gpus}'
        elif room.shares is not None and job.min_gpus > room.shares.most_gpus(job):
            team, most = room.shares.team_of(job), room.shares.most_gpus(job)
            reasons[job.id] = f'needs {in_gpus(job.min_gpus)}, team "{team}" may hold {most:g}'
        elif (of := room.capacities) is not None and (why := of.why_unknown(job) or of.why_too_large(job)):
            reasons[job.id] = why
    return reasons


def check_profiled(jobs: Iterable[Job], models: Collection[str], source: str) -> None:
    """:raises BadInputError: one problem for each job whose model is not profiled."""
    known = frozenset(models)
    problems = [
        f'job "{job.id}": model "{job.model}" is not profiled, {_hint(job.model, known)}'
        for job in jobs
        if job.model not in known
    ]
    _refuse(problems, source)


def check_after(jobs: Sequence[Job], known: Collection[str], source: str) -> None:
    """Refuse jobs that wait for jobs that are not there, or for each other.

    :param known: ids of further jobs.
    :raises BadInputError: one problem for each such job.
    """
    waiting = {job.id: job.after for job in jobs if job.after}
    if not waiting:
        return
    ids = {job.id for job in jobs}
    problems = [
        f'job "{job_id}": there is no job "{other}" that it could wait for{_near(other, ids)}'
        for job_id, after in waiting.items()
        for other in after
        if other not in ids and other not in known
    ]
    left = {job_id: {other for other in after if other in waiting} for job_id, after in waiting.items()}
    while free := [job_id for job_id, others in left.items() if not others]:
        for job_id in free:
            del left[job_id]
        for others in left.values():
            others.difference_update(free)
    problems += [
        f'job "{job_id}": it waits for itself, through the jobs after which it starts' for job_id in left
    ]
    _refuse(problems, source)


def _near(name: str, ids: Collection[str]) -> str:
    near = similar(name, sorted(ids), 1)
    return f'; did you mean "{near[0]}"?' if near else ""


def _refuse(problems: Iterable[str], source: str) -> None:
    refused = [Problem(source, None, "", text) for text in problems]
    if refused:
        raise BadInputError(refused)


def _hint(model: str, known: frozenset[str]) -> str:
    near = similar(model, sorted(known), 1)
    if near:
        return f'expected something like "{near[0]}"'
    shown = sorted(known)[:5]
    if not shown:
        return "the profile has no models"
    return "expected one of " + ", ".join(shown) + (" …" if len(known) > len(shown) else "")
