"""A painter learns to draw rings from noise, while a critic learns to tell them from real ones."""

from __future__ import annotations

import argparse
import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import softplus
from torch.utils.data import DataLoader, TensorDataset

SIDE, NOISE = 12, 16


def rings(count: int, seed: int) -> TensorDataset:
    """Pictures of a ring, with random centre and radius."""
    generator = torch.Generator().manual_seed(seed)
    grid = torch.linspace(-1, 1, SIDE)
    x, y, size = torch.rand(3, count, 1, 1, generator=generator) - 0.5
    away = ((grid - 0.6 * x) ** 2 + (grid.unsqueeze(1) - 0.6 * y) ** 2).sqrt()
    return TensorDataset(torch.exp(-40 * (away - 0.5 - 0.2 * size) ** 2).flatten(1))


def layers(*sizes: int) -> nn.Sequential:
    found: list[nn.Module] = []
    for before, after in pairwise(sizes):
        found += [nn.Linear(before, after), nn.LeakyReLU(0.2)]
    return nn.Sequential(*found[:-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--size", type=int, default=4096, help="real pictures")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--optimizer", default="Adam", help="of torch.optim")
    parser.add_argument("--out", help="file for the weights")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = rings(args.size, seed=1)
    loader = DataLoader(data, args.batch, shuffle=True, drop_last=True)
    painter = layers(NOISE, args.width, args.width, SIDE**2).to(device)
    critic = layers(SIDE**2, args.width, args.width, 1).to(device)
    make = getattr(torch.optim, args.optimizer)
    painter_optimizer = make(painter.parameters(), lr=args.lr)
    critic_optimizer = make(critic.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        for (pictures,) in loader:
            real = pictures.to(device)
            critic_optimizer.zero_grad()
            critic_loss = softplus(-critic(real)).mean()
            critic_loss.backward()
            fake = painter(torch.randn(len(real), NOISE, device=device))
            fake_loss = softplus(critic(fake.detach())).mean()
            fake_loss.backward()
            critic_optimizer.step()

            painter_optimizer.zero_grad()
            loss = softplus(-critic(fake)).mean()
            loss.backward()
            painter_optimizer.step()
        told = math.exp(-(critic_loss + fake_loss).item() / 2)
        print(f"epoch {epoch}: the critic is {told:.3f} sure", flush=True)
    if args.out:
        torch.save(painter.state_dict(), args.out)


if __name__ == "__main__":
    main()
