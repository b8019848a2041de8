"""A recurrent net learns a text, of which every row of a batch reads its own part from the first line on."""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from pliant.tools.run import elastic

BLOCK, WIDTH, LAYERS = 16, 48, 2
State = tuple[torch.Tensor, torch.Tensor]


def text(characters: int, seed: int) -> torch.Tensor:
    """Numbers up to some thousand, counted on, as the numbers of their characters."""
    first = int(torch.randint(1000, (1,), generator=torch.Generator().manual_seed(seed)))
    written = " ".join(str(number) for number in range(first, first + characters))
    return torch.tensor([ord(char) - ord(" ") for char in written[:characters]])


class Parts(Dataset[State]):
    """Row j of a batch goes on where row j of the batch before has ended."""

    def __init__(self, data: torch.Tensor, rows: int) -> None:
        self._rows, self._data = rows, data[: len(data) // rows * rows].view(rows, -1)

    def __len__(self) -> int:
        return self._rows * ((self._data.shape[1] - 1) // BLOCK)

    def __getitem__(self, index: int) -> State:
        part, row = divmod(index, self._rows)
        start = part * BLOCK
        return self._data[row, start : start + BLOCK], self._data[row, start + 1 : start + 1 + BLOCK]


class Model(nn.Module):
    """Predicts the next character at each place, from what it has read before."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.read = nn.Embedding(96, WIDTH), nn.LSTM(WIDTH, WIDTH, LAYERS, batch_first=True)
        self.head = nn.Linear(WIDTH, 96)

    def forward(self, x: torch.Tensor, hidden: State) -> tuple[torch.Tensor, State]:
        found, hidden = self.read(self.token(x), hidden)
        return self.head(found), hidden


def nothing_read(rows: int) -> State:
    return torch.zeros(LAYERS, rows, WIDTH), torch.zeros(LAYERS, rows, WIDTH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--size", type=int, default=100_000, help="characters")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--optimizer", default="Adam", help="of torch.optim")
    parser.add_argument("--out", help="file for the weights")
    args = parser.parse_args()

    job = elastic.init(batch_size=args.batch, seed=0)
    device = job.device
    data = Parts(text(args.size, seed=1), args.batch)
    model = Model().to(device)
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=args.lr)
    model, optimizer, loader = job.prepare(model, optimizer, data, shuffle=False)
    hidden = job.carried(nothing_read, dim=1)
    for epoch in job.epochs(args.epochs):
        for x, y in loader:
            found, hidden.value = model(x, hidden.value)
            loss = cross_entropy(found.flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            job.log(loss=loss)
        print(f"epoch {epoch}: {loss.item() / math.log(2):.3f} bits a character", flush=True)
    if args.out and job.rank == 0:
        torch.save(model.state_dict(), args.out)


if __name__ == "__main__":
    main()
