"""CPU seconds that commands take to start: the help, a fifo decision and a report of small files."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.parts import start_up
from benchmarks.parts.figure import Figure
from benchmarks.parts.installed import as_installed
from benchmarks.parts.small_inputs import write_small_inputs
from pliant.cli.main import COMMANDS, GROUPS

MEASURES: Final = ("cli", "schemas")

PLIANT = (sys.executable, "-m", "pliant.cli")
RUNS = 9
ALL: Final = tuple(name for name, *_ in (*COMMANDS, *GROUPS))
LIMIT_S = 0.4
HELP_LIMIT_S = 0.5
"""Of a single command: Typer loads Rich and pydantic for it."""
PARQUET_LIMIT_S = 0.6
"""Where pyarrow and numpy are needed."""


def figures(runs: int = RUNS, commands: Sequence[str] = ALL) -> list[Figure]:
    """Median over fresh processes of user plus system time; byte code is kept, as after installing."""
    with tempfile.TemporaryDirectory() as folder:
        jobs, cluster = write_small_inputs(Path(folder))
        schedule = ["schedule", str(jobs), "--cluster", str(cluster), "--policy", "fifo"]
        events = str(Path(folder) / "fifo.parquet")
        free = ["--start-cost", "0", "--rescale-cost", "0"]
        subprocess.run(
            [*PLIANT, "replay", *schedule[1:], *free, "-o", events], check=True, capture_output=True
        )
        slowest_help_s = max(_cpu_s([name, "--help"], min(runs, 3)) for name in commands)
        return [
            Figure("cli_help_cpu_s", _cpu_s(["--help"], runs), "s", LIMIT_S),
            Figure("cli_slowest_help_cpu_s", slowest_help_s, "s", HELP_LIMIT_S),
            Figure("cli_schedule_fifo_cpu_s", _cpu_s(schedule, runs), "s", LIMIT_S),
            Figure("cli_report_cpu_s", _cpu_s(["report", events], runs), "s", PARQUET_LIMIT_S),
            *start_up.figures(runs),
        ]


def smallest() -> list[Figure]:
    """All of it, small."""
    return figures(runs=1, commands=["replay"])


def _cpu_s(arguments: list[str], runs: int) -> float:
    cached = as_installed()
    spent = []
    for _ in range(runs + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [*PLIANT, *arguments], check=True, stdin=subprocess.DEVNULL, capture_output=True, env=cached
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(spent[1:])
