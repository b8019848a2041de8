"""Work in epochs, as validation runs measured them at each batch size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pliant.schemas.errors import BadInputError
from pliant.schemas.job import EpochWork
from pliant.tools.replay.progress.protocol import ProgressModel, Segment
from pliant.tools.replay.progress.tables import Pieces, Validation
from pliant.tools.schedule.jobs import EpochEnd, JobState, Observation

TARGET: Final = "target_metric"
"""Label of a job that ends at the first epoch whose metric reaches its value."""


class Cut(NamedTuple):
    """How a job's batch is cut for the GPUs that it holds, and what a step takes."""

    batch: int
    """Samples per step that are really trained."""
    step_seconds: float
    observation: Observation | None = None
    """What the job measures by it; None: what the throughput model says."""


class Epochs(ProgressModel):
    """Per validated batch size a table of epochs, linear between neighbouring batch sizes.

    Work is counted in samples as everywhere: an epoch is the total over the number of epochs. A job ends
    after its epochs, or at the first that reaches its target metric. One trajectory covers all epochs to the
    end; stepwise, each is a segment of its own, at whose end the batch may be cut again.
    """

    def __init__(self, tables: Mapping[str, Validation], *, stepwise: bool = False) -> None:
        """``tables`` by the key that jobs name in ``convergence``."""
        self._tables = tables
        self._stepwise = stepwise
        self._pieces: dict[tuple[object, ...], Pieces] = {}

    def table(self, job: JobState) -> Validation:
        """The validation runs of a job."""
        return self._tables[job.spec.convergence or ""]

    def epochs(self, job: JobState) -> float:
        """Epochs of a job; the metric may end it sooner."""
        return job.spec.work.epochs if isinstance(job.spec.work, EpochWork) else self.table(job).epochs

    def cut(self, job: JobState) -> Cut | None:
        """The policy's batch, at the speed of the throughput model; None: it does not run there."""
        speed = job.samples_per_second
        return Cut(job.global_batch, job.global_batch / speed) if speed > 0 else None

    def epoch_seconds(self, table: Validation, cut: Cut, epoch: int) -> float:
        """Seconds of a whole epoch of the table: an epoch is as many steps as the validation runs took."""
        before = table.iterations(cut.batch, epoch - 1) if epoch else 0.0
        return (table.iterations(cut.batch, epoch) - before) * cut.step_seconds

    def pieces(self, bounds: Sequence[float], rates: Sequence[float]) -> Pieces:
        """The epochs, laid end to end."""
        return Pieces(bounds, rates)

    def samples_per_epoch(self, job: JobState) -> float:
        """The total over the number of epochs."""
        return self.all_samples(job) / self.epochs(job)

    def segment(self, job: JobState, samples_done: float, speed_factor: float = 1.0) -> Segment:
        """The trajectory to the end of the work, or the segment to the end of the epoch."""
        cut = self.cut(job)
        if cut is None:
            return Segment(0.0)
        cut = cut._replace(step_seconds=cut.step_seconds / speed_factor)
        pieces = self._pieces_of(job, cut, samples_done)
        if self._stepwise:
            return self._one_epoch(job, cut, pieces, samples_done)
        return pieces.to_the_end(samples_done)

    def end_samples(self, job: JobState, samples_done: float) -> float:
        """At the end of all epochs, or of the first that reaches the target metric."""
        if _target(job) is None:
            return self.all_samples(job)
        cut = self.cut(job) if job.gpus else None
        goal = self._goal(job, job.global_batch if cut is None else cut.batch, samples_done)
        return goal * self.samples_per_epoch(job) if goal < self.epochs(job) else self.all_samples(job)

    def all_samples(self, job: JobState) -> float:
        """The stated work; where none is stated, all that the job's validation run trained."""
        if job.work_samples is not None:
            return job.work_samples
        table = self.table(job)
        return table.iterations(job.reference_batch, table.epochs - 1) * job.reference_batch

    def _one_epoch(self, job: JobState, cut: Cut, pieces: Pieces, samples_done: float) -> Segment:
        piece = pieces.piece_at(samples_done)
        table = self.table(job)
        end = EpochEnd(
            piece + 1,
            pieces.bounds[piece + 1],
            metric=table.metric(cut.batch, piece) if table.has_metric else None,
        )
        return pieces.segment(piece)._replace(
            noise_scale=table.noise_scale(cut.batch, piece) if table.has_noise else None,
            observation=cut.observation,
            epoch_end=end,
        )

    def _pieces_of(self, job: JobState, cut: Cut, samples_done: float) -> Pieces:
        goal = self._goal(job, cut.batch, samples_done)
        key = (job.spec.convergence, job.spec.model, cut.batch, cut.step_seconds, goal, job.work_samples)
        if key not in self._pieces:
            self._pieces[key] = self._make(job, cut, goal)
        return self._pieces[key]

    def _goal(self, job: JobState, batch: int, samples_done: float) -> float:
        """Epochs after which the job ends at that batch; at the end of the present one at the earliest."""
        target, goal = _target(job), self.epochs(job)
        if target is None:
            return goal
        reached = self._epoch_of_metric(self.table(job), batch, target, goal)
        return min(goal, max(reached, epoch_of(samples_done, self.samples_per_epoch(job)) + 1))

    def _make(self, job: JobState, cut: Cut, goal: float) -> Pieces:
        table, width = self.table(job), self.samples_per_epoch(job)
        epochs = range(math.ceil(goal))
        bounds = [epoch * width for epoch in epochs] + [goal * width]
        last = table.epochs - 1  # after the last epoch of the table as in the last
        rates = [width / self.epoch_seconds(table, cut, min(epoch, last)) for epoch in epochs]
        return self.pieces(bounds, rates)

    @staticmethod
    def _epoch_of_metric(table: Validation, batch: int, target: float, goal: float) -> float:
        """Epochs after which the metric is there; ``goal`` if it never is."""
        for epoch in range(min(table.epochs, math.ceil(goal))):
            metric = table.metric(batch, epoch)
            if metric >= target if table.grows() else metric <= target:
                return epoch + 1
        return goal


def _target(job: JobState) -> float | None:
    """The metric at which a job ends; None: it names none.

    :raises BadInputError: it is not a number.
    """
    text = job.spec.labels.get(TARGET)
    if text is None:
        return None
    try:
        target = float(text)
    except ValueError:
        target = math.nan
    if not math.isfinite(target):
        raise BadInputError(f'job "{job.id}": label {TARGET}: "{text}" is not a finite number')
    return target


def epoch_of(samples: float, samples_per_epoch: float) -> int:
    """The epoch that this many samples reach; at its end the next one."""
    return math.floor(samples / samples_per_epoch + 1e-9)
