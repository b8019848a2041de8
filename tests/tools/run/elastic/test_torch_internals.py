"""What the library expects of PyTorch's private interfaces: a version that changes one fails here."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pliant.tools.run.elastic import torch_internals
from pliant.tools.run.elastic.membership.process_group import leave

pytestmark = pytest.mark.torch


def test_an_action_follows_all_gradients_of_a_backward_pass() -> None:
    weights, seen = [torch.ones(1, requires_grad=True) for _ in range(3)], list[bool]()

    def arrived(_: torch.Tensor) -> None:
        if not seen:
            seen.append(False)
            torch_internals.at_end_of_backward(
                lambda: seen.append(all(one.grad is not None for one in weights))
            )

    for weight in weights:
        weight.register_post_accumulate_grad_hook(arrived)
    torch.stack(weights).sum().backward()
    assert seen == [False, True]


def test_writes_in_place_are_counted_and_those_to_data_are_not() -> None:
    tensor = torch.zeros(2)
    before = torch_internals.writes_of(tensor)
    tensor.data.add_(1)
    assert torch_internals.writes_of(tensor) == before
    tensor.add_(1)
    assert torch_internals.writes_of(tensor) > before


@pytest.mark.parametrize(("reduction", "expected"), [("mean", 3.0), ("sum", math.nan)])
def test_a_cross_entropy_says_what_it_is_a_mean_of(reduction: str, expected: float) -> None:
    loss = nn.CrossEntropyLoss(reduction=reduction, ignore_index=0)
    node = loss(torch.zeros(5, 2, requires_grad=True), torch.tensor([1, 0, 1, 1, 0])).grad_fn
    assert torch_internals.target_weight(node) == pytest.approx(expected, nan_ok=True)
    assert torch_internals.target_weight(node.next_functions[0][0]) is None


def test_a_group_can_change_its_store_its_timeout_and_its_number() -> None:
    store, other = dist.HashStore(), dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        group = dist.group.WORLD
        assert group is not None
        assert torch_internals.groups_in_use() == [group]
        torch_internals.set_group_timeout(timedelta(seconds=7))
        torch_internals.replace_store(group, other)
        dist.new_group([0])
        assert other.num_keys() > 0, "what comes later uses the other store"
        work = torch_internals.backend_of(group, torch.device("cpu")).allreduce([torch.ones(1)])
        assert work.wait()
    finally:
        del group
        leave()
    torch_internals.number_groups_anew()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    name = dist.group.WORLD.group_name if dist.group.WORLD is not None else ""
    leave()
    assert name == "0"


def test_tensors_are_copied_by_one_call() -> None:
    targets, sources = [torch.zeros(2), torch.zeros(1)], [torch.ones(2), torch.ones(1)]
    torch_internals.copy_all(targets, sources)
    assert all(map(torch.equal, targets, sources))
    assert dist.all_reduce.__wrapped__.__code__.co_filename == torch_internals.EXCHANGING_MODULE  # type: ignore[attr-defined]
