"""The bounded, uniform sample of epochs that a predictor learns from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

import numpy as np

from pliant.schemas.predictor import MOST_ROWS, SampleRow
from pliant.tools.profile.predictor.epochs import Floats, epochs_done

_FEATURES: Final = 5
_TOTAL: Final = 5
_HELD_OUT: Final = 6
_JOB: Final = 7
_WIDTH: Final = 8


class Sample:
    """Rows of the jobs that were added, at most :data:`MOST_ROWS`, each kept with the same probability."""

    def __init__(self, seed: int, rows: Iterable[SampleRow] = (), rows_seen: int = 0) -> None:
        self.seed = seed
        self.rows_seen = rows_seen
        known = [[np.nan if value is None else float(value) for value in row] for row in rows]
        self._rows = np.array(known).reshape(-1, _WIDTH)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def features(self) -> Floats:
        """The features of each row."""
        return self._rows[:, :_FEATURES]

    @property
    def alpha(self) -> Floats:
        """Epochs done at each row."""
        return epochs_done(self._rows[:, 0], self._rows[:, 2])

    @property
    def progress(self) -> Floats:
        """The part of the job's work that was done at each row."""
        found: Floats = self._rows[:, 2] / self._rows[:, _TOTAL]
        return found

    @property
    def held_out(self) -> Floats:
        """Epochs to go, predicted without the job of the row; NaN: not predicted yet."""
        return self._rows[:, _HELD_OUT]

    @property
    def job(self) -> Floats:
        """The number of the job of each row."""
        return self._rows[:, _JOB]

    def add(self, rows: Floats, held_out: Floats, job: int) -> None:
        """Add the rows of one job, as ``epochs.rows_of`` makes them."""
        added = np.column_stack([rows, held_out, np.full(len(rows), float(job))])
        free = MOST_ROWS - len(self._rows)
        self._rows = np.vstack([self._rows, added[:free]])
        self.rows_seen += min(free, len(added))
        rng = np.random.default_rng([self.seed, job]) if len(added) > free else None
        for row in added[free:]:
            self.rows_seen += 1
            place = int(rng.integers(self.rows_seen)) if rng is not None else 0
            if place < MOST_ROWS:
                self._rows[place] = row

    def predict_held_out(self, job: Floats, epochs: Floats) -> None:
        """Note what is predicted of the rows that ``job`` marks."""
        self._rows[job, _HELD_OUT] = epochs

    def to_rows(self) -> tuple[SampleRow, ...]:
        """The rows as a file holds them."""
        rows = [[None if np.isnan(value) else value for value in row] for row in self._rows.tolist()]
        return tuple(cast("SampleRow", (*row[:_JOB], int(row[_JOB] or 0))) for row in rows)
