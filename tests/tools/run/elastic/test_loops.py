"""Loops that authors write: left in the middle, begun twice, held in a variable, with closures."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from pliant.schemas.errors import UsageError
from pliant.tools.run import elastic
from pliant.tools.run.elastic import EarlyStopping, ElasticJob
from pliant.tools.run.elastic.loop.prepared import checked, guard_optimizer
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR
from tests.tools.run.elastic.alone import Alone

pytestmark = pytest.mark.torch
Patch = pytest.MonkeyPatch
Step = Callable[[nn.Module, torch.optim.Optimizer, torch.Tensor], object]


def samples(count: int = 40) -> torch.utils.data.TensorDataset:
    return torch.utils.data.TensorDataset(torch.linspace(0, 1, count).unsqueeze(1))


def prepared(job: ElasticJob, make: Any = torch.optim.SGD) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    net = nn.Linear(1, 1)
    return job.prepare(net, make(net.parameters(), lr=0.1), samples())


def usual(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def with_closure(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]


class TestLeavingTheLoader:
    @pytest.mark.parametrize("steps", [1, 4])
    @pytest.mark.parametrize("returns", [True, False])
    def test_the_step_before_a_break_or_return_counts(self, job: Alone, steps: int, returns: bool) -> None:
        def script(it: ElasticJob) -> None:
            model, optimizer, loader = prepared(it)
            done = 0
            for _ in it.epochs(2):
                for (x,) in loader:
                    usual(model, optimizer, x)
                    done += 1
                    if done == steps:
                        if returns:
                            return
                        break
                if done == steps:
                    break

        end = job.run(script)
        assert (end.outcome, end.samples_done) == ("done", 10 * steps)

    def test_a_batch_that_the_optimizer_has_not_seen_does_not_count(self, job: Alone) -> None:
        def script(it: ElasticJob) -> None:
            model, optimizer, loader = prepared(it)
            for _ in it.epochs(2):
                for number, (x,) in enumerate(loader):
                    if number == 2:
                        break
                    usual(model, optimizer, x)

        assert job.run(script).samples_done == 2 * 20

    def test_a_loop_after_a_break_goes_on_with_the_next_samples(self, job: Alone) -> None:
        seen: list[int] = []

        def script(it: ElasticJob) -> None:
            model, optimizer, loader = prepared(it)
            for _ in it.epochs(1):
                for (x,) in loader:
                    usual(model, optimizer, x)
                    seen.extend((x.flatten() * 39).round().int().tolist())
                    break
                next(iter(loader))  # looked at, not trained
                for (x,) in loader:
                    usual(model, optimizer, x)
                    seen.extend((x.flatten() * 39).round().int().tolist())

        assert job.run(script).samples_done == 40
        assert sorted(seen) == list(range(40)), "each sample once"

    @pytest.mark.parametrize("gives_up", [False, True])
    def test_a_break_with_the_epochs_in_a_variable_ends_it(self, job: Alone, gives_up: bool) -> None:
        held: list[Iterator[int]] = []

        def script(it: ElasticJob) -> None:
            model, optimizer, loader = prepared(it)
            held.append(it.epochs(5))
            for epoch in held[0]:
                for (x,) in loader:
                    usual(model, optimizer, x)
                it.log(metric=epoch / 10)
                if epoch == 1 and gives_up:
                    sys.exit("diverged")
                if epoch == 1:
                    break

        end = job.run(script)
        assert (end.outcome, end.samples_done, end.message, end.exit_counts) == ("done", 80, "", True)
        assert [event.metric for event in job.events("epoch")] == [0.0, 0.1]


class TestClosures:
    def train(self, weights: list[Any], step: Step, make: Any) -> Callable[[ElasticJob], None]:
        """A script of one epoch that leaves its weights behind."""

        def script(it: ElasticJob) -> None:
            model, optimizer, loader = prepared(it, make)
            for _ in it.epochs(1):
                for (x,) in loader:
                    step(model, optimizer, x)
            weights.append([value.item() for value in model.parameters()])

        return script

    @pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.LBFGS])
    def test_a_closure_trains_the_same_on_one_worker(self, job: Alone, make: Any, monkeypatch: Patch) -> None:
        weights: list[list[float]] = []
        assert job.run(self.train(weights, with_closure, make), seed=5).samples_done == 40
        monkeypatch.delenv(ENV_JOB_DIR)
        for step in (with_closure, usual) if make is torch.optim.SGD else (with_closure,):
            self.train(weights, step, make)(elastic.init(batch_size=10, seed=5))
            assert weights.pop() == weights[0]

    def test_a_closure_trains_micro_steps_once(self, job: Alone) -> None:
        weights: list[list[float]] = []
        for accum in (3, 1):
            script = self.train(weights, with_closure, torch.optim.SGD)
            assert job.run(script, accum=accum, seed=5).samples_done == 40
            for path in job.dir.checkpoints.iterdir():
                path.unlink()
        assert weights[0] == pytest.approx(weights[1], rel=1e-6)
        end = job.run(self.train(weights, with_closure, torch.optim.LBFGS), accum=3)
        assert end.outcome == "crashed"
        assert "several times a step, which goes with no micro-steps" in end.message

    def test_several_workers_run_a_closure_once_a_step(self) -> None:
        closure = checked(lambda: 1.0, accumulates=False, workers=2, failed=lambda: False)
        assert closure() == 1.0
        with pytest.raises(UsageError, match="several times a step"):
            closure()

    def test_a_closure_of_a_void_step_makes_no_step(self) -> None:
        net = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def void(closure: Callable[[], Any]) -> Callable[[], Any]:
            return checked(closure, accumulates=False, workers=2, failed=lambda: True)

        guard_optimizer(optimizer, ("step",), lambda: False, checked=void)
        before = net.weight.item()

        def closure() -> torch.Tensor:
            loss = net(torch.ones(1, 1)).sum()
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]
        assert net.weight.item() == before


Begin = Callable[[], ElasticJob]


class Script:
    """Trains a small net for two epochs, and keeps the order of its samples."""

    def __init__(self) -> None:
        self.net = nn.Linear(1, 1)
        self.samples: list[int] = []

    def __call__(self, it: ElasticJob) -> None:
        self.net = nn.Linear(1, 1)
        data = torch.utils.data.TensorDataset(torch.arange(40.0).unsqueeze(1))
        model, optimizer, loader = it.prepare(self.net, torch.optim.SGD(self.net.parameters(), lr=1e-5), data)
        for _ in it.epochs(2):
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                self.samples += x.flatten().int().tolist()

    @property
    def weights(self) -> list[float]:
        return [float(parameter.detach().sum()) for parameter in self.net.parameters()]


def seeded(seed: int) -> ElasticJob:
    torch.manual_seed(seed)
    return elastic.init(batch_size=10)


def warnings(job: Alone) -> list[str]:
    return [(event.detail or {}).get("warning", "") for event in job.events("progress") if event.detail]


@pytest.mark.parametrize(
    "begin", [lambda: elastic.init(batch_size=10, seed=4), lambda: seeded(4)], ids=["init", "manual_seed"]
)
def test_without_a_seed_a_job_trains_as_plain_python(job: Alone, monkeypatch: Patch, begin: Begin) -> None:
    job.begin, planned = begin, Script()
    assert job.run(planned).outcome == "done"
    assert not any("seed" in text for text in warnings(job))
    monkeypatch.delenv(ENV_JOB_DIR)
    alone = Script()
    alone(begin())
    assert planned.weights == alone.weights
    assert planned.samples == alone.samples


@pytest.mark.parametrize(
    ("begin", "place"),
    [(lambda: elastic.init(batch_size=10, seed=4), "elastic.init"), (lambda: seeded(4), "torch.manual_seed")],
)
def test_a_seed_of_the_job_that_replaces_another_one_is_named(job: Alone, begin: Begin, place: str) -> None:
    job.begin = begin
    assert job.run(Script(), seed=4).outcome == "done"
    assert not any("seed" in text for text in warnings(job)), "it is the same"
    for path in job.dir.checkpoints.iterdir():
        path.unlink()
    assert job.run(Script(), seed=7).outcome == "done"
    text = f"the job's seed 7 replaces 4, which the script gives {place}: plain python uses that one"
    assert warnings(job).count(text) == 1


def test_an_epoch_that_was_begun_with_one_seed_is_ended_with_it(job: Alone) -> None:
    """Another one in the script, or in the job, would give some of its samples twice and leave others out."""
    first, rest = Script(), Script()

    def stopped(it: ElasticJob) -> None:
        it._membership._stop.received = True  # type: ignore[union-attr]
        first(it)

    job.begin = lambda: elastic.init(batch_size=10, seed=4)
    assert job.run(stopped).outcome == "stopped"
    assert len(first.samples) < 40
    job.begin = lambda: elastic.init(batch_size=10, seed=6)
    assert job.run(rest).outcome == "done"
    assert sorted((first.samples + rest.samples)[:40]) == list(range(40))


def test_a_plan_without_a_seed_has_no_such_field(job: Alone) -> None:
    job.attempt = 1
    job.publish()
    assert "seed" not in json.loads(job.dir.plan.read_text())
    job.publish(seed=0)
    assert json.loads(job.dir.plan.read_text())["seed"] == 0


def ends_after(stopping: EarlyStopping, *metrics: float) -> int | None:
    """The epoch, from 1, after which it says that it is enough."""
    return next((epoch for epoch, metric in enumerate(metrics, 1) if stopping.reached(metric)), None)


def test_a_target_ends_the_training_when_it_is_reached() -> None:
    assert ends_after(EarlyStopping(target=0.9), 0.5, 0.89, 0.9, 0.95) == 3
    assert ends_after(EarlyStopping(target=0.1, lower_is_better=True), 0.5, 0.2, 0.1) == 3


def test_patience_counts_epochs_in_a_row_without_a_better_metric() -> None:
    assert ends_after(EarlyStopping(patience=2), 0.5, 0.5, 0.6, 0.6, 0.6, 0.7) == 5
    assert ends_after(EarlyStopping(patience=2, least_gain=0.2), 0.5, 0.6, 0.69) == 3
    assert ends_after(EarlyStopping(patience=2), math.nan, math.nan) == 2


def test_a_resize_forgets_nothing() -> None:
    first, second = EarlyStopping(patience=2), EarlyStopping(patience=2)
    assert not first.reached(0.8)
    assert not first.reached(0.7)
    second.load_state_dict(first.state_dict())
    assert second.reached(0.75)


@pytest.mark.parametrize("arguments", [{}, {"patience": 0}])
def test_nothing_to_stop_at_is_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="EarlyStopping"):
        EarlyStopping(**arguments)
