"""Validation runs of one model: what each epoch took and led to, by global batch, linear in between."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Literal

from pliant.schemas.errors import BadInputError
from pliant.schemas.profile import ConvergenceRow
from pliant.tools.schedule.jobs import EpochEnd

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
        self.epochs = min(map(len, self._runs))
        """Epochs that every run has."""
        for batch, run in runs.items():
            self._refuse_standstill([row.iterations for row in run], f"iterations at batch {batch}")
        self._gains: dict[float, Sequence[float]] = {}

    @cached_property
    def least_progress(self) -> tuple[float, ...]:
        """Progress at the end of each epoch, the least of all runs."""
        found = tuple(min(run[epoch].progress for run in self._runs) for epoch in range(self.epochs))
        self._refuse_standstill(found, "progress")
        return found

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
        found = self._gains.get(batch)
        if found is None:
            found = self._gains[batch] = [self.gain(batch, epoch) for epoch in range(self.epochs)]
        return found

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
        epoch = min(epoch, self.epochs - 1)
        after = bisect_left(self.batches, batch)
        if after == len(self.batches):
            return self._value(column, after - 1, epoch)
        high = self._value(column, after, epoch)
        if after == 0 or self.batches[after] == batch:
            return high
        low = self._value(column, after - 1, epoch)
        part = (batch - self.batches[after - 1]) / (self.batches[after] - self.batches[after - 1])
        return (1 - part) * low + part * high

    def _value(self, column: Column, run: int, epoch: int) -> float:
        value: float | None = getattr(self._runs[run][epoch], column)
        if value is None:
            raise BadInputError(
                f'convergence of "{self.model}" at batch {self.batches[run]}, epoch {epoch}: a value that '
                "this replay needs is null"
            )
        return value


def validations(rows: Iterable[ConvergenceRow]) -> Mapping[str, Validation]:
    by_model: dict[str, list[ConvergenceRow]] = {}
    for row in rows:
        by_model.setdefault(row.model, []).append(row)
    return {model: Validation(found) for model, found in by_model.items()}
