"""Replicas that differ: which of their parts, since when, and what is no fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from pliant.schemas.errors import UsageError
from pliant.tools.run.elastic.state.replicas import ReplicaGuard
from pliant.tools.run.elastic.state.training import Training

pytestmark = pytest.mark.torch


class Replica:
    """A training on one of two workers, whose sums are made with those of the other one."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.best = StepLR(self.optimizer, 3)
        self.training = Training(self.model, self.optimizer, {"schedule": self.best})
        self.warned: list[str] = []
        self.guard = ReplicaGuard(self.training, self.warned.append)
        self.guard.dataset, self.guard.size = TensorDataset(torch.arange(9)), 9


def compare(one: Replica, other: Replica) -> None:
    sums: list[torch.Tensor] = []
    other.guard.check(lambda tensor: sums.append(tensor.clone()) is not None, 2)

    def add_up(tensor: torch.Tensor) -> bool:
        tensor.add_(sums.pop(0))
        return True

    one.guard.check(add_up, 2)


def move(replica: Replica) -> None:
    with torch.no_grad():
        replica.model[1].weight.add_(1e-7)


def freeze(replica: Replica) -> None:
    replica.model[0].bias.requires_grad_(False)


def slow(replica: Replica) -> None:
    replica.optimizer.param_groups[0]["lr"] = 0.05


def shrink(replica: Replica) -> None:
    replica.guard.size = 8


def relabel(replica: Replica) -> None:
    replica.guard.dataset = TensorDataset(torch.arange(9).flip(0))


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (move, r"after step 5: parameter 1.weight \(1: Linear\); they were equal at step 4"),
        (freeze, "trained parameters"),
        (slow, "settings of optimizer, group 0"),
        (shrink, "size of the dataset"),
        (relabel, "samples"),
    ],
)
def test_the_first_difference_is_named(act: Callable[[Replica], object], named: str) -> None:
    one, other = Replica(), Replica()
    one.training.counters.step = 4
    if act is not relabel:  # samples are read once
        compare(one, other)
        one.training.counters.step = 5
    act(other)
    with pytest.raises(UsageError, match=named):
        compare(one, other)
    one.guard._ends = one.guard._differ = False
    compare(one, other)
    compare(one, other)
    assert len(one.warned) == 1


class Random:
    def __getitem__(self, _: int) -> Any:
        return iter(range(7)), torch.rand(2), object()


def test_what_may_differ_is_a_warning_or_nothing() -> None:
    one, other = Replica(), Replica()
    one.guard.dataset = other.guard.dataset = Random()
    compare(one, other)
    assert one.warned == []
    other.best.last_epoch += 1
    other.guard.shapes = 7
    compare(one, other)
    compare(one, other)
    assert [text.split(":")[0].split(" is ")[0] for text in one.warned] == [
        "batches of one step have different shapes beyond the number of samples, as when each",
        "registered object schedule",
    ]


def test_comparisons_become_rare() -> None:
    guard = Replica().guard
    assert guard.is_due(5), "nothing is compared yet"
    guard._checked_at = 0
    assert [step for step in range(4000) if guard.is_due(step)] == [*(2**power for power in range(12)), 3072]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ((range(4, 8), 1.0), ""),
        ((range(4), 1.0), "shares"),
        ((range(4, 7), 1.0), "shares"),
        ((range(4, 8), 2.0), "shares"),
    ],
)
def test_shares_of_a_step_add_up_to_it(other: tuple[range, float], named: str) -> None:
    one, another = Replica(), Replica()
    for replica, (numbers, weight) in ((one, (range(4), 1.0)), (another, other)):
        replica.guard.takes(range(3), 1.0, range(8), 2, first=True)  # only looked at
        replica.guard.takes(numbers[:2], weight / 2, range(8), 2, first=True)
        replica.guard.takes(numbers[2:], weight / 2, range(8), 2, first=False)
        replica.guard.step_done()
    if named:
        with pytest.raises(UsageError, match=named):
            compare(one, another)
    else:
        compare(one, another)
