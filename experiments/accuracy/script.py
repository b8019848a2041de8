"""The training script: a small network that reads noisy seven-segment digits, in one of several ways."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import torch
from torch import nn
from torch.utils.data import TensorDataset

from examples.mlp import COLUMNS, ROWS, digits
from experiments.accuracy.arms import Arm, Scale
from pliant.tools.run import elastic

_DATA_SEED: Final = 1
_TEST_SEED: Final = 2
_WAIT_S: Final = 0.02
"""Longer than a worker goes without a look at its plan."""


@dataclass(frozen=True, slots=True)
class Task:
    """One training: what every worker of it gets."""

    arm: Arm
    scale: Scale
    seed: int
    folder: Path

    @property
    def weights(self) -> Path:
        """The trained weights."""
        return self.folder / "final.pt"

    def waits(self, epoch: int) -> Path:
        """There once the script has come to the end of the epoch before, where a change is due."""
        return self.folder / f"waits-{epoch}"

    def goes_on(self, epoch: int) -> Path:
        """There once the change is made known and new workers are ready."""
        return self.folder / f"goes-on-{epoch}"


def train(task: Task) -> None:
    """What an author would write, but for the pause where the launcher changes the plan.

    :raises SystemExit: training goes on without this worker.
    """
    # gloo on GPUs, too: the workers may share one
    job = elastic.init(batch_size=task.scale.batch, seed=task.seed, backend="gloo")
    kind = torch.float64 if task.arm.bits == 64 else torch.float32
    scale = task.scale
    net = network(scale.width).to(kind)
    optimizer = torch.optim.SGD(net.parameters(), lr=scale.lr, momentum=scale.momentum)
    data = _typed(digits(scale.samples, _DATA_SEED), kind)
    tested = _typed(digits(scale.tested, _TEST_SEED), kind)
    model, optimizer, loader = job.prepare(net, optimizer, data)
    for epoch in job.epochs(scale.epochs):
        if task.arm.sudden is not None and epoch == task.arm.sudden[0]:
            for group in optimizer.param_groups:
                group["lr"] *= task.arm.sudden[1]
        for pictures, digit in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pictures), digit)
            loss.backward()
            optimizer.step()
            job.log(loss=loss)
        if job.rank == 0:
            job.log(metric=accuracy(model, tested, job.device))
            _pause(task, epoch + 1)
    if job.rank == 0:
        torch.save(getattr(model, "module", model).state_dict(), task.weights)


def network(width: int) -> nn.Module:
    """Three hidden layers: enough of them for a loss that is far from convex."""
    sizes = (ROWS * COLUMNS, width, width, width)
    layers = [(nn.Linear(before, after), nn.ReLU()) for before, after in pairwise(sizes)]
    return nn.Sequential(*(each for pair in layers for each in pair), nn.Linear(width, 10))


def accuracy(model: nn.Module, tested: TensorDataset, device: torch.device) -> float:
    """The part of the digits that it reads right."""
    pictures, digit = (tensor.to(device) for tensor in tested.tensors)
    with torch.no_grad():
        return float((model(pictures).argmax(1) == digit).double().mean())


def _typed(data: TensorDataset, kind: torch.dtype) -> TensorDataset:
    pictures, digit = data.tensors
    return TensorDataset(pictures.to(kind), digit)


def _pause(task: Task, epoch: int) -> None:
    """Have a change take effect between two epochs, whatever the speed of the machine."""
    if all(change.epoch != epoch for change in task.arm.changes):
        return
    task.waits(epoch).touch()
    time.sleep(_WAIT_S)
    while not task.goes_on(epoch).exists():
        time.sleep(_WAIT_S)
