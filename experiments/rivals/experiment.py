"""The study of all policies on the home grounds of ElasticFlow, Sia and Shockwave."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from experiments.harness.spec import Findings, Study, Tell
from experiments.rivals.figures import facts, figures


def measure(folder: Path, workers: int, tell: Tell) -> Findings:
    from experiments.rivals.grounds import measured

    return measured(folder, workers, tell)


EXPERIMENT: Final = Study(
    name="rivals",
    title="On the home grounds of others",
    paper="ElasticFlow (ASPLOS'23), Sia (SOSP'23), Shockwave (NSDI'23)",
    measure=measure,
    draw=figures,
    facts=facts,
)
