"""A process group that keeps its errors to itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pliant.tools.run.elastic.loop.gradients import TolerantGroup, at_end_of_backward

pytestmark = pytest.mark.torch


class Group:
    """A process group of two whose all-reduces go well until they are to fail."""

    def __init__(self) -> None:
        self.fails_at: str | None = None
        self.begun = 0

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2

    def _get_backend(self, device: torch.device) -> Group:
        return self

    def allreduce(self, tensors: list[torch.Tensor]) -> Group:
        self.begun += 1
        if self.fails_at == "begin":
            raise RuntimeError("at its begin")
        return self

    broadcast = allreduce

    def wait(self) -> bool:
        if self.fails_at == "wait":
            raise RuntimeError("at its end")
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        if self.fails_at == "wait":
            future.set_exception(RuntimeError("at its end"))
        else:
            future.set_result([])
        return future


@pytest.mark.parametrize("fails_at", ["begin", "wait"])
@pytest.mark.parametrize("way", ["wait", "get_future"])
def test_an_all_reduce_that_fails_ends_quietly_and_no_other_begins(fails_at: str, way: str) -> None:
    inner, gradient = Group(), torch.ones(3)
    group = TolerantGroup(inner)  # type: ignore[arg-type]
    inner.fails_at = fails_at
    work = group.allreduce([gradient])
    if way == "wait":
        assert work.wait()
    else:
        assert work.get_future().wait() is gradient
    assert "at its" in str(group.error)
    first = group.error
    assert group.allreduce([gradient]).get_future().wait() is gradient
    assert (group.error, inner.begun) == (first, 1)


def test_an_all_reduce_has_the_answer_of_its_tensor_also_where_a_pass_exchanges_others() -> None:
    """As once DDP has put its buckets into another order, and after parameters were frozen."""
    group = TolerantGroup(Group())  # type: ignore[arg-type]
    few, many = [torch.ones(1)], [torch.ones(2), torch.ones(3)]
    for buckets in (few, few, many, many, many[::-1], few, many):
        x = torch.ones(len(buckets), requires_grad=True)
        found: list[torch.futures.Future[Any]] = []

        def exchange(_: torch.Tensor, buckets: list[torch.Tensor] = buckets) -> None:
            found.extend(group.allreduce([bucket]).get_future() for bucket in buckets)  # noqa: B023

        x.register_hook(exchange)
        x.sum().backward()
        assert [future.value() for future in found] == buckets


def test_a_backward_pass_within_another_waits_for_what_was_begun_before_it() -> None:
    """As with activation checkpointing: DDP may want all gradients at the end of the inner pass."""
    group = TolerantGroup(Group())  # type: ignore[arg-type]
    outer, inner = (nn.Parameter(torch.ones(2)) for _ in range(2))
    begun: list[torch.futures.Future[Any]] = []
    through: list[bool] = []

    def exchange(parameter: torch.Tensor) -> None:
        begun.append(group.allreduce([parameter]).get_future())

    def exchange_last(parameter: torch.Tensor) -> None:
        exchange(parameter)
        at_end_of_backward(lambda: through.extend(one.done() for one in begun))

    outer.register_post_accumulate_grad_hook(exchange)
    inner.register_post_accumulate_grad_hook(exchange_last)
    x = torch.ones(2, requires_grad=True)
    for _ in range(2):
        (checkpoint(lambda x: x * inner, x, use_reentrant=True) * outer).sum().backward()
    assert through == [True] * 2 + [True] * 4


def test_a_broadcast_that_fails_is_noted_and_raised() -> None:
    inner = Group()
    group = TolerantGroup(inner)  # type: ignore[arg-type]
    group.broadcast([torch.ones(3)])
    inner.fails_at = "wait"
    with pytest.raises(RuntimeError, match="at its end"):
        group.broadcast([torch.ones(3)])
    assert "at its end" in str(group.error)
