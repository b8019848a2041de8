"""The ``convergence`` kind: how a model learns at a batch size, epoch by epoch (Parquet)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from pliant.schemas.file_io.columns import About, Table


@dataclass(frozen=True, slots=True)
class ConvergenceRow:
    """One epoch of one validation run."""

    model: Annotated[str, About("key that jobs name in `convergence`")]
    batch: Annotated[int, About("global batch of the validation run", least=1)]
    epoch: Annotated[int, About("epoch, from 0", least=0)]
    iterations: Annotated[float, About("optimizer steps done at the end of the epoch, cumulative", least=0)]
    progress: Annotated[float, About("statistical progress at the end of the epoch", least=0)]
    metric: Annotated[float | None, About("validation metric")] = None
    grad_sqr: Annotated[float | None, About("squared norm of the mean gradient", least=0)] = None
    grad_var: Annotated[float | None, About("variance of the gradient", least=0)] = None


CONVERGENCE: Final = Table("convergence", ConvergenceRow)
