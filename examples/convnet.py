"""A convolutional net that tells noisy pictures of five shapes apart. The pictures are drawn, not loaded."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from pliant.tools.run import elastic

SIDE = 24


def shapes(count: int, seed: int) -> TensorDataset:
    """Discs, rings, squares, frames and crosses of random place and size under noise."""
    generator = torch.Generator().manual_seed(seed)
    kind = torch.randint(5, (count,), generator=generator)
    place = torch.rand(count, 3, generator=generator)
    grid = torch.arange(SIDE, dtype=torch.float32)
    radius = 4 + 3 * place[:, 2].view(-1, 1, 1)
    x = (grid.view(1, 1, -1) - 8 - 8 * place[:, 0].view(-1, 1, 1)) / radius
    y = (grid.view(1, -1, 1) - 8 - 8 * place[:, 1].view(-1, 1, 1)) / radius
    disc, square = (x**2 + y**2).sqrt(), torch.maximum(x.abs(), y.abs())
    ring, frame = (disc - 0.8).abs(), (square - 0.8).abs()
    cross = torch.minimum((x - y).abs(), (x + y).abs()) + (square > 1)
    drawn = torch.stack([disc < 1, ring < 0.2, square < 1, frame < 0.2, cross < 0.3], dim=1)
    picture = drawn[torch.arange(count), kind].float().unsqueeze(1)
    noise = torch.randn(picture.shape, generator=generator)
    return TensorDataset(picture + 0.8 * noise, kind)


def network(width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in ((1, width), (width, 2 * width), (2 * width, 2 * width)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2 * width * (SIDE // 8) ** 2, 5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--size", type=int, default=8192, help="pictures in the data set")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--width", type=int, default=24)
    args = parser.parse_args()

    job = elastic.init(batch_size=args.batch, seed=0)
    model: nn.Module = network(args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, loader = job.prepare(model, optimizer, shapes(args.size, seed=1))
    for _ in job.epochs(args.epochs):
        pictures: Tensor
        for pictures, kind in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pictures), kind)
            loss.backward()
            optimizer.step()
            job.log(loss=loss)


if __name__ == "__main__":
    main()
