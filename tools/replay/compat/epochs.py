"""Epochs and batches as the simulator of Pollux (OSDI '21) has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pliant.tools.profile.by_placement import ThroughputByPlacement
from pliant.tools.replay.compat.whole_seconds import WholeSecondPieces
from pliant.tools.replay.progress.epochs import Cut, Epochs
from pliant.tools.replay.progress.tables import Validation
from pliant.tools.replay.progress.trajectory import Pieces
from pliant.tools.schedule.jobs import JobState, Observation


class SimulatorEpochs(Epochs):
    """Epochs that are a fixed amount of progress, the least of the validation runs, in whole seconds."""

    def __init__(
        self,
        tables: Mapping[str, Validation],
        cut: Callable[[JobState], Cut | None],
        max_epochs: Mapping[str, int],
        *,
        round_s: float | None = None,
        stepwise: bool = False,
    ) -> None:
        """``max_epochs``: by model; others have those of the job. ``round_s``: seconds between decisions."""
        super().__init__(tables, stepwise=stepwise)
        self._cut = cut
        self._max_epochs = max_epochs
        self._round_s = round_s

    def epochs(self, job: JobState) -> float:
        """Those of the model, else those of the job."""
        return self._max_epochs.get(job.spec.model) or super().epochs(job)

    def cut(self, job: JobState) -> Cut | None:
        """As the simulator cuts."""
        return self._cut(job)

    def epoch_seconds(self, table: Validation, cut: Cut, epoch: int) -> float:
        """A step brings the gain that the gradients of the validation runs show."""
        before = table.least_progress[epoch - 1] if epoch else 0.0
        return (table.least_progress[epoch] - before) / (table.gains(cut.batch)[epoch] / cut.step_seconds)

    def pieces(self, bounds: Sequence[float], rates: Sequence[float]) -> Pieces:
        """Of whole seconds."""
        return WholeSecondPieces(bounds, rates, self._round_s)


def split(
    batch: int, gpus: int, most_local: int | None, most_batch: int, *, accumulate: bool
) -> tuple[int, int]:
    """(micro-batch of a GPU, micro-steps) for a fixed batch.

    Shares are rounded up, so the batch may grow, but not beyond ``most_batch``. ``accumulate``: at least two
    micro-steps.
    """
    local = -(-batch // gpus)
    steps = 1 if most_local is None else -(-local // most_local)
    if accumulate:
        steps = max(2, steps)
    return min(-(-local // steps), most_batch // (gpus * steps)), steps


class SteppedCut:
    """Cuts batches as the Pollux simulator does, at the step time of the very placement."""

    def __init__(self, times: ThroughputByPlacement, tables: Mapping[str, Validation]) -> None:
        """``tables`` by the key that jobs name in ``convergence``."""
        self._times = times
        self._tables = tables
        self._known: dict[tuple[object, ...], Cut | None] = {}

    def __call__(self, job: JobState) -> Cut | None:
        """The cut for the GPUs that the job holds, in the order in which it lists its nodes."""
        ring = tuple(count for _, count in job.placement)
        key = (job.spec.model, job.spec.convergence, job.gpu_type, ring, job.global_batch)
        if key not in self._known:
            batches = self._tables[job.spec.convergence or ""].batches
            accumulate = job.gpus == 1 and job.global_batch > batches[0]
            self._known[key] = self._cut(job, ring, batches[-1], accumulate=accumulate)
        return self._known[key]

    def alone(self, job: JobState, ring: tuple[int, ...], gpu_type: str) -> float | None:
        """Step time as the simulator's Optimus estimates it: on one GPU it always accumulates."""
        batches = self._tables[job.spec.convergence or ""].batches
        most = self._times.max_local_batch(job.spec.model, gpu_type)
        gpus = sum(ring)
        local, steps = split(job.reference_batch, gpus, most, batches[-1], accumulate=gpus == 1)
        times = self._times.times(job.spec.model, gpu_type, ring, local) if local else None
        return None if times is None else times.accumulated(steps)

    def _cut(self, job: JobState, ring: tuple[int, ...], most_batch: int, *, accumulate: bool) -> Cut | None:
        model, gpu_type = job.spec.model, job.gpu_type or ""
        most = self._times.max_local_batch(model, gpu_type)
        local, steps = split(job.global_batch, job.gpus, most, most_batch, accumulate=accumulate)
        times = self._times.times(model, gpu_type, ring, local) if local else None
        if times is None:
            return None
        seconds = times.accumulated(steps)
        shape = tuple(sorted(ring, reverse=True))
        observed = Observation(shape, local, steps, seconds, times.sync_seconds)
        return Cut(job.gpus * local * steps, seconds, observed)
