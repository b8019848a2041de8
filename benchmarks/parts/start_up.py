"""What ``pliant --help`` costs beside an interpreter that does nothing, and a decision about 20 jobs beside
the import of the packages that it may use.

``python -m benchmarks.parts.start_up`` renews these rows of the benchmark cli alone.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.parts import figure
from benchmarks.parts.figure import Figure
from benchmarks.parts.installed import as_installed
from benchmarks.parts.small_inputs import write_small_inputs
from benchmarks.parts.used_cpu import PLIANT, cpu_s

VISITS: Final = 15
HELP_LIMIT: Final = 8.0
SCHEDULE_LIMIT: Final = 1.3
NOTHING: Final = (sys.executable, "-c", "pass")
PACKAGES: Final = (sys.executable, "-c", "import numpy, pyarrow, pydantic, typer")


def figures(visits: int = VISITS) -> list[Figure]:
    """The two ratios of CPU time; byte code is cached, as after installing."""
    with tempfile.TemporaryDirectory() as folder:
        jobs, cluster = write_small_inputs(Path(folder))
        schedule = (*PLIANT, "schedule", str(jobs), "--cluster", str(cluster), "--policy", "fifo")
        env = as_installed()
        help_ratio = ratio((*PLIANT, "--help"), NOTHING, visits, env)
        schedule_ratio = ratio(schedule, PACKAGES, visits, env)
    return [
        Figure("help_cpu_s_over_python", help_ratio, "ratio", HELP_LIMIT),
        Figure("schedule_small_cpu_over_imports", schedule_ratio, "ratio", SCHEDULE_LIMIT),
    ]


def ratio(ours: Sequence[str], plain: Sequence[str], visits: int, env: Mapping[str, str]) -> float:
    """CPU time of whole processes, each the least of several that take turns."""
    for command in (ours, plain):
        cpu_s(*command, env=env)
    spent_s = [(cpu_s(*ours, env=env), cpu_s(*plain, env=env)) for _ in range(visits)]
    return round(min(first for first, _ in spent_s) / min(second for _, second in spent_s), 2)


if __name__ == "__main__":
    measured = figures()
    figure.renew("cli", measured)
    for row in measured:
        print(f"{row.name:40s} {row.value:.4g}")
