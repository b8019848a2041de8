"""What goes wrong within a step: what is survived, and what ends the job with its own reason."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tools.run.elastic.gang import Gang, assert_same_weights, plain

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).with_name("faulty.py")
EPOCHS, SAMPLES = 3, 47
Make = Callable[..., Gang]


def dies(job: Gang, **plan: Any) -> None:
    """Worker 2 of three kills itself, and the others train on to the end without it."""
    job.start(3, **plan)
    job.until(lambda: job.workers[2].poll() == -signal.SIGKILL, "kill")
    job.publish([0, 1], **plan)
    assert job.end() == [0, 0, -signal.SIGKILL]


@pytest.mark.parametrize("kind", ["unused", "by_hand"])
def test_a_worker_killed_in_a_step_costs_no_step(gang: Make, tmp_path: Path, kind: str) -> None:
    """One in which a part of the model gets no gradients, or all get theirs by hand."""
    plain(tmp_path / "alone", script=SCRIPT, **{kind: True})
    job = gang(**{kind: True}, die=[2, 4])
    dies(job)
    assert [job.outcome(number).outcome for number in (0, 1)] == ["done", "done"]
    assert job.outcome(0).samples_done == EPOCHS * SAMPLES
    assert_same_weights(tmp_path, tmp_path / "alone")


def test_a_failing_exchange_of_live_workers_ends_the_job(gang: Make, tmp_path: Path) -> None:
    job = gang(broken=[1, 4])
    job.patience_s = 1
    job.start(2)
    assert job.end() == [1, 1]
    assert job.outcome(1).message == "RuntimeError: the network library has a defect"
    assert "all workers are alive" in job.errors()
    tries = [row["index"] for row in rows(tmp_path, worker=1) if row["epoch"] == 0]
    assert tries[3] == tries[4], "the step is tried again once"
    assert len(tries) == 5


@pytest.mark.parametrize(("accum", "leaves"), [(1, None), (2, None), (1, 2)])
def test_a_void_step_leaves_statistics_and_generators(
    gang: Make, tmp_path: Path, accum: int, leaves: int | None
) -> None:
    """Rows are written when a pass ends, with the steps that count. A script may leave the loader."""
    job = gang(noisy=True, samples=48, die=[2, 2 * accum], leaves=leaves)
    dies(job, accum=accum, global_batch=12)
    for number in (0, 1):
        step = rows(tmp_path, worker=number)[: 3 * accum]
        assert [row["steps"] for row in step[accum - 1 :: accum]] == [1, 1, 2], "the second one is void"
        first, void, again = (row["began"] for row in step[::accum])
        assert void == again
        assert first != void


@pytest.mark.parametrize("unfinished", [False, True])
def test_a_scheduler_acts_after_a_break_in_a_void_step(gang: Make, tmp_path: Path, unfinished: bool) -> None:
    accum = 2 if unfinished else 1
    job = gang(samples=48, die=[2, 2], breaks=3 if unfinished else 2, decays=True)
    dies(job, accum=accum, global_batch=12)
    rates = [(tmp_path / f"rate-{number}").read_text() for number in (0, 1)]
    assert rates == [f"{0.05 * 0.5**EPOCHS} {EPOCHS}"] * 2


def test_nan_is_recorded_as_null(gang: Make) -> None:
    job = gang(nan=True)
    job.start(2, checkpoint_s=1e-9)
    assert job.end() == [0, 0]
    assert job.outcomes() == ["done", "done"]
    assert job.outcome(0).epoch == 1, "left with patience, in the second epoch"
    [complete, left] = job.events("epoch")
    assert (complete.loss, complete.metric, left.metric) == (None, None, None)
    warning = "loss is nan, metric is nan after step 5, recorded as null"
    assert complete.detail == {"epoch": 0, "warning": warning}
    assert all(event.loss is None for event in job.events("progress"))
    assert job.errors().count("this is said once") in {1, 2}, "of the loss and the metric, if not at once"


def rows(folder: Path, worker: int) -> list[dict[str, Any]]:
    result = [json.loads(line) for path in folder.glob("seen-*") for line in path.read_text().splitlines()]
    return [row for row in result if row["worker"] == worker]


def test_a_worker_whose_model_differs_says_in_what(gang: Make) -> None:
    job = gang(unlike="wider")
    job.patience_s = 1
    job.start(2)
    assert job.end() == [1, 1]
    result = "parameter 0 is trunk.weight (float64, 17 x 8) here, trunk.weight (float64, 16 x 8) there"
    expected = f"UsageError: the model differs from that of the other workers: {result}"
    assert job.outcome(1).message == expected
    assert job.outcome(0).samples_done == 0


def test_a_worker_that_freezes_something_else_trains_along(gang: Make, tmp_path: Path) -> None:
    plain(tmp_path / "alone", script=SCRIPT)
    job = gang(unlike="frozen")
    assert job.run(2) == ["done", "done"]
    assert_same_weights(tmp_path, tmp_path / "alone")
