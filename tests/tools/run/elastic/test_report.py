"""What rank 0 reports over hours of training, on a clock that the test turns."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from pliant.schemas.event import Event
from pliant.schemas.io import read_events
from pliant.tools.run.elastic import report
from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.report import NOISE_INTERVAL_STEPS, NoiseMeter, Reporter, WorkerChange
from pliant.tools.run.elastic.state.checkpoint import Saved
from pliant.tools.run.elastic.state.training import Mean, TrainingCounters
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.plan import Progress, ProgressFile
from tests.tools.run.elastic.gang import plan

BATCH = 10


class Training:
    """Rank 0 of a job with one worker; steps take as long as the test says."""

    def __init__(self, folder: Path) -> None:
        self.dir = JobDir(folder)
        self.now_s = 1000.0
        self.counters = TrainingCounters()
        self.context = WorkerContext(self.dir, plan(1, [0]), 0)
        self.reporter = Reporter(self.context)
        self.reporter.begin_generation(BATCH)

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return 1.7e9 + self.now_s

    def train(self, steps: int, step_s: float = 0.5, loss: float = 0.25) -> None:
        for _ in range(steps):
            self.now_s += step_s
            self.counters.advance(BATCH)
            losses = Mean()
            losses.add(loss, BATCH)
            self.reporter.step_done(self.counters, losses, step_s)

    def save(self, took_s: float = 2.0) -> None:
        self.reporter.checkpoint_ended(Saved(self.counters.copy(), stall_s=took_s, took_s=took_s, problem=""))

    def events(self, name: str) -> list[Event]:
        return [event for event in read_events(self.dir.attempt(1).progress) if event.event == name]

    @property
    def newest(self) -> Progress:
        result = ProgressFile(self.dir.progress).fresh()
        assert result is not None
        return result


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    made = Training(tmp_path)
    monkeypatch.setattr(report, "time", made)
    monkeypatch.setattr(report, "process_age_s", lambda: 12.0)
    yield made
    made.reporter.close()


def test_an_hour_of_training_is_a_few_events_and_one_small_file(training: Training) -> None:
    for _ in range(60):
        training.train(120)
        training.save()
    recorded = training.events("progress")
    assert [event.samples_done for event in recorded[:2]] == [10.0, 50.0]
    assert (recorded[0].overhead_seconds, (recorded[0].detail or {})["ready_s"]) == (11.5, 12.0)
    assert recorded[0].detail == {**(recorded[0].detail or {}), "first_step": True, "generation": 1}
    assert recorded[1].detail == {"step_seconds": 0.5}
    assert len(recorded) == 1 + 1 + 11
    assert len(training.events("checkpoint")) == 12
    result = training.newest
    assert (result.samples_done, result.step, result.loss) == (72_000 - BATCH, 7199, 0.25)
    assert (result.samples_per_second, result.step_seconds) == (20.0, 0.5)
    assert result.memory is not None
    assert result.memory > 0


def test_the_age_of_a_process_does_not_follow_the_time_of_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells the time of its boot in whole seconds: starts derived from it are up to one off."""
    recorded = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: recorded(self) - 1.0)
    before_s = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1) as child:
        began_s = time.monotonic()
        assert child.stdout is not None
        assert child.stdout.readline()
        least_s = time.monotonic() - began_s
        age_s = report.process_age_s(child.pid)
        assert least_s <= age_s <= time.monotonic() - before_s + 1 / os.sysconf("SC_CLK_TCK")
        child.kill()
    with pytest.raises(psutil.NoSuchProcess):
        report.process_age_s(child.pid)


def test_checkpoints_recorded_together_cost_their_sum(training: Training) -> None:
    for _ in range(13):
        training.train(120)
        training.save(took_s=2.0)
    training.reporter.report_stop(training.counters)
    training.save()
    *together, last = training.events("checkpoint")
    assert last.overhead_seconds is None, "the checkpoint before leaving is a part of the leaving"
    assert sum(event.overhead_seconds or 0.0 for event in together) == 26.0
    assert sum((event.detail or {})["count"] for event in together) == 13
    assert (together[0].detail, together[-1].samples_done) == ({"step": 120, "count": 1}, 13 * 1200.0)
    assert training.events("progress")[-1].samples_done == 13 * 1200.0


@pytest.mark.parametrize(("by_epoch", "ends"), [(False, [10.0, 50.0, 2000.0]), (True, [10.0, 50.0])])
def test_history_ends_where_training_does(training: Training, by_epoch: bool, ends: list[float]) -> None:
    training.train(200)
    if by_epoch:
        training.reporter.epoch_done(training.counters, 0.25, None)
    training.reporter.close()
    training.reporter.close()
    assert [event.samples_done for event in training.events("progress")] == ends


def test_a_change_is_recorded_with_the_speed_after_it(training: Training) -> None:
    training.train(20)
    training.reporter.begin_generation(2 * BATCH, WorkerChange(training.now_s, 0.5))
    training.train(20, step_s=0.25)
    changed, measured = training.events("progress")[2:]
    assert (changed.detail or {})["mechanism"] == "in place"
    assert (measured.global_batch, measured.detail) == (20, {"step_seconds": 0.25})


def test_noise_is_reported_once_it_is_known(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    meter = NoiseMeter()
    monkeypatch.setattr(training.reporter, "_noise", meter)
    training.train(20)
    monkeypatch.setattr(NoiseMeter, "noise_scale", 64.0)
    training.train(120)
    assert [event.detail for event in training.events("progress")[1:]] == [
        {"step_seconds": 0.5},
        {"step_seconds": 0.5, "noise_scale": 64.0},
    ]
    monkeypatch.setattr(NoiseMeter, "noise_scale", None)
    training.reporter.begin_generation(2 * BATCH)  # noise is of one batch
    training.train(20)
    monkeypatch.setattr(NoiseMeter, "noise_scale", 32.0)
    training.train(120)
    assert training.events("progress")[-1].detail == {"step_seconds": 0.5, "noise_scale": 32.0}


def test_long_steps_are_measured_and_a_loss_of_nan_is_not(training: Training) -> None:
    training.train(8, step_s=40.0, loss=math.nan)
    assert training.newest.step_seconds == 40.0
    assert training.newest.samples_done > 0
    assert training.newest.loss is None
    assert (training.events("progress")[1].detail or {})["step_seconds"] == 40.0


def test_repeated_warnings_are_counted_and_seldom_recorded(training: Training) -> None:
    for _ in range(60):
        training.train(12, step_s=5.0)
        training.reporter.warn(training.counters, "the disk is full")
    recorded = [event for event in training.events("progress") if "warning" in (event.detail or {})]
    assert report.MAX_WARNINGS < len(recorded) < 25
    training.train(2)
    assert training.newest.warnings == 60


def test_an_unwritable_file_is_warned_of_once(training: Training, caplog: pytest.LogCaptureFixture) -> None:
    training.dir.progress.with_name("progress.json.new").mkdir()
    training.train(100)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        f"{training.dir.progress} is not up to date"
    ]
    assert training.events("progress")[-1].detail == {"step_seconds": 0.5}


def test_only_rank_0_writes(training: Training) -> None:
    for _ in range(2):
        training.train(120)
        training.save()
    training.reporter.before_change()
    assert [event.overhead_seconds for event in training.events("checkpoint")] == [2.0, 2.0]
    before = training.dir.attempt(1).progress.read_bytes()
    training.context.rank = -1
    training.reporter.close()
    assert training.dir.attempt(1).progress.read_bytes() == before
    training.dir.progress.unlink()
    training.context.rank = 1
    training.reporter.begin_generation(BATCH)
    training.train(100)
    assert not training.dir.progress.exists()


def steps(meter: NoiseMeter, batch: int, count: int) -> None:
    """Steps whose gradient is 1 everywhere, and noise with a spread of 3 by sample."""
    generator = torch.Generator().manual_seed(batch)
    model = nn.Linear(50, 40, bias=False)
    for step in range(count):
        noise = torch.randn(model.weight.shape, generator=generator) * 3.0 / batch**0.5
        model.weight.grad = 1.0 + noise
        meter.look(model, step, batch)


def test_the_noise_scale_is_found_whatever_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a large model is sampled."""
    for batch in (4, 64):
        meter = NoiseMeter()
        steps(meter, batch, 20 * NOISE_INTERVAL_STEPS)
        assert meter.noise_scale == pytest.approx(9.0, rel=0.05)
    monkeypatch.setattr(report, "MAX_NOISE_SAMPLES", 400)
    meter = NoiseMeter()
    steps(meter, 4, 100 * NOISE_INTERVAL_STEPS)
    assert meter.noise_scale == pytest.approx(9.0, rel=0.15)
    copied: list[int] = []
    monkeypatch.setattr(torch.Tensor, "clone", lambda one: copied.append(one.numel()) or one.mul(1))
    steps(meter, 4, 1)
    assert copied == [400]


def look(meter: NoiseMeter, model: nn.Module, step: int, batch: int, gradient: float | None) -> float | None:
    """What is known after a step whose gradients are all the same."""
    for parameter in model.parameters():
        parameter.grad = None if gradient is None else torch.full_like(parameter, gradient)
    meter.look(model, step, batch)
    return meter.noise_scale


def test_without_a_pair_there_is_no_noise() -> None:
    meter, model = NoiseMeter(), nn.Linear(1, 1, bias=False).double()
    assert look(meter, model, 0, 8, 1.0) is None
    meter.forget()
    assert look(meter, model, 1, 16, 1.0) is None, "the batch has changed"
    assert look(meter, model, NOISE_INTERVAL_STEPS, 8, 1e-250) is None
    assert look(meter, model, NOISE_INTERVAL_STEPS + 1, 8, 1e60) is None, "it is beyond all numbers"
    meter = NoiseMeter()
    assert [look(meter, model, step, 8, None) for step in range(2 * NOISE_INTERVAL_STEPS)] == [
        None
    ] * 2 * NOISE_INTERVAL_STEPS, "dropped"


@pytest.mark.parametrize("strange", [float("inf"), float("nan")])
@pytest.mark.parametrize("at", [0, 1])
def test_an_overflow_in_mixed_precision_costs_one_pair(strange: float, at: int) -> None:
    meter, model = NoiseMeter(), nn.Linear(2, 1)
    for step in range(3 * NOISE_INTERVAL_STEPS):
        look(meter, model, step, 8, strange if step == NOISE_INTERVAL_STEPS + at else 1 + step % 2)
    # of three parameters the gradients are 1 and 2
    assert meter.noise_scale == pytest.approx((8 * 3 / 2) / 6)


def test_gradients_that_are_sparse_are_measured_as_others() -> None:
    result = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model, meter = nn.Embedding(10, 3, sparse=sparse), NoiseMeter()
        for step in (NOISE_INTERVAL_STEPS, NOISE_INTERVAL_STEPS + 1):
            model.zero_grad()
            (model(torch.tensor([1, step % NOISE_INTERVAL_STEPS + 1])) * torch.randn(3)).sum().backward()
            meter.look(model, step, 4)
        assert meter.noise_scale is not None
        result.append(meter.noise_scale)
    assert result[1] == pytest.approx(result[0])


def test_a_pair_over_which_other_layers_are_trained_is_left_out() -> None:
    model, meter = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)), NoiseMeter()
    for step in (NOISE_INTERVAL_STEPS, NOISE_INTERVAL_STEPS + 1):
        for number, layer in enumerate(model):
            layer.requires_grad_(number == step % NOISE_INTERVAL_STEPS)
        model.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        meter.look(model, step, 4)
    assert meter.noise_scale is None
