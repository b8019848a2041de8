"""How long a job takes on some GPUs at some batch, where each number comes from, and how far it may be off.

The scaling factor is T(b, k) / T(b_max, 1), b_max being the largest batch that the job may have on one GPU
("Effective Elastic Scaling of Deep Learning Workloads", Saxena et al., 2020, section III-C). Section V-A
shows its use: a user with a deadline drops the batches that do not meet it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pliant.schemas.profile import Profile, ProfileRow
from pliant.schemas.text import in_gpus
from pliant.tools.profile.throughput import Placement, key, plan_batch, rows_across, shape, training_rows
from pliant.tools.profile.throughput_model import AllReduce, SizeTable, ThroughputBySize, allreduces

Source = Literal["measured", "modelled"]
Spread = tuple[float, float]
"""The smallest and the largest :attr:`HoldOut.error` of a model."""


@dataclass(frozen=True, slots=True)
class PredictionQuery:
    """One job on GPUs of one type."""

    job: str
    model: str
    gpu_type: str
    samples: float | None
    """All its work; None if unknown."""
    per_gpu_max: int | None = None
    """Largest local batch that its author allows."""
    batch_max: int | None = None
    """Largest global batch that its author allows; None: any."""
    spread: Spread | None = None
    """Spread of the model's errors on held-out rows, if known."""
    per_replica: int = 1
    """GPUs of a replica, over which the batch is divided."""


@dataclass(frozen=True, slots=True)
class StepPrediction:
    """One number of GPUs and one global batch; if infeasible or unknown, times are null and it says why."""

    job: str
    model: str
    gpu_type: str
    gpus: int
    global_batch: int
    local_batch: int | None = None
    accum_steps: int | None = None
    step_seconds: float | None = None
    samples_per_second: float | None = None
    scaling_factor: float | None = None
    finish_seconds: float | None = None
    """Seconds for all the work, without interruption; null if the work is unknown."""
    finish_seconds_low: float | None = None
    finish_seconds_high: float | None = None
    """By the model's errors on held-out rows; null for measured times, and if no row could be held out."""
    source: Source | None = None
    """Source of ``step_seconds``, and with it of the other numbers."""
    infeasible: str | None = None
    unknown: str | None = None
    """Why nothing is known of this size, which may well run."""


@dataclass(frozen=True, slots=True)
class Base:
    """The largest batch of one GPU, or replica; scaling factors are relative to it."""

    local_batch: int
    step_seconds: float
    source: Source

    @property
    def samples_per_second(self) -> float:
        """T(b_max, 1)."""
        return self.local_batch / self.step_seconds


def predict(
    speed: ThroughputBySize,
    question: PredictionQuery,
    places: Mapping[int, Placement],
    batches: Iterable[int],
) -> list[StepPrediction]:
    """A prediction for each combination, ordered by GPUs and batch.

    :param places: by number of GPUs, the placement that is meant.
    :raises BadInputError: the model is not profiled.
    """
    base = base_of(speed, question)
    wanted = sorted(set(batches))
    return [
        _predict(speed, question, base, places[gpus], batch) for gpus in sorted(places) for batch in wanted
    ]


def base_of(speed: ThroughputBySize, question: PredictionQuery) -> Base | None:
    """The base of a job's scaling factors; None if no batch fits one GPU.

    :raises BadInputError: the model is not profiled.
    """
    fits = _largest_local(speed, question)
    if not fits:
        return None
    largest = min(fits, question.batch_max or fits)
    each = question.per_replica
    where = (question.model, question.gpu_type, (each,), largest * each, question.per_gpu_max)
    seconds = speed.step_seconds(*where)
    return None if seconds is None else Base(largest, seconds, speed.source(*where))


def _predict(
    speed: ThroughputBySize, question: PredictionQuery, base: Base | None, place: Placement, batch: int
) -> StepPrediction:
    gpus, largest, each = sum(place), _largest_local(speed, question), question.per_replica
    asked = (question.job, question.model, question.gpu_type, gpus, batch)
    workers, rest = divmod(gpus, each)
    if rest:
        return StepPrediction(*asked, infeasible=f"{in_gpus(gpus)} are no whole replicas of {each}")
    if batch < workers:
        return StepPrediction(*asked, infeasible=f"{batch} samples are too few for {gpus} GPUs")
    if not largest:
        return StepPrediction(*asked, infeasible="no batch fits a GPU")
    plan = plan_batch(batch, workers, largest)
    where = (question.model, question.gpu_type, place, batch * each, question.per_gpu_max)
    seconds = speed.step_seconds(*where)
    if seconds is None:
        reason = _beyond(gpus, speed.sizes(question.model, question.gpu_type))
        return StepPrediction(*asked, plan.local, plan.accum, unknown=reason)
    rate, source = batch / seconds, speed.source(*where)
    finish = None if question.samples is None else question.samples / rate
    low, high = _interval(finish, question.spread if source == "modelled" else None)
    return StepPrediction(
        *asked,
        plan.local,
        plan.accum,
        seconds,
        rate,
        None if base is None else rate / base.samples_per_second,
        finish,
        low,
        high,
        source,
    )


def _interval(finish_s: float | None, spread: Spread | None) -> tuple[float | None, float | None]:
    """The shortest and the longest time that errors like those on held-out rows allow."""
    if finish_s is None or spread is None:
        return None, None
    low, high = spread
    return finish_s / (1.0 + high), finish_s / (1.0 + low)


def _beyond(gpus: int, sizes: Sequence[int]) -> str:
    """Why a size is unknown: what was measured, and what is missing."""
    measured = ", ".join(map(str, sizes))
    return f"measured on {measured} GPU{'s' * (measured != '1')}; {gpus} need a row or all-reduces"


def _largest_local(speed: ThroughputBySize, question: PredictionQuery) -> int:
    """Most samples that one GPU may get at a time; 0 if no batch fits."""
    fits = speed.max_local_batch(question.model, question.gpu_type)
    return min(fits, question.per_gpu_max or fits)


@dataclass(frozen=True, slots=True)
class HoldOut:
    """A measured row, and the model's prediction without having seen it."""

    row: ProfileRow
    predicted_s: float

    @property
    def error(self) -> float:
        """Relative error: 0.1 means predicted 10 % slower than measured."""
        return self.predicted_s / (self.row.step_seconds or self.predicted_s) - 1.0


def holdout_errors(profile: Profile) -> list[HoldOut]:
    """The model's error on each measured row of several GPUs, left out one at a time.

    Rows that measure the same are left out together. Rows that then cannot be predicted are not in the list,
    nor are those across a level of the network.
    """
    errors = []
    rows = rows_across(profile.rows)
    known, by_model = allreduces(rows), training_rows(rows)
    groups = [by_model[model][kind] for model in sorted(by_model) for kind in sorted(by_model[model])]
    for group in groups:
        allreduce = known.get(group[0].gpu_type, AllReduce(()))
        for row in group:
            if row.gpus > 1 and row.feasible and row.source == "measured":
                predicted = _without(row, group, allreduce)
                errors += [] if predicted is None else [HoldOut(row, predicted)]
    return errors


def with_model_errors(rows: Sequence[ProfileRow]) -> tuple[ProfileRow, ...]:
    """The rows, each with its own error; those that cannot be held out have none."""
    errors = {id(held_out.row): held_out.error for held_out in holdout_errors(Profile(tuple(rows)))}
    return tuple(replace(row, model_error=errors.get(id(row))) for row in rows)


def spreads(profile: Profile) -> dict[tuple[str, str], Spread]:
    """The spread of the model's errors on held-out rows, by model and GPU type; it always includes 0."""
    errors: dict[tuple[str, str], list[float]] = {}
    for error in holdout_errors(profile):
        errors.setdefault((error.row.model, error.row.gpu_type), []).append(error.error)
    return {kind: (min(0.0, *each), max(0.0, *each)) for kind, each in errors.items()}


def _without(row: ProfileRow, group: Collection[ProfileRow], allreduce: AllReduce) -> float | None:
    table = SizeTable([other for other in group if key(other) != key(row)], allreduce)
    plan = table.cut(shape(row), row.gpus * row.local_batch * row.accum_steps, row.local_batch)
    return None if plan is None else table.seconds(shape(row), plan)
