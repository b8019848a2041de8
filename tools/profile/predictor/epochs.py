"""What is known of jobs at the ends of their epochs, in columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pliant.schemas.file_io.record import MOST

Floats = NDArray[np.float64]
_DIGITS: Final = 9
"""Of what is kept, so that what was written and read is what was there."""
MOST_EPOCHS: Final = 64
"""Rows that one job gives at most; those of longer ones are spread evenly."""


class Epoch(NamedTuple):
    """A job at one moment. NaN: not known."""

    epoch_samples: float
    """‖D‖: samples of an epoch."""
    initial_loss: float
    """Training loss before training, or the first one known."""
    samples_done: float
    loss: float
    """Training loss at the last end of an epoch."""
    metric: float
    """Validation metric at the same time."""


def features(epochs: Iterable[Epoch]) -> Floats:
    """One row a moment: the features in the order of ``pliant.schemas.predictor.FEATURES``.

    What is beyond any use, as the loss of a training that diverges, counts as not known.
    """
    found = np.array(list(epochs), dtype=float).reshape(-1, len(Epoch._fields))
    initial = found[:, 1]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found[:, 3] = 1 - found[:, 3] / initial
    found[~(np.abs(found) <= MOST)] = np.nan
    return found


def epochs_done(epoch_samples: Floats, samples_done: Floats) -> Floats:
    """α: epochs that are done, at least 1; 1 where the size of an epoch is not known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        done: Floats = np.fmax(samples_done / epoch_samples, 1.0)
    return done


class EndedJob(NamedTuple):
    """A job that did all of its work, at the ends of its epochs."""

    epochs: Sequence[Epoch]
    total_samples: float


def evenly(epoch_samples: float, initial_loss: float, total_samples: float) -> EndedJob:
    """A job of which nothing is known but its work, at the ends of its epochs."""
    whole = math.ceil(total_samples / epoch_samples) - 1 if epoch_samples > 0 else 0
    ends = range(1, whole + 1, max(1, whole // MOST_EPOCHS))
    nan = math.nan
    return EndedJob(
        [Epoch(epoch_samples, initial_loss, end * epoch_samples, nan, nan) for end in ends], total_samples
    )


def rows_of(job: EndedJob) -> Floats:
    """The rows to learn from: features and, last, all samples of the job.

    The end itself teaches nothing, and neither does an epoch of a size that is not known.
    """
    found = features(job.epochs)
    rows = rounded(np.column_stack([found, np.full(len(found), float(job.total_samples))]))
    rows = rows[(rows[:, 0] > 0) & (rows[:, 2] > 0) & (rows[:, 2] < rows[:, -1])]
    if len(rows) > MOST_EPOCHS:
        rows = rows[np.linspace(0, len(rows) - 1, MOST_EPOCHS).round().astype(int)]
    return rows


def rounded(values: Floats) -> Floats:
    """Values with as many digits as are kept."""
    short = [float(f"{value:.{_DIGITS}g}") for value in values.ravel()]
    return np.array(short).reshape(values.shape)
