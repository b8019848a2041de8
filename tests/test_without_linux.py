"""The base replays, schedules and reports where what only Linux has is missing, as on a researcher's Mac."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_base_works_without_what_only_linux_has(tmp_path: Path) -> None:
    gpus = ["--cluster", str(ROOT / "examples" / "gpus.json")]
    recipe = 'policies = ["fifo", "las"]\n[[traces]]\nname = "t"\njobs = "t.jsonl"\n'
    recipe += f'[[clusters]]\nname = "c"\npath = {json.dumps(gpus[1])}\n'
    (tmp_path / "recipe.toml").write_text(recipe)
    commands = [
        ["trace", "synth", "poisson", "--jobs", "20", "--rate", "30", "--seed", "1", "-o", "t.jsonl"],
        ["trace", "import", "slurm", str(ROOT / "examples" / "sacct.txt"), "-o", "imported.jsonl"],
        ["validate", "t.jsonl", "imported.jsonl"],
        ["schedule", "t.jsonl", *gpus, "--policy", "shadow-price", "-o", "schedule.json"],
        ["replay", "t.jsonl", *gpus, "--policy", "fifo,shadow-price", "-o", "out"],
        ["replay", "--recipe", "recipe.toml", "-o", "swept"],
        ["report", "out", "--baseline", "fifo"],
        ["report", "out", "-f", "html", "-o", "report.html"],
    ]
    words = [sys.executable, "-m", "tests.without_linux", json.dumps(commands)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 of 2 replays are in" in done.stderr
    assert (tmp_path / "report.html").stat().st_size > 10_000
