from __future__ import annotations

import pytest
import torch
from torch import nn

from pliant.tools.run.elastic import report
from pliant.tools.run.elastic.report import EVERY, NoiseMeter


def steps(meter: NoiseMeter, batch: int, count: int, *, signal: float = 1.0, spread: float = 3.0) -> None:
    """Steps whose gradient is ``signal`` everywhere, and noise of that spread by sample."""
    generator = torch.Generator().manual_seed(batch)
    model = nn.Linear(50, 40, bias=False)
    for step in range(count):
        noise = torch.randn(model.weight.shape, generator=generator) * spread / batch**0.5
        model.weight.grad = signal + noise
        meter.look(model, step, batch)


@pytest.mark.parametrize("batch", [4, 64])
def test_the_noise_scale_is_found_whatever_the_batch(batch: int) -> None:
    meter = NoiseMeter()
    steps(meter, batch, 20 * EVERY)
    assert meter.noise_scale == pytest.approx(9.0, rel=0.05)


def test_of_a_large_model_a_part_of_the_gradients_is_copied_and_the_noise_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "SAMPLED", 400)
    meter = NoiseMeter()
    steps(meter, 4, 100 * EVERY)
    assert meter.noise_scale == pytest.approx(9.0, rel=0.15)
    copied: list[int] = []
    monkeypatch.setattr(torch.Tensor, "clone", lambda one: copied.append(one.numel()) or one.mul(1))
    steps(meter, 4, 1)
    assert copied == [400]


def test_nothing_is_said_before_a_first_pair_and_no_pair_reaches_over_a_change_of_the_batch() -> None:
    meter, model = NoiseMeter(), nn.Linear(1, 1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    meter.look(model, 0, 8)
    assert meter.noise_scale is None
    meter.forget()
    meter.look(model, 1, 16)
    assert meter.noise_scale is None


@pytest.mark.parametrize("strange", [float("inf"), float("nan")])
@pytest.mark.parametrize("at", [0, 1])
def test_an_overflow_in_mixed_precision_costs_one_pair(strange: float, at: int) -> None:
    meter, model = NoiseMeter(), nn.Linear(2, 1)
    for step in range(3 * EVERY):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, strange if step == EVERY + at else 1 + step % 2)
        meter.look(model, step, 8)
    # of three parameters the gradients are 1 and 2
    assert meter.noise_scale == pytest.approx((8 * 3 / 2) / 6)


def test_a_noise_scale_beyond_all_numbers_is_none() -> None:
    meter, model = NoiseMeter(), nn.Linear(1, 1, bias=False).double()
    for step, gradient in enumerate((1e-250, 1e60)):
        model.weight.grad = torch.full_like(model.weight, gradient)
        meter.look(model, step, 8)
    assert meter.noise_scale is None


def test_a_script_that_drops_its_gradients_is_not_measured() -> None:
    meter, model = NoiseMeter(), nn.Linear(1, 1)
    for step in range(2 * EVERY):
        meter.look(model, step, 8)
    assert meter.noise_scale is None


def test_gradients_that_are_sparse_are_measured_as_others() -> None:
    found = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model, meter = nn.Embedding(10, 3, sparse=sparse), NoiseMeter()
        for step in (EVERY, EVERY + 1):
            model.zero_grad()
            (model(torch.tensor([1, step % EVERY + 1])) * torch.randn(3)).sum().backward()
            meter.look(model, step, 4)
        found.append(meter.noise_scale)
    assert found[0] is not None
    assert found[1] == pytest.approx(found[0])


def test_a_pair_over_which_other_layers_are_trained_is_left_out() -> None:
    model, meter = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)), NoiseMeter()
    for step in (EVERY, EVERY + 1):
        for number, layer in enumerate(model):
            layer.requires_grad_(number == step % EVERY)
        model.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        meter.look(model, step, 4)
    assert meter.noise_scale is None
