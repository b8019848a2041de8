"""Jobs that a scheduler called by cron moves although nothing has happened."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from benchmarks.parts.chaos.world import MEMORY
from benchmarks.parts.crontab import moves_without_news
from benchmarks.parts.figure import Figure

JOBS: Final = 1000
IN_A_RUN: Final = 10
TURNS: Final = 4


def figures(jobs: int = JOBS, turns: int = TURNS) -> list[Figure]:
    """Changes of what jobs hold, of jobs with random optional fields, ten in each state directory."""
    moved = 0
    for seed in range(-(-jobs // IN_A_RUN)):
        with tempfile.TemporaryDirectory(prefix="pliant-moves-", dir=MEMORY) as name:
            moved += len(moves_without_news(Path(name).resolve(), min(jobs, IN_A_RUN), turns, seed))
    return [Figure("moves_without_news", float(moved), "moves", 0.0)]
