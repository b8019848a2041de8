"""What the library costs the training scripts of others: their lines, their time, their memory.

Another part is a function that returns its rows, and its name in ``PARTS``.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from benchmarks.parts import (
    added_lines,
    checkpoint_cost,
    compile_count,
    library_cpu,
    parted,
    relaunch_cost,
)
from benchmarks.parts.figure import Figure
from benchmarks.parts.parted import Part

MEASURES: Final = ("tools/run", "integrations")
NAME: Final = "scripts"

PARTS: Final[dict[str, Part]] = {
    "checkpoint": checkpoint_cost.figures,
    "relaunch": relaunch_cost.figures,
    "lines": added_lines.own_figures,
    "lines-of-others": added_lines.others_figures,
    "compile": compile_count.figures,
    "cpu": library_cpu.by_sample,
}
SMALLEST: Final[dict[str, Part]] = {
    "checkpoint": partial(checkpoint_cost.figures, layers=1, width=32, rounds=1),
    "lines": added_lines.own_figures,
}
"""The parts that the tests run small; relaunches and compiled models have tests of their own, and what the
library costs by sample is part of the smallest form of ``rescale``."""


def smallest() -> list[Figure]:
    """Checkpoints, small, and lines."""
    return parted.measured(NAME, SMALLEST)
