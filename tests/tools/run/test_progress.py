"""What a script says by the helper, without a launcher: the file, the batch, and the step to stop after."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pliant.tools.run.progress import TrainingProgress
from pliant.tools.run.statedir.contract.plan import Plan, Progress, ask_to_stop


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job's folder, as a launcher leaves it."""
    plan = Plan(job="a", generation=3, attempt=2, members=(), progress_s=1e-9)
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    (tmp_path / "stop").touch()
    return tmp_path


def rank(job: Path, number: int = 0, workers: int = 1, **more: str) -> TrainingProgress:
    paths = {"PLIANT_PROGRESS": str(job / "progress.json"), "PLIANT_STOP": str(job / "stop")}
    return TrainingProgress(environ={"RANK": str(number), "WORLD_SIZE": str(workers), **paths, **more})


def written(job: Path) -> Progress:
    return Progress.model_validate_json((job / "progress.json").read_bytes())


def test_the_file_says_how_far_it_is_and_what_is_saved(job: Path) -> None:
    progress = rank(job, PLIANT_BATCH="16")
    assert progress.step(1, loss=2.0, epoch=0) is False
    assert progress.step(2, loss=math.nan, epoch=1) is False
    found = written(job)
    assert (found.job, found.attempt, found.generation, found.gpus) == ("a", 2, 3, 1)
    assert (found.step, found.samples_done, found.global_batch, found.epoch) == (2, 32.0, 16, 1)
    assert (found.loss, found.checkpoint, found.watches_stop, found.ended) == (None, None, True, None)
    progress.saved(2, seconds=0.5)
    saved = written(job).checkpoint
    assert saved is not None
    assert (saved.step, saved.samples_done, saved.seconds) == (2, 32.0, 0.5)
    progress.done()
    assert written(job).ended == "done"


def test_all_ranks_leave_after_the_same_step_however_they_are_apart(job: Path) -> None:
    first, second = rank(job, 0, 2), rank(job, 1, 2)
    assert [first.step(5), second.step(5)] == [False, False]
    ask_to_stop(job / "stop")
    assert second.step(6) is False, "rank 0 names the step"
    assert first.step(6) is False
    assert (first.stopping, second.stopping) == (True, True)
    ask_to_stop(job / "stop")  # a launcher that takes over asks again
    assert [second.step(7), first.step(7)] == [True, True]
    first.saved(7)
    assert written(job).ended == "stopped"


@pytest.mark.parametrize("notice", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_any_rank_is_a_request_to_stop(job: Path, notice: signal.Signals) -> None:
    first = rank(job, 0, 2)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    second = rank(job, 1, 2)
    os.kill(os.getpid(), notice)
    assert [second.step(1), first.step(1), second.step(2), first.step(2)] == [False, False, True, True]


def test_the_batch_of_the_job_is_kept_by_accumulation_or_the_nearest_with_a_warning(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {size: rank(job, 0, size, PLIANT_BATCH="32").accumulate(4, own=1) for size in (1, 2, 4, 8)}
    assert kept == {1: 8, 2: 4, 4: 2, 8: 1}
    assert rank(job, 0, 2).accumulate(4, own=3) == 3, "a job that states no batch leaves it to the script"
    assert capsys.readouterr().err == ""
    apart = rank(job, 0, 3, PLIANT_BATCH="32")
    assert (apart.accumulate(4), apart.global_batch) == (3, 36)
    assert "the job's batch of 32 cannot be kept on 3 workers" in capsys.readouterr().err


def test_without_a_launcher_it_says_nothing_and_trains_to_the_end(tmp_path: Path) -> None:
    text = (
        "import sys; from pliant.tools.run.progress import TrainingProgress\n"
        "p = TrainingProgress(8); print(p.step(1), p.saved(1), p.done(), 'torch' in sys.modules, "
        "'pydantic' in sys.modules)"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PLIANT")}
    found = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, env=clean, capture_output=True, text=True, check=True
    )
    assert found.stdout == "False None None False False\n"
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_ends_no_training(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (job / "plan.json").write_text(json.dumps({"job": "a"}))
    progress = rank(job)
    assert progress.step(1) is False
    assert "pliant: no progress is reported" in capsys.readouterr().err
