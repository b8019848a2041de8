"""What ``pliant --help`` costs beside an interpreter that does nothing.

CPU time of whole processes, each the least of several that take turns; byte code is cached, as after
installing.
"""

from __future__ import annotations

from typing import Final

from benchmarks.parts.figure import Figure
from benchmarks.parts.installed import as_installed
from benchmarks.parts.start_up import NOTHING, ratio
from benchmarks.parts.used_cpu import PLIANT

VISITS: Final = 15
LIMIT: Final = 12.0


def figures(visits: int = VISITS) -> list[Figure]:
    """The ratio."""
    found = ratio((*PLIANT, "--help"), NOTHING, visits, as_installed())
    return [Figure("help_start_cpu_over_python", round(found, 1), "ratio", LIMIT)]
