"""A small transformer that learns, letter by letter, to write Python from its own standard library."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from pliant.tools.run import elastic

LIBRARY = Path(argparse.__file__).parent
SOURCES = ("argparse.py", "dataclasses.py", "inspect.py", "typing.py", "json/decoder.py", "json/encoder.py")
LETTERS = 96
"""Printable ASCII, and one sign for everything else."""


def passages(count: int, length: int) -> TensorDataset:
    """Passages of the library's source as numbers of characters, each with the one that follows."""
    text = "".join((LIBRARY / name).read_text(encoding="utf-8") for name in SOURCES)
    codes = torch.tensor([ord(letter) - 31 if 32 <= ord(letter) < 127 else 0 for letter in text])
    starts = torch.linspace(0, len(codes) - length - 1, count).long()
    cut = codes[starts.unsqueeze(1) + torch.arange(length + 1)]
    return TensorDataset(cut[:, :-1], cut[:, 1:])


class Writer(nn.Module):
    """Embedding, causal transformer blocks, and a score for every next character."""

    def __init__(self, width: int, length: int, blocks: int) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(LETTERS, width), nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, blocks, enable_nested_tensor=False)
        self.score = nn.Linear(width, LETTERS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, letters: Tensor) -> Tensor:
        """Scores (batch, length, letters) of what follows each letter."""
        hidden = self.letter(letters) + self.place.weight[: letters.shape[1]]
        scores: Tensor = self.score(self.blocks(hidden, mask=self.mask, is_causal=True))
        return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--size", type=int, default=4096, help="passages in the data set")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=64, help="characters of a passage")
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()

    job = elastic.init(batch_size=args.batch, seed=0)
    model: nn.Module = Writer(args.width, args.length, blocks=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, optimizer, loader = job.prepare(model, optimizer, passages(args.size, args.length))
    for _ in job.epochs(args.epochs):
        for letters, following in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(letters).flatten(0, 1), following.flatten())
            loss.backward()
            optimizer.step()
            job.log(loss=loss)


if __name__ == "__main__":
    main()
