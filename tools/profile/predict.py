"""How long a job takes on some GPUs at some batch, and where each number comes from.

The use that "Effective Elastic Scaling of Deep Learning Workloads" (Saxena et al., 2020, section V-A) makes
of its scalability analyzer: a user with a deadline drops the batches that do not meet it. The scaling
factor is the paper's (section III-C): T(b, k) / T(b_max, 1), b_max being the largest batch that the job may
be given on one GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.throughput import Placement, key, plan_batch, shape, training_rows
from pliant.tools.profile.throughput_model import AllReduce, SizeTable, ThroughputBySize, allreduces

Source = Literal["measured", "modelled"]
Spread = tuple[float, float]
"""The smallest and the largest relative error of a model, as :attr:`HoldOut.error`."""


@dataclass(frozen=True, slots=True)
class Question:
    """One job on GPUs of one type."""

    job: str
    model: str
    gpu_type: str
    samples: float | None
    """All its work; None: unknown."""
    per_gpu_max: int | None = None
    """Largest local batch that its author allows."""
    batch_max: int | None = None
    """Largest global batch that its author allows; None: any."""
    spread: Spread | None = None
    """Of the model's errors on held-out rows; None: not known."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One number of GPUs and one global batch; what is infeasible or unknown has null times and says why."""

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
    """All the work, from its start and without a change; null where the work is unknown."""
    finish_seconds_low: float | None = None
    finish_seconds_high: float | None = None
    """The interval that the model's errors on rows held out allow; null for what was measured, and where no
    row could be held out."""
    source: Source | None = None
    """Where ``step_seconds`` comes from, and with it all the others."""
    infeasible: str | None = None
    unknown: str | None = None
    """Why nothing is known of this size; it may well run."""


@dataclass(frozen=True, slots=True)
class Base:
    """The largest batch of one GPU, which scaling factors are relative to."""

    local_batch: int
    step_seconds: float
    source: Source

    @property
    def samples_per_second(self) -> float:
        """T(b_max, 1)."""
        return self.local_batch / self.step_seconds


def base_of(speed: ThroughputBySize, question: Question) -> Base | None:
    """The base of a job's scaling factors; None: no batch fits one GPU.

    :raises BadInputError: the model is not profiled.
    """
    fits = _largest_local(speed, question)
    if not fits:
        return None
    largest = min(fits, question.batch_max or fits)
    where = (question.model, question.gpu_type, (1,), largest, question.per_gpu_max)
    seconds = speed.step_seconds(*where)
    return None if seconds is None else Base(largest, seconds, speed.source(*where))


def predict(
    speed: ThroughputBySize, question: Question, places: Mapping[int, Placement], batches: Iterable[int]
) -> list[Prediction]:
    """All combinations, ordered by GPUs and batch.

    :param places: the placement meant by each number of GPUs.
    :raises BadInputError: the model is not profiled.
    """
    base = base_of(speed, question)
    wanted = sorted(set(batches))
    return [
        _predict(speed, question, base, places[gpus], batch) for gpus in sorted(places) for batch in wanted
    ]


def _predict(
    speed: ThroughputBySize, question: Question, base: Base | None, place: Placement, batch: int
) -> Prediction:
    gpus, largest = sum(place), _largest_local(speed, question)
    asked = (question.job, question.model, question.gpu_type, gpus, batch)
    if batch < gpus:
        return Prediction(*asked, infeasible=f"{batch} samples are too few for {gpus} GPUs")
    if not largest:
        return Prediction(*asked, infeasible="no batch fits a GPU")
    plan = plan_batch(batch, gpus, largest)
    where = (question.model, question.gpu_type, place, batch, question.per_gpu_max)
    seconds = speed.step_seconds(*where)
    if seconds is None:
        reason = _beyond(gpus, speed.sizes(question.model, question.gpu_type))
        return Prediction(*asked, plan.local, plan.accum, unknown=reason)
    rate, source = batch / seconds, speed.source(*where)
    finish = None if question.samples is None else question.samples / rate
    low, high = _interval(finish, question.spread if source == "modelled" else None)
    return Prediction(
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
    """From the shortest to the longest time that errors like those on held-out rows would hide."""
    if finish_s is None or spread is None:
        return None, None
    low, high = spread
    return finish_s / (1.0 + high), finish_s / (1.0 + low)


def _beyond(gpus: int, sizes: Sequence[int]) -> str:
    """Why a size is unknown: what was measured instead, and what would tell."""
    measured = ", ".join(map(str, sizes))
    return f"measured on {measured} GPU{'s' * (measured != '1')}; {gpus} need a row or all-reduces"


def _largest_local(speed: ThroughputBySize, question: Question) -> int:
    """Most samples that one GPU may get at a time; 0: no batch fits."""
    fits = speed.max_local_batch(question.model, question.gpu_type)
    return min(fits, question.per_gpu_max or fits)


@dataclass(frozen=True, slots=True)
class HoldOut:
    """A measured row and what the model says of it without having seen it."""

    row: ProfileRow
    predicted_s: float

    @property
    def error(self) -> float:
        """Relative error: 0.1 means predicted 10 % slower than measured."""
        return self.predicted_s / (self.row.step_seconds or self.predicted_s) - 1.0


def holdout_errors(profile: Profile) -> list[HoldOut]:
    """The model's error on each measured row of several GPUs, left out one at a time.

    With a row all others are left out that measure the same. Rows that cannot be predicted without them
    (the only one beyond one GPU) are not in the list.
    """
    found = []
    known = allreduces(profile.rows)
    by_model = training_rows(profile.rows)
    groups = [by_model[model][kind] for model in sorted(by_model) for kind in sorted(by_model[model])]
    for group in groups:
        allreduce = known.get(group[0].gpu_type, AllReduce(()))
        for row in group:
            if row.gpus > 1 and row.feasible and row.source == "measured":
                predicted = _without(row, group, allreduce)
                found += [] if predicted is None else [HoldOut(row, predicted)]
    return found


def spreads(profile: Profile) -> dict[tuple[str, str], Spread]:
    """The spread of the model's errors on held-out rows, by model and GPU type; 0 is always within."""
    errors: dict[tuple[str, str], list[float]] = {}
    for found in holdout_errors(profile):
        errors.setdefault((found.row.model, found.row.gpu_type), []).append(found.error)
    return {kind: (min(0.0, *each), max(0.0, *each)) for kind, each in errors.items()}


def _without(row: ProfileRow, group: Collection[ProfileRow], allreduce: AllReduce) -> float | None:
    table = SizeTable([other for other in group if key(other) != key(row)], allreduce)
    plan = table.cut(shape(row), row.gpus * row.local_batch * row.accum_steps, row.local_batch)
    return None if plan is None else table.seconds(shape(row), plan)
