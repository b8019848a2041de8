"""The study of shadow-price beside other policies."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from experiments.harness.spec import Findings, Study, Tell
from experiments.shadow_price.facts import facts
from experiments.shadow_price.figures import figures


def measure(folder: Path, workers: int, tell: Tell) -> Findings:
    """All of it."""
    from experiments.shadow_price.measure import ALL, measured

    return measured(ALL, folder, workers, tell)


EXPERIMENT: Final = Study(
    name="shadow-price",
    title="shadow-price beside other policies",
    paper="a policy of our own; the others are those of the papers that docs/policies.md names",
    measure=measure,
    draw=figures,
    facts=facts,
)
