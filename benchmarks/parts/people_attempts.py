"""How often jobs are started whose failure is certain to come again."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.parts.figure import Figure
from pliant.tools.run.statedir.directory import StateDir

LIMIT: Final = 2
_SCRIPTS: Final = {
    "exits": "import sys; sys.exit(7)",
    "misused": "import argparse; argparse.ArgumentParser().parse_args(['--x'])",
    "gone": None,
    "syntax": "def f(:",
    "raises": "import time; raise ValueError(f'bad row {object()!r}')",
    "group": "raise ExceptionGroup('two', [ValueError(1), OSError(2)])",
    "says": "import sys; sys.exit('diverged\\nlast save: step 4')",
    "crashes": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
}
"""By job; None: its script is removed before it starts."""


def figures() -> list[Figure]:
    """The most attempts of any of them, of one slot each."""
    return [Figure("attempts_of_a_certain_failure", float(max(attempts().values())), "attempts", LIMIT)]


def attempts() -> dict[str, int]:
    with tempfile.TemporaryDirectory(prefix="pliant-attempts-") as name:
        folder = Path(name).resolve()
        for job, text in _SCRIPTS.items():
            (folder / f"{job}.py").write_text(text or "")
        rows = [{"id": job, "command": [f"{job}.py"], "gpus": {"requested": 1}} for job in _SCRIPTS]
        (folder / "jobs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        nodes = {"slots": "cpu", "nodes": [{"name": "here", "gpus": len(rows)}]}
        (folder / "cluster.json").write_text(json.dumps(nodes))
        pliant = [sys.executable, "-m", "pliant"]
        files = ["jobs.jsonl", "--cluster", "cluster.json", "--policy", "fifo", "-q", "-o", "s.json"]
        subprocess.run([*pliant, "schedule", *files], cwd=folder, check=True)
        (folder / "gone.py").unlink()
        run = [*pliant, "run", "s.json", "--until-done", "--state", "state", "-q"]
        subprocess.run(run, cwd=folder, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        dirs = StateDir(folder / "state")
        return {job: dirs.job(job).newest_attempt() for job in _SCRIPTS}
