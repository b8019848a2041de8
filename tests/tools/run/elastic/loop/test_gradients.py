"""Uneven and accumulated gradients, void steps, and the objects that act once per step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR
from torch.optim.swa_utils import AveragedModel

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.loop.batches import BatchSplit, micro_batches
from pliant.tools.run.elastic.loop.gradients import Gradients
from pliant.tools.run.elastic.loop.prepared import guard_helper, guard_optimizer
from pliant.tools.run.elastic.loop.step_start import StepStart
from pliant.tools.run.elastic.state.training import DOUBLING_STEPS, Mean, Training

pytestmark = pytest.mark.torch


X, Y = torch.randn(7, 4, dtype=torch.float64), torch.randn(7, 1, dtype=torch.float64)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 1).double()


def mean_loss(net: nn.Module, part: slice) -> torch.Tensor:
    return nn.functional.mse_loss(net(X[part]), Y[part])


def gradients(net: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in net.parameters() if parameter.grad is not None]


def collecting(net: nn.Module, *, accumulates: bool) -> Gradients:
    held = Gradients([net])
    held.bind(accumulates=accumulates)
    held.begin_step()
    return held


def of_the_whole_batch() -> list[torch.Tensor]:
    net = model()
    mean_loss(net, slice(0, 7)).backward()
    return gradients(net)


@pytest.mark.parametrize("zeroed_to_none", [True, False])
@pytest.mark.parametrize(("accum", "passes"), [(1, 1), (2, 1), (7, 1), (2, 2)])
def test_micro_steps_add_up_to_the_whole_batch(accum: int, passes: int, zeroed_to_none: bool) -> None:
    """Whatever the script has zeroed before, and however it changes what it sees in a pass."""
    net = model()
    held = collecting(net, accumulates=accum > 1)
    for micro in micro_batches(7, 0, BatchSplit(7, 1, accum), 0):
        held.begin(micro)
        (mean_loss(net, micro.loaded) * 3).backward()
        net.zero_grad(zeroed_to_none)
        for _ in range(passes):
            (mean_loss(net, micro.loaded) / passes).backward()
        assert len(gradients(net)) == 2, "for its log"
        if not micro.last:
            nn.utils.clip_grad_value_(net.parameters(), 1e-3)
            held.commit()
    torch.testing.assert_close(gradients(net), of_the_whole_batch())


def test_gradients_set_by_hand_add_up_over_micro_steps() -> None:
    net = model()
    held = collecting(net, accumulates=True)
    for micro in micro_batches(7, 0, BatchSplit(7, 1, 3), 0):
        held.begin(micro)
        parameters = list(net.parameters())
        for one, gradient in zip(
            parameters, torch.autograd.grad(mean_loss(net, micro.loaded), parameters), strict=True
        ):
            one.grad = gradient
        (held.before_optimizer if micro.last else held.commit)()
    torch.testing.assert_close(gradients(net), of_the_whole_batch())


def project(net: nn.Module, held: Gradients) -> None:
    """As PCGrad does."""
    for one in net.parameters():
        one.grad = None if one.grad is None else one.grad * 0.5
    held.commit()


def perturb(net: nn.Module, _: Gradients) -> None:
    """As SAM does."""
    with torch.no_grad():
        for one in net.parameters():
            one.add_(0.1)
    mean_loss(net, slice(0, 2)).backward()


@pytest.mark.parametrize("act", [project, perturb])
def test_what_micro_steps_would_change_is_refused(act: Callable[[nn.Module, Gradients], None]) -> None:
    net = model()
    held = collecting(net, accumulates=True)
    held.begin(next(micro_batches(6, 0, BatchSplit(6, 1, 2), 0)))
    mean_loss(net, slice(0, 3)).backward()
    with pytest.raises(UsageError, match="with micro-steps its effect would be another one"):
        act(net, held)


@pytest.mark.parametrize("zeroes", [True, False])
def test_gradients_that_outlive_a_step_are_noticed_and_kept(zeroes: bool) -> None:
    net = model()
    held = collecting(net, accumulates=False)
    for micro in micro_batches(6, 0, BatchSplit(2), 0):
        held.begin_step()
        held.begin(micro)
        if zeroes:
            net.zero_grad()
        mean_loss(net, micro.loaded).backward()
    assert held.outlive is not zeroes
    kept = {name: one.clone() for name, one in held.kept().items()}
    held.release()
    assert bool(gradients(net)) is not zeroes
    net.zero_grad()
    held.restore(kept)
    assert len(gradients(net)) == len(kept) == (0 if zeroes else 2)


def test_uneven_shares_average_to_the_whole_batch() -> None:
    """A padding sample gives zero, though its loss is infinite."""
    expected = of_the_whole_batch()
    total = [torch.zeros_like(one) for one in expected]
    for rank in range(3):
        net = model()
        (micro,) = micro_batches(7, 0, BatchSplit(7, 3), rank)
        collecting(net, accumulates=False).begin(micro)
        mean_loss(net, micro.loaded).backward()
        torch._foreach_add_(total, gradients(net), alpha=1 / 3)
    torch.testing.assert_close(total, expected)
    (micro,) = micro_batches(1, 0, BatchSplit(4, 2), 1)
    collecting(net, accumulates=False).begin(micro)
    net.zero_grad()
    (mean_loss(net, micro.loaded) * torch.inf).backward()
    assert all(not gradient.any() for gradient in gradients(net))


class TwoHeads(nn.Module):
    """A loop body may train the one head in one micro-step and the other one in the next."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = nn.ModuleList([nn.Linear(4, 1).double() for _ in range(2)])

    def loss(self, head: int, part: slice) -> torch.Tensor:
        return nn.functional.mse_loss(self.heads[head](X[part]), Y[part])


@pytest.mark.parametrize("first_scale", [1.0, 1024.0])
def test_a_gradient_before_the_last_micro_step_is_unscaled(first_scale: float) -> None:
    """And clipped with the others."""
    plain, elastic = TwoHeads(), TwoHeads()
    ((plain.loss(0, slice(0, 3)) + plain.loss(1, slice(3, 6))) / 2).backward()
    nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
    torch.optim.SGD(plain.parameters(), lr=1.0).step()

    step, optimizer = Step(), torch.optim.SGD(elastic.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=first_scale)
    held = collecting(elastic, accumulates=True)
    guard_optimizer(
        optimizer,
        ("step",),
        step,
        lambda _: nullcontext(held.before_optimizer()),
        called=lambda _: held.commit(),
    )
    guard_helper(scaler, step)
    for head, micro in enumerate(micro_batches(6, 0, BatchSplit(6, 1, 2), 0)):
        step.quiet = not micro.last
        held.begin(micro)
        optimizer.zero_grad()
        scaler.scale(elastic.loss(head, micro.loaded)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(elastic.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        held.commit()
    torch.testing.assert_close(elastic.state_dict(), plain.state_dict())


class Step:
    quiet = False

    def __call__(self) -> bool:
        return self.quiet


@pytest.mark.parametrize(("scheduler_first", "scales"), [(True, False), (False, False), (False, True)])
def test_helpers_act_in_the_last_micro_step(scheduler_first: bool, scales: bool) -> None:
    step, net = Step(), model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1, enabled=scales)
    average = AveragedModel(net)
    scheduler = StepLR(optimizer, 1, gamma=0.5) if scheduler_first else None
    guard_optimizer(optimizer, ("step",), step)
    scheduler = scheduler or StepLR(optimizer, 1, gamma=0.5)
    for helper in (scheduler, scaler, average):
        guard_helper(helper, step)
    before = copy.deepcopy(net.state_dict())
    rates, grown = [], []
    for quiet in (True, True, False, True, False):
        step.quiet = quiet
        optimizer.zero_grad()
        scaler.scale(mean_loss(net, slice(0, 7))).backward()
        if scales:
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        scheduler.step()
        average.update_parameters(net)
        rates.append(optimizer.param_groups[0]["lr"])
        grown.append(scaler.get_scale())
        assert torch.equal(net.state_dict()["weight"], before["weight"]) is (len(rates) < 3)
    assert rates == [1.0, 1.0, 0.5, 0.5, 0.25]
    assert grown == ([4.0, 4.0, 8.0, 8.0, 16.0] if scales else [1.0] * 5)
    assert int(average.n_averaged) == 2
    assert type(scheduler).__name__ == "StepLR"
    assert not any(callable(value) for value in scheduler.state_dict().values())


class Probe:
    """A parameter whose gradient is always 1: SGD moves it by the learning rate that it really used."""

    def __init__(self, scale: float, make: Callable[[torch.optim.Optimizer], Any]) -> None:
        self.model = torch.nn.Linear(1, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.0)
        self.training = Training(self.model, self.optimizer, {}, scale)
        guard_optimizer(self.optimizer, ("step",), lambda: False, lambda _: self.training.scaled_lr())
        self.scheduler = self.training.helpers["scheduler"] = make(self.optimizer)

    def rates(self, steps: int) -> list[float]:
        result = []
        for _ in range(steps):
            before = self.model.weight.item()
            self.model.weight.grad = torch.ones_like(self.model.weight)
            self.optimizer.step()
            self.scheduler.step(*([1.0] if isinstance(self.scheduler, ReduceLROnPlateau) else []))
            self.training.step_done(1, Mean())
            result.append(before - self.model.weight.item())
        return result


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "steps": lambda it: StepLR(it, 2, gamma=0.5),
    "lambda": lambda it: LambdaLR(it, lambda epoch: 0.5**epoch),
    "cosine": lambda it: schedulers.CosineAnnealingLR(it, 8, eta_min=0.01),
    "one cycle": lambda it: schedulers.OneCycleLR(it, max_lr=0.4, total_steps=12, cycle_momentum=False),
    "cyclic": lambda it: schedulers.CyclicLR(it, 0.05, 0.2, step_size_up=3, cycle_momentum=False),
    "plateau": lambda it: ReduceLROnPlateau(it, patience=1, min_lr=0.02),
    "one after the other": lambda it: schedulers.SequentialLR(
        it, [schedulers.LinearLR(it), StepLR(it, 2)], milestones=[3]
    ),
    "together": lambda it: schedulers.ChainedScheduler([schedulers.LinearLR(it), StepLR(it, 2)]),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_the_learning_rate_scale_multiplies_any_scheduler(kind: str) -> None:
    plain, scaled, resumed = (Probe(scale, SCHEDULERS[kind]) for scale in (1.0, 2.0, 2.0))
    expected = [2 * rate for rate in plain.rates(10)]
    assert scaled.rates(5) == pytest.approx(expected[:5], rel=1e-3, abs=1e-6)
    resumed.training.restore(scaled.training.capture())
    assert resumed.rates(5) == pytest.approx(expected[5:], rel=1e-3, abs=1e-6)


def test_the_learning_rate_scale_rises_slowly_and_falls_at_once() -> None:
    first, second = (Probe(scale, lambda it: LambdaLR(it, lambda epoch: 1.0)) for scale in (2.0, 4.0))
    second.training.restore(first.training.capture())
    second.training.set_lr_scale(4.0)
    rates = second.rates(DOUBLING_STEPS + 3)
    assert rates[0] == pytest.approx(0.2, rel=1e-3), "what a step before the restore had"
    assert rates[DOUBLING_STEPS:] == pytest.approx([0.4] * 3, rel=1e-3)
    assert all(0.999 <= after / before < 1.08 for before, after in pairwise(rates))
    second.training.set_lr_scale(1.0)
    assert second.rates(1) == pytest.approx([0.1], rel=1e-3)
    assert second.optimizer.param_groups[0]["lr"] == 0.1, "the author's own, between two steps"
    # a worker that joins takes over the scale of those that train, which never followed the plan it began by
    trains, joins = (Probe(scale, lambda it: LambdaLR(it, lambda epoch: 1.0)) for scale in (2.0, 1.0))
    joins.training.restore(trains.training.shared())
    for worker in (trains, joins):
        worker.training.set_lr_scale(2.0)
    assert trains.rates(1) == joins.rates(1) == pytest.approx([0.2], rel=1e-3)


LARGE = 1 << 16


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.zeros(LARGE))
        self.mask: torch.Tensor


def noted(model: nn.Module) -> StepStart:
    """Two steps have begun, as the third does now."""
    start = StepStart()
    start.watch(model)
    for _ in range(3):
        start.note()
    return start


def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the tensors that are copied from now on."""
    made: list[int] = []
    clone = torch.Tensor.clone

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        made.append(tensor.numel())
        return clone(tensor)

    monkeypatch.setattr(torch.Tensor, "clone", counted)
    return made


def test_a_large_buffer_that_no_step_writes_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = Masked(), copies(monkeypatch)
    start = noted(model)
    assert made.count(LARGE) == 1
    assert made.count(4) == 2 * 3, "running statistics of which PyTorch counts no writes"
    start.watch(model)
    start.note()
    assert made.count(LARGE) == 2, "other workers may have brought another state"


def add(mask: torch.Tensor) -> None:
    with torch.no_grad():
        mask.add_(1)


def add_uncounted(mask: torch.Tensor) -> None:
    mask.data.add_(1)


def add_to_a_part(mask: torch.Tensor) -> None:
    mask[:7].mul_(2).add_(1)


@pytest.mark.parametrize("write", [add, add_uncounted, add_to_a_part])
def test_a_written_large_buffer_is_put_back(
    write: Callable[[torch.Tensor], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether earlier steps have written it, too, or it was constant and is copied again from now on."""
    model, start = Masked(), StepStart()
    start.watch(model)
    for _ in range(3):
        start.note()
        began = model.mask.clone()
        write(model.mask)
    assert not torch.equal(model.mask, began)
    start.restore_buffers()
    assert torch.equal(model.mask, began)
    if write is not add_uncounted:
        model = Masked()
        start = noted(model)
        write(model.mask)
        start.restore_buffers()
        assert model.mask.count_nonzero() == 0
        made = copies(monkeypatch)
        write(model.mask)
        for _ in range(2):
            start.note()
        assert made.count(LARGE) == 1


@pytest.mark.parametrize(("replaced", "kept"), [(True, 0), (False, LARGE)])
def test_a_replaced_buffer_is_put_back(replaced: bool, kept: int) -> None:
    """What is put back is never a value of long ago."""
    model = Masked()
    start = noted(model)
    if replaced:
        model.mask = torch.ones(LARGE)
    else:
        add_uncounted(model.mask)
        start.note()
    start.restore_buffers()
    assert model.mask.count_nonzero() == kept


def test_statistics_buffers_and_the_generator_are_put_back() -> None:
    model = Masked()
    model.register_buffer("links", torch.eye(300).to_sparse())
    start = noted(model)
    before = [buffer.clone() for buffer in model.norm.buffers()]
    drawn = model.norm(torch.randn(8, 4))
    model.links.mul_(2)
    start.restore_buffers()
    start.restore_generator()
    assert all(map(torch.equal, before, model.norm.buffers()))
    assert model.links.sum().item() == 300
    assert torch.equal(model.norm(torch.randn(8, 4)), drawn)
