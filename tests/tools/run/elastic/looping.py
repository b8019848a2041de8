"""A training script that takes its batches in the way that the option ``shape`` names, as authors do."""

import itertools
import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

from pliant.tools.run import elastic

options = {"out": ".", "samples": 47, "epochs": 3, "shape": "peek", "hold_in": [], **json.loads(sys.argv[1])}
TAKEN = 3
"""Of the five batches of an epoch, where a script takes some only."""


class Numbers(torch.utils.data.Dataset):
    """Sample i says that it is sample i."""

    def __init__(self, count):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(count, 8, generator=generator)
        self.y = torch.randn(count, 1, generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index], index


def around(batches):
    for batch in batches:
        assert len(batch) == 3
        yield batch


def one_ahead(batches):
    """A generator that has read the next batch when it gives one out."""
    upcoming = iter(batches)
    held = next(upcoming)
    for following in upcoming:
        yield held
        held = following
    yield held


def endless(batches):
    while True:
        yield from batches


kept = {}
"""Iterators that outlive an epoch."""


def batches_of(loader):
    match options["shape"]:
        case "peek":
            assert len(next(iter(loader))) == 3
            return loader
        case "peek, kept":
            kept["peek"] = iter(loader)
            assert len(next(kept["peek"])) == 3
            return loader
        case "first and rest":
            rest = iter(loader)
            return itertools.chain([next(rest)], rest)
        case "generator":
            return around(around(loader))
        case "with another":
            another = torch.utils.data.DataLoader(range(100))
            return (batch for batch, _ in zip(loader, another, strict=False))
        case "a shorter one":
            another = torch.utils.data.DataLoader(range(TAKEN))
            return (batch for batch, _ in zip(loader, another, strict=False))
        case "islice":
            return itertools.islice(loader, TAKEN)
        case "steps done":
            return itertools.takewhile(lambda _: loader.steps_done < TAKEN, loader)
        case "break":
            return (batch for number, batch in enumerate(loader) if number < TAKEN)
        case "endless":
            return itertools.islice(kept.setdefault("endless", endless(loader)), len(loader))
        case "one ahead":
            return one_ahead(loader)
        case "list":
            return list(loader)
        case "side by side":
            return (batch for batch, _ in zip(loader, loader, strict=False))
        case "continued":
            return itertools.islice(kept.setdefault("first", iter(loader)), TAKEN)
    raise ValueError(options["shape"])


job = elastic.init(batch_size=10, seed=5)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, momentum=0.0), nn.Linear(16, 1)).double()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model[1].eval()  # its statistics depend on how a batch is cut; its buffers are exchanged all the same
model, optimizer, loader = job.prepare(model, optimizer, Numbers(options["samples"]))
out = Path(options["out"])
with (out / f"seen-{job.rank}-{time.monotonic_ns()}.jsonl").open("a") as seen:
    for epoch in job.epochs(options["epochs"]):
        for number, (x, y, index) in enumerate(batches_of(loader), 1):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x.double()), y.double())
            loss.backward()
            optimizer.step()
            job.log(loss=loss)
            seen.write(json.dumps({"epoch": epoch, "rank": job.rank, "index": index.tolist()}) + "\n")
            seen.flush()
            if options["shape"] == "break" and number == TAKEN:
                break
            if epoch in options["hold_in"] and number == 1:
                (out / f"holds-{epoch}-{job.rank}").touch()
                while not (out / f"go-{epoch}").exists():
                    time.sleep(0.01)
if job.rank == 0:
    inner = getattr(model, "module", model)
    torch.save({"model": inner.state_dict(), "lr": optimizer.param_groups[0]["lr"]}, out / "final.pt")
