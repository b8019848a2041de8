"""A multilayer perceptron that reads noisy seven-segment digits. The digits are drawn, not loaded."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

from pliant.tools.run import elastic

ROWS, COLUMNS = 28, 20
SEGMENTS = {
    "a": (slice(2, 5), slice(4, 16)),
    "b": (slice(4, 14), slice(14, 17)),
    "c": (slice(14, 24), slice(14, 17)),
    "d": (slice(23, 26), slice(4, 16)),
    "e": (slice(14, 24), slice(3, 6)),
    "f": (slice(4, 14), slice(3, 6)),
    "g": (slice(12, 16), slice(4, 16)),
}
LIT = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")


def digits(count: int, seed: int) -> TensorDataset:
    """Digits shifted by up to two pixels under strong noise."""
    generator = torch.Generator().manual_seed(seed)
    glyphs = torch.zeros(10, ROWS, COLUMNS)
    for glyph, lit in zip(glyphs, LIT, strict=True):
        for segment in lit:
            glyph[SEGMENTS[segment]] = 1
    digit = torch.randint(10, (count,), generator=generator)
    shift = torch.randint(-2, 3, (count, 2), generator=generator)
    places = zip(digit.tolist(), shift.tolist(), strict=True)
    pictures = torch.stack([glyphs[number].roll(by, (0, 1)) for number, by in places]).flatten(1)
    return TensorDataset(pictures + 1.2 * torch.randn(pictures.shape, generator=generator), digit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--size", type=int, default=32768, help="digits in the data set")
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--width", type=int, default=384)
    args = parser.parse_args()

    job = elastic.init(batch_size=args.batch, seed=0)
    model: nn.Module = nn.Sequential(
        *(nn.Linear(ROWS * COLUMNS, args.width), nn.ReLU()),
        *(nn.Linear(args.width, args.width), nn.ReLU()),
        nn.Linear(args.width, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, loader = job.prepare(model, optimizer, digits(args.size, seed=1))
    for _ in job.epochs(args.epochs):
        for pictures, digit in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pictures), digit)
            loss.backward()
            optimizer.step()
            job.log(loss=loss)


if __name__ == "__main__":
    main()
