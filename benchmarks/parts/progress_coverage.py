"""How often the 90 % interval of the progress predictor holds what jobs did that it did not learn from.

On the published history of ONES (``$PLIANT_DATA/ones``), imported as ``pliant trace import ones`` does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.parts.figure import Figure
from experiments.harness.data import data_folder
from pliant.schemas.io import read_events
from pliant.tools.profile.predictor import EndedJob, ProgressPredictor, ended_jobs, inside
from pliant.tools.replay.importers.run import HISTORY, import_trace

LOW: Final = 0.85
HIGH: Final = 0.95


def interval_coverage() -> Figure:
    """The part that the interval holds."""
    held = coverage(published_history(data_folder() / "ones"))
    return Figure("ones_interval_coverage", held, "share", HIGH, low=LOW)


def published_history(folder: Path) -> list[EndedJob]:
    """The jobs of the history that is published with ONES."""
    with tempfile.TemporaryDirectory() as out:
        import_trace("ones", [str(folder)], out)
        return ended_jobs(read_events(Path(out) / HISTORY))


def coverage(jobs: Sequence[EndedJob]) -> float:
    """Part of the epochs of all jobs, each predicted by a predictor that learned from all other jobs."""
    return float(np.concatenate([_hits(jobs, index) for index in range(len(jobs))]).mean())


def _hits(jobs: Sequence[EndedJob], left_out: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    predictor, job = ProgressPredictor(), jobs[left_out]
    predictor.learn([*jobs[:left_out], *jobs[left_out + 1 :]])
    ahead = [epoch for epoch in job.epochs if epoch.samples_done < job.total_samples]
    progress = np.array([epoch.samples_done for epoch in ahead]) / job.total_samples
    return inside(*predictor.beta(ahead), progress)
