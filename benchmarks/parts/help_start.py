"""What ``pliant --help`` costs beside an interpreter that does nothing.

CPU time of whole processes, each the least of several that take turns; byte code is kept, as after
installing.
"""

from __future__ import annotations

import sys
from typing import Final

from benchmarks.parts.figure import Figure
from benchmarks.parts.installed import as_installed
from benchmarks.parts.used_cpu import PLIANT, cpu_s

VISITS: Final = 15
LIMIT: Final = 12.0


def figures(visits: int = VISITS) -> list[Figure]:
    """The ratio."""
    env = as_installed()
    cpu_s(*PLIANT, "--help", env=env)
    spent = [
        (cpu_s(*PLIANT, "--help", env=env), cpu_s(sys.executable, "-c", "pass", env=env))
        for _ in range(visits)
    ]
    ratio = min(ours for ours, _ in spent) / min(plain for _, plain in spent)
    return [Figure("help_start_cpu_over_python", round(ratio, 1), "ratio", LIMIT)]
