"""What policies know in a replay of a simulator and no scheduler could."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pliant.schemas.cluster import Cluster
from pliant.tools.profile.by_placement import ThroughputByPlacement
from pliant.tools.replay.compat.epochs import SteppedCut
from pliant.tools.replay.progress.epochs import Epochs, epoch_of
from pliant.tools.schedule.jobs import JobState


class Truth:
    """The oracle of the Pollux simulator's Optimus."""

    def __init__(
        self,
        model: Epochs,
        cut: SteppedCut,
        times: ThroughputByPlacement,
        cluster: Cluster,
        most_gpus: Mapping[str, int],
    ) -> None:
        """``most_gpus``: of some models."""
        self._model = model
        self._cut = cut
        self._times = times
        self._most_gpus = most_gpus
        self._node_gpus: dict[str, int] = {}
        """Of the largest node, by GPU type."""
        for node in cluster.nodes:
            self._node_gpus[node.gpu_type] = max(node.gpus, self._node_gpus.get(node.gpu_type, 1))
        self._left: dict[tuple[object, ...], list[float]] = {}
        """Remaining steps by epoch, of each kind of job."""
        self._jobs: dict[str, tuple[list[float], float]] = {}
        """The same and the samples of an epoch, of each job."""

    def remaining_steps(self, job: JobState, time_s: float) -> float:
        """Iterations after the present epoch, by the table of the job's batch; 1 in the last epoch."""
        known = self._jobs.get(job.id)
        if known is None:
            known = self._jobs[job.id] = (self._steps_left(job), self._model.samples_per_epoch(job))
        left, width = known
        epoch = epoch_of(job.samples_done(time_s), width)
        return left[epoch] if epoch < len(left) else 1.0

    def _steps_left(self, job: JobState) -> list[float]:
        """Steps that are left after each epoch but the last."""
        key = (job.spec.convergence, job.spec.model, job.reference_batch)
        if key not in self._left:
            table, last = self._model.table(job), math.ceil(self._model.epochs(job)) - 1
            steps = [table.iterations(job.reference_batch, epoch) for epoch in range(last + 1)]
            self._left[key] = [steps[-1] - done for done in steps[:-1]]
        return self._left[key]

    def step_seconds(self, job: JobState, gpus: int, gpu_type: str) -> float | None:
        """On full nodes and what is left over."""
        whole, rest = divmod(gpus, self._node_gpus[gpu_type])
        ring = (self._node_gpus[gpu_type],) * whole + ((rest,) if rest else ())
        return self._cut.alone(job, ring, gpu_type)

    def max_gpus(self, job: JobState) -> int:
        """As many as get the smallest measured local batch each."""
        measured = [self._times.local_batches(job.spec.model, kind) for kind in self._node_gpus]
        least = min((batches[0] for batches in measured if batches), default=1)
        most = self._most_gpus.get(job.spec.model, job.reference_batch // least)
        return min(most, job.spec.max_gpus(2**31))

    def kind(self, job: JobState) -> object:
        """Jobs of a model and batch have the same step times."""
        return job.spec.model, job.spec.convergence, job.reference_batch
