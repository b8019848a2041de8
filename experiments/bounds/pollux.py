"""Covers of jobs under the physics of the Pollux simulator.

For each epoch and each number of GPUs, the most progress per second over the placements and the batches that
a job may have. A first start holds GPUs without progress, which is a part of the work like any other. Times
are not rounded to whole seconds here, as they are in the simulator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from experiments.bounds.covers import BoundJob, Cover, Floats, covers_of
from experiments.bounds.fluid import Parts
from pliant.schemas.job import Job
from pliant.tools.profile.throughput_model import Placement, ThroughputByPlacement
from pliant.tools.replay.compat import POLLUX, split
from pliant.tools.replay.inputs import Inputs

SHARES: Final = 100
"""Batches that are tried on each number of GPUs, in geometric steps, where the batch is free."""


@dataclass(frozen=True)
class PolluxCovers:
    """Covers of the jobs of a trace on nodes of one kind; jobs that are alike share theirs."""

    trace: Inputs
    start_s: float
    """Seconds of a first start."""
    free_batch: bool = True
    """Whether a job may have every batch between its least and its largest, or only its author's."""
    compact: bool = False
    """Whether jobs are on as few nodes as possible; else where they are fastest, on nodes of their own."""
    _known: dict[object, tuple[Cover, ...]] = field(default_factory=dict)
    parts: dict[object, Parts] = field(default_factory=dict)
    """The work of jobs by kind, to be shared by traces of one profile and cluster."""

    def jobs(self) -> list[BoundJob]:
        """All jobs."""
        return [BoundJob(job.submit_time, self._of(job)) for job in self.trace.jobs]

    def works(self) -> list[Parts]:
        """The work of all jobs, a first start and then the epochs."""
        return [self._work(job) for job in self.trace.jobs]

    def _of(self, job: Job) -> tuple[Cover, ...]:
        key = self._kind(job)
        if key not in self._known:
            work = self._work(job)
            self._known[key] = covers_of(work.rates, work.work)
        return self._known[key]

    def _work(self, job: Job) -> Parts:
        key = self._kind(job)
        if key not in self.parts:
            rates = self.rates(job)
            parts = np.vstack((np.arange(rates.shape[1]) > 0, rates)).astype(float)
            self.parts[key] = Parts(parts, np.array([self.start_s] + [1.0] * len(rates)))
        return self.parts[key]

    def _kind(self, job: Job) -> tuple[object, ...]:
        return job.model, job.convergence, self._limits(job)

    def rates(self, job: Job) -> Floats:
        """[epoch, size] the most epochs per second."""
        table, shape = self.trace.tables[job.convergence or ""], self._shape
        stage = np.minimum(np.arange(POLLUX.max_epochs.get(job.model) or table.epochs), table.epochs - 1)
        progress = np.diff(np.array([0.0, *table.least_progress]))
        found = np.zeros((len(stage), shape.gpus + 1))
        for size in range(1, shape.gpus + 1):
            rings = [*shape.rings(size)]
            rings = rings[:1] if self.compact else [*rings, *self._measured.get((job.model, size), ())]
            for local, steps in self._cuts(job, size):
                taken = (self._times.times(job.model, shape.gpu_type, ring, local) for ring in rings)
                seconds = min((each.accumulated(steps) for each in taken if each is not None), default=np.inf)
                gains = np.array(table.gains(size * local * steps))
                found[:, size] = np.maximum(found[:, size], (gains / seconds / progress)[stage])
        return found

    def _cuts(self, job: Job, size: int) -> list[tuple[int, int]]:
        """Micro-batches of a GPU and micro-steps, of all batches that are tried."""
        table = self.trace.tables[job.convergence or ""]
        most_local = self._times.max_local_batch(job.model, self._shape.gpu_type)
        low, high, usual = self._limits(job)
        batches = {usual, *(batch for _, batch in [POLLUX.settled.get(job.model, (0, usual))])}
        if self.free_batch:
            geometric = size * np.rint(np.geomspace(max(low, size), max(high, size), SHARES) / size)
            batches |= {low, high, *geometric.astype(int).clip(low, high).tolist()}
        cuts = {
            split(
                batch, size, most_local, table.batches[-1], accumulate=size == 1 and batch > table.batches[0]
            )
            for batch in batches
        }
        return sorted(cut for cut in cuts if cut[0])

    def _limits(self, job: Job) -> tuple[int, int, int]:
        """The least batch, the largest, and the author's."""
        usual = job.batch.size or self.trace.tables[job.convergence or ""].batches[0]
        if not self.free_batch:
            return usual, usual, usual
        return job.batch.min or usual, job.batch.max or usual, usual

    @cached_property
    def _times(self) -> ThroughputByPlacement:
        assert self.trace.profile is not None  # noqa: S101
        return ThroughputByPlacement(self.trace.profile, self.trace.cluster.speeds, POLLUX.most_local)

    @cached_property
    def _measured(self) -> Mapping[tuple[str, int], set[Placement]]:
        """Placements that were measured, by model and GPUs."""
        assert self.trace.profile is not None  # noqa: S101
        found: dict[tuple[str, int], set[Placement]] = {}
        for row in self.trace.profile.rows:
            if row.step_seconds is not None and row.gpu_type == self._shape.gpu_type:
                ring = tuple(map(int, (row.node_order or row.placement).split(",")))
                found.setdefault((row.model, row.gpus), set()).add(ring)
        return found

    @cached_property
    def _shape(self) -> _Shape:
        nodes = self.trace.cluster.expanded()
        return _Shape(nodes[0].gpu_type, max(node.gpus for node in nodes), len(nodes))


class _Shape(NamedTuple):
    """A cluster of equal nodes."""

    gpu_type: str
    node_gpus: int
    nodes: int

    @property
    def gpus(self) -> int:
        """Of all nodes."""
        return self.node_gpus * self.nodes

    def rings(self, size: int) -> Iterator[Placement]:
        """Placements that stand for those not measured: packed, and spread evenly over each number of nodes.

        One that was not measured is as fast as all such of as many nodes and GPUs, and no faster than the
        best measured one of them.
        """
        whole, rest = divmod(size, self.node_gpus)
        yield (self.node_gpus,) * whole + ((rest,) if rest else ())
        for count in range(-(-size // self.node_gpus), min(size, self.nodes) + 1):
            each, more = divmod(size, count)
            yield (each + 1,) * more + (each,) * (count - more)
