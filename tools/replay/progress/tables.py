"""Validation runs of one model: what each epoch took and led to, by global batch, linear in between.

Progress in pieces: a job advances at one rate from bound to bound, without an event in between.

The pieces of a job that trains on are laid end to end once; where it is at some time, and when it ends, is
then looked up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Final

from pliant.schemas.errors import BadInputError
from pliant.schemas.profile import ConvergenceRow
from pliant.tools.replay.progress.protocol import Segment

Column = Callable[[ConvergenceRow], float | None]
_ITERATIONS: Column = attrgetter("iterations")
_METRIC: Column = attrgetter("metric")
_GRAD_SQR: Column = attrgetter("grad_sqr")
_GRAD_VAR: Column = attrgetter("grad_var")


class Validation:
    """The runs of one model. Epochs count from 0; below and above the batches the nearest run answers."""

    def __init__(self, rows: Iterable[ConvergenceRow]) -> None:
        """:raises BadInputError: an epoch of a run is missing, or takes no iterations."""
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
        """Progress at the end of each epoch, the least of all runs.

        :raises BadInputError: there is none in some epoch.
        """
        found = tuple(min(run[epoch].progress for run in self._runs) for epoch in range(self.epochs))
        self._refuse_standstill(found, "progress")
        return found

    @cached_property
    def has_metric(self) -> bool:
        """Whether every epoch of every run has a validation metric."""
        return all(row.metric is not None for run in self._runs for row in run)

    @cached_property
    def has_noise(self) -> bool:
        """Whether every epoch of every run has gradients; without them no noise is measured."""
        return all(None not in (row.grad_sqr, row.grad_var) for run in self._runs for row in run)

    def iterations(self, batch: float, epoch: int) -> float:
        """Optimizer steps from the start to the end of an epoch."""
        return self._between(_ITERATIONS, batch, epoch)

    def metric(self, batch: float, epoch: int) -> float:
        """Validation metric at the end of an epoch."""
        return self._between(_METRIC, batch, epoch)

    def grows(self) -> bool:
        """Whether the metric is one that training makes larger."""
        first, last = self._runs[0][0].metric, self._runs[0][-1].metric
        return first is None or last is None or last >= first

    def gain(self, batch: float, epoch: int) -> float:
        """Progress of one step of ``batch`` samples: how many steps of the smallest batch it is worth."""
        sqr, var = self._between(_GRAD_SQR, batch, epoch), self._between(_GRAD_VAR, batch, epoch)
        if not sqr and not var:
            raise BadInputError(
                f'convergence of "{self.model}": grad_sqr and grad_var are 0 around batch {batch:g}, '
                f"epoch {epoch}, expected a gradient"
            )
        scale = batch / self.batches[0]
        return (var + sqr) / (var / scale + sqr)

    def gains(self, batch: float) -> Sequence[float]:
        """:meth:`gain` of every epoch, kept."""
        found = self._gains.get(batch)
        if found is None:
            found = self._gains[batch] = [self.gain(batch, epoch) for epoch in range(self.epochs)]
        return found

    def noise_scale(self, batch: float, epoch: int) -> float:
        """Gradient noise scale φ in samples: variance over squared norm, for the smallest batch."""
        sqr, var = self._between(_GRAD_SQR, batch, epoch), self._between(_GRAD_VAR, batch, epoch)
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
        value = column(self._runs[run][epoch])
        if value is None:
            raise BadInputError(
                f'convergence of "{self.model}" at batch {self.batches[run]}, epoch {epoch}: a value that '
                "this replay needs is null"
            )
        return value


def validations(rows: Iterable[ConvergenceRow]) -> Mapping[str, Validation]:
    """The runs of each model.

    :raises BadInputError: an epoch of a run is missing.
    """
    by_model: dict[str, list[ConvergenceRow]] = {}
    for row in rows:
        by_model.setdefault(row.model, []).append(row)
    return {model: Validation(found) for model, found in by_model.items()}


_SNAP: Final = 1e-9
"""Parts of a piece within which a job stands at its end: the difference is rounding."""


class Pieces:
    """Bounds in samples and the rates between them, shared by all jobs of a kind on equal GPUs."""

    def __init__(self, bounds: Sequence[float], rates: Sequence[float]) -> None:
        """``bounds`` are one more than ``rates``, which are samples per second."""
        self.bounds = bounds
        self.rates = rates
        exact_s = [(end - start) / rate for start, end, rate in zip(bounds, bounds[1:], rates, strict=False)]
        self.ends_s = list(accumulate(self.lasts_s(exact_s), initial=0.0))
        """When each bound is reached, from the start of the first piece."""

    def lasts_s(self, exact_s: Sequence[float]) -> Sequence[float]:
        """How long the pieces take that last ``exact_s`` by their rates."""
        return exact_s

    def trajectory(self, done: float) -> PieceTrajectory:
        """The trajectory of a job that has done this many samples."""
        return PieceTrajectory(self, done)

    def to_the_end(self, done: float) -> Segment:
        """All that comes for a job that has done this many samples."""
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
    """The trajectory of one job from where it is to the end of the last piece."""

    __slots__ = ("_done", "_first", "_offset_s", "_pieces", "seconds")

    def __init__(self, pieces: Pieces, done: float) -> None:
        """``done``: samples at its start."""
        self._pieces = pieces
        self._done = done
        self._first = pieces.piece_at(done)
        left_s = max(0.0, pieces.bounds[self._first + 1] - done) / pieces.rates[self._first]
        self._offset_s = pieces.ends_s[self._first + 1] - self._first_lasts_s(left_s)
        self.seconds = pieces.ends_s[-1] - self._offset_s
        """To the end of the work."""

    @property
    def rate(self) -> float:
        """Samples per second at its start."""
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
        """Seconds until the end of the piece in which the job is, by its rate ``left_s``."""
        return left_s

    def _piece_at(self, at_s: float, time_s: float) -> int:
        """The piece ``at_s`` after the start of the first one, which is ``time_s`` on the clock."""
        del time_s
        return bisect_right(self._pieces.ends_s, at_s, self._first + 1) - 1
