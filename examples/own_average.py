"""An average of the weights of one's own in an elastic script: a class with a state, registered with the job.

PyTorch's ``AveragedModel`` needs no more than ``job.register(average)``; this is for an average, or anything
else that outlives a step, that a script keeps by itself.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

from pliant.tools.run import elastic


class Average:
    """An exponential moving average of the weights of a model."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for name, weight in model.named_parameters():
            self.weights[name].lerp_(weight, 1 - self.decay)

    def state_dict(self) -> dict[str, Any]:
        """What a worker that joins, and a job that starts again, goes on with."""
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, weight in state["weights"].items():
            self.weights[name].copy_(weight)


def waves(count: int, width: int) -> TensorDataset:
    """Points, and the sine of a direction that is to be learnt."""
    generator = torch.Generator().manual_seed(1)
    points = torch.randn(count, width, generator=generator)
    return TensorDataset(points, (points @ torch.randn(width, 1, generator=generator)).sin())


@torch.no_grad()
def error_of(
    model: nn.Module, weights: dict[str, Tensor], data: TensorDataset, device: torch.device
) -> float:
    """The mean squared error of the model with other weights."""
    points, wanted = (each.to(device) for each in data.tensors)
    return float(mse_loss(torch.func.functional_call(model, weights, (points,)), wanted))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--size", type=int, default=4096, help="points in the data set")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--out", help="file for the averaged weights")
    args = parser.parse_args()

    job = elastic.init(batch_size=args.batch, seed=0)
    net = nn.Sequential(nn.Linear(args.width, 64), nn.Tanh(), nn.Linear(64, 1))
    data = waves(args.size, args.width)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    model, optimizer, loader = job.prepare(net, optimizer, data)
    average = Average(net, decay=0.99)
    job.register(average=average)
    for epoch in job.epochs(args.epochs):
        for points, wanted in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(points), wanted)
            loss.backward()
            optimizer.step()
            job.log(loss=loss)
            if job.sync_gradients:  # not in a micro-step that does not end its step
                average.update(net)
        error = error_of(net, average.weights, data, job.device)
        job.log(metric=error)
        if job.rank == 0:
            print(f"epoch {epoch}: error {error:.4f}", flush=True)
    if args.out and job.rank == 0:
        torch.save(average.weights, args.out)


if __name__ == "__main__":
    main()
