"""Any job that people have: its command, its environment, where it may run, what it may lose.

``python -m benchmarks.jobs PART…`` measures some of the parts alone and renews their rows of
results/jobs.json.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from benchmarks.parts import parted
from benchmarks.parts.figure import Figure, renew
from benchmarks.parts.jobs import (
    code,
    commands,
    containers,
    environment,
    isolation,
    preemption,
    secrets,
    where,
)
from benchmarks.parts.parted import Part

NAME: Final = "jobs"
MEASURES: Final = ("tools/run", "tools/schedule", "schemas", "cli")

PARTS: Final[dict[str, Part]] = {
    "commands": commands.figures,
    "environment": environment.figures,
    "secrets": secrets.figures,
    "where": where.figures,
    "preemption": preemption.figures,
    "code": code.figures,
    "isolation": isolation.figures,
    "containers": containers.figures,
}


def figures() -> list[Figure]:
    """All parts, one after the other."""
    return parted.measured(NAME, PARTS)


def smallest() -> list[Figure]:
    """One command."""
    return commands.figures(("heredoc",))


record = renew


def main(words: Sequence[str]) -> int:
    """Measure some of the parts."""
    return parted.main(NAME, PARTS, __doc__, words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
