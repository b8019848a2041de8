"""The throughput model asked in terms of jobs: one table of speeds for all policies.

Speeds are kept by size or placement, GPU type, batch and :class:`JobKind`, on which alone the speed of a
job depends. What policies derive from speeds (curves, allowed sizes, gains) is kept here as well, under the
same keys: see :meth:`Speeds.of_kind`.

:class:`GpuSharing` says whether two jobs can train on the same GPUs, and how fast. They share whole sets:
every GPU of the one is a GPU of the other, and no third job is on them. Each trains at its speed alone times
the part that it keeps beside the other.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pliant.schemas.checks import Constraint, constraint_of
from pliant.schemas.cluster import Cluster
from pliant.tools.profile.throughput import (
    UNKNOWN,
    CurveThroughput,
    Load,
    PairTable,
    Parts,
    Placement,
    Throughput,
    local_limit,
    plan_batch,
)
from pliant.tools.schedule.jobs import JobKind, JobState, NodeGpus, NodeState, Place, gpus_of
from pliant.tools.schedule.learned_speeds import LearnedSpeeds, SpeedSource

if TYPE_CHECKING:
    from pliant.schemas.job import Job
    from pliant.schemas.profile import Profile
    from pliant.schemas.schedule import BatchPlan

T = TypeVar("T")
Levels = tuple[str, ...]
"""Levels of the network in several of whose domains a job is, the highest first."""
_Key = tuple[JobKind, str, int, Placement | None, Levels, int]
"""Kind of job, GPU type, size, placement (None: consolidated), levels, batch."""
_ROUNDING: Final = 1e-9
"""Relative difference of speeds that counts as none."""


def throughput_for(
    profile: Profile | None, cluster: Cluster, source: SpeedSource = "profile", *, simulated: bool = False
) -> Throughput:
    """The throughput model of a profile; without one, speed in proportion to the GPUs.

    That is how jobs train in a replay. On a real cluster it is a guess (``JobState.is_speed_guessed``), and
    jobs say more as they measure their speed.

    :param source: where speeds come from on a real cluster.
    :raises BadInputError: the profile has no training row.
    """
    profiled: Throughput
    if profile is None:
        profiled = CurveThroughput(speeds=cluster.speeds)
    else:
        from pliant.tools.profile.throughput_model import ThroughputBySize

        profiled = ThroughputBySize(profile, cluster.speeds)
    return profiled if simulated else LearnedSpeeds(profiled, cluster.speeds, source, guesses=profile is None)


class Speeds:
    """Samples per second of jobs, by size, GPU type and batch, on one cluster.

    If a caller names no placement, the most consolidated one is meant: whole nodes of the type's largest
    size, the rest on one more, across those levels of the network alone whose
    domains are too small. Nodes that are down count. Speeds change where they are learned alone
    (:meth:`forget`).
    """

    def __init__(
        self, throughput: Throughput, nodes: Sequence[NodeState], sharing: GpuSharing | None = None
    ) -> None:
        """:param sharing: None: no two jobs share GPUs."""
        self.throughput = throughput
        self.sharing = sharing
        self.nodes = nodes
        self._allowed: dict[Constraint, tuple[str, ...]] = {}
        self._node_gpus: dict[str, int] = {}
        self._types = {node.name: node.gpu_type for node in nodes}
        self._total: dict[str, int] = {}
        for node in nodes:
            self._node_gpus[node.gpu_type] = max(node.gpus, self._node_gpus.get(node.gpu_type, 1))
            self._total[node.gpu_type] = self._total.get(node.gpu_type, 0) + node.gpus
        self._totals: dict[tuple[str, ...], Mapping[str, int]] = {}
        self._first_type = next(iter(self._total), "")
        self._domains = {node.name: node.domains for node in nodes if node.domains}
        self._largest = _largest_domains(nodes)
        self._throughputs: dict[Levels, Throughput] = {(): throughput}
        self._rates: dict[_Key, float] = {}
        self._of_kind: dict[tuple[JobKind, Hashable], Any] = {}
        self._rescales: dict[str, float | None] = {}

    def is_guess(self, model: str) -> bool:
        """Whether nothing says how fast jobs of a model are."""
        return isinstance(self.throughput, LearnedSpeeds) and self.throughput.is_guess(model)

    def forget(self, models: Container[str]) -> None:
        """Speeds of these models have changed; their jobs are of new kinds from now on."""
        self._rates = {key: rate for key, rate in self._rates.items() if key[0].model not in models}
        self._of_kind = {key: made for key, made in self._of_kind.items() if key[0].model not in models}
        self._throughputs = {(): self.throughput}

    @property
    def gpu_types(self) -> Mapping[str, int]:
        """GPUs of the whole cluster by type, in order of the nodes."""
        return self._total

    @property
    def node_gpus(self) -> Mapping[str, int]:
        """GPUs of the largest node by type."""
        return self._node_gpus

    def types_of(self, job: Job) -> tuple[str, ...] | None:
        """The GPU types with nodes on which a job may run. Returns None if it may run anywhere."""
        constraint = constraint_of(job, self._total)
        if constraint is None:
            return None
        if constraint not in self._allowed:
            made = (node for node in self.nodes if node.made_gpus)
            whole = (node if node.gpus else replace(node, gpus=node.made_gpus) for node in made)
            allowed = (node.gpu_type for node in whole if constraint.allows(node))
            self._allowed[constraint] = tuple(dict.fromkeys(allowed))
        return self._allowed[constraint]

    def gpu_type_of(self, placement: NodeGpus) -> str:
        """The one GPU type of a placement; empty if it has none."""
        return self._types[placement[0][0]] if placement else ""

    def consolidated(self, gpus: int, gpu_type: str, per_replica: int = 1) -> Placement:
        """The placement of ``gpus`` on as few nodes as the type allows, and no replica on several of them.

        :raises ValueError: the cluster has no such type.
        """
        if (most := self._node_gpus.get(gpu_type)) is None:
            known = ", ".join(f'"{kind}"' for kind in self._node_gpus)
            raise ValueError(f'the cluster has no GPU type "{gpu_type}"; there are: {known or "none"}')
        each = most - most % per_replica or most
        whole, rest = divmod(gpus, each)
        return (each,) * whole + ((rest,) if rest else ())

    def is_consolidated(self, placement: NodeGpus, per_replica: int = 1) -> bool:
        """Whether a placement, and any first part of it, is as :meth:`consolidated` says; False where that
        takes more than a glance.
        """
        if self._largest or per_replica > 1:
            return False
        name, gpus = placement[0]
        most = self._node_gpus[self._types[name]]
        if len(placement) == 1:
            return gpus <= most
        return isinstance(placement, Place) and placement.each == most

    def levels_of(self, placement: NodeGpus) -> Levels:
        """The levels of the network in several of whose domains a placement is."""
        if len(placement) < 2 or not self._domains:
            return ()
        places = [self._domains[name] for name, _ in placement]
        return tuple(level for level in reversed(places[0]) if len({each[level] for each in places}) > 1)

    def fewest_levels(self, gpus: int, gpu_type: str) -> Levels:
        """Those whose domains are all too small for that many GPUs."""
        largest = self._largest.get(gpu_type)
        return () if largest is None else tuple(level for level, most in largest if most < gpus)

    def rate(
        self,
        job: JobState,
        gpus: int,
        gpu_type: str | None = None,
        *,
        global_batch: int | None = None,
        placement: Placement | None = None,
        levels: Levels | None = None,
    ) -> float:
        """Samples per second of ``job`` on ``gpus`` GPUs; 0.0 if that is infeasible.

        So is a size that the job may not have. The GPUs of a replica work on the same samples,
        so for the throughput model, which counts samples by GPU, the batch is as many times larger.

        Without a GPU type on a mixed cluster: the mean over the types that have enough GPUs and can run the
        job, weighted by all their GPUs (the average per-GPU computing power of Ares, section 3.5). For a size
        that no type has, the mean is over all types.

        :param levels: those that the placement crosses (:meth:`levels_of`); None: as few as possible.
        :raises BadInputError: the model is not profiled.
        :raises ValueError: the cluster has no such GPU type.
        """
        if gpu_type is None:
            if len(self._total) != 1:
                return self._mean(
                    job, gpus, lambda kind: self.rate(job, gpus, kind, global_batch=global_batch)
                )
            gpu_type, placement, levels = self._first_type, None, None
        if levels is None:
            levels = self.fewest_levels(gpus, gpu_type) if self._largest else ()
        batch = global_batch or job.reference_batch
        key = (job.kind or JobKind.of(job), gpu_type, gpus, placement, levels, batch)
        rate = self._rates.get(key)
        if rate is None:
            (rate,) = self._modelled(job, gpus, gpu_type, (batch,), placement=placement, levels=levels)
            self._rates[key] = rate
        return rate

    def rates(self, job: JobState, gpus: int, gpu_type: str, batches: Sequence[int]) -> list[float]:
        """:meth:`rate` at several batches."""
        levels = self.fewest_levels(gpus, gpu_type) if self._largest else ()
        return self._modelled(job, gpus, gpu_type, batches, placement=None, levels=levels)

    def _modelled(
        self,
        job: JobState,
        gpus: int,
        gpu_type: str,
        batches: Sequence[int],
        *,
        placement: Placement | None,
        levels: Levels,
    ) -> list[float]:
        """As :meth:`rate`, for each batch. All that it asks of the job is in its kind."""
        spec, per_replica = job.spec, job.per_replica
        if not gpus or not (job.any_number or spec.gpus.allows(gpus)):
            return [0.0] * len(batches)
        if job.types is not None and gpu_type not in job.types:
            return [0.0] * len(batches)
        if job.room is not None and gpus > job.room.get(gpu_type, 0):
            return [0.0] * len(batches)  # the nodes lack CPUs, memory or bandwidth for as many workers
        model, per_gpu_max = spec.model, spec.batch.per_gpu_max
        fewest = 0 if spec.batch.size is None else gpus  # a batch that is not stated limits nothing
        shape = placement or self._fewest_nodes(job, gpus, gpu_type)
        step_seconds = self._across(levels).step_seconds
        rates = []
        for batch in batches:
            samples = batch * per_replica
            seconds = None  # where a worker would be without a sample
            if samples >= fewest:
                seconds = step_seconds(model, gpu_type, shape, samples, per_gpu_max)
            rates.append(batch / seconds if seconds else 0.0)
        return rates

    def _fewest_nodes(self, job: JobState, gpus: int, gpu_type: str) -> Placement:
        """The placement on as few nodes as there are with CPUs, memory and bandwidth for all workers."""
        if job.room_by_node is None:
            return self.consolidated(gpus, gpu_type, job.per_replica)
        counts: list[int] = []
        for each, nodes in job.room_by_node.get(gpu_type, ()):
            if not each:
                break
            whole = min(nodes, gpus // each)
            counts += [each] * whole
            gpus -= each * whole
            if gpus and whole < nodes:
                return (*counts, gpus)
        return tuple(counts)

    def rate_at(self, job: JobState, placement: NodeGpus, global_batch: int) -> float:
        """Samples per second on these GPUs of these nodes."""
        if len(placement) == 1:
            ((name, gpus),) = placement
            return self.rate(
                job, gpus, self._types[name], global_batch=global_batch, placement=(gpus,), levels=()
            )
        return self.rate(
            job,
            gpus_of(placement),
            self.gpu_type_of(placement),
            global_batch=global_batch,
            placement=shape_of(placement),
            levels=self.levels_of(placement),
        )

    def _across(self, levels: Levels) -> Throughput:
        throughput = self._throughputs.get(levels)
        if throughput is None:
            throughput = self._throughputs[levels] = self.throughput.across(levels)
        return throughput

    def least_size(self, job: JobState, gpu_type: str, global_batch: int, *, accumulates: bool) -> int:
        """The smallest size of a job at a batch.

        :param accumulates: False: not the sizes whose GPUs hold the batch in several micro-steps alone.
        """
        limit = None if accumulates else self.most_local(job, gpu_type)
        counted = global_batch * job.per_replica
        return max(1, job.min_gpus, -(-counted // limit) if limit else 1)

    def useful(
        self,
        job: JobState,
        gpus: int,
        gpu_type: str,
        *,
        global_batch: int | None = None,
        accumulates: bool = True,
    ) -> int:
        """The largest size up to ``gpus`` on which no smaller one of the job is faster; 0 if none runs.

        Where speed stands still, more GPUs count as useful.

        :param accumulates: see :meth:`least_size`.
        """
        batch = global_batch or job.reference_batch
        least = self.least_size(job, gpu_type, batch, accumulates=accumulates)
        if gpus < least:
            return 0
        sizes = self.of_kind(job, ("useful", gpu_type, least, batch), _UsefulSizes)
        for size in range(least + len(sizes.up_to), gpus + 1):
            sizes.append(size, self.rate(job, size, gpu_type, global_batch=batch))
        return sizes.up_to[gpus - least]

    def best_rate(self, job: JobState, gpus: int) -> float:
        """The best speed on up to ``gpus`` GPUs: an elastic job leaves those that slow it down."""
        if not gpus:
            return 0.0

        def best(kind: str) -> float:
            size = self.useful(job, gpus, kind) if self.rate(job, gpus, kind) else 0
            return self.rate(job, size, kind) if size else 0.0

        return self.rate(job, gpus) if job.spec.elastic == "none" else self._mean(job, gpus, best)

    def useful_part(
        self, job: JobState, placement: NodeGpus, global_batch: int, *, accumulates: bool = True
    ) -> NodeGpus:
        """The part of a placement on which the job is fastest.

        It covers few nodes: those with most GPUs, then those that the job holds.
        """
        shape, kind = shape_of(placement), self.gpu_type_of(placement)
        least = self.least_size(job, kind, global_batch, accumulates=accumulates)
        if self.levels_of(placement):
            gpus = self._useful_up_to(
                least,
                sum(shape),
                lambda size: self.rate_at(job, cut(placement, size, job.placement), global_batch),
            )
        else:
            what = ("useful part", kind, least, shape, global_batch)
            gpus = self.of_kind(job, what, lambda: self._useful_part(job, shape, kind, global_batch, least))
        return placement if gpus == sum(shape) else cut(placement, gpus, job.placement)

    def _useful_part(self, job: JobState, shape: Placement, gpu_type: str, batch: int, least: int) -> int:
        def rate_of(gpus: int) -> float:
            part = _first_of(shape, gpus)
            return self.rate(job, gpus, gpu_type, global_batch=batch, placement=part, levels=())

        return self._useful_up_to(least, sum(shape), rate_of)

    @staticmethod
    def _useful_up_to(least: int, total: int, rate_of: Callable[[int], float]) -> int:
        sizes = _UsefulSizes()
        for gpus in range(least, total + 1):
            sizes.append(gpus, rate_of(gpus))
        return (sizes.up_to[-1] if sizes.up_to else 0) or total

    def of_kind(self, job: JobState, what: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` derives from the speeds of a job, made once for all jobs of its kind.

        :param what: names the result and all else on which it depends: GPU type, sizes, batches.
        """
        key = (job.kind or JobKind.of(job), what)
        try:
            made: T = self._of_kind[key]
        except KeyError:
            made = self._of_kind[key] = make()
        return made

    def parts(self, job: JobState, other: JobState, gpu_type: str, placement: NodeGpus) -> Parts | None:
        """What each of two jobs keeps of its speed alone on the same GPUs; None: they cannot share."""
        if self.sharing is None:
            return None
        if not (job.spec.shares_gpus and other.spec.shares_gpus):
            return None
        shape = shape_of(placement)
        one, two = (self._load(each, gpu_type, sum(shape)) for each in (job, other))
        return self.sharing.parts(one, two, gpu_type, shape)

    def share_nothing(self) -> None:
        self.sharing = None

    def _load(self, job: JobState, gpu_type: str, gpus: int) -> Load:
        limit = self.most_local(job, gpu_type) or job.spec.batch.per_gpu_max
        workers = max(1, job.spec.gpus.replicas(gpus))
        return Load(job.spec.model, plan_batch(max(job.global_batch, workers), workers, limit).local)

    def most_local(self, job: JobState, gpu_type: str) -> int | None:
        """Most samples that one GPU of the type may get at a time; 0: no batch fits; None: no limit."""
        return local_limit(self.throughput, job.spec.model, gpu_type, job.spec.batch.per_gpu_max)

    def batch_plan(self, job: JobState) -> BatchPlan | None:
        """How a running job's global batch is split.

        None if no batch was ever stated, or if one that follows from a memory limit leaves a worker idle.
        """
        limit = self.most_local(job, job.gpu_type or "") or job.spec.batch.per_gpu_max
        workers = job.spec.gpus.replicas(job.gpus)
        if not workers or job.global_batch < workers or (job.spec.batch.size is None and not limit):
            return None
        return plan_batch(job.global_batch, workers, limit)

    def rescale_seconds(self, model: str) -> float | None:
        """What a change of its workers costs a training job of the model; None: not measured."""
        if model not in self._rescales:
            self._rescales[model] = self.throughput.rescale_seconds(model)
        return self._rescales[model]

    def _mean(self, job: JobState, gpus: int, rate_on: Callable[[str], float]) -> float:
        """The mean over the types of the job with that many GPUs, or over all if none has; weighted by
        GPUs.
        """
        if len(self._total) == 1:
            return rate_on(next(iter(self._total)))
        own = self._total if job.types is None else self._total_of(job.types)
        roomy = {kind: count for kind, count in own.items() if count >= gpus} or own
        weight = weighted = 0.0
        for gpu_type, count in roomy.items():
            if rate := rate_on(gpu_type):
                weight += count
                weighted += count * rate
        return weighted / weight if weight else 0.0

    def _total_of(self, types: tuple[str, ...]) -> Mapping[str, int]:
        """GPUs of the whole cluster by type, of these types."""
        if types not in self._totals:
            self._totals[types] = {kind: count for kind, count in self._total.items() if kind in types}
        return self._totals[types]


class _UsefulSizes:
    """The largest useful size up to each size; sizes are appended in ascending order."""

    __slots__ = ("_fastest", "up_to")

    def __init__(self) -> None:
        self.up_to: list[int] = []
        self._fastest = 0.0

    def append(self, gpus: int, rate: float) -> None:
        if rate > 0 and rate >= self._fastest * (1 - _ROUNDING):
            self._fastest = max(rate, self._fastest)
            self.up_to.append(gpus)
        else:
            self.up_to.append(self.up_to[-1] if self.up_to else 0)


def _largest_domains(nodes: Sequence[NodeState]) -> dict[str, list[tuple[str, int]]]:
    """By type, the GPUs of the largest domain of each level, the highest first; no type without levels."""
    sizes: dict[str, dict[str, dict[int, int]]] = {}
    for node in nodes:
        for level, domain in reversed(node.domains.items()):
            by_domain = sizes.setdefault(node.gpu_type, {}).setdefault(level, {})
            by_domain[domain] = by_domain.get(domain, 0) + node.gpus
    return {
        kind: [(level, max(by_domain.values())) for level, by_domain in levels.items()]
        for kind, levels in sizes.items()
    }


def _first_of(shape: Placement, gpus: int) -> Placement:
    """That many GPUs, from the nodes with most of them."""
    counts = []
    for count in shape:
        if not gpus:
            break
        counts.append(min(count, gpus))
        gpus -= counts[-1]
    return tuple(sorted(counts, reverse=True))


def cut(placement: NodeGpus, gpus: int, held: NodeGpus) -> NodeGpus:
    """That many GPUs of a placement, in its order of nodes."""
    own = dict(held)
    order = sorted(range(len(placement)), key=lambda n: (-placement[n][1], -own.get(placement[n][0], 0), n))
    kept: dict[int, int] = {}
    for number in order:
        kept[number] = min(placement[number][1], gpus)
        gpus -= kept[number]
    return tuple((name, kept[n]) for n, (name, _) in enumerate(placement) if kept[n])


def shape_of(placement: NodeGpus) -> Placement:
    """GPUs on each node, descending."""
    if len(placement) == 1:
        return (placement[0][1],)
    if isinstance(placement, Place):
        return placement.shape
    return tuple(sorted([count for _, count in placement], reverse=True))


class GpuSharing:
    """What the profile measured of pairs, else what the cluster says (``Cluster.sharing``)."""

    def __init__(self, cluster: Cluster, throughput: Throughput) -> None:
        self._rules = cluster.sharing
        self._memory = _gpu_memory(cluster)
        self._throughput = throughput
        self._known: dict[tuple[str, Placement, Load, Load], Parts | None] = {}

    @cached_property
    def _pairs(self) -> PairTable:
        return PairTable(self._throughput.profile_rows())

    def parts(self, one: Load, other: Load, gpu_type: str, place: Placement) -> Parts | None:
        """What each keeps of its speed alone; None: they do not fit together, as far as is known.

        :param place: GPUs on each node, descending.
        """
        key = (gpu_type, place, one, other)
        if key not in self._known:
            self._known[key] = self._answer(*key)
        return self._known[key]

    def _answer(self, gpu_type: str, place: Placement, one: Load, other: Load) -> Parts | None:
        speeds = self._pairs.measured(one, other, gpu_type, place)
        if speeds != UNKNOWN:
            return speeds
        fits = self._fits(one, other, gpu_type)
        if fits is None:
            fits = self._rules.unmeasured == "together"
        return (self._rules.speed, self._rules.speed) if fits else None

    def _fits(self, one: Load, other: Load, gpu_type: str) -> bool | None:
        """Whether the memory of one GPU holds both; None: unknown."""
        taken = self._pairs.memory(one, gpu_type), self._pairs.memory(other, gpu_type)
        there = self._memory.get(gpu_type)
        if there is None or taken[0] is None or taken[1] is None:
            return None
        return taken[0] + taken[1] <= there


def _gpu_memory(cluster: Cluster) -> dict[str, int]:
    """Bytes of one GPU by type, the least of its nodes; without types of which a node states none."""
    stated: dict[str, list[int | None]] = {}
    for node in cluster.nodes:
        if node.gpus:
            stated.setdefault(node.gpu_type, []).append(node.gpu_memory)
    return {kind: min(size or 0 for size in sizes) for kind, sizes in stated.items() if all(sizes)}
