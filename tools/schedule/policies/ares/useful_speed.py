"""Useful samples per second of jobs whose batch may move, each size at its best batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple, TypeVar

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.pollux.goodput import Goodput
from pliant.tools.schedule.policies.pollux.jobs import Goodputs
from pliant.tools.schedule.policies.pools import Pool
from pliant.tools.schedule.speeds import Speeds

T = TypeVar("T")


class Choice(NamedTuple):
    """A global batch, and what it brings."""

    batch: int
    rate: float
    """Samples per second that count as much as those of the reference batch."""


class UsefulSpeed:
    """Goodput as Pollux has it, of the throughput model; the author's batch is always among the choices."""

    def __init__(self, speeds: Speeds) -> None:
        self.speeds = speeds
        self._goodputs = Goodputs(speeds, "profile", lone_accumulates=False)
        self._tables: dict[tuple[str, str], tuple[float | None, Goodput]] = {}
        """By job and GPU type, with the noise scale that each holds for."""
        self._pools = {
            kind: Pool(kind, gpus, max(speeds.consolidated(gpus, kind), default=1))
            for kind, gpus in speeds.gpu_types.items()
        }

    @property
    def gpu_types(self) -> Mapping[str, int]:
        """GPUs of the whole cluster by type."""
        return self.speeds.gpu_types

    def rate(self, job: JobState, gpus: int, gpu_type: str, /) -> float:
        """That of the best batch."""
        return self.choice(job, gpus, gpu_type).rate

    def of_kind(self, job: JobState, what: Hashable, make: Callable[[], T]) -> T:
        """What is made of the speeds of a job whose batch stays, once for all of its kind."""
        return self.speeds.of_kind(job, what, make)

    def moves_batch(self, job: JobState) -> bool:
        """Whether there is a batch to choose: the job allows it, and its noise is known."""
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
        """Of what the job holds, at its present batch."""
        if job.gpu_type is None:
            return 0.0
        speed = self.speeds.rate(job, job.gpus, job.gpu_type, global_batch=job.global_batch)
        noise, reference = job.noise_scale or 0.0, job.reference_batch
        return speed if noise == float("inf") else speed * (noise + reference) / (noise + job.global_batch)

    def forget(self, job_id: str) -> None:
        """The job has left."""
        self._goodputs.forget(job_id)
        for kind in self._pools:
            self._tables.pop((job_id, kind), None)

    def _table(self, job: JobState, pool: Pool) -> Goodput:
        found = self._tables.get((job.id, pool.gpu_type))
        if found is None or found[0] != job.noise_scale:
            found = job.noise_scale, self._goodputs.goodput(job, pool)
            self._tables[job.id, pool.gpu_type] = found
        return found[1]
