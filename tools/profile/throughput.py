"""What schedulers, the replay engine and the runtime ask about speed: :class:`Throughput`.

``by_size.py`` and ``by_placement.py`` answer from a profile, :class:`CurveThroughput` from scaling curves
given as numbers (toy examples, traces that state GPU-time only).

What profile rows measure: their keys, one fixed order, and the costs of changes that they state.

Two jobs on the same GPUs: what a profile says of their speeds and of their memory.

How a global batch is cut into shares and micro-steps: exactly, never approximately.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from pliant.schemas.profile import ProfileRow
from pliant.schemas.schedule import BatchPlan

if TYPE_CHECKING:
    from pliant.schemas.profile import ProfileRow


Placement = tuple[int, ...]
"""GPUs per node in use, descending: ``(4, 2)`` is four on one node and two on another."""


class Throughput(Protocol):
    """Speed of models by GPU type, placement and global batch."""

    def models(self) -> Collection[str]:
        """Models that are known; an empty collection means that every model is."""
        ...

    def max_local_batch(self, model: str, gpu_type: str) -> int | None:
        """Largest number of samples known to fit one GPU of the type; 0: none fits; None: no limit is known.

        See :func:`local_limit`.
        """
        ...

    def local_batches(self, model: str, gpu_type: str) -> Sequence[int]:
        """Numbers of samples that one GPU was measured with, ascending; empty: no measurements.

        Between them step times are linear.
        """
        ...

    def step_seconds(
        self, model: str, gpu_type: str, placement: Placement, global_batch: int, per_gpu_max: int | None
    ) -> float | None:
        """Seconds of one optimizer step over ``global_batch`` samples, accumulation included.

        None: infeasible (no sample for each GPU, or beyond every batch that was probed). Raises
        ``BadInputError`` for a model that is not known.
        """
        ...

    def rescale_seconds(self, model: str) -> float | None:
        """Seconds that a change of its workers costs a job that trains; None: not measured."""
        ...

    def profile_rows(self) -> Collection[ProfileRow]:
        """The measurements that it is made from; empty: it is made from none."""
        ...


def local_limit(throughput: Throughput, model: str, gpu_type: str, per_gpu_max: int | None) -> int | None:
    """Most samples that one GPU may get at a time: what is known to fit, and what the job allows.

    0: no batch fits the type; None: there is no limit.
    """
    known = throughput.max_local_batch(model, gpu_type)
    return min((limit for limit in (known, per_gpu_max) if limit is not None), default=None)


def stand_in(rows: Mapping[str, int], gpu_type: str) -> str:
    """Which GPU type answers for one: the type itself if it was measured, else the one with most rows.

    :param rows: how many rows a model has of each GPU type; at least one type.
    """
    return gpu_type if gpu_type in rows else min(rows, key=lambda name: (-rows[name], name))


class CurveThroughput:
    """Speeds from scaling curves: ``curves[model][k]`` samples per second on k GPUs, at any batch.

    Between the given sizes the curve is linear, below the smallest in proportion, above the largest flat.
    A model without a curve scales linearly from one sample per GPU-second. ``speeds`` are relative speeds by
    GPU type, by which all of that is multiplied; 1 for the others. ``is_guess``: nothing is known of the
    cluster's real speeds, so that these say nothing about which of two jobs takes longer.
    """

    def __init__(
        self,
        curves: Mapping[str, Mapping[int, float]] | None = None,
        speeds: Mapping[str, float] | None = None,
        *,
        is_guess: bool = False,
    ) -> None:
        self.is_guess = is_guess
        self._speeds = dict(speeds or {})
        self._curves = {model: sorted(curve.items()) for model, curve in (curves or {}).items()}

    def models(self) -> Collection[str]:
        """Every model is known."""
        return ()

    def max_local_batch(self, model: str, gpu_type: str) -> int | None:
        """No memory limit is known."""
        del model, gpu_type
        return None

    def local_batches(self, model: str, gpu_type: str) -> Sequence[int]:
        """Nothing was measured."""
        del model, gpu_type
        return ()

    def step_seconds(
        self, model: str, gpu_type: str, placement: Placement, global_batch: int, per_gpu_max: int | None
    ) -> float | None:
        """Seconds of one step; see :class:`Throughput`."""
        del per_gpu_max
        return global_batch / (
            self._samples_per_second(model, sum(placement)) * self._speeds.get(gpu_type, 1.0)
        )

    def rescale_seconds(self, model: str) -> None:
        """Nothing was measured."""
        del model

    def profile_rows(self) -> Collection[ProfileRow]:
        """Nothing was measured."""
        return ()

    def _samples_per_second(self, model: str, gpus: int) -> float:
        curve = self._curves.get(model)
        if not curve:
            return float(gpus)
        left, left_rate = 0, 0.0
        for size, rate in curve:
            if gpus <= size:
                return left_rate + (rate - left_rate) * (gpus - left) / (size - left)
            left, left_rate = size, rate
        return left_rate


BUSY: Final = 0.1
"""A ``busy_share`` above which a row is that of a busy machine."""
Key = tuple[str, str, str, Placement, int, int, int, str, int]


def shape(row: ProfileRow) -> Placement:
    """GPUs per node of a row, descending."""
    return tuple(int(part) for part in row.placement.split(","))


def key(row: ProfileRow) -> Key:
    """What a row measures; two rows of one key contradict each other."""
    weights = row.parameters or 0 if row.kind == "allreduce" else 0
    beside = row.beside_model or "", row.beside_batch or 0
    return (row.kind, row.model, row.gpu_type, shape(row), row.local_batch, row.accum_steps, weights, *beside)


def merged(old: Iterable[ProfileRow], new: Iterable[ProfileRow]) -> tuple[ProfileRow, ...]:
    """All rows, a new one instead of an old one of the same key; ordered by key, training rows last."""
    rows = {key(row): row for row in (*old, *new)}
    return tuple(rows[found] for found in sorted(rows))


def training_rows(rows: Iterable[ProfileRow]) -> dict[str, dict[str, list[ProfileRow]]]:
    """The rows of training steps by model and GPU type."""
    found: dict[str, dict[str, list[ProfileRow]]] = {}
    for row in rows:
        if row.kind == "train":
            found.setdefault(row.model, {}).setdefault(row.gpu_type, []).append(row)
    return found


def by_model(
    rows: Iterable[ProfileRow], seconds_of: Callable[[ProfileRow], float | None]
) -> dict[str, list[float]]:
    """What was measured of each model; those without a measurement are absent."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if (seconds := seconds_of(row)) is not None:
            found.setdefault(row.model, []).append(seconds)
    return found


def rescales(rows: Iterable[ProfileRow]) -> dict[str, list[float]]:
    """Seconds by model that a change of its workers costs a job that trains.

    In place, where that was measured; a model that was only measured alone is relaunched.
    """
    kept = tuple(rows)
    in_place = by_model(kept, lambda row: row.rescale_seconds)
    return {**by_model(kept, lambda row: row.relaunch_seconds), **in_place}


def mean_rescale(rows: Mapping[str, Mapping[str, Iterable[ProfileRow]]], model: str) -> float | None:
    """The mean over what was measured of the model, or else over all; None: nothing was.

    :param rows: by model and GPU type.
    """
    found = rescales(row for by_type in rows.values() for each in by_type.values() for row in each)
    known = found.get(model) or [seconds for each in found.values() for seconds in each]
    return fmean(known) if known else None


class Load(NamedTuple):
    """What one job does to each of its GPUs."""

    model: str
    local_batch: int
    """Samples per GPU and micro-step."""


Parts = tuple[float, float]
"""Of the speed that each of two jobs has alone, what it keeps beside the other."""
_Pair = tuple[str, Load, Load]
"""GPU type, a job, and the job beside it."""


class PairTable:
    """What was measured of pairs, and of the memory that jobs take alone.

    Both jobs of a pair have their batches; of another placement than those measured, their mean holds.
    """

    def __init__(self, rows: Collection[ProfileRow] = ()) -> None:
        alone = {
            (row.gpu_type, shape(row), Load(row.model, row.local_batch)): row.samples_per_second
            for row in rows
            if row.kind == "train" and row.feasible and row.accum_steps == 1
        }
        self._parts: dict[_Pair, dict[Placement, float | None]] = {}
        for row in rows:
            if row.kind == "pair":
                load, place = Load(row.model, row.local_batch), shape(row)
                beside = Load(row.beside_model or "", row.beside_batch or 0)
                part = _part(row.samples_per_second, alone.get((row.gpu_type, place, load)))
                if part is not None or not row.feasible:
                    self._parts.setdefault((row.gpu_type, load, beside), {})[place] = part
        self._memory = _memory(rows)

    def measured(self, first: Load, second: Load, gpu_type: str, place: Placement) -> Parts | Unknown | None:
        """What each keeps; None: they do not fit the GPU's memory together; ``UNKNOWN``: not measured."""
        found = [self._parts.get((gpu_type, *order)) for order in ((first, second), (second, first))]
        parts = [_at(each, place) for each in found if each]
        if len(parts) < len(found):
            return UNKNOWN
        one, other = parts
        return None if one is None or other is None else (one, other)

    def memory(self, load: Load, gpu_type: str) -> int | None:
        """Most bytes that the job takes of one GPU alone, by the next batch measured; None: unknown."""
        known = self._memory.get((load.model, gpu_type), {})
        batch = min((batch for batch in known if batch >= load.local_batch), default=None)
        return None if batch is None else known[batch]


Unknown = Literal["unknown"]
UNKNOWN: Final[Unknown] = "unknown"


def _part(beside: float | None, alone: float | None) -> float | None:
    """No job is faster for company: what noise adds to its speed is left out."""
    return min(1.0, beside / alone) if beside and alone else None


def _at(parts: dict[Placement, float | None], place: Placement) -> float | None:
    if place in parts:
        return parts[place]
    known = [part for part in parts.values() if part is not None]
    return fmean(known) if len(known) == len(parts) else None


def _memory(rows: Iterable[ProfileRow]) -> dict[tuple[str, str], dict[int, int]]:
    found: dict[tuple[str, str], dict[int, int]] = {}
    for row in rows:
        if row.kind == "train" and row.peak_memory:
            by_batch = found.setdefault((row.model, row.gpu_type), {})
            by_batch[row.local_batch] = max(row.peak_memory, by_batch.get(row.local_batch, 0))
    return found


def shares(total: int, parts: int) -> tuple[int, ...]:
    """Cut ``total`` samples into ``parts`` whole shares that differ by at most one, larger ones first."""
    base, rest = divmod(total, parts)
    return (base + 1,) * rest + (base,) * (parts - rest)


def plan_batch(global_batch: int, gpus: int, per_gpu_max: int | None) -> BatchPlan:
    """The cut of a global batch for ``gpus`` workers that each hold at most ``per_gpu_max`` samples.

    Accumulation is used only where the share of one GPU does not fit its memory (Ares, section 4). The
    caller makes sure that ``global_batch >= gpus``: a worker without a sample is not a worker.
    """
    share = -(-global_batch // gpus)
    accum = 1 if per_gpu_max is None else -(-share // per_gpu_max)
    return BatchPlan.model_validate({"global": global_batch, "local": -(-share // accum), "accum": accum})
