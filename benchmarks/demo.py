"""The demo as a benchmark: wall time, simulated over measured JCT, first and last loss of each job."""

from __future__ import annotations

import csv
import io
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.parts.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 300


def figures() -> list[Figure]:
    """Run examples/demo.sh once and read its reports."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "demo"
        started = time.monotonic()
        subprocess.run(["bash", str(ROOT / "examples" / "demo.sh"), str(out)], check=True, cwd=ROOT)
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
    command = ["pliant", "report", str(out / "state" / "events.jsonl"), "--format", "csv", *options]
    text = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    return list(csv.DictReader(io.StringIO(text)))
