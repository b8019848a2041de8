"""The study of what elastic training does to a model's accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from experiments.accuracy.arms import FULL, arms
from experiments.accuracy.facts import facts
from experiments.accuracy.figures import figures
from experiments.harness.spec import Findings, Study, Tell


def measure(folder: Path, workers: int, tell: Tell) -> Findings:
    """All of it; PyTorch is loaded only here, because a page needs none."""
    from experiments.accuracy.measure import measured

    return measured(FULL, arms(FULL), folder, workers, tell)


EXPERIMENT: Final = Study(
    name="accuracy",
    title="Accuracy under elastic training",
    paper="Ares (elastic fair queuing) and ONES (online evolutionary batch size orchestration)",
    measure=measure,
    draw=figures,
    facts=facts,
)
