"""Epochs and batches as the simulator of Pollux (OSDI '21) has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pliant.tools.profile.by_placement import ThroughputByPlacement
from pliant.tools.replay.compat.whole_seconds import WholeSecondPieces
from pliant.tools.replay.progress.epochs import Cut, Epochs
from pliant.tools.replay.progress.tables import Validation
from pliant.tools.replay.progress.trajectory import Pieces
from pliant.tools.schedule.jobs import JobState, Observation


@dataclass(frozen=True, slots=True)
class EpochRules:
    """What an epoch is. The defaults are ours, the rest is how others simulate."""

    length: Literal["iterations", "gain"] = "iterations"
    """iterations: an epoch is as many steps as the validation runs took. gain: it is a fixed amount of
    progress (the least of the validation runs), and a step brings the gain that their gradients show."""
    whole_seconds: bool = False
    """Epochs end at whole seconds."""
    max_epochs: Mapping[str, int] = field(default_factory=dict)
    """Epochs by model; for others those of the job, else those that every validation run has."""


class SimulatorEpochs(Epochs):
    """Epochs by the rules of a simulator."""

    def __init__(
        self,
        tables: Mapping[str, Validation],
        rules: EpochRules,
        cut: Callable[[JobState], Cut | None] | None = None,
        *,
        round_s: float | None = None,
        stepwise: bool = False,
    ) -> None:
        """``cut``: how batches are cut; None: evenly. ``round_s``: seconds between decisions."""
        super().__init__(tables, stepwise=stepwise)
        self._rules = rules
        self._cut = cut
        self._round_s = round_s

    def epochs(self, job: JobState) -> float:
        """Those of the rules, else those of the job."""
        most = self._rules.max_epochs.get(job.spec.model)
        return super().epochs(job) if most is None else most

    def cut(self, job: JobState) -> Cut | None:
        """As the simulator cuts."""
        return super().cut(job) if self._cut is None else self._cut(job)

    def epoch_seconds(self, table: Validation, cut: Cut, epoch: int) -> float:
        """By steps or by gain."""
        if self._rules.length == "iterations":
            return super().epoch_seconds(table, cut, epoch)
        before = table.least_progress[epoch - 1] if epoch else 0.0
        return (table.least_progress[epoch] - before) / (table.gains(cut.batch)[epoch] / cut.step_seconds)

    def pieces(self, bounds: Sequence[float], rates: Sequence[float]) -> Pieces:
        """Of whole seconds, where the rules say so."""
        if self._rules.whole_seconds:
            return WholeSecondPieces(bounds, rates, self._round_s)
        return super().pieces(bounds, rates)


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
