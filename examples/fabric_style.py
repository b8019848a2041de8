"""An elastic loop in the style of Lightning Fabric: ``fabric.setup``, ``fabric.backward``.

It depends on PyTorch alone: ``ElasticFabric`` is the part of Fabric's interface that a loop uses, on top of
an elastic job. The task is made up: the length of the third side of a triangle.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from pliant.tools.run import elastic


class ElasticFabric:
    """What Fabric's ``launch``, ``setup`` and ``backward`` do, on however many workers there are."""

    def __init__(self, batch_size: int, seed: int = 0) -> None:
        """``batch_size``: samples per optimizer step over all workers."""
        self.job = elastic.init(batch_size=batch_size, seed=seed)
        self._batches: Batches | None = None

    @property
    def device(self) -> torch.device:
        """Where the model and the batches are."""
        return self.job.device

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the worker that writes files."""
        return self.job.rank == 0

    def setup_dataloaders(self, loader: DataLoader[Any]) -> Batches:
        """Call it before ``setup``. Of the loader everything counts but its batch size."""
        self._batches = Batches(loader)
        return self._batches

    def setup(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """The model on its device and among its workers."""
        if self._batches is None:
            raise RuntimeError("call setup_dataloaders before setup")
        given = self._batches.given
        model, optimizer, self._batches.made = self.job.prepare(
            model,
            optimizer,
            given.dataset,
            collate_fn=given.collate_fn,
            num_workers=given.num_workers,
            shuffle=isinstance(given.sampler, RandomSampler),
            drop_last=given.drop_last,
        )
        return model, optimizer

    def register(self, **objects: Any) -> None:
        """What else has a state."""
        self.job.register(**objects)

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left."""
        return self.job.epochs(count)

    def backward(self, loss: Tensor) -> None:
        """Gradients of a loss."""
        loss.backward()

    def no_backward_sync(self, model: nn.Module, *, enabled: bool = True) -> AbstractContextManager[None]:
        """For every backward pass of a batch but its last."""
        make = getattr(model, "no_sync", contextlib.nullcontext) if enabled else contextlib.nullcontext
        context: AbstractContextManager[None] = make()
        return context

    def clip_gradients(self, model: nn.Module, max_norm: float) -> None:
        """Between ``backward`` and ``optimizer.step()``."""
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    def log(self, name: str, value: float | Tensor) -> None:
        """The loss of a batch, or the metric of an epoch."""
        self.job.log(**{name: value})

    def print(self, text: str) -> None:
        """Once, however many workers there are."""
        if self.is_global_zero:
            print(text, flush=True)

    def save(self, path: str, state: Mapping[str, nn.Module]) -> None:
        """Once, however many workers there are."""
        if self.is_global_zero:
            found = {name: getattr(model, "module", model).state_dict() for name, model in state.items()}
            torch.save(found, path)


class Batches:
    """The loader that a loop holds, while that of the job is still to be made."""

    def __init__(self, given: DataLoader[Any]) -> None:
        self.given = given
        self.made: Any = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.made)

    def __len__(self) -> int:
        return len(self.made)


def triangles(count: int, seed: int) -> TensorDataset:
    """Two sides of a triangle and the angle between them, with the third side."""
    found = torch.rand(count, 3, generator=torch.Generator().manual_seed(seed))
    one, two, angle = found[:, 0], found[:, 1], 3 * found[:, 2]
    third = (one**2 + two**2 - 2 * one * two * torch.cos(angle)).clamp(min=0).sqrt()
    return TensorDataset(found, third.unsqueeze(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--size", type=int, default=16384, help="triangles in the data set")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--out", help="file for the weights")
    args = parser.parse_args()

    fabric = ElasticFabric(batch_size=args.batch)
    loader = fabric.setup_dataloaders(DataLoader(triangles(args.size, seed=1), args.batch, shuffle=True))
    model: nn.Module = nn.Sequential(nn.Linear(3, args.width), nn.Tanh(), nn.Linear(args.width, 1))
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=0.01))
    scheduler = StepLR(optimizer, 2, gamma=0.5)
    fabric.register(scheduler=scheduler)
    inputs, wanted = (part.to(fabric.device) for part in triangles(1024, seed=2).tensors)
    for epoch in fabric.epochs(args.epochs):
        model.train()
        for sides, third in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(sides), third)
            fabric.backward(loss)
            fabric.clip_gradients(model, max_norm=1.0)
            optimizer.step()
            fabric.log("loss", loss)
        scheduler.step()
        model.eval()
        with torch.no_grad():
            error = nn.functional.l1_loss(model(inputs), wanted).item()
        fabric.log("metric", error)
        fabric.print(f"epoch {epoch}: off by {error:.4f}")
    if args.out:
        fabric.save(args.out, {"model": model})


if __name__ == "__main__":
    main()
