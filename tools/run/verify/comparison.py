"""What the workers of a run have recorded, and how it differs from the one plain process."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from pliant.tools.run.statedir.contract.recording import RecordedStep, RunFolder

Arrays = Mapping[str, np.ndarray[Any, Any]]
SAMPLES: Final = "samples"
ORDER: Final = "order"
WEIGHTS: Final = "weights"
RATES: Final = "learning rates"
LOSS: Final = "loss"
ASPECTS: Final = (SAMPLES, ORDER, WEIGHTS, RATES, LOSS)
_RATE: Final = 1e-9
"""Relative difference of learning rates that is rounding."""
_SMALL: Final = 1e-3
"""Share of the largest value of all tensors that is the least scale of one."""


@dataclass(frozen=True)
class Recording:
    """One run, as its workers have recorded it."""

    by_step: Mapping[int, Sequence[tuple[int, RecordedStep]]]
    """Each worker's part of a step, as it was counted last: a job may have gone back to a checkpoint."""
    weights: Mapping[int, Mapping[int, Path]]
    """Files by step and worker."""

    @classmethod
    def read(cls, folder: RunFolder) -> Self:
        steps: dict[int, dict[int, list[tuple[int, RecordedStep]]]] = {}
        for path in sorted(folder.path.glob("steps-*.jsonl")):
            attempt, worker = map(int, path.stem.split("-")[1:])
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):  # else its worker was killed
                    step = RecordedStep.parse(line)
                    steps.setdefault(step.step, {}).setdefault(attempt, []).append((worker, step))
        weights: dict[int, dict[int, Path]] = {}
        for path in sorted(folder.path.glob("weights-*.npz")):
            _, worker, number = map(int, path.stem.split("-")[1:])
            weights.setdefault(number, {})[worker] = path
        return cls({number: attempts[max(attempts)] for number, attempts in sorted(steps.items())}, weights)

    @property
    def workers(self) -> set[int]:
        return {worker for parts in self.by_step.values() for worker, _ in parts}

    @property
    def draws(self) -> bool:
        """Whether a step has moved PyTorch's generator."""
        return any(part.draws for parts in self.by_step.values() for _, part in parts)

    @property
    def samples(self) -> list[tuple[int, int, str]]:
        """Epoch, place in its order and digest of all samples, as they were trained.

        Where no worker sees the samples of a step, as the script reads them by itself, digests are empty.
        """
        rows_seen: list[tuple[int, int, str]] = []
        for parts in self.by_step.values():
            rows = [(part.epoch, *row) for _, part in parts for row in part.rows.items()]
            one = parts[0][1]
            unseen = ((one.epoch, place, "") for place in range(one.first, one.first + one.samples))
            rows_seen += rows or unseen
        return rows_seen

    def loss(self, step: int) -> float | None:
        """The mean over the samples of a step. Returns None if none was logged."""
        parts = [part for _, part in self.by_step.get(step, ())]
        counted = sum(part.counted for part in parts)
        return sum(part.loss for part in parts) / counted if counted else None

    def arrays(self, step: int) -> Iterator[Arrays]:
        """The weights of each worker."""
        for path in self.weights[step].values():
            with np.load(path) as file:
                yield dict(file)


@dataclass(frozen=True, slots=True)
class Aspect:
    """Whether one thing is as in the plain process."""

    kept: bool
    text: str = "same"
    difference: float | None = None
    """The largest one, relative; None if it is no finite number."""


@dataclass(frozen=True)
class Comparison:
    """One run beside the plain process."""

    name: str
    error: str = ""
    """Reason that there is nothing to compare."""
    aspects: Mapping[str, Aspect] = field(default_factory=dict)
    """Those of :data:`ASPECTS`."""
    first_loss: bool = True
    """The loss of the first step, before which weights cannot differ, is kept."""
    alike: bool = True
    """The workers have the same weights."""
    tensor: str = ""
    """The one whose weights differ most."""
    draws: bool = False
    """The loop body draws random numbers."""
    warnings: tuple[str, ...] = ()
    """Warnings of the library."""

    @property
    def kept(self) -> bool:
        return not self.error and not any(map(self.lost, self.aspects))

    @property
    def noise(self) -> float:
        """The largest relative difference of weights and losses."""
        numbers = (self.aspects[name] for name in (WEIGHTS, LOSS))
        return max(math.inf if one.difference is None else one.difference for one in numbers)

    def lost(self, aspect: str) -> bool:
        return not self.aspects[aspect].kept


def compare(
    name: str, plain: Recording, other: Recording, tolerance: float, warnings: Sequence[str] = ()
) -> Comparison:
    """:param tolerance: relative, of weights and losses."""
    weights, tensor, apart = _weights(plain, other)
    logged = {step: value for step in plain.by_step if (value := plain.loss(step)) is not None}
    least = _SMALL * max((abs(value) for value in logged.values() if math.isfinite(value)), default=0.0)
    losses = {step: _relative(value, other.loss(step), least) for step, value in logged.items()}
    return Comparison(
        name,
        aspects={
            SAMPLES: _samples(plain, other),
            ORDER: _order(plain, other),
            WEIGHTS: _number(weights, tolerance),
            RATES: _rates(plain, other),
            LOSS: _number(max(losses.values()), tolerance) if losses else Aspect(True, "not logged", 0.0),
        },
        first_loss=losses.get(1, 0.0) <= tolerance,
        alike=apart <= tolerance,
        tensor=tensor,
        draws=plain.draws or other.draws,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _number(apart: float, tolerance: float) -> Aspect:
    kept, text = apart <= tolerance, f"{apart:.0e}" if apart else "same"
    return Aspect(kept, text if kept else f"differ {text}", apart if math.isfinite(apart) else None)


def _samples(plain: Recording, other: Recording) -> Aspect:
    """Which ones, and how often."""
    wanted = Counter((epoch, digest or place) for epoch, place, digest in plain.samples)
    seen = Counter((epoch, digest or place) for epoch, place, digest in other.samples)
    missing, more = (wanted - seen).total(), (seen - wanted).total()
    if not missing and not more:
        return Aspect(True)
    return Aspect(False, f"{missing} of {wanted.total()} missing, {more} others")


def _order(plain: Recording, other: Recording) -> Aspect:
    for step, parts in plain.by_step.items():
        if step not in other.by_step:
            return Aspect(False, f"no step {step}")
        one, two = parts[0][1], other.by_step[step][0][1]
        if (one.epoch, one.first, one.samples) != (two.epoch, two.first, two.samples):
            return Aspect(False, f"differs in step {step}")
    places = {(epoch, place): digest for epoch, place, digest in plain.samples}
    moved = [epoch for epoch, at, digest in other.samples if places.get((epoch, at), digest) != digest]
    return Aspect(False, f"differs in epoch {moved[0]}") if moved else Aspect(True)


def _rates(plain: Recording, other: Recording) -> Aspect:
    for step, parts in plain.by_step.items():
        wanted = parts[0][1].rates
        for _, part in other.by_step.get(step, ()):
            apart = max((_relative(*pair) for pair in zip(wanted, part.rates, strict=False)), default=0.0)
            if apart > _RATE or len(part.rates) != len(wanted):
                return Aspect(False, f"differ from step {step} on")
    return Aspect(True)


def _weights(plain: Recording, other: Recording) -> tuple[float, str, float]:
    """The largest difference from the plain process, in which tensor, and that between workers."""
    largest, apart = (0.0, ""), 0.0
    for step in plain.weights.keys() & other.weights.keys():
        [wanted] = plain.arrays(step)
        before: Arrays | None = None
        for arrays in other.arrays(step):
            largest = max(largest, difference(wanted, arrays))
            apart = max(apart, 0.0 if before is None else difference(before, arrays)[0])
            before = arrays
    is_whole = not plain.weights or max(plain.weights) in other.weights
    return largest[0] if is_whole else math.inf, largest[1], apart


def difference(wanted: Arrays, found: Arrays) -> tuple[float, str]:
    """The largest relative difference, and the tensor that has it."""
    sizes = {name: float(np.abs(one[np.isfinite(one)]).max(initial=0)) for name, one in wanted.items()}
    least = _SMALL * max(sizes.values(), default=0.0)
    differences = [
        (_apart(values, found.get(name)) / (max(sizes[name], least) or 1.0), name)
        for name, values in wanted.items()
    ]
    differences += [(math.inf, name) for name in found.keys() - wanted.keys()]
    return max(differences, default=(0.0, ""))


def _apart(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any] | None) -> float:
    """The largest difference of two values; one that is not a number equals itself only."""
    if other is None or one.shape != other.shape:
        return math.inf
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(one - other))
    return float(np.nan_to_num(apart, nan=math.inf).max(initial=0.0))


def _relative(one: float, other: float | None, least: float = 0.0) -> float:
    """:param least: what a difference is measured by at least."""
    if other is None:
        return math.inf
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    apart = abs(one - other) / max(abs(one), abs(other), least)
    return apart if math.isfinite(apart) else math.inf
