"""Real workers of one job come, go and die while it trains, directed by plan files as by the launcher."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pliant.tools.run.elastic.state.checkpoint import Checkpoints
from pliant.tools.run.statedir.contract.liveness import life
from tests.effort import THOROUGH
from tests.leftovers import PATIENCE_S
from tests.tools.run.elastic.gang import ENDLESS, TORCHRUN, Gang, assert_same_weights, final, plain, seen
from tests.tools.run.elastic.nursery import preload
from tests.tools.run.site import until

pytestmark = pytest.mark.torch
SAMPLES = 47
KILLS = 8
FORGOTTEN = "an exchange with a lost worker does not end"
"""What a worker says that ends itself because gloo lost its exchange, which it rarely does."""
Make = Callable[..., Gang]


def test_one_two_three_two_one_trains_the_same(gang: Make, tmp_path: Path) -> None:
    job = gang(**ENDLESS, step_s=0.02, groups=True)
    job.start(1)
    job.wait_for("progress")
    job.goes_through([0, 1], [0, 1, 2], [0, 2], [2])
    until(lambda: list(job.here.meetings.iterdir()) == [])  # what the generations met over goes with them
    job.publish([2], abort=True)
    job.end()
    assert job.outcomes() == ["left", "left", "stopped"], job.errors()
    assert trained_as_alone(job, tmp_path) > 4
    changes = [e for e in job.events("progress") if (e.detail or {}).get("mechanism") == "in place"]
    assert [event.gpus for event in changes] == [2, 3, 2, 1]
    assert {"leave", "meet", "broadcast", "first_step"} <= (changes[0].detail or {})["parts"].keys()
    made = [int(path.read_text()) for path in tmp_path.glob("made-*")]
    assert sorted(made) == [2, 2, 3]


def test_a_failed_communicator_fails_its_round_only(gang: Make, tmp_path: Path) -> None:
    """One worker's communicator fails when that of the others is there: both come to the next round."""
    job = gang(**ENDLESS, step_s=0.02)
    job.start(1)
    job.wait_for("progress")
    job.options["connects_at"] = 2
    job.goes_through([0, 1])
    job.publish([0, 1], abort=True)
    job.end()
    assert job.outcomes() == ["stopped", "stopped"], job.errors()
    assert "did not come together: NCCL error" in job.errors()
    assert trained_as_alone(job, tmp_path) > 2


@pytest.mark.parametrize("away", [0, 1])
def test_a_worker_that_comes_back_leaves(gang: Make, tmp_path: Path, away: int) -> None:
    """Its connections never closed, and its lock is held: only its heartbeat says that it is not there."""
    job = gang(**ENDLESS, step_s=0.02, look_s=0.1)
    job.start(2, checkpoint_s=0.2)
    job.wait_for("progress", 2)
    job.signal(away, signal.SIGSTOP)
    job.publish([1 - away], checkpoint_s=0.2)
    job.reaches()
    before = set(job.dir.checkpoints.glob("step-*"))
    job.until(lambda: before.isdisjoint(job.dir.checkpoints.glob("step-*")), "two checkpoints")
    job.signal(away, signal.SIGCONT)
    job.until(job.here.outcome(away).exists, "end of the one that was away")
    assert job.outcome(away).outcome == "left"
    job.publish([1 - away], abort=True)
    job.end()
    saved = same_weights_as_alone(job, tmp_path)
    assert job.outcome(1 - away).samples_done == saved["samples_done"]


def trained_as_alone(job: Gang, folder: Path) -> int:
    """Steps that were trained, after a look at every weight and sample; no worker may have been killed."""
    result = {epoch: sorted(indices) for epoch, indices in seen(folder).items()}
    saved = same_weights_as_alone(job, folder)
    last = result.pop(saved["epoch"], [])
    assert result == {epoch: list(range(SAMPLES)) for epoch in range(saved["epoch"])}
    assert len(last) == len(set(last)) == saved["cursor"]
    return saved["step"]


def same_weights_as_alone(job: Gang, folder: Path) -> dict[str, int]:
    """The counters of the checkpoint, which has the weights of one process after as many steps."""
    saved = Checkpoints(job.dir.checkpoints).load().state
    assert saved is not None
    steps = saved["counters"]["step"]
    plain(folder / "alone", **ENDLESS, stop_at=steps)
    torch.testing.assert_close(saved["model"], final(folder / "alone")["model"], rtol=1e-9, atol=1e-12)
    assert (
        saved["counters"]["samples_done"]
        == SAMPLES * saved["counters"]["epoch"] + saved["counters"]["cursor"]
    )
    counters: dict[str, int] = saved["counters"]
    return counters


def test_a_storm_of_kills_loses_nothing(gang: Make, tmp_path: Path) -> None:
    job = gang(**ENDLESS, step_s=0.005, look_s=0.5)
    rng = np.random.default_rng(20211115)

    def begun() -> list[int]:
        job.start(2)
        job.wait_for("progress")
        return [0, 1]

    def is_reached() -> bool:
        return job.here.reached.read_text() == f"{job.generation}\n"

    members = begun()
    for _ in range(KILLS):
        joiner = len(job.workers)
        joining = [*members, joiner]
        job.publish(joining)
        job.add(joiner)
        job.until(job.here.presence(joiner).exists, "worker")
        time.sleep(rng.uniform(0, 0.05))  # somewhere between before and after the change
        victim = int(rng.choice(joining))
        job.signal(victim, signal.SIGKILL)
        members = [number for number in joining if number != victim][-2:]
        job.publish(members)
        job.until(lambda: is_reached() or FORGOTTEN in job.errors(), "change")
        if not is_reached():  # then a launcher begins another attempt
            job.kill()
            members = begun()
    job.publish(members, abort=True)
    for number in members:
        job.workers[number].wait(PATIENCE_S)
    assert [job.outcome(number).outcome for number in members] == ["stopped"] * 2
    same_weights_as_alone(job, tmp_path)


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


Alone = Callable[[str], Path]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    known: dict[str, Path] = {}

    def trained(shape: str) -> Path:
        if shape not in known:
            known[shape] = tmp_path_factory.mktemp("alone")
            plain(known[shape], shape=shape, norm=True)
        return known[shape]

    return trained


@pytest.mark.parametrize("shape", ["peek", "peek, kept", "steps done"])
def test_workers_join_and_die_in_epochs(gang: Make, alone: Alone, tmp_path: Path, shape: str) -> None:
    joins_and_dies(gang(shape=shape, norm=True, hold_in=[1, 2]))
    assert_trained(tmp_path, alone(shape))


@pytest.fixture(scope="module")
def compiler() -> None:
    preload("tests.tools.run.elastic.compiler")


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("compiled", ["before", "after", "in place"])
def test_a_compiled_model_is_resized(gang: Make, alone: Alone, tmp_path: Path, compiled: str) -> None:
    joins_and_dies(gang(shape="plain", norm=True, hold_in=[1, 2], compiled=compiled))
    assert int((tmp_path / "graphs-0").read_text()) > 0, "nothing was compiled"
    assert_trained(tmp_path, alone("plain"))


def joins_and_dies(job: Gang) -> None:
    """A second worker comes in the second epoch, and the first one is killed in the third."""
    grows_in_the_second_epoch(job)
    both = [job.out / f"holds-2-{rank}" for rank in (0, 1)]  # and so have written what they trained
    job.until(lambda: all(each.exists() for each in both), "first step of the third epoch")
    job.signal(0, signal.SIGKILL)
    job.publish([1])
    (job.out / "go-2").touch()
    job.end()
    assert job.outcome(1).outcome == "done", job.errors()


NO_COMPILER = shutil.which("g++") is None or " " in f"{sys.prefix}{tempfile.gettempdir()}"
"""The default one needs g++, and takes no path with a blank."""


@pytest.mark.skipif(
    NO_COMPILER or not THOROUGH, reason="half a minute of CPU time, for a compiler's last step"
)
def test_the_default_compiler_trains_the_same_under_torchrun(alone: Alone, tmp_path: Path) -> None:
    """Its workers are started as scripts are: it starts processes, too."""
    # vectors are not the point, and to find out which there are compiles four more programs
    plainly = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "0"}
    how = {"shape": "plain", "norm": True, "compiled": "after", "backend": "inductor"}
    plain(tmp_path, *TORCHRUN, env=plainly, **how)
    assert_same_weights(tmp_path, alone("plain"))


@pytest.mark.parametrize("shape", ["islice", "break", "a shorter one"])
def test_a_joined_worker_ends_the_epoch_with_the_others(
    gang: Make, alone: Alone, tmp_path: Path, shape: str
) -> None:
    """It has counted fewer of them and trains on, but that step does not count."""
    job = gang(shape=shape, norm=True, hold_in=[1])
    grows_in_the_second_epoch(job)
    job.end()
    assert job.outcomes() == ["done", "done"], job.errors()
    assert_same_weights(tmp_path, alone(shape))
    assert [event.samples_done for event in job.events("epoch")] == [30, 60, 90]


def grows_in_the_second_epoch(job: Gang) -> None:
    """A second worker comes after the first step of that epoch."""
    job.start(1)
    job.until((job.out / "holds-1-0").exists, "first step of the second epoch")
    job.publish(2)
    job.add(1)
    job.until(lambda: life(job.here.presence(1)) == "alive", "second worker")
    (job.out / "go-1").touch()
    job.reaches()


def assert_trained(result: Path, expected: Path) -> None:
    """The same samples in each epoch, some of them tried twice, and the same weights."""
    assert_same_weights(result, expected)
    trained = {epoch: sorted(set(samples)) for epoch, samples in seen(result).items()}
    assert trained == {epoch: sorted(samples) for epoch, samples in seen(expected).items()}


@pytest.mark.parametrize(
    ("shape", "line"),
    [
        ("one ahead", "a batch is trained after the loader was asked for the next one"),
        ("list", "a batch is trained after the loader was asked for the next one"),
        ("side by side", "a loop over the loader was continued after another one had begun"),
        ("continued", "a loop over the loader that was begun in epoch 0 was continued after that epoch"),
    ],
)
def test_a_loop_that_cannot_be_resized_is_refused(gang: Make, shape: str, line: str) -> None:
    job = gang(shape=shape)
    assert job.run(1) == ["crashed"]
    assert line in job.outcome(0).message


def test_passes_from_an_endless_generator(gang: Make, alone: Alone, tmp_path: Path) -> None:
    """It takes as many batches an epoch as the loader has, and never lets a pass end by itself."""
    job = gang(shape="endless", norm=True)
    assert job.run(2) == ["done", "done"]
    assert_same_weights(tmp_path, alone("endless"))
