"""Batches of scripts that a relaunch gives other numbers of workers, and that they do not keep in silence."""

from __future__ import annotations

import contextlib
import io
from typing import Final

from benchmarks.parts.figure import Figure
from pliant.tools.run.progress import ENV_BATCH, TrainingProgress

BATCHES: Final = (8, 12, 32, 64, 100, 256)
PER_RANK: Final = (1, 3, 4, 8, 16, 64)
WORKERS: Final = (1, 2, 3, 4, 6, 8)


def figures() -> list[Figure]:
    """Cases of batch, samples of a worker and workers that train another batch than the job states."""
    cases = ((batch, share, size) for batch in BATCHES for share in PER_RANK for size in WORKERS)
    return [Figure("batch_lost_silently", float(sum(_loses(*case) for case in cases)), "cases", 0.0)]


def _loses(batch: int, per_rank: int, workers: int) -> bool:
    about = {"RANK": "0", "WORLD_SIZE": str(workers), ENV_BATCH: str(batch)}
    progress, said = TrainingProgress(environ=about), io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            steps = progress.accumulate(per_rank)
    except SystemExit:
        return "cannot be kept" not in said.getvalue()
    return steps * per_rank * workers != batch
