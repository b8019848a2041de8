"""What schedulers, the replay engine and the runtime ask about speed: :class:`Throughput`.

``by_size.py`` and ``by_placement.py`` answer from a profile, :class:`CurveThroughput` from scaling curves
given as numbers (toy examples, traces that state GPU-time only).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

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
