"""Any job that people have: its command, its environment, where it may run, what it may lose."""

from __future__ import annotations

from typing import Final

from benchmarks.parts.figure import Figure
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


def smallest() -> list[Figure]:
    """One command."""
    return commands.figures(("heredoc",))
