"""What a step that turns out to be void leaves behind in the model, and what it costs to know that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pliant.tools.run.elastic.loop.gradients import StepStart

pytestmark = pytest.mark.torch
LARGE = 1 << 16


class Masked(nn.Module):
    """A large mask, and whatever a step does to it."""

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
def test_a_large_buffer_that_steps_write_is_put_back_to_where_the_last_one_began(
    write: Callable[[torch.Tensor], None],
) -> None:
    model, start = Masked(), StepStart()
    start.watch(model)
    for _ in range(3):
        start.note()
        began = model.mask.clone()
        write(model.mask)
    assert not torch.equal(model.mask, began)
    start.put_back_buffers()
    assert torch.equal(model.mask, began)


@pytest.mark.parametrize("write", [add, add_to_a_part])
def test_a_buffer_that_was_constant_until_now_is_put_back_and_copied_again(
    write: Callable[[torch.Tensor], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Masked()
    start = noted(model)
    write(model.mask)
    start.put_back_buffers()
    assert model.mask.count_nonzero() == 0
    made = copies(monkeypatch)
    write(model.mask)
    for _ in range(2):
        start.note()
    assert made.count(LARGE) == 1


def test_a_buffer_with_uncounted_writes_after_it_was_constant_gets_no_values_of_long_ago() -> None:
    model = Masked()
    start = noted(model)
    add_uncounted(model.mask)
    start.note()
    start.put_back_buffers()
    assert model.mask.count_nonzero() == LARGE


def test_a_buffer_that_a_step_replaces_is_put_back() -> None:
    model = Masked()
    start = noted(model)
    model.mask = torch.ones(LARGE)
    start.put_back_buffers()
    assert model.mask.count_nonzero() == 0


def test_running_statistics_and_the_generator_are_put_back() -> None:
    model = Masked()
    start = noted(model)
    before = [buffer.clone() for buffer in model.norm.buffers()]
    drawn = model.norm(torch.randn(8, 4))
    start.put_back_buffers()
    start.put_back_generator()
    assert all(map(torch.equal, before, model.norm.buffers()))
    assert torch.equal(model.norm(torch.randn(8, 4)), drawn)


def test_a_sparse_buffer_is_put_back() -> None:
    model = nn.Module()
    model.register_buffer("links", torch.eye(300).to_sparse())
    start = noted(model)
    model.links.mul_(2)
    start.put_back_buffers()
    assert model.links.sum().item() == 300
