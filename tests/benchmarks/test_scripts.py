"""Benchmarks of training: what they compute of a job, and their scripts on as few workers as can be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.parts import compile_count, relaunch_cost, training_job
from benchmarks.parts.training_job import SCRIPT_NAME, TrainingJob, running
from pliant.tools.run.service.executor import Executor
from pliant.tools.run.statedir.contract.plan import ENV_WORKER
from tests.leftovers import PATIENCE_S


class Scripted:
    """A job whose first steps come so many seconds after the decision, or with so many compiled graphs."""

    def __init__(self, folder: Path, *answers: float) -> None:
        self.folder, self.answers, self.sizes = folder, iter(answers), list[int]()

    def go_to(self, workers: int) -> None:
        self.sizes.append(workers)
        (self.folder / "graphs-0").write_text(f"{next(self.answers):g}")

    def give(self, workers: int) -> None:
        self.sizes.append(workers)

    def until(self, _wanted: object) -> Any:
        return SimpleNamespace(time=next(self.answers))

    def train_for(self, _seconds: float) -> None: ...

    def ends(self) -> None: ...


def instead(module: Any, monkeypatch: pytest.MonkeyPatch, job: Scripted) -> Scripted:
    @contextmanager
    def opened(*_arguments: object, **_fields: object) -> Iterator[Scripted]:
        yield job

    monkeypatch.setattr(module, "running", opened)
    return job


def test_compiled_graphs_are_counted_by_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = instead(compile_count, monkeypatch, Scripted(tmp_path, 1, 2, 2))
    result = {row.name: row.value for row in compile_count.figures(sizes=(2, 1))}
    assert result == {"compile_recompiles_per_change": 0.5, "compile_recompiles_after_first_change": 0.0}
    assert job.sizes == [1, 2, 1, 0]


def test_a_resize_is_compared_with_a_start_of_the_same_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relaunch_cost, "time", SimpleNamespace(time=lambda: 0.0))
    job = instead(relaunch_cost, monkeypatch, Scripted(tmp_path, 5.0, 6.0, 4.0))
    result = {row.name: row for row in relaunch_cost.figures(rounds=1, changes=((2, 1),))}
    assert job.sizes == [2, 1, 0, 1, 0]
    assert result["relaunch_resize_over_start"].value == 6.0 / 4.0
    assert [result[f"added_lines_{name}"].value for name in ("trainer", "lightning")] == [3, 3]
    assert all(row.holds for row in result.values() if row.unit == "lines")


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
