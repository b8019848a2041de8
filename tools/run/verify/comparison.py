"""What the workers of a run have recorded, and how it differs from the one plain process."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from pliant.tools.run.statedir.contract.recording import RecordedStep, RunFolder

Arrays = Mapping[str, np.ndarray[Any, Any]]
RATES: Final = 1e-9
"""Relative difference of learning rates that is rounding."""
_SMALL: Final = 1e-3
"""A tensor is measured by its own largest value, or by this part of the largest of all."""


@dataclass(frozen=True)
class Recording:
    """One run, as its workers have recorded it."""

    by_step: Mapping[int, Sequence[tuple[int, RecordedStep]]]
    """Each worker's part of a step, as it was counted last: a job may have gone back to a checkpoint."""
    weights: Mapping[int, Mapping[int, Path]]
    """Files by step and worker."""

    @classmethod
    def read(cls, folder: RunFolder) -> Self:
        found: dict[int, dict[int, list[tuple[int, RecordedStep]]]] = {}
        for path in sorted(folder.path.glob("steps-*.jsonl")):
            attempt, worker = map(int, path.stem.split("-")[1:])
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):  # else its worker was killed
                    step = RecordedStep.parse(line)
                    found.setdefault(step.step, {}).setdefault(attempt, []).append((worker, step))
        weights: dict[int, dict[int, Path]] = {}
        for path in sorted(folder.path.glob("weights-*.npz")):
            _, worker, step_number = map(int, path.stem.split("-")[1:])
            weights.setdefault(step_number, {})[worker] = path
        by_step = {number: sorted(attempts[max(attempts)]) for number, attempts in sorted(found.items())}
        return cls({n: sorted(parts, key=lambda part: part[0]) for n, parts in by_step.items()}, weights)

    @cached_property
    def workers(self) -> set[int]:
        return {worker for parts in self.by_step.values() for worker, _ in parts}

    @cached_property
    def draws(self) -> bool:
        """Whether a step has moved PyTorch's generator."""
        return any(part.draws for parts in self.by_step.values() for _, part in parts)

    @cached_property
    def samples(self) -> list[tuple[int, int, str]]:
        """Epoch, place in its order and digest of all samples, as they were trained."""
        return [
            (part.epoch, place, digest)
            for parts in self.by_step.values()
            for _, part in parts
            for place, digest in (part.rows or _unseen(part, parts)).items()
        ]

    def loss(self, step: int) -> float | None:
        """The mean over the samples of a step. Returns None if none was logged."""
        parts = [part for _, part in self.by_step[step]]
        counted = sum(part.counted for part in parts)
        return sum(part.loss for part in parts) / counted if counted else None

    def arrays(self, step: int) -> Iterator[tuple[int, Arrays]]:
        for worker, path in self.weights[step].items():
            with np.load(path) as file:
                yield worker, dict(file)


def _unseen(part: RecordedStep, parts: Sequence[tuple[int, RecordedStep]]) -> dict[int, str]:
    """The samples of a step that no worker has seen as rows: the script reads them by itself."""
    is_first = part is parts[0][1] and not any(other.rows for _, other in parts)
    return dict.fromkeys(range(part.first, part.first + part.samples), "") if is_first else {}


@dataclass(frozen=True, slots=True)
class Aspect:
    """Whether one thing is as in the plain process."""

    kept: bool
    text: str
    difference: float | None = None
    """The largest one, relative; None if it is not a number."""


@dataclass(frozen=True)
class Comparison:
    """One run beside the plain process."""

    name: str
    error: str = ""
    """Why there is nothing to compare."""
    aspects: Mapping[str, Aspect] = field(default_factory=dict)
    """By name: samples, order, weights, learning rates, loss."""
    first_loss: bool = True
    """The loss of the first step, before which weights cannot differ, is kept."""
    alike: bool = True
    """The workers have the same weights."""
    tensor: str = ""
    """The one whose weights differ most."""
    draws: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def noise(self) -> float:
        """The largest relative difference of weights and losses."""
        return max(self.aspects[name].difference or 0.0 for name in ("weights", "loss"))

    @property
    def kept(self) -> bool:
        return not self.error and all(aspect.kept for aspect in self.aspects.values())


def compare(
    name: str, plain: Recording, other: Recording, tolerance: float, warnings: Sequence[str] = ()
) -> Comparison:
    """:param tolerance: relative, of weights and losses."""
    weights, tensor, apart = _weights(plain, other)
    logged = {step: value for step in plain.by_step if (value := plain.loss(step)) is not None}
    least = _SMALL * max((abs(value) for value in logged.values() if math.isfinite(value)), default=0.0)
    losses = {
        step: _relative(value, other.loss(step) if step in other.by_step else None, least)
        for step, value in logged.items()
    }
    aspects = {
        "samples": _samples(plain, other),
        "order": _order(plain, other),
        "weights": _number(weights, tolerance),
        "learning rates": _rates(plain, other),
        "loss": _number(max(losses.values()), tolerance) if logged else Aspect(True, "not logged"),
    }
    first = losses.get(min(plain.by_step, default=0), 0.0)
    return Comparison(
        name,
        aspects=aspects,
        first_loss=first <= tolerance,
        alike=apart <= tolerance,
        tensor=tensor,
        draws=plain.draws or other.draws,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _number(difference: float, tolerance: float) -> Aspect:
    kept = difference <= tolerance
    text = f"{difference:.0e}" if difference else "same"
    return Aspect(kept, text if kept else f"differ {text}", difference)


def _samples(plain: Recording, other: Recording) -> Aspect:
    """Which ones, and how often."""
    wanted = Counter((epoch, digest or place) for epoch, place, digest in plain.samples)
    found = Counter((epoch, digest or place) for epoch, place, digest in other.samples)
    missing, more = (wanted - found).total(), (found - wanted).total()
    if not missing and not more:
        return Aspect(True, "same")
    return Aspect(False, f"{missing} of {wanted.total()} missing, {more} others")


def _order(plain: Recording, other: Recording) -> Aspect:
    for step, parts in plain.by_step.items():
        if step not in other.by_step:
            return Aspect(False, f"no step {step}")
        own, theirs = parts[0][1], other.by_step[step][0][1]
        if (own.epoch, own.first, own.samples) != (theirs.epoch, theirs.first, theirs.samples):
            return Aspect(False, f"differs in step {step}")
    places = {(epoch, place): digest for epoch, place, digest in plain.samples}
    for epoch, place, digest in other.samples:
        if places.get((epoch, place), digest) != digest:
            return Aspect(False, f"differs in epoch {epoch}")
    return Aspect(True, "same")


def _rates(plain: Recording, other: Recording) -> Aspect:
    for step, parts in plain.by_step.items():
        for _, part in other.by_step.get(step, ()):
            pairs = zip(parts[0][1].rates, part.rates, strict=False)
            difference = max((_relative(one, two) for one, two in pairs), default=0.0)
            if difference > RATES or len(part.rates) != len(parts[0][1].rates):
                return Aspect(False, f"differ from step {step} on", difference)
    return Aspect(True, "same", 0.0)


def _weights(plain: Recording, other: Recording) -> tuple[float, str, float]:
    """The largest difference from the plain process, in which tensor, and that between workers."""
    largest, tensor, apart = 0.0, "", 0.0
    for step in plain.weights.keys() & other.weights.keys():
        (_, wanted), *_ = plain.arrays(step)
        before: Arrays | None = None
        for _, found in other.arrays(step):
            largest, tensor = max((largest, tensor), difference(wanted, found))
            apart = max(apart, 0.0 if before is None else difference(before, found)[0])
            before = found
    is_whole = not plain.weights or max(plain.weights) in other.weights
    return (largest if is_whole else math.inf), tensor, apart


def difference(wanted: Arrays, found: Arrays) -> tuple[float, str]:
    """The largest relative difference, and the tensor that has it."""
    sizes = {
        name: float(np.abs(values[np.isfinite(values)]).max(initial=0)) for name, values in wanted.items()
    }
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
