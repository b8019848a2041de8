"""A small language model of characters, trained by iterations on random places of a text.

The text is made here. There are no epochs, no data set and no loader, as in many scripts for language models.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

BLOCK, WIDTH, HEADS, LAYERS = 32, 48, 4, 2
SUBJECTS, VERBS, OBJECTS = (
    ("the cat", "a crow", "my aunt", "the old smith"),
    ("sees", "paints", "hides", "sells"),
    ("a red house", "seven keys", "the moon", "some bread"),
)


def text(sentences: int, seed: int) -> torch.Tensor:
    """Sentences of a small grammar, as the numbers of their characters."""
    chosen = torch.randint(4, (sentences, 3), generator=torch.Generator().manual_seed(seed)).tolist()
    words = (f"{SUBJECTS[one]} {VERBS[two]} {OBJECTS[three]}" for one, two, three in chosen)
    return torch.tensor([ord(char) - ord(" ") for char in ". ".join(words)])


class Block(nn.Module):
    """Attention to earlier characters, then a layer for each character."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.attend(self.before(x)).chunk(3, -1))
        seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(seen.transpose(1, 2).reshape(x.shape))
        return x + self.think(self.between(x))


class Model(nn.Module):
    """Predicts the next character at each place of a block; gives the loss where it gets that one, too."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(96, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, 96)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found = self.head(self.blocks(self.token(x) + self.place.weight[: x.shape[1]]))
        return cross_entropy(found.flatten(0, 1), y.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=12, help="blocks that the device takes at once")
    parser.add_argument("--accumulate", type=int, default=4, help="batches of an optimizer step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--optimizer", default="AdamW", help="of torch.optim")
    parser.add_argument("--evaluate-every", type=int, default=250)
    parser.add_argument("--out", help="file for the best weights")
    parser.add_argument("--last", help="file for the last weights")
    args = parser.parse_args()

    torch.manual_seed(1337)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parts = {"train": text(4000, seed=1), "val": text(400, seed=2)}

    def get_batch(split: str) -> tuple[torch.Tensor, torch.Tensor]:
        data = parts[split]
        ix = torch.randint(len(data) - BLOCK, (args.batch,))
        x = torch.stack([data[i : i + BLOCK] for i in ix])
        y = torch.stack([data[i + 1 : i + 1 + BLOCK] for i in ix])
        return x.to(device), y.to(device)

    @torch.no_grad()
    def estimate_loss() -> dict[str, float]:
        model.eval()
        losses = {split: sum(model(*get_batch(split)).item() for _ in range(10)) / 10 for split in parts}
        model.train()
        return losses

    def get_lr(step: int) -> float:
        warm = min(1.0, (step + 1) / 100)
        return args.lr * warm * (0.55 + 0.45 * math.cos(math.pi * step / args.steps))

    model = Model().to(device)
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=args.lr)
    best = math.inf
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step)
        if step % args.evaluate_every == 0:
            losses = estimate_loss()
            print(f"step {step}: train {losses['train']:.4f}, val {losses['val']:.4f}", flush=True)
            if losses["val"] < best:
                best = losses["val"]
                if args.out:
                    torch.save({"model": model.state_dict(), "best": best}, args.out)
        for _ in range(args.accumulate):
            x, y = get_batch("train")
            loss = model(x, y) / args.accumulate
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    print(f"best: val {best:.4f}")
    if args.last:
        torch.save(model.state_dict(), args.last)


if __name__ == "__main__":
    main()
