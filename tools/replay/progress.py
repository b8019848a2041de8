"""Progress models: how a job's work advances while it holds GPUs, in samples, epochs, goodput or a mixture.

The models lay the epochs of a job end to end as :class:`Pieces`, with one rate from bound to bound, so that
where a job is and when it ends is looked up instead of stepped.

They rest on validation runs of a model: what each epoch took and led to, by global batch, linear in between.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Final, Literal, NamedTuple, Protocol

from pliant.schemas.errors import BadInputError
from pliant.schemas.job import EpochWork
from pliant.schemas.profile import ConvergenceRow
from pliant.tools.schedule.jobs import EpochEnd, JobState, Observation, Trajectory


class EndingTrajectory(Trajectory, Protocol):
    """A trajectory that also says when its end is noticed."""

    def is_late(self, end_s: float) -> bool:
        """Whether a decision at the very moment of the end still sees the job."""
        ...


class Segment(NamedTuple):
    """A time in which a job advances at one rate, or along a trajectory to the end of its work."""

    samples_per_second: float
    until_samples: float | None = None
    """Progress at which the rate changes next, above the present one; None: not before the work is done."""
    trajectory: EndingTrajectory | None = None
    """All that comes, if nothing happens to the job; the rate above is that of its beginning."""
    noise_scale: float | None = None
    """Gradient noise scale that the job measures in it, in samples; None: the model knows of none."""
    observation: Observation | None = None
    """What the job measures of its own speed in it; None: what the throughput model says."""
    epoch_end: EpochEnd | None = None
    """What the job reports where it ends, if that is the end of an epoch."""


def regime(job: JobState, samples_done: float) -> tuple[int | None, float | None]:
    """(batch, progress at which it ends) of the regime of a job that changes its batch by itself.

    The batch is None for a job that does not, the end where no other regime follows. Of work that is not
    known, no part is done.
    """
    regimes = job.spec.batch.regimes
    if not regimes:
        return None, None
    work = job.work_samples
    past = [each for each in regimes if work is not None and work * each.after <= samples_done]
    ahead = regimes[len(past) :] if work is not None else ()
    batch = past[-1].size if past else job.spec.batch.size
    return batch, work * ahead[0].after if work is not None and ahead else None


class ProgressModel(Protocol):
    """How fast a job advances, in samples as ``JobState.total_samples``. A model changes no state."""

    def segment(self, job: JobState, samples_done: float, speed_factor: float = 1.0) -> Segment:
        """The segment that begins at ``samples_done`` on the GPUs and the batch that the job has now.

        Asked when its allocation or batch has changed and where the last segment ended. ``speed_factor`` is
        the part of ``job.samples_per_second`` that other jobs leave to this one.
        """
        ...

    def all_samples(self, job: JobState) -> float | None:
        """Samples of all the work, also of a job that states none; None: not known."""
        return job.work_samples

    def end_samples(self, job: JobState, samples_done: float) -> float | None:
        """Progress at which the job ends if it trains on as it does now; None: not known."""
        del samples_done
        return self.all_samples(job)

    def initial_loss(self, job: JobState) -> float | None:
        """Training loss that the job reports before it trains; None: none."""
        del job
        return None


class SampleProgress(ProgressModel):
    """Work is a number of samples: the batch size changes the speed and nothing else."""

    def segment(self, job: JobState, samples_done: float, speed_factor: float = 1.0) -> Segment:
        return Segment(job.samples_per_second * speed_factor)

    def end_samples(self, job: JobState, samples_done: float) -> float | None:
        return job.work_samples


Column = Literal["iterations", "metric", "grad_sqr", "grad_var", "loss"]


class Validation:
    """The runs of one model. Epochs count from 0; below and above the batches the nearest run answers."""

    def __init__(self, rows: Iterable[ConvergenceRow]) -> None:
        runs: dict[int, list[ConvergenceRow]] = {}
        for row in sorted(rows, key=lambda row: (row.batch, row.epoch)):
            run = runs.setdefault(row.batch, [])
            if row.epoch != len(run):
                raise BadInputError(
                    f'convergence of "{row.model}" at batch {row.batch}: epoch {len(run)} is missing'
                )
            run.append(row)
        self._runs = list(runs.values())
        self.model = self._runs[0][0].model
        self.batches = tuple(runs)
        # Epochs that every run has.
        self.epochs = min(map(len, self._runs))
        for batch, run in runs.items():
            self._refuse_standstill([row.iterations for row in run], f"iterations at batch {batch}")
        self._gains: dict[float, Sequence[float]] = {}
        self._known: dict[tuple[Column, float], Sequence[float | None]] = {}

    @cached_property
    def least_progress(self) -> tuple[float, ...]:
        """Progress at the end of each epoch, the least of all runs."""
        least = tuple(min(run[epoch].progress for run in self._runs) for epoch in range(self.epochs))
        self._refuse_standstill(least, "progress")
        return least

    @cached_property
    def has_metric(self) -> bool:
        return all(row.metric is not None for run in self._runs for row in run)

    @cached_property
    def has_loss(self) -> bool:
        return all(row.loss is not None for run in self._runs for row in run)

    @cached_property
    def initial_loss(self) -> float | None:
        """Training loss before training, that of the smallest batch; None where no run has it."""
        return self._runs[0][0].initial_loss

    @cached_property
    def has_noise(self) -> bool:
        return all(None not in (row.grad_sqr, row.grad_var) for run in self._runs for row in run)

    def iterations(self, batch: float, epoch: int) -> float:
        """Optimizer steps from the start to the end of an epoch."""
        return self._between("iterations", batch, epoch)

    def metric(self, batch: float, epoch: int) -> float:
        """Validation metric at the end of an epoch."""
        return self._between("metric", batch, epoch)

    def end_of(self, number: int, samples_done: float, batch: float, epoch: int) -> EpochEnd:
        """What a job reports at the end of its epoch ``number``, from 1, where it did as in ``epoch``."""
        return EpochEnd(
            number,
            samples_done,
            self._between("loss", batch, epoch) if self.has_loss else None,
            self.metric(batch, epoch) if self.has_metric else None,
        )

    def epoch_at(self, part: float) -> int:
        """The epoch at whose end that part of the progress of all epochs is made, or is first passed."""
        ends = self.least_progress
        return min(bisect_left(ends, part * ends[-1] * (1 - 1e-9)), self.epochs - 1)

    def grows(self) -> bool:
        """Whether training makes the metric larger."""
        first, last = self._runs[0][0].metric, self._runs[0][-1].metric
        return first is None or last is None or last >= first

    def gain(self, batch: float, epoch: int) -> float:
        """Progress of one step of ``batch`` samples: how many steps of the smallest batch it is worth."""
        sqr, var = self._between("grad_sqr", batch, epoch), self._between("grad_var", batch, epoch)
        if not sqr and not var:
            raise BadInputError(
                f'convergence of "{self.model}": grad_sqr and grad_var are 0 around batch {batch:g}, '
                f"epoch {epoch}, expected a gradient"
            )
        scale = batch / self.batches[0]
        return (var + sqr) / (var / scale + sqr)

    def gains(self, batch: float) -> Sequence[float]:
        gains = self._gains.get(batch)
        if gains is None:
            gains = self._gains[batch] = [self.gain(batch, epoch) for epoch in range(self.epochs)]
        return gains

    def noise_scale(self, batch: float, epoch: int) -> float:
        """Gradient noise scale φ in samples: variance over squared norm, for the smallest batch."""
        sqr, var = self._between("grad_sqr", batch, epoch), self._between("grad_var", batch, epoch)
        return self.batches[0] * var / sqr if sqr else float("inf")

    def _refuse_standstill(self, column: Sequence[float], what: str) -> None:
        """Refuse cumulative values that do not grow from 0 on: no epoch would take that time."""
        for epoch, (before, after) in enumerate(pairwise([0.0, *column])):
            if after <= before:
                raise BadInputError(
                    f'convergence of "{self.model}", {what}: {after:g} after epoch {epoch}, '
                    f"expected more than {before:g}"
                )

    def _between(self, column: Column, batch: float, epoch: int) -> float:
        """Linear between the runs around ``batch``; after the last epoch of all runs as in the last."""
        values = self._known.get((column, batch))
        if values is None:
            values = self._known[column, batch] = self._along(column, batch)
        value = values[epoch] if epoch < self.epochs else values[-1]
        return self._refuse_null(column, batch, epoch) if value is None else value

    def _along(self, column: Column, batch: float) -> Sequence[float | None]:
        """By epoch; None where a run around the batch has no value."""
        runs = self._around(batch)
        low, high = ([getattr(row, column) for row in self._runs[run][: self.epochs]] for run in runs)
        if runs[0] == runs[1]:
            return low
        left, right = (self.batches[run] for run in runs)
        part = (batch - left) / (right - left)
        return [
            None if None in each else (1 - part) * each[0] + part * each[1]
            for each in zip(low, high, strict=True)
        ]

    def _around(self, batch: float) -> tuple[int, int]:
        """The runs next to a batch; the same twice at the batch of a run, and beyond all of them."""
        after = bisect_left(self.batches, batch)
        if after == len(self.batches):
            return after - 1, after - 1
        is_between = after > 0 and self.batches[after] != batch
        return after - is_between, after

    def _refuse_null(self, column: Column, batch: float, epoch: int) -> float:
        epoch = min(epoch, self.epochs - 1)
        low, high = self._around(batch)
        run = high if getattr(self._runs[high][epoch], column) is None else low
        raise BadInputError(
            f'convergence of "{self.model}" at batch {self.batches[run]}, epoch {epoch}: a value that '
            "this replay needs is null"
        )


def validations(rows: Iterable[ConvergenceRow]) -> Mapping[str, Validation]:
    by_model: dict[str, list[ConvergenceRow]] = {}
    for row in rows:
        by_model.setdefault(row.model, []).append(row)
    return {model: Validation(of_model) for model, of_model in by_model.items()}


TARGET: Final = "target_metric"
"""Label of a job that ends at the first epoch whose metric reaches its value."""
_SNAP: Final = 1e-9
"""Parts of a piece within which a job stands at its end: the difference is rounding."""


class EpochProgress(ProgressModel):
    """Per validated batch size a table of epochs, linear between neighbouring batch sizes.

    An epoch is the job's samples over its number of epochs. A job ends after its epochs, or at the first that
    reaches its target metric. One trajectory covers all epochs; stepwise, each is a segment of its own, at
    whose end the batch may be cut again.
    """

    def __init__(self, tables: Mapping[str, Validation], *, stepwise: bool = False) -> None:
        self._tables = tables
        self._stepwise = stepwise
        self._pieces: dict[tuple[object, ...], Pieces] = {}

    def table(self, job: JobState) -> Validation:
        return self._tables[job.spec.convergence or ""]

    def epochs(self, job: JobState) -> float:
        """Epochs of a job; the metric may end it sooner."""
        return job.spec.work.epochs if isinstance(job.spec.work, EpochWork) else self.table(job).epochs

    def cut(self, job: JobState) -> BatchCut | None:
        """The policy's batch, at the speed of the throughput model. Returns None if it does not run there."""
        speed = job.samples_per_second
        return BatchCut(job.global_batch, job.global_batch / speed) if speed > 0 else None

    def epoch_seconds(self, table: Validation, cut: BatchCut) -> Sequence[float]:
        """By epoch of the table."""
        ends = [table.iterations(cut.batch, epoch) for epoch in range(table.epochs)]
        return [(end - before) * cut.step_seconds for before, end in pairwise((0.0, *ends))]

    def pieces(self, bounds: Sequence[float], rates: Sequence[float]) -> Pieces:
        return Pieces(bounds, rates)

    def samples_per_epoch(self, job: JobState) -> float:
        return self.all_samples(job) / self.epochs(job)

    def segment(self, job: JobState, samples_done: float, speed_factor: float = 1.0) -> Segment:
        cut = self.cut(job)
        if cut is None:
            return Segment(0.0)
        if speed_factor != 1.0:
            cut = cut._replace(step_seconds=cut.step_seconds / speed_factor)
        pieces = self._pieces_of(job, cut, samples_done)
        if self._stepwise:
            return self._one_epoch(job, cut, pieces, samples_done)
        return pieces.to_the_end(samples_done)

    def initial_loss(self, job: JobState) -> float | None:
        return self.table(job).initial_loss

    def end_samples(self, job: JobState, samples_done: float) -> float:
        if _target(job) is None:
            return self.all_samples(job)
        cut = self.cut(job) if job.gpus else None
        goal = self._goal(job, job.global_batch if cut is None else cut.batch, samples_done)
        return goal * self.samples_per_epoch(job) if goal < self.epochs(job) else self.all_samples(job)

    def all_samples(self, job: JobState) -> float:
        if job.work_samples is not None:
            return job.work_samples
        table = self.table(job)
        return table.iterations(job.reference_batch, table.epochs - 1) * job.reference_batch

    def _one_epoch(self, job: JobState, cut: BatchCut, pieces: Pieces, samples_done: float) -> Segment:
        piece = pieces.piece_at(samples_done)
        table, (rate, until, *_) = self.table(job), pieces.segment(piece)
        return Segment(
            rate,
            until,
            noise_scale=table.noise_scale(cut.batch, piece) if table.has_noise else None,
            observation=cut.observation,
            epoch_end=table.end_of(piece + 1, pieces.bounds[piece + 1], cut.batch, piece),
        )

    def _pieces_of(self, job: JobState, cut: BatchCut, samples_done: float) -> Pieces:
        goal = self._goal(job, cut.batch, samples_done)
        key = (job.spec.convergence, job.spec.model, cut.batch, cut.step_seconds, goal, job.work_samples)
        pieces = self._pieces.get(key)
        if pieces is None:
            pieces = self._pieces[key] = self._make(job, cut, goal)
        return pieces

    def _goal(self, job: JobState, batch: int, samples_done: float) -> float:
        """Epochs after which the job ends at that batch; not before the end of the present one."""
        target, goal = _target(job), self.epochs(job)
        if target is None:
            return goal
        reached = self._epoch_of_metric(self.table(job), batch, target, goal)
        return min(goal, max(reached, epoch_of(samples_done, self.samples_per_epoch(job)) + 1))

    def _make(self, job: JobState, cut: BatchCut, goal: float) -> Pieces:
        table, width = self.table(job), self.samples_per_epoch(job)
        epochs = range(math.ceil(goal))
        bounds = [epoch * width for epoch in epochs] + [goal * width]
        rates = [width / seconds for seconds in self.epoch_seconds(table, cut)[: len(epochs)]]
        rates += rates[-1:] * (len(epochs) - len(rates))  # after the last epoch of the table as in the last
        return self.pieces(bounds, rates)

    @staticmethod
    def _epoch_of_metric(table: Validation, batch: int, target: float, goal: float) -> float:
        """Epochs after which the metric is reached; ``goal`` if it never is."""
        for epoch in range(min(table.epochs, math.ceil(goal))):
            metric = table.metric(batch, epoch)
            if metric >= target if table.grows() else metric <= target:
                return epoch + 1
        return goal


class BatchCut(NamedTuple):
    """How a job's batch is cut for the GPUs that it holds, and what a step takes."""

    batch: int
    """Samples per step that are really trained."""
    step_seconds: float
    observation: Observation | None = None
    """What the job measures by it; None: what the throughput model says."""


def _target(job: JobState) -> float | None:
    """The metric at which a job ends, if its labels name one."""
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
    """The epoch of a job that has done this many samples; at its end the next one."""
    return math.floor(samples / samples_per_epoch + 1e-9)


class ReportingSamples(SampleProgress):
    """Work is a number of samples, and jobs report what the run in their convergence table did.

    At the end of each of its epochs a job reports the loss and the metric of the table's epoch in which the
    same part of the work was done. Its speed and its work are as without the table.
    """

    def __init__(self, tables: Mapping[str, Validation]) -> None:
        self._tables = tables

    def segment(self, job: JobState, samples_done: float, speed_factor: float = 1.0) -> Segment:
        plain = super().segment(job, samples_done, speed_factor)
        table, size = self._tables.get(job.spec.convergence or ""), job.epoch_samples
        if table is None or not size or not job.work_samples:
            return plain
        number = epoch_of(samples_done, size) + 1
        end = number * size
        if end >= job.work_samples:
            return plain
        epoch = table.epoch_at(end / job.work_samples)
        return plain._replace(until_samples=end, epoch_end=table.end_of(number, end, job.global_batch, epoch))

    def initial_loss(self, job: JobState) -> float | None:
        table = self._tables.get(job.spec.convergence or "")
        return None if table is None else table.initial_loss


class GoodputProgress(ProgressModel):
    """Goodput of Pollux (OSDI '21): throughput times the statistical efficiency (φ + B0) / (φ + B).

    φ is the gradient noise scale: that of the epoch of the job's convergence table in which the same part of
    the work was done, or without a table one number for each model. One trajectory covers all epochs;
    stepwise, each is a segment of its own, so the job shows its noise.
    """

    def __init__(
        self,
        tables: Mapping[str, Validation],
        constant: Mapping[str, float] | None = None,
        *,
        stepwise: bool = False,
    ) -> None:
        """``constant``: φ in samples by model, for jobs without a table; "" stands for all other models."""
        self._tables = tables
        self._constant = constant or {}
        self._stepwise = stepwise
        self._pieces: dict[tuple[object, ...], Pieces] = {}

    def segment(self, job: JobState, samples_done: float, speed_factor: float = 1.0) -> Segment:
        speed = job.samples_per_second * speed_factor
        if speed <= 0:
            return Segment(0.0)
        table = self._tables.get(job.spec.convergence or "")
        if table is None or job.work_samples is None:
            noise_scale = self._constant.get(job.spec.model) or self._constant[""]
            rate = speed * efficiency(noise_scale, job.reference_batch, job.global_batch)
            return Segment(rate, noise_scale=noise_scale)
        key = (job.spec.convergence, job.reference_batch, job.global_batch, job.work_samples, speed)
        if key not in self._pieces:
            self._pieces[key] = goodput_pieces(table, job, speed, job.work_samples)
        pieces = self._pieces[key]
        if self._stepwise:
            epoch = pieces.piece_at(samples_done)
            return pieces.segment(epoch)._replace(noise_scale=table.noise_scale(job.global_batch, epoch))
        return pieces.to_the_end(samples_done)


def efficiency(noise_scale: float, reference_batch: float, batch: float) -> float:
    """Training per sample of ``batch``, relative to the reference batch: (φ + B0) / (φ + B)."""
    if noise_scale == float("inf"):
        return 1.0
    return (noise_scale + reference_batch) / (noise_scale + batch)


def goodput_pieces(table: Validation, job: JobState, speed: float, total: float) -> Pieces:
    """Of a job of ``total`` samples at ``speed`` samples per second, a piece for each epoch of its table."""
    batch, whole = job.global_batch, table.least_progress[-1]
    bounds = [0.0, *(total * progress / whole for progress in table.least_progress)]
    rates = [
        speed * efficiency(table.noise_scale(batch, epoch), job.reference_batch, batch)
        for epoch in range(table.epochs)
    ]
    return Pieces(bounds, rates)


class ProgressByJob(ProgressModel):
    """Epochs for the jobs that have a table, samples for the others."""

    def __init__(self, tables: Mapping[str, Validation], epochs: EpochProgress) -> None:
        self._tables = tables
        self._epochs = epochs
        self._samples = SampleProgress()

    def segment(self, job: JobState, samples_done: float, speed_factor: float = 1.0) -> Segment:
        return self._model(job).segment(job, samples_done, speed_factor)

    def all_samples(self, job: JobState) -> float | None:
        return self._model(job).all_samples(job)

    def end_samples(self, job: JobState, samples_done: float) -> float | None:
        return self._model(job).end_samples(job, samples_done)

    def initial_loss(self, job: JobState) -> float | None:
        return self._model(job).initial_loss(job)

    def _model(self, job: JobState) -> ProgressModel:
        return self._epochs if job.spec.convergence in self._tables else self._samples


class Pieces:
    """Bounds in samples and the rates between them, shared by all jobs of a kind on equal GPUs."""

    def __init__(self, bounds: Sequence[float], rates: Sequence[float]) -> None:
        """``bounds`` are one more than ``rates``, which are samples per second."""
        self.bounds = bounds
        self.rates = rates
        exact_s = [(end - start) / rate for start, end, rate in zip(bounds, bounds[1:], rates, strict=False)]
        # When each bound is reached, from the start of the first piece.
        self.ends_s = list(accumulate(self.lasts_s(exact_s), initial=0.0))

    def lasts_s(self, exact_s: Sequence[float]) -> Sequence[float]:
        """How long the pieces take that last ``exact_s`` by their rates."""
        return exact_s

    def trajectory(self, done: float) -> PieceTrajectory:
        return PieceTrajectory(self, done)

    def to_the_end(self, done: float) -> Segment:
        trajectory = self.trajectory(done)
        return Segment(trajectory.rate, trajectory=trajectory)

    def segment(self, piece: int) -> Segment:
        """One piece by itself: its rate, up to its end; the last one ends with the work."""
        is_last = piece == len(self.rates) - 1
        return Segment(self.rates[piece], None if is_last else self.bounds[piece + 1])

    def piece_at(self, samples: float) -> int:
        """The piece of a job that has done this many samples; at a bound the one that begins there."""
        last = len(self.rates) - 1
        piece = min(bisect_right(self.bounds, samples) - 1, last)
        width = self.bounds[piece + 1] - self.bounds[piece]
        return min(piece + 1, last) if self.bounds[piece + 1] - samples <= _SNAP * width else piece


class PieceTrajectory:
    """One job's trajectory from ``done`` samples to the end of the last piece."""

    __slots__ = ("_done", "_first", "_offset_s", "_pieces", "seconds")

    def __init__(self, pieces: Pieces, done: float) -> None:
        self._pieces = pieces
        self._done = done
        self._first = pieces.piece_at(done)
        left_s = max(0.0, pieces.bounds[self._first + 1] - done) / pieces.rates[self._first]
        self._offset_s = pieces.ends_s[self._first + 1] - self._first_lasts_s(left_s)
        self.seconds = pieces.ends_s[-1] - self._offset_s

    @property
    def rate(self) -> float:
        return self._pieces.rates[self._first]

    def samples_done(self, since_s: float, time_s: float) -> float:
        """Samples done at ``time_s`` by a job that follows it since ``since_s``."""
        passed_s = time_s - since_s
        if passed_s <= 0:
            return self._done
        pieces = self._pieces
        at_s = passed_s + self._offset_s
        piece = self._piece_at(at_s, time_s)
        if piece == self._first:
            return min(self._done + passed_s * pieces.rates[piece], pieces.bounds[piece + 1])
        if piece == len(pieces.rates):
            return pieces.bounds[piece]
        in_piece_s = at_s - pieces.ends_s[piece]
        return min(pieces.bounds[piece] + in_piece_s * pieces.rates[piece], pieces.bounds[piece + 1])

    def is_late(self, end_s: float) -> bool:
        """Whether a decision at the very moment of the end still sees the job."""
        del end_s
        return False

    def _first_lasts_s(self, left_s: float) -> float:
        """Seconds to the end of the job's present piece; ``left_s`` by its rate."""
        return left_s

    def _piece_at(self, at_s: float, time_s: float) -> int:
        """The piece ``at_s`` after the start of the first one, which is ``time_s`` on the clock."""
        del time_s
        return bisect_right(self._pieces.ends_s, at_s, self._first + 1) - 1
