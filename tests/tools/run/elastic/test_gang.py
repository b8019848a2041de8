"""Real workers of one job: whatever is done to them, they train what one undisturbed process trains."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools.run.elastic.gang import TORCHRUN, Gang, assert_same_weights, final, plain

pytestmark = pytest.mark.torch
Make = Callable[..., Gang]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    plain(folder, schedule="epoch")
    return folder


@pytest.fixture(scope="module")
def clipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clipped")
    plain(folder, clip=True, schedule="step")
    return folder


def test_accumulation_clips_and_schedules_the_same(gang: Make, tmp_path: Path, clipped: Path) -> None:
    job = gang(clip=True, schedule="step")
    assert job.run(2, accum=2) == ["done"] * 2
    assert_same_weights(tmp_path, clipped)
    assert final(tmp_path)["steps"] == 5


def test_the_same_script_under_plain_torchrun(tmp_path: Path, undisturbed: Path) -> None:
    plain(tmp_path, *TORCHRUN, schedule="epoch", agree=True)
    assert_same_weights(tmp_path, undisturbed)
    recorded = [json.loads(path.read_text())[1:] for path in tmp_path.glob("agreed-2-*")]
    assert len(recorded) > 1
    assert recorded == recorded[:1] * len(recorded)
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {
        "agreed",
        "asks",
        "seen",
        "final.pt",
    }


def test_an_epoch_s_loss_survives_a_crash(gang: Make, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = Gang(tmp_path / "whole")
    assert whole.run(1) == ["done"]
    job = gang(step_s=0.1)
    job.start(2, checkpoint_s=0.05)
    job.wait_for("checkpoint", 2)
    for rank in (0, 1):  # a survivor would save the step of now, of which it knows its own part of the loss
        job.signal(rank, signal.SIGKILL)
    job.end()
    job.options["step_s"] = 0.0
    assert job.run(1) == ["done"]
    again = [event.loss for event in job.events("epoch")]
    assert again == pytest.approx([event.loss for event in whole.events("epoch")][-len(again) :])


def test_a_notice_to_one_worker_stops_all(gang: Make) -> None:
    """After the same step, with a checkpoint."""
    job = gang(step_s=0.05, num_workers=1, hold_at=3)
    job.start(2)
    job.wait_for("progress")
    job.signal(1, signal.SIGTERM)
    job.go()
    assert job.end() == [0, 0]
    assert job.outcomes() == ["stopped", "stopped"]
    done = {job.outcome(0).samples_done, job.outcome(1).samples_done}
    assert done == {job.events("checkpoint")[-1].samples_done}


@pytest.mark.parametrize("victim", [0, 1])
def test_the_survivor_of_a_kill_without_a_plan_ends(gang: Make, victim: int) -> None:
    job = gang(step_s=0.05)
    job.patience_s = 1
    job.start(2, checkpoint_s=0.05)
    job.wait_for("checkpoint")
    job.signal(victim, signal.SIGKILL)
    codes = job.end()
    assert codes[victim] == -signal.SIGKILL
    assert codes[1 - victim] not in {0, -signal.SIGKILL}
    assert job.outcome(1 - victim).outcome == "crashed"
    assert job.outcome(1 - victim).message.startswith("lost the connection to another worker")
    assert not job.here.outcome(victim).exists()


def test_a_plan_of_the_same_division_stops_nothing(gang: Make, tmp_path: Path) -> None:
    job = gang(step_s=0.05, hold_at=2)
    job.start(1)
    job.wait_for("progress")
    job.publish(1, lr_scale=2.0)
    job.go()
    job.end()
    assert job.outcomes() == ["done"]
    assert final(tmp_path)["used"] == pytest.approx([0.02])


def test_a_stop_ends_the_wait_for_others(gang: Make) -> None:
    job = gang(step_s=0.05, hold_at=3)
    assert job.run_and_stop(1) == ["stopped"]
    trained = job.outcome(0).samples_done
    job.start(2, only=(1,))
    job.publish(2, abort=True)
    assert job.end() == [0]
    assert job.outcome(1).outcome == "stopped"
    assert job.outcome(1).samples_done == trained > 0
