"""The throughput model asked in terms of jobs: the rate of a job on N GPUs, memoised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pliant.schemas.schedule import BatchPlan
from pliant.tools.profile.batch import plan_batch
from pliant.tools.profile.pairs import Load, Parts
from pliant.tools.profile.throughput import Placement, Throughput, local_limit
from pliant.tools.schedule.jobs import JobState, NodeGpus, NodeState
from pliant.tools.schedule.sharing import GpuSharing

_Key = tuple[str, str, int | Placement, int, int | None]
"""Model, GPU type, size (consolidated) or placement, global batch, largest local batch."""


class Speeds:
    """Samples per second of jobs, by size, GPU type and batch, on one cluster.

    Where a caller names no placement, the most consolidated one is meant: whole nodes of the type's
    largest size, the rest on one more. All nodes count, whether up or down: speeds do not change while a
    cluster lives.
    """

    def __init__(
        self, throughput: Throughput, nodes: Sequence[NodeState], sharing: GpuSharing | None = None
    ) -> None:
        """:param sharing: what is known of jobs on the same GPUs; None: no two jobs share."""
        self.throughput = throughput
        self.sharing = sharing
        self._node_gpus: dict[str, int] = {}
        self._types = {node.name: node.gpu_type for node in nodes}
        self._total: dict[str, int] = {}
        for node in nodes:
            self._node_gpus[node.gpu_type] = max(node.gpus, self._node_gpus.get(node.gpu_type, 1))
            self._total[node.gpu_type] = self._total.get(node.gpu_type, 0) + node.gpus
        self._rates: dict[_Key, float] = {}
        self._rescales: dict[str, float | None] = {}

    @property
    def gpu_types(self) -> Mapping[str, int]:
        """GPUs of the whole cluster by type, in order of the nodes."""
        return self._total

    def gpu_type_of(self, placement: NodeGpus) -> str:
        """The one type of GPU of a placement; empty: it has none."""
        return self._types[placement[0][0]] if placement else ""

    def consolidated(self, gpus: int, gpu_type: str) -> Placement:
        """The placement of ``gpus`` on as few nodes as the type allows."""
        whole, rest = divmod(gpus, self._node_gpus[gpu_type])
        return (self._node_gpus[gpu_type],) * whole + ((rest,) if rest else ())

    def rate(
        self,
        job: JobState,
        gpus: int,
        gpu_type: str | None = None,
        *,
        global_batch: int | None = None,
        placement: Placement | None = None,
    ) -> float:
        """Samples per second of ``job`` on ``gpus`` GPUs; 0.0 where that is infeasible.

        Without a GPU type on a mixed cluster: the mean over the types that have enough GPUs and can run the
        job on them, weighted by all their GPUs, which is the average per-GPU computing power of Ares, section
        3.5. A size that no type has is asked of all of them, as on a cluster of one type. Raises
        ``BadInputError`` for a model that is not profiled.
        """
        batch = global_batch or job.reference_batch
        if gpus > batch and job.spec.batch.size is not None:
            return 0.0  # a worker without a sample; a batch that is not stated limits nothing
        if gpu_type is None:
            return self._mean_rate(job, gpus, batch)
        if job.room is not None and gpus > job.room.get(gpu_type, 0):
            return 0.0  # the nodes lack CPUs, memory or bandwidth for as many workers
        key = (job.spec.model, gpu_type, placement or gpus, batch, job.spec.batch.per_gpu_max)
        rate = self._rates.get(key)
        if rate is None:
            shape = placement or self.consolidated(gpus, gpu_type)
            seconds = self.throughput.step_seconds(job.spec.model, gpu_type, shape, batch, key[-1])
            rate = self._rates[key] = batch / seconds if seconds else 0.0
        return rate

    def parts(self, job: JobState, other: JobState, gpu_type: str, placement: NodeGpus) -> Parts | None:
        """Of its speed alone, what each of two jobs keeps on the same GPUs; None: they cannot share them."""
        if self.sharing is None:
            return None
        if not (job.spec.shares_gpus and other.spec.shares_gpus):
            return None
        shape = shape_of(placement)
        one, two = (self._load(each, gpu_type, sum(shape)) for each in (job, other))
        return self.sharing.parts(one, two, gpu_type, shape)

    def share_nothing(self) -> None:
        """No two jobs can share GPUs."""
        self.sharing = None

    def _load(self, job: JobState, gpu_type: str, gpus: int) -> Load:
        limit = self.most_local(job, gpu_type) or job.spec.batch.per_gpu_max
        return Load(job.spec.model, plan_batch(max(job.global_batch, gpus), gpus, limit).local)

    def most_local(self, job: JobState, gpu_type: str) -> int | None:
        """Most samples that one GPU of the type may get at a time; 0: no batch fits; None: no limit."""
        return local_limit(self.throughput, job.spec.model, gpu_type, job.spec.batch.per_gpu_max)

    def batch_plan(self, job: JobState) -> BatchPlan | None:
        """How a running job's global batch is cut; None where no batch was ever stated.

        None, too, where a batch that follows from a memory limit has no sample for some worker.
        """
        limit = self.most_local(job, job.gpu_type or "") or job.spec.batch.per_gpu_max
        if not job.gpus or job.global_batch < job.gpus or (job.spec.batch.size is None and not limit):
            return None
        return plan_batch(job.global_batch, job.gpus, limit)

    def rescale_seconds(self, model: str) -> float | None:
        """Seconds that a change of its workers costs a job of the model that trains; None: not measured."""
        if model not in self._rescales:
            self._rescales[model] = self.throughput.rescale_seconds(model)
        return self._rescales[model]

    def _mean_rate(self, job: JobState, gpus: int, global_batch: int) -> float:
        if len(self._total) == 1:
            return self.rate(job, gpus, next(iter(self._total)), global_batch=global_batch)
        roomy = {kind: count for kind, count in self._total.items() if count >= gpus} or self._total
        weight = weighted = 0.0
        for gpu_type, count in roomy.items():
            if rate := self.rate(job, gpus, gpu_type, global_batch=global_batch):
                weight += count
                weighted += count * rate
        return weighted / weight if weight else 0.0


def shape_of(placement: NodeGpus) -> Placement:
    """GPUs on each node, descending."""
    if len(placement) == 1:
        return (placement[0][1],)
    return tuple(sorted((count for _, count in placement), reverse=True))
