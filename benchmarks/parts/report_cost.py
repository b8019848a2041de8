"""What a report of many jobs costs beside their replay, and what the metrics of still more jobs cost.

The jobs come by Poisson at 0.85 of 512 GPUs and are replayed under fifo, the policy whose replay costs least,
so that its report is the largest part of it. Both are whole processes, ``pliant replay`` and ``pliant
report``; each is the least of several that take turns. The metrics, all three fairness references included,
are computed from a run in memory, in units of the calibration loop of benchmarks/replay_speed.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.parts.figure import Figure
from benchmarks.parts.installed import as_installed
from benchmarks.parts.used_cpu import PLIANT, cpu_s
from benchmarks.replay_speed import calibration_s, write_load
from pliant.schemas.file_io.limits import spared_by_garbage_collection
from pliant.tools.report.read_run import read_run
from pliant.tools.report.report import make_report

JOBS: Final = 46_000
LARGE: Final = 100_000
VISITS: Final = 5
LIMIT: Final = 0.25
GPUS: Final = 512


def figures(jobs: int = JOBS, large: int = LARGE, visits: int = VISITS) -> list[Figure]:
    """Both."""
    return [over_replay(jobs, visits), metrics(large, visits)]


def over_replay(jobs: int = JOBS, visits: int = VISITS) -> Figure:
    """CPU of a report over that of its replay."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env, replay = as_installed(), _load(folder, jobs)
        report = (*PLIANT, "report", str(folder / "out.parquet"))
        if visits > 1:
            for command in (replay, report):
                cpu_s(*command, env=env)  # compiles what it imports
        spent = [(cpu_s(*replay, env=env), cpu_s(*report, env=env)) for _ in range(visits)]
    ratio = min(of_report for _, of_report in spent) / min(of_replay for of_replay, _ in spent)
    return Figure("report_46k_jobs_over_replay_cpu", round(ratio, 3), "ratio", LIMIT)


def metrics(jobs: int = LARGE, visits: int = VISITS) -> Figure:
    """CPU of the metrics, in calibration units."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(_load(folder, jobs), check=True, capture_output=True)
        spent = [(_metrics_s(folder / "out.parquet"), calibration_s()) for _ in range(visits)]
    units = min(seconds for seconds, _ in spent) / min(unit_s for _, unit_s in spent)
    return Figure("metrics_100k_jobs_cpu_units", round(units, 2), "units")


def _load(folder: Path, jobs: int) -> tuple[str, ...]:
    """Write jobs and cluster; returns the command that replays them into ``out.parquet``."""
    write_load(folder, jobs, GPUS, elastic=False)
    files = (str(folder / "jobs.jsonl"), "--cluster", str(folder / "cluster.json"))
    costs = ("--start-cost", "30", "--rescale-cost", "30")
    return (*PLIANT, "replay", *files, "--policy", "fifo", *costs, "-o", str(folder / "out.parquet"))


def _metrics_s(events: Path) -> float:
    """In a process of its own, as each report is."""
    command = (sys.executable, "-m", "benchmarks.parts.report_cost", str(events))
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout))


def _main(events: str) -> None:
    with spared_by_garbage_collection():
        run = read_run(events)
        before_s = time.process_time()
        make_report([run])
        print(json.dumps(time.process_time() - before_s))


if __name__ == "__main__":
    _main(*sys.argv[1:])
