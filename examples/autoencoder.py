"""An autoencoder that squeezes pictures of random waves into a few numbers. The pictures are computed."""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn
from torch.utils.data import TensorDataset

from pliant.tools.run import elastic

SIDE = 32


def waves(count: int, seed: int) -> TensorDataset:
    """Plane waves of random direction, length and phase, lightly noisy."""
    generator = torch.Generator().manual_seed(seed)
    angle, length, phase = torch.rand(3, count, 1, 1, generator=generator)
    grid = torch.arange(SIDE, dtype=torch.float32)
    along = torch.cos(math.pi * angle) * grid + torch.sin(math.pi * angle) * grid.unsqueeze(1)
    picture = torch.sin(along * (0.2 + 0.3 * length) + 2 * math.pi * phase).unsqueeze(1)
    return TensorDataset(picture + 0.1 * torch.randn(picture.shape, generator=generator))


def network(width: int, code: int) -> nn.Sequential:
    """Two convolutions down to a code and two back up."""
    flat = 2 * width * (SIDE // 4) ** 2
    return nn.Sequential(
        *(nn.Conv2d(1, width, 4, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(width, 2 * width, 4, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(flat, code), nn.Linear(code, flat), nn.ReLU()),
        nn.Unflatten(1, (2 * width, SIDE // 4, SIDE // 4)),
        *(nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1), nn.ReLU()),
        nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--size", type=int, default=8192, help="pictures in the data set")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--width", type=int, default=24)
    args = parser.parse_args()

    job = elastic.init(batch_size=args.batch, seed=0)
    model: nn.Module = network(args.width, code=16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer, loader = job.prepare(model, optimizer, waves(args.size, seed=1))
    for _ in job.epochs(args.epochs):
        for (picture,) in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(picture), picture)
            loss.backward()
            optimizer.step()
            job.log(loss=loss)


if __name__ == "__main__":
    main()
