"""Speed as schedulers, the replay engine and the runtime ask for it, and the profile rows behind it.

:class:`Throughput` is the protocol. ``throughput_model.py`` answers from a profile, :class:`CurveThroughput`
from scaling curves given as numbers (toy examples, traces that state GPU-time only).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from pliant.schemas.profile import ProfileRow
    from pliant.schemas.schedule import BatchPlan

Placement = tuple[int, ...]
"""GPUs per node in use, descending: ``(4, 2)`` is four on one node and two on another."""
Key = tuple[str, str, str, Placement, int, int, int, str, int, str]
BUSY: Final = 0.1
"""A row with a greater ``busy_share`` is that of a busy machine."""
APART: Final = 0.1
"""A row with a greater ``spread`` was measured differently each time."""
Unknown = Literal["unknown"]
UNKNOWN: Final[Unknown] = "unknown"


class Throughput(Protocol):
    """Speed of models by GPU type, placement and global batch."""

    def models(self) -> Collection[str]:
        """Known models; empty means that every model is known."""
        ...

    def max_local_batch(self, model: str, gpu_type: str) -> int | None:
        """Largest number of samples known to fit one GPU of the type; 0: none fits; None: no known limit."""
        ...

    def local_batches(self, model: str, gpu_type: str) -> Sequence[int]:
        """Measured local batches, ascending. Between them step times are linear."""
        ...

    def step_seconds(
        self, model: str, gpu_type: str, placement: Placement, global_batch: int, per_gpu_max: int | None
    ) -> float | None:
        """Seconds of one optimizer step over ``global_batch`` samples, accumulation included.

        :returns: None if infeasible (a GPU without a sample, or beyond every probed batch) or unknown.
        :raises BadInputError: the model is not known.
        """
        ...

    def rescale_seconds(self, model: str) -> float | None:
        """What a change of its workers costs a training job; None if not measured."""
        ...

    def profile_rows(self) -> Collection[ProfileRow]:
        """The measurements behind it; may be empty."""
        ...

    def across(self, levels: Sequence[str]) -> Throughput:
        """The same for jobs on several domains of each of these levels of the network.

        :param levels: the highest first.
        """
        ...


class CurveThroughput:
    """Speeds from scaling curves: ``curves[model][k]`` samples per second on k GPUs, at any batch.

    Between the given sizes the curve is linear, below the smallest in proportion, above the largest flat.
    A model without a curve scales linearly from one sample per GPU-second. ``speeds`` are factors by type, 1
    for other types.
    """

    def __init__(
        self,
        curves: Mapping[str, Mapping[int, float]] | None = None,
        speeds: Mapping[str, float] | None = None,
    ) -> None:
        self._speeds = dict(speeds or {})
        self._curves = {model: sorted(curve.items()) for model, curve in (curves or {}).items()}

    def models(self) -> Collection[str]:
        return ()

    def max_local_batch(self, model: str, gpu_type: str) -> int | None:
        del model, gpu_type
        return None

    def local_batches(self, model: str, gpu_type: str) -> Sequence[int]:
        del model, gpu_type
        return ()

    def step_seconds(
        self, model: str, gpu_type: str, placement: Placement, global_batch: int, per_gpu_max: int | None
    ) -> float | None:
        del per_gpu_max
        return global_batch / (
            self._samples_per_second(model, sum(placement)) * self._speeds.get(gpu_type, 1.0)
        )

    def rescale_seconds(self, model: str) -> None:
        del model

    def profile_rows(self) -> Collection[ProfileRow]:
        return ()

    def across(self, levels: Sequence[str]) -> CurveThroughput:
        del levels
        return self

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


def local_limit(throughput: Throughput, model: str, gpu_type: str, per_gpu_max: int | None) -> int | None:
    """Most samples that one GPU may get at a time: what is known to fit, and what the job allows.

    0 if no batch fits the type; None if there is no limit.
    """
    known = throughput.max_local_batch(model, gpu_type)
    if known is None or per_gpu_max is None:
        return per_gpu_max if known is None else known
    return min(known, per_gpu_max)


def stand_in(rows: Mapping[str, int], gpu_type: str) -> str:
    """The GPU type that answers for another: itself if measured, else the one with most rows.

    :param rows: a model's number of rows by GPU type; at least one type.
    """
    return gpu_type if gpu_type in rows else min(rows, key=lambda name: (-rows[name], name))


def shape(row: ProfileRow) -> Placement:
    return tuple(int(part) for part in row.placement.split(","))


def key(row: ProfileRow) -> Key:
    """What a row measures; of rows with one key only one can hold."""
    weights = row.parameters or 0 if row.kind == "allreduce" else 0
    beside = row.beside_model or "", row.beside_batch or 0
    how = (row.local_batch, row.accum_steps, weights, *beside, row.across or "")
    return (row.kind, row.model, row.gpu_type, shape(row), *how)


def rows_across(rows: Iterable[ProfileRow], levels: Sequence[str] = ()) -> list[ProfileRow]:
    """The rows that answer for jobs on several domains of each of some levels, the highest first.

    For each model and GPU type, those of the first of the levels that has any. Of those that state none, the
    rows on one node go with them, and those of more GPUs than were measured across the level. Where no row
    states a level that fits, rows that state none answer; all rows, if on several nodes there are no others.
    """
    listed = list(rows)
    if all(row.across is None for row in listed):
        return listed
    groups: dict[tuple[str, str, str], list[ProfileRow]] = {}
    for row in listed:
        groups.setdefault((row.kind, row.model, row.gpu_type), []).append(row)
    return [row for group in groups.values() for row in _group_across(group, levels)]


def _group_across(group: list[ProfileRow], levels: Sequence[str]) -> list[ProfileRow]:
    stated = {row.across for row in group}
    if stated == {None}:
        return group
    level = next((level for level in levels if level in stated), None)
    plain = [row for row in group if row.across is None]
    if level is None:
        return plain if any(row.nodes > 1 for row in plain) else group
    own = [row for row in group if row.across == level]
    most = max(row.gpus for row in own)
    return own + [row for row in plain if row.nodes == 1 or row.gpus > most]


def merged(old: Iterable[ProfileRow], new: Iterable[ProfileRow]) -> tuple[ProfileRow, ...]:
    """All rows, new ones replacing old ones of the same key; ordered by key, training rows last."""
    rows = {key(row): row for row in (*old, *new)}
    return tuple(rows[setting] for setting in sorted(rows))


def training_rows(rows: Iterable[ProfileRow]) -> dict[str, dict[str, list[ProfileRow]]]:
    """Training rows by model and GPU type."""
    rows_by_model: dict[str, dict[str, list[ProfileRow]]] = {}
    for row in rows:
        if row.kind == "train":
            rows_by_model.setdefault(row.model, {}).setdefault(row.gpu_type, []).append(row)
    return rows_by_model


def by_model(
    rows: Iterable[ProfileRow], seconds_of: Callable[[ProfileRow], float | None]
) -> dict[str, list[float]]:
    """Measured seconds by model; models without a measurement are absent."""
    seconds_by_model: dict[str, list[float]] = {}
    for row in rows:
        if (seconds := seconds_of(row)) is not None:
            seconds_by_model.setdefault(row.model, []).append(seconds)
    return seconds_by_model


def rescales(rows: Iterable[ProfileRow]) -> dict[str, list[float]]:
    """Seconds by model that a change of its workers costs a training job.

    In place if that was measured; a model that was measured on one worker only is relaunched.
    """
    kept = tuple(rows)
    in_place = by_model(kept, lambda row: row.rescale_seconds)
    return {**by_model(kept, lambda row: row.relaunch_seconds), **in_place}


class Load(NamedTuple):
    """What one job puts on each of its GPUs."""

    model: str
    local_batch: int
    """Samples per GPU and micro-step."""


Parts = tuple[float, float]
"""The fractions of its speed alone that each of two jobs keeps beside the other."""
_Pair = tuple[str, Load, Load]
"""GPU type, a job, and the job beside it."""


class PairTable:
    """Measured speeds of pairs on the same GPUs, and memory that jobs take alone.

    The local batches of both must match. An unmeasured placement gets the mean of the measured ones.
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
        """What each keeps; None if they do not fit the GPU together, ``UNKNOWN`` if not measured."""
        pairs = [self._parts.get((gpu_type, *order)) for order in ((first, second), (second, first))]
        parts = [_at(each, place) for each in pairs if each]
        if len(parts) < len(pairs):
            return UNKNOWN
        one, other = parts
        return None if one is None or other is None else (one, other)

    def memory(self, load: Load, gpu_type: str) -> int | None:
        """Most bytes of one GPU that the job takes alone, at the next larger measured batch, if known."""
        known = self._memory.get((load.model, gpu_type), {})
        batch = min((batch for batch in known if batch >= load.local_batch), default=None)
        return None if batch is None else known[batch]


def _part(beside: float | None, alone: float | None) -> float | None:
    """The fraction of its speed that a job keeps; more than 1 is noise."""
    return min(1.0, beside / alone) if beside and alone else None


def _at(parts: dict[Placement, float | None], place: Placement) -> float | None:
    if place in parts:
        return parts[place]
    known = [part for part in parts.values() if part is not None]
    return fmean(known) if len(known) == len(parts) else None


def _memory(rows: Iterable[ProfileRow]) -> dict[tuple[str, str], dict[int, int]]:
    bytes_by_model: dict[tuple[str, str], dict[int, int]] = {}
    for row in rows:
        if row.kind == "train" and row.peak_memory:
            by_batch = bytes_by_model.setdefault((row.model, row.gpu_type), {})
            by_batch[row.local_batch] = max(row.peak_memory, by_batch.get(row.local_batch, 0))
    return bytes_by_model


def shares(total: int, parts: int) -> tuple[int, ...]:
    """Cut ``total`` samples into ``parts`` whole shares that differ by at most one, larger ones first."""
    base, rest = divmod(total, parts)
    return (base + 1,) * rest + (base,) * (parts - rest)


def plan_batch(global_batch: int, gpus: int, per_gpu_max: int | None) -> BatchPlan:
    """How a global batch of at least ``gpus`` samples is split over workers of at most ``per_gpu_max`` each.

    Accumulation is used only if the share of one GPU does not fit its memory (Ares, section 4).
    """
    from pliant.schemas.schedule import BatchPlan

    local, accum = micro_steps(global_batch, gpus, per_gpu_max)
    return BatchPlan.model_validate({"global": global_batch, "local": local, "accum": accum})


def micro_steps(global_batch: int, gpus: int, per_gpu_max: int | None) -> tuple[int, int]:
    """The local batch and the number of micro-steps of :func:`plan_batch`."""
    share = -(-global_batch // gpus)
    accum = 1 if per_gpu_max is None else -(-share // per_gpu_max)
    return -(-share // accum), accum
