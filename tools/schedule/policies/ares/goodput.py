"""Ares with Pollux's choice of batch: sizes by useful samples per second, each at its best batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeVar

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.ares.allocation import AllowedSizes, SizesByJob
from pliant.tools.schedule.policies.ares.policy import Ares
from pliant.tools.schedule.policies.common import Pool
from pliant.tools.schedule.policies.pollux.goodput import GoodputTable
from pliant.tools.schedule.policies.pollux.policy import Goodputs
from pliant.tools.schedule.policy import Decision, Target, Traits
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np

_RESTART_S: Final = 30.0
"""Seconds that a change of its batch costs a job of a model for which that was not measured."""
T = TypeVar("T")


class AresGoodput(Ares):
    """Ares where jobs may change their batch: its order and its bound, with the batch that trains fastest.

    Order, virtual finish times and the allocation pass are those of ``ares`` (TACO 2025). A job with
    ``elastic`` "size+batch" whose gradient noise scale is known trains, on every number of GPUs, at the
    batch of largest goodput, as in Pollux (OSDI '21). Scaling control looks at goodput as well, so such
    a job grows further before alpha stops it. A running job changes its batch only where that ends it
    sooner, the cost of the change included. The demand L is counted at the requested size and the
    author's batch, which is always among the choices, so the proof of section 3.4 holds as long as noise
    scales do not fall.

    alpha, pool, compact_s: as for ``ares``.
    """

    name: ClassVar[str] = "ares-goodput"
    traits: ClassVar[Traits] = replace(
        Ares.traits,
        elasticity="size+batch",
    )

    def __init__(self, alpha: float = 0.75, pool: float = 0.1, compact_s: float | None = None) -> None:
        super().__init__(alpha, pool, compact_s)
        self._useful: UsefulSpeed | None = None
        # The noise scale for which the sizes of each job were found last.
        self._noise: dict[str, float | None] = {}

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        if self._queue is not None and self._useful is not None and self._speeds is snapshot.speeds:
            for job in snapshot.jobs.values():
                if self._useful.moves_batch(job) and self._noise.get(job.id) != job.noise_scale:
                    self._noise[job.id] = job.noise_scale
                    self._queue.resize(job.id, self._queue.sizes.of(job))
            for change in snapshot.changes:
                if change.ended_job is not None:
                    self._useful.forget(change.ended_job.id)
                    self._noise.pop(change.ended_job.id, None)
        decision = super().decide(snapshot, rng)
        decision.outlasts_ends = False  # another batch may pay at any time
        for job in snapshot.jobs.values():
            if job.gpus and job.id not in decision.targets and job.id not in decision.rejected:
                batch = self._retuned(job, snapshot)
                if batch != job.global_batch:
                    decision.targets[job.id] = Target(job.gpus, job.gpu_type, batch)
        return decision

    def _sizes(self, speeds: Speeds) -> SizesByJob:
        self._useful, self._noise = UsefulSpeed(speeds), {}
        return _GoodputSizes(self._useful, self.alpha)

    def _batch(self, job: JobState, gpu_type: str, gpus: int) -> int:
        if self._useful is None or job.total_samples is None:
            return job.reference_batch
        if (gpus, gpu_type) == (job.gpus, job.gpu_type):
            return job.global_batch  # whether another pays is asked for all that keep their GPUs
        return self._useful.choice(job, gpus, gpu_type).batch

    def _retuned(self, job: JobState, snapshot: Snapshot) -> int:
        """Another batch for a job that keeps its GPUs, where that ends it sooner."""
        useful, left = self._useful, job.remaining_samples(snapshot.time_s)
        if useful is None or left is None or job.gpu_type is None or not useful.moves_batch(job):
            return job.global_batch
        best, present = useful.choice(job, job.gpus, job.gpu_type), useful.present(job)
        cost_s = snapshot.speeds.rescale_seconds(job.spec.model)
        restart_s = _RESTART_S if cost_s is None else cost_s
        sooner = present <= 0 or restart_s + left / best.rate < left / present
        return best.batch if best.rate > 0 and sooner else job.global_batch


class _GoodputSizes(SizesByJob):
    def __init__(self, speeds: UsefulSpeed, alpha: float) -> None:
        super().__init__(speeds, alpha)
        self._useful = speeds

    def of(self, job: JobState) -> tuple[AllowedSizes, ...]:
        if not self._useful.moves_batch(job):
            return super().of(job)
        return self._made(job)


class UsefulSpeed:
    """Goodput as Pollux has it, of the throughput model; the author's batch is always among the choices."""

    def __init__(self, speeds: Speeds) -> None:
        self.speeds = speeds
        self._goodputs = Goodputs(speeds, "profile", lone_accumulates=False)
        # By job and GPU type, with the noise scale that each holds for.
        self._tables: dict[tuple[str, str], tuple[float | None, GoodputTable]] = {}
        self._pools = {
            kind: Pool(kind, gpus, max(speeds.consolidated(gpus, kind), default=1))
            for kind, gpus in speeds.gpu_types.items()
        }

    @property
    def gpu_types(self) -> Mapping[str, int]:
        return self.speeds.gpu_types

    def rate(self, job: JobState, gpus: int, gpu_type: str, /) -> float:
        return self.choice(job, gpus, gpu_type).rate

    def of_kind(self, job: JobState, what: Hashable, make: Callable[[], T]) -> T:
        return self.speeds.of_kind(job, what, make)

    def moves_batch(self, job: JobState) -> bool:
        return job.spec.elastic == "size+batch" and job.noise_scale is not None

    def choice(self, job: JobState, gpus: int, gpu_type: str) -> Choice:
        """The best batch of ``gpus`` GPUs on as few nodes as can be; of equals the author's."""
        own = Choice(job.reference_batch, self.speeds.rate(job, gpus, gpu_type))
        if not self.moves_batch(job):
            return own
        pool = self._pools[gpu_type]
        table = self._table(job, pool)
        if gpus >= table.rates.shape[1]:
            return own
        several = int(gpus > pool.node_gpus)
        rate, batch = float(table.rates[several, gpus]), int(table.batches[several, gpus])
        return Choice(batch, rate) if rate > own.rate else own

    def present(self, job: JobState) -> float:
        """Goodput of what the job holds, at its present batch."""
        if job.gpu_type is None:
            return 0.0
        speed = self.speeds.rate(job, job.gpus, job.gpu_type, global_batch=job.global_batch)
        noise, reference = job.noise_scale or 0.0, job.reference_batch
        return speed if noise == float("inf") else speed * (noise + reference) / (noise + job.global_batch)

    def forget(self, job_id: str) -> None:
        self._goodputs.forget(job_id)
        for kind in self._pools:
            self._tables.pop((job_id, kind), None)

    def _table(self, job: JobState, pool: Pool) -> GoodputTable:
        table = self._tables.get((job.id, pool.gpu_type))
        if table is None or table[0] != job.noise_scale:
            table = job.noise_scale, self._goodputs.goodput(job, pool)
            self._tables[job.id, pool.gpu_type] = table
        return table[1]


class Choice(NamedTuple):
    """A global batch, and what it brings."""

    batch: int
    rate: float
    """Samples per second that count as much as those of the reference batch."""
