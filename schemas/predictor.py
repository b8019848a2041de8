"""The ``predictor`` kind: how far jobs are that do not state their work, learned from jobs that ended (JSON).

It holds the rows that it was fitted to, so that a run or a replay goes on learning from there.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from pliant.schemas.file_io.record import (
    BoundedFloat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    Record,
    Seed,
    broken_rule,
)

FEATURES: Final = ("epoch_samples", "initial_loss", "samples_done", "loss_improvement", "metric")
"""What the number of epochs to go depends on, in this order: samples of an epoch; loss before training;
samples trained; 1 - loss / initial loss; validation metric."""
MOST_ROWS: Final = 2000

FiveNumbers = tuple[BoundedFloat, BoundedFloat, BoundedFloat, BoundedFloat, BoundedFloat]
Known = BoundedFloat | None
SampleRow = tuple[PositiveFloat, Known, NonNegativeFloat, Known, Known, PositiveFloat, Known, NonNegativeInt]
"""The five features of one epoch of a job that ended; all of its samples; the epochs to go as they were
predicted when the job was not yet learned from; the number of the job."""


class ProgressFit(Record):
    """The epochs to go as a linear function of the normalised features: b + Σ a · (x - mean) / scale."""

    mean: FiveNumbers
    scale: tuple[PositiveFloat, PositiveFloat, PositiveFloat, PositiveFloat, PositiveFloat]
    weights: FiveNumbers
    """a."""
    bias: BoundedFloat
    """b, in epochs."""
    trust: Annotated[float, Field(ge=0, le=1)]
    """How far the Beta distribution is narrowed from the uniform one (0) to that of the fit (1): under it,
    what jobs did that were not yet learned from has the largest likelihood."""


class Predictor(Record):
    """A progress predictor: what it learned, and the sample of epochs that it goes on learning from."""

    schema_: Literal["pliant.predictor/1"] = Field(default="pliant.predictor/1", alias="schema")
    seed: Seed = 0
    """Seed of the sample."""
    jobs: NonNegativeInt = 0
    """Finished jobs that it learned from."""
    rows_seen: NonNegativeInt = 0
    """Epochs of these jobs, of which ``rows`` are a uniform sample."""
    fitted_jobs: NonNegativeInt = 0
    """Jobs that it had learned from when it was fitted last."""
    widened: bool = True
    """Whether the fitted distribution is widened by its trust; false: the trust is 1, as in the paper."""
    fit: ProgressFit | None = None
    """Null: too few jobs have ended yet; progress is then uniform between 0 and 1."""
    rows: Annotated[tuple[SampleRow, ...], Field(max_length=MOST_ROWS)] = ()
    """[epoch_samples, initial_loss, samples_done, loss_improvement, metric, total samples, epochs to go as
    predicted before the job was learned from, number of the job]; null where a value is not known."""

    @model_validator(mode="after")
    def _rows_are_of_its_jobs(self) -> Self:
        for index, row in enumerate(self.rows):
            if row[7] >= self.jobs:
                raise broken_rule(f"is {row[7]}, expected below jobs, {self.jobs}", f"/rows/{index}/7")
            if not row[2] < row[5]:
                text = f"is {row[2]:g}, expected less than all samples, {row[5]:g}"
                raise broken_rule(text, f"/rows/{index}/2")
        return self
