"""A training script that takes its batches in the way that the option ``shape`` names, as authors do."""

import itertools
import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

from pliant.tools.run import elastic

options = {
    "out": ".",
    "shape": "peek",
    "hold_in": [],  # after the first step of these epochs
    "compiled": None,  # "before" or "after" job.prepare, or "in place"
    "backend": "counting",  # of the compiler
    **json.loads(sys.argv[1]),
}
SAMPLES, EPOCHS = 47, 3
TAKEN = 3
"""Of the five batches of an epoch, where a script takes some only."""


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
        case "plain":
            return loader
        case "peek":
            assert len(next(iter(loader))) == 3
            return loader
        case "peek, kept":
            kept["peek"] = iter(loader)
            assert len(next(kept["peek"])) == 3
            return loader
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


class Net(nn.Sequential):
    def forward(self, x):
        """A frame that is not PyTorch's own, which the compiler would pass over."""
        return super().forward(x)


compiled_frames = []


def counting(graph, inputs):
    """A backend that notes what it compiles."""
    compiled_frames.append(graph)
    return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)


generator = torch.Generator().manual_seed(1)
x, y = (torch.randn(SAMPLES, size, generator=generator).double() for size in (8, 1))
backend = counting if options["backend"] == "counting" else options["backend"]
job = elastic.init(batch_size=10, seed=5)
net = Net(nn.Linear(8, 16), nn.BatchNorm1d(16, momentum=0.0), nn.Linear(16, 1)).double()
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
net[1].eval()  # its statistics depend on how a batch is cut; its buffers are exchanged all the same
model = torch.compile(net, backend=backend) if options["compiled"] == "before" else net
data = torch.utils.data.TensorDataset(x, y, torch.arange(SAMPLES))
model, optimizer, loader = job.prepare(model, optimizer, data)
if options["compiled"] == "after":
    model = torch.compile(model, backend=backend)
elif options["compiled"] == "in place":
    model.compile(backend=backend)
out = Path(options["out"])
with (out / f"seen-{job.rank}-{time.monotonic_ns()}.jsonl").open("a") as seen:
    for epoch in job.epochs(EPOCHS):
        for number, (x, y, index) in enumerate(batches_of(loader), 1):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
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
(out / f"graphs-{job.rank}").write_text(f"{len(compiled_frames)}")
if job.rank == 0:
    torch.save({"model": net.state_dict(), "lr": optimizer.param_groups[0]["lr"]}, out / "final.pt")
