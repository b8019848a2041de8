"""CPU seconds that the command line takes to start: the help, and a fifo decision on a small file."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.figure import Figure

RUNS = 9
LIMIT_S = 0.4


def figures() -> list[Figure]:
    """Median over fresh processes of user plus system time; byte code is cached, as after installing."""
    with tempfile.TemporaryDirectory() as folder:
        jobs, cluster = _inputs(Path(folder))
        schedule = ["schedule", "--jobs", str(jobs), "--cluster", str(cluster), "--policy", "fifo"]
        return [
            Figure("cli_help_cpu_s", _cpu_s(["--help"], folder), "s", LIMIT_S),
            Figure("cli_schedule_fifo_cpu_s", _cpu_s(schedule, folder), "s", LIMIT_S),
        ]


def _inputs(folder: Path) -> tuple[Path, Path]:
    jobs, cluster = folder / "jobs.jsonl", folder / "cluster.json"
    rows = [
        {"id": f"job-{i}", "submit_time": i, "model": "m", "gpus": {"requested": 2}, "work": {"samples": 1e6}}
        for i in range(20)
    ]
    jobs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    cluster.write_text(
        json.dumps({"schema": "pliant.cluster/1", "nodes": [{"name": "n{}", "gpus": 4, "count": 4}]})
    )
    return jobs, cluster


def _cpu_s(arguments: list[str], cache: str) -> float:
    cached = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": cache}
    command = [sys.executable, "-m", "pliant.cli", *arguments]
    spent = []
    for _ in range(RUNS + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, env=cached)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(spent[1:])
