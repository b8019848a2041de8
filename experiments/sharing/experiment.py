"""The study of what it is worth to teams to lend each other their GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from experiments.harness.spec import Findings, Study, Tell
from experiments.sharing.figures import facts, figures


def measure(folder: Path, workers: int, tell: Tell) -> Findings:
    from experiments.sharing.measure import of_philly

    return of_philly(folder, workers, tell)


EXPERIMENT: Final = Study(
    name="sharing",
    title="Teams that lend each other GPUs",
    paper="no paper: the virtual clusters of the Philly trace",
    measure=measure,
    draw=figures,
    facts=facts,
)
