"""The ``convergence`` kind: how a model learns at a batch size, epoch by epoch (Parquet)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pliant.schemas.formats.columns import Column, Table

CONVERGENCE: Final = Table(
    "convergence",
    (
        Column("model", "string", "key that jobs name in `convergence`", False),
        Column("batch", "int64", "global batch of the validation run", False, least=1),
        Column("epoch", "int64", "epoch, from 0", False, least=0),
        Column("iterations", "float64", "optimizer steps done at the end of the epoch, cumulative", False, least=0),
        Column("progress", "float64", "statistical progress at the end of the epoch", False, least=0),
        Column("metric", "float64", "validation metric"),
        Column("grad_sqr", "float64", "squared norm of the mean gradient", least=0),
        Column("grad_var", "float64", "variance of the gradient", least=0),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConvergenceRow:
    """One epoch of one validation run; the columns and units of :data:`CONVERGENCE`."""

    model: str
    batch: int
    epoch: int
    iterations: float
    progress: float
    metric: float | None = None
    grad_sqr: float | None = None
    grad_var: float | None = None
