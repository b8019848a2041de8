"""Uneven and accumulated gradients, and the objects that act once per step."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, StepLR
from torch.optim.swa_utils import AveragedModel

from pliant.tools.run.elastic.cut import Cut, micro_batches
from pliant.tools.run.elastic.gradients import Gradients
from pliant.tools.run.elastic.guard import guard_helper, guard_optimizer
from pliant.tools.run.elastic.state import Mean
from pliant.tools.run.elastic.training import DOUBLING_STEPS, Training

X, Y = torch.randn(7, 4, dtype=torch.float64), torch.randn(7, 1, dtype=torch.float64)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 1).double()


def mean_loss(net: nn.Module, part: slice) -> torch.Tensor:
    return nn.functional.mse_loss(net(X[part]), Y[part])


def gradients(net: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in net.parameters() if parameter.grad is not None]


@pytest.fixture
def expected() -> list[torch.Tensor]:
    net = model()
    mean_loss(net, slice(0, 7)).backward()
    return gradients(net)


@pytest.mark.parametrize("accum", [1, 2, 3, 7])
def test_accumulated_gradients_are_those_of_the_whole_batch(accum: int, expected: list[torch.Tensor]) -> None:
    net = model()
    held = Gradients(net, accumulates=accum > 1)
    for micro in micro_batches(7, 0, Cut(7, 1, accum), 0):
        held.begin(micro)
        net.zero_grad()
        mean_loss(net, micro.loaded).backward()
        assert bool(gradients(net)) is micro.last, "a partial sum shows"
    torch.testing.assert_close(gradients(net), expected)


def test_two_backward_passes_in_a_micro_step_add_up(expected: list[torch.Tensor]) -> None:
    net = model()
    held = Gradients(net, accumulates=True)
    for micro in micro_batches(7, 0, Cut(7, 1, 2), 0):
        held.begin(micro)
        for _ in range(2):
            (mean_loss(net, micro.loaded) / 2).backward()
    torch.testing.assert_close(gradients(net), expected)


def test_workers_with_uneven_shares_average_to_the_whole_batch(expected: list[torch.Tensor]) -> None:
    by_worker = []
    for rank in range(3):
        net = model()
        (micro,) = micro_batches(7, 0, Cut(7, 3), rank)
        Gradients(net, accumulates=False).begin(micro)
        mean_loss(net, micro.loaded).backward()
        by_worker.append(gradients(net))
    average = [torch.stack(same).mean(0) for same in zip(*by_worker, strict=True)]
    torch.testing.assert_close(average, expected)


def test_a_padding_sample_gives_zero_even_where_its_loss_is_infinite() -> None:
    net = model()
    (micro,) = micro_batches(1, 0, Cut(4, 2), 1)
    Gradients(net, accumulates=False).begin(micro)
    (mean_loss(net, micro.loaded) * torch.inf).backward()
    assert all(not gradient.any() for gradient in gradients(net))


def test_a_parameter_that_the_last_micro_step_misses_keeps_its_gradient() -> None:
    net = nn.ModuleList([model(), model()])
    held = Gradients(net, accumulates=True)
    first, last = micro_batches(6, 0, Cut(6, 1, 2), 0)
    held.begin(first)
    mean_loss(net[0], first.loaded).backward()
    held.begin(last)
    mean_loss(net[1], last.loaded).backward()
    held.join_rest()
    assert len(gradients(net)) == 4


class TwoHeads(nn.Module):
    """A loop body may train the one head in one micro-step and the other one in the next."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = nn.ModuleList([nn.Linear(4, 1).double() for _ in range(2)])

    def loss(self, head: int, part: slice) -> torch.Tensor:
        return nn.functional.mse_loss(self.heads[head](X[part]), Y[part])


@pytest.mark.parametrize("first_scale", [1.0, 1024.0])
def test_a_parameter_that_the_last_micro_step_misses_is_unscaled_and_clipped_with_the_others(
    first_scale: float,
) -> None:
    plain, elastic = TwoHeads(), TwoHeads()
    ((plain.loss(0, slice(0, 3)) + plain.loss(1, slice(3, 6))) / 2).backward()
    nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
    torch.optim.SGD(plain.parameters(), lr=1.0).step()

    step, optimizer = Step(), torch.optim.SGD(elastic.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=first_scale)
    held = Gradients(elastic, accumulates=True)
    guard_optimizer(optimizer, ("step",), step, held.join_rest)
    guard_helper(scaler, step)
    for head, micro in enumerate(micro_batches(6, 0, Cut(6, 1, 2), 0)):
        step.quiet = not micro.last
        held.begin(micro)
        optimizer.zero_grad()
        scaler.scale(elastic.loss(head, micro.loaded)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(elastic.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    torch.testing.assert_close(elastic.state_dict(), plain.state_dict())


class Step:
    """A loop body's view of the step."""

    quiet = False

    def __call__(self) -> bool:
        return self.quiet


@pytest.mark.parametrize("scheduler_first", [True, False])
def test_optimizer_and_scheduler_act_in_the_last_micro_step_only(scheduler_first: bool) -> None:
    step, net = Step(), model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, 1, gamma=0.5) if scheduler_first else None
    guard_optimizer(optimizer, ("step",), step)
    scheduler = scheduler or StepLR(optimizer, 1, gamma=0.5)
    guard_helper(scheduler, step)
    before = copy.deepcopy(net.state_dict())
    rates = []
    for quiet in (True, True, False, True, False):
        step.quiet = quiet
        optimizer.zero_grad()
        mean_loss(net, slice(0, 7)).backward()
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
        assert torch.equal(net.state_dict()["weight"], before["weight"]) is (len(rates) < 3)
    assert rates == [1.0, 1.0, 0.5, 0.5, 0.25]
    assert type(scheduler).__name__ == "StepLR"
    assert isinstance(scheduler, StepLR)
    assert not any(callable(value) for value in scheduler.state_dict().values())


def test_a_gradient_scaler_and_an_averaged_model_wait_for_the_last_micro_step() -> None:
    step, net = Step(), model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    average = AveragedModel(net)
    guard_optimizer(optimizer, ("step",), step)
    for helper in (scaler, average):
        guard_helper(helper, step)
    scales = []
    for quiet in (True, False):
        step.quiet = quiet
        optimizer.zero_grad()
        scaler.scale(mean_loss(net, slice(0, 7))).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        average.update_parameters(net)
        scales.append(scaler.get_scale())
    assert scales == [4.0, 8.0]
    assert int(average.n_averaged) == 1


def test_the_learning_rate_scale_multiplies_once_and_rises_slowly_after_a_restore_under_another() -> None:
    def training(scale: float) -> tuple[Training, torch.optim.Optimizer, LambdaLR]:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        made = Training(net, optimizer, {}, scale)
        scheduler = LambdaLR(optimizer, lambda epoch: 0.5**epoch)
        made.helpers["scheduler"] = scheduler
        return made, optimizer, scheduler

    first, optimizer, scheduler = training(2.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)
    optimizer.step()
    scheduler.step()
    second, resumed, after = training(4.0)
    second.restore(first.capture())
    rates = [resumed.param_groups[0]["lr"]]
    for _ in range(DOUBLING_STEPS + 3):
        second.step_done(1, Mean())
        rates.append(resumed.param_groups[0]["lr"])
    assert rates[0] == pytest.approx(0.1), "what a step before the restore had"
    assert rates[DOUBLING_STEPS:] == pytest.approx([0.2] * 4)
    assert all(1.0 <= after / before < 1.08 for before, after in pairwise(rates))
    resumed.step()
    after.step()
    assert resumed.param_groups[0]["lr"] == pytest.approx(0.1)


def test_a_worker_that_started_under_a_plan_of_the_past_gets_the_learning_rate_of_the_others() -> None:
    """Those that train never followed the plan with the lower factor that it was started by."""

    def training(scale: float) -> tuple[Training, torch.optim.Optimizer]:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        return Training(net, optimizer, {}, scale), optimizer

    trains, theirs = training(2.0)
    joins, own = training(1.0)
    joins.restore(trains.shared())
    for worker in (trains, joins):
        worker.want_lr_scale(2.0)
    assert own.param_groups[0]["lr"] == theirs.param_groups[0]["lr"] == pytest.approx(0.2)
