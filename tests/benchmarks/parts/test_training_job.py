"""The one job under an executor that benchmarks resize, kill and measure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.parts.training_job import SCRIPT_NAME, TrainingJob
from pliant.tools.run.statedir.contract.plan import ENV_WORKER
from tests.leftovers import PATIENCE_S


def worker(folder: Path, number: int) -> subprocess.Popen[bytes]:
    """A process that looks like a worker of the job in a folder, and does nothing until it is killed."""
    folder.mkdir(exist_ok=True)
    script = folder / SCRIPT_NAME
    script.write_text("import sys\nprint(flush=True)\nsys.stdin.read()\n")
    environ = {**os.environ, ENV_WORKER: str(number)}
    pipe = subprocess.PIPE
    started = subprocess.Popen([sys.executable, "-u", str(script)], env=environ, stdin=pipe, stdout=pipe)
    assert started.stdout is not None
    started.stdout.readline()
    return started


def test_a_kill_leaves_workers_of_other_jobs_on_the_machine_alone(tmp_path: Path) -> None:
    executor: Any = SimpleNamespace(gangs={"a": SimpleNamespace(plan=SimpleNamespace(workers=(4, 7)))})
    job: Any = SimpleNamespace(workdir=str(tmp_path / "own"))
    elsewhere, beside, victim = (
        worker(tmp_path / folder, number) for folder, number in (("other", 7), ("own", 4), ("own", 7))
    )
    try:
        TrainingJob(executor, job).kill(1)
        assert victim.wait(PATIENCE_S) == -signal.SIGKILL
        left = [one.communicate(timeout=PATIENCE_S) and one.returncode for one in (elsewhere, beside)]
        assert left == [0, 0]
    finally:
        for one in (elsewhere, beside, victim):
            one.kill()
            one.communicate()
