"""Loops that authors write: left in the middle, begun twice, held in a variable, with closures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from pliant.schemas.errors import UsageError
from pliant.tools.run import elastic
from pliant.tools.run.elastic import ElasticJob
from pliant.tools.run.elastic.loop.prepared import checked, guard_optimizer
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR
from tests.tools.run.elastic.alone import Alone

pytestmark = pytest.mark.torch
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
    @pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.LBFGS])
    def test_a_closure_trains_the_same_on_one_worker(
        self, job: Alone, make: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found: list[list[float]] = []

        def train(step: Step) -> Callable[[ElasticJob], None]:
            def script(it: ElasticJob) -> None:
                model, optimizer, loader = prepared(it, make)
                for _ in it.epochs(1):
                    for (x,) in loader:
                        step(model, optimizer, x)
                found.append([value.item() for value in model.parameters()])

            return script

        assert job.run(train(with_closure), seed=5).samples_done == 40
        monkeypatch.delenv(ENV_JOB_DIR)
        train(with_closure)(elastic.init(batch_size=10, seed=5))
        assert found[0] == found[1]
        if make is torch.optim.SGD:
            train(usual)(elastic.init(batch_size=10, seed=5))
            assert found[0] == found[2]

    def test_a_closure_trains_micro_steps(self, job: Alone) -> None:
        found: list[list[float]] = []

        def script(it: ElasticJob) -> None:
            model, optimizer, loader = prepared(it)
            for _ in it.epochs(1):
                for (x,) in loader:
                    with_closure(model, optimizer, x)
            found.append([value.item() for value in model.parameters()])

        assert job.run(script, accum=3, seed=5).samples_done == 40
        for folder in job.dir.checkpoints.iterdir():
            folder.unlink()
        assert job.run(script, seed=5).samples_done == 40
        assert found[0] == pytest.approx(found[1], rel=1e-6)

    def test_repeated_closures_are_refused_with_micro_steps(self, job: Alone) -> None:
        def script(it: ElasticJob) -> None:
            model, optimizer, loader = prepared(it, torch.optim.LBFGS)
            for _ in it.epochs(1):
                for (x,) in loader:
                    with_closure(model, optimizer, x)

        end = job.run(script, accum=3)
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
