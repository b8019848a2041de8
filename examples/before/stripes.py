"""A convolutional net that tells in which direction noisy stripes run. The pictures are drawn, not loaded."""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, Subset, TensorDataset

SIDE, DIRECTIONS = 16, 8


def stripes(count: int, seed: int) -> TensorDataset:
    """Stripes of random width and phase under strong noise, with the number of their direction."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randint(DIRECTIONS, (count,), generator=generator)
    width, phase = torch.rand(2, count, 1, 1, generator=generator)
    angle = (direction * math.pi / DIRECTIONS).view(-1, 1, 1)
    grid = torch.arange(SIDE, dtype=torch.float32)
    along = torch.cos(angle) * grid + torch.sin(angle) * grid.unsqueeze(1)
    picture = torch.sin(along * (0.8 + width) + 2 * math.pi * phase).unsqueeze(1)
    return TensorDataset(picture + 2.5 * torch.randn(picture.shape, generator=generator), direction)


def network(width: int) -> nn.Sequential:
    """Two convolutions with batch normalization, and a linear layer."""
    layers: list[nn.Module] = []
    for before, after in ((1, width), (width, 2 * width)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2 * width * (SIDE // 4) ** 2, DIRECTIONS))


@torch.no_grad()
def share_right(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """Share of the pictures whose direction the model tells."""
    model.eval()
    right = sum(
        int((model(pictures.to(device)).argmax(1) == direction.to(device)).sum())
        for pictures, direction in DataLoader(data, 256)
    )
    return right / len(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--size", type=int, default=8192, help="pictures in the data set")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--target", type=float, default=0.8, help="share of right answers that is enough")
    parser.add_argument("--out", help="file for the weights")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data, held_out = stripes(args.size, seed=1), stripes(1024, seed=2)
    model: nn.Module = network(args.width).to(device)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(data, args.batch, shuffle=True, drop_last=True)
    scheduler = CosineAnnealingLR(optimizer, args.epochs)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    for epoch in range(args.epochs):
        model.train()
        for pictures, direction in loader:
            optimizer.zero_grad()
            with torch.autocast(device.type, enabled=device.type == "cuda"):
                loss = cross_entropy(model(pictures.to(device)), direction.to(device))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            average.update_parameters(model)
        scheduler.step()
        update_bn(DataLoader(Subset(data, range(len(data) // 8)), 256), average, device)
        right = share_right(average, held_out, device)
        print(f"epoch {epoch}: {right:.3f} right", flush=True)
        if right >= args.target:
            break
    if args.out:
        torch.save(average.module.state_dict(), args.out)


if __name__ == "__main__":
    main()
