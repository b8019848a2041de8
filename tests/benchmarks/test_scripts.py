import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.parts import relaunch_cost, training_job
from benchmarks.parts.training_job import SCRIPT_NAME, TrainingJob, running
from pliant.tools.run.service.executor import Executor
from pliant.tools.run.statedir.contract.plan import ENV_WORKER
from tests.leftovers import PATIENCE_S


@pytest.mark.torch
def test_the_relaunched_script_trains_and_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_job, "SETTLE_S", 0.0)
    with running(Executor, relaunch_cost.SCRIPT, "", 8, resize="relaunch") as job:
        assert relaunch_cost._takes(job, 1) > 0
        job.give(0)
        job.ends()
        assert (job.folder / "saved.pt").exists()


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


def test_a_kill_spares_workers_of_other_jobs(tmp_path: Path) -> None:
    executor: Any = SimpleNamespace(gangs={"a": SimpleNamespace(plan=SimpleNamespace(workers=(4, 7)))})
    job: Any = SimpleNamespace(workdir=str(tmp_path / "own"))
    places = (("other", 7), ("own", 4), ("own", 7))
    *spared, victim = (worker(tmp_path / folder, number) for folder, number in places)
    try:
        TrainingJob(executor, job).kill(1)
        assert victim.wait(PATIENCE_S) == -signal.SIGKILL
        ended = [one.communicate(timeout=PATIENCE_S) and one.returncode for one in spared]
        assert ended == [0, 0]
    finally:
        for one in (*spared, victim):
            one.kill()
            one.communicate()
