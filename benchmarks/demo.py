"""The demo as a benchmark: wall time, simulated over measured JCT, first and last loss of each job."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.parts.figure import Figure

MEASURES: Final = ("examples", "tools")

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 300
_SMALL_SCRIPT: Final = """
from pliant.tools.run.progress import TrainingProgress

progress = TrainingProgress(8)
progress.step(1, loss=1.0)
progress.done()
"""
_SMALL_JOB: Final[dict[str, Any]] = {
    "id": "one",
    "submit_time": 0,
    "model": "none",
    "command": ["small.py"],
    "gpus": {"requested": 1},
    "batch": {"size": 8},
    "work": {"gpu_seconds": 10},
}


def figures() -> list[Figure]:
    """Run examples/demo.sh once and read its reports."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "demo"
        started = time.monotonic()
        subprocess.run(["bash", str(ROOT / "examples" / "demo.sh"), str(out)], check=True, cwd=ROOT)
        wall_s = time.monotonic() - started
        return [Figure("demo_wall_s", wall_s, "s", LIMIT_S), *_ratios(out), *_losses(out)]


def smallest() -> list[Figure]:
    """The commands of the demo on one job that only says it trains, without a profile, and its reports."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        jobs, schedule = out / "jobs.jsonl", str(out / "schedule.json")
        (out / "small.py").write_text(_SMALL_SCRIPT)
        jobs.write_text(json.dumps({**_SMALL_JOB, "workdir": folder}) + "\n")
        inputs = (str(jobs), "--cluster", "examples/cluster.json", "--policy", "fifo")
        started = time.monotonic()
        _pliant("schedule", *inputs, "-o", schedule)
        _pliant("run", schedule, "--state", str(out / "state"), "--until-done")
        _pliant("replay", *inputs, "-o", str(out / "replay.parquet"))
        wall_s = time.monotonic() - started
        return [Figure("demo_wall_s", wall_s, "s", LIMIT_S), *_ratios(out), *_losses(out)]


def _ratios(out: Path) -> list[Figure]:
    rows = _csv(out, "--simulated", str(out / "replay.parquet"))
    ratios = {row["job"]: float(row["ratio"]) for row in rows}
    mean_simulated = sum(float(row["simulated_jct_s"]) for row in rows)
    mean_measured = sum(float(row["measured_jct_s"]) for row in rows)
    named = [Figure(f"demo_jct_sim_over_measured_{job}", ratio, "ratio") for job, ratio in ratios.items()]
    return [Figure("demo_jct_sim_over_measured", mean_simulated / mean_measured, "ratio"), *named]


def _losses(out: Path) -> list[Figure]:
    rows = _csv(out, "--jobs")
    return [
        Figure(f"demo_loss_{which}_{row['job']}", float(row[f"{which}_loss"]), "loss")
        for row in rows
        for which in ("first", "last")
    ]


def _csv(out: Path, *options: str) -> list[dict[str, str]]:
    text = _pliant("report", str(out / "state" / "events.jsonl"), "--format", "csv", *options)
    return list(csv.DictReader(io.StringIO(text)))


def _pliant(*words: str) -> str:
    """Stdout of a command."""
    command = [sys.executable, "-m", "pliant.cli", *words]
    return subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout
