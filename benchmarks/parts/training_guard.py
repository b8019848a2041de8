"""What it costs to compare the workers' replicas, as a part of the time of each script of the recipes.

``python -m benchmarks.parts.training_guard SCRIPT TIMES`` is what each worker runs: it times the comparisons
and the training, and rank 0 writes both.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final

from benchmarks.parts.figure import ROOT, Figure
from pliant.tools.run.elastic.loop.workers import WorkerGroup

LIMIT: Final = 0.01
SCRIPTS: Final = ("stripes", "get_batch", "gan", "rnn")


def guard_cost(scripts: tuple[str, ...] = SCRIPTS) -> list[Figure]:
    """The largest part of the time of a training, over the scripts, on two workers."""
    shares = {script: _share(ROOT / "examples" / "after" / f"{script}.py") for script in scripts}
    rows = [Figure(f"guard_cost_{script}", share, "ratio", LIMIT) for script, share in shares.items()]
    return [*rows, Figure("guard_cost", max(shares.values()), "ratio", LIMIT)]


def _share(script: Path) -> float:
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        subprocess.run(
            [*torchrun, "-m", "benchmarks.parts.training_guard", str(script), str(times)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
            capture_output=True,
        )
        compared_s, trained_s = json.loads(times.read_text())
    return float(compared_s / trained_s)


def _timed(method: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    @wraps(method)
    def timed(*arguments: Any) -> Any:
        began_s = time.perf_counter()
        try:
            return method(*arguments)
        finally:
            spent[0] += time.perf_counter() - began_s

    return timed


def main(script: str, times: str) -> None:
    """Run a script as one of the workers, of which rank 0 writes the times."""
    spent, began = [0.0], list[float]()
    WorkerGroup.compare = _timed(WorkerGroup.compare, spent)  # type: ignore[method-assign]
    start = WorkerGroup.start

    def starts(workers: WorkerGroup) -> None:
        began.append(time.perf_counter())
        start(workers)

    def write() -> None:
        if os.environ.get("RANK") == "0" and began:
            Path(times).write_text(json.dumps([spent[0], time.perf_counter() - began[0]]))

    WorkerGroup.start = starts  # type: ignore[method-assign]
    atexit.register(write)
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
