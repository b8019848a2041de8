"""What the library costs beside plain DistributedDataParallel: processor time of whole training loops.

Two workers on CPU slots train a model by the library, under the executor that ``pliant run`` uses, and in
turns with it the same model by PyTorch alone, so that both see the same neighbours. The ratio is plain
processor time a step by the library's, over all threads and processes of both workers: everything that a
loop does counts, up to the save at its end; starting up does not.
"""

from __future__ import annotations

import json
from typing import Final

from benchmarks.figure import Figure
from benchmarks.site import running
from pliant.tools.run.executor import Executor

LIMIT: Final = 0.95
WORKERS: Final = 2
BATCH: Final = {"mlp": 256, "transformer": 16}
SAMPLES: Final = {"mlp": 25_600, "transformer": 320}
EPOCHS: Final = {"mlp": 6, "transformer": 6}
TURN: Final = {"mlp": 25, "transformer": 2}
"""Steps by the library, and then as many by PyTorch alone."""

SCRIPT: Final = """
import itertools, json, resource, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from pliant.tools.run import elastic

NAME, BATCH, SAMPLES, EPOCHS, TURN, WORKERS = json.loads(sys.argv[1])


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(4096, 416)
        layer = nn.TransformerEncoderLayer(416, 8, 1664, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 6)
        self.head = nn.Linear(416, 4096)

    def forward(self, x):
        return self.head(self.layers(self.word(x))).transpose(1, 2)


def make():
    torch.manual_seed(0)
    if NAME == "transformer":
        return Transformer()
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32), nn.ReLU(), nn.Linear(32, 10))


def samples():
    if NAME == "transformer":
        return TensorDataset(*torch.randint(4096, (2, SAMPLES, 32)))
    return TensorDataset(torch.randn(SAMPLES, 64), torch.randint(10, (SAMPLES,)))


def train(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def used_s():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)


def plain_steps():
    model = nn.parallel.DistributedDataParallel(make())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, BATCH // WORKERS, sampler=sampler)
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        for x, y in loader:
            yield train(model, optimizer, x, y).item()


job = elastic.init(batch_size=BATCH, seed=1)
data = samples()
model = make()
weights = sum(parameter.numel() for parameter in model.parameters())
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
model, optimizer, loader = job.prepare(model, optimizer, data)
steps = plain_steps()
passes, plain_s, began_s, counted = 0, 0.0, 0.0, 0
for epoch in job.epochs(EPOCHS):
    for x, y in loader:
        job.log(loss=train(model, optimizer, x, y))
        passes += 1
        if passes % TURN == 0:
            before_s = used_s()
            for _ in range(TURN):
                next(steps)
            if began_s:
                plain_s, counted = plain_s + used_s() - before_s, counted + TURN
            elif passes >= 2 * TURN:
                began_s = used_s()
ours_s = used_s() - began_s - plain_s
with open(f"used-{job.rank}.json", "w") as file:
    json.dump([plain_s / counted, ours_s / counted], file)
if job.rank == 0:
    with open("took.json", "w") as file:
        json.dump({"weights": [weights], "steps": [counted]}, file)
"""


def figures() -> list[Figure]:
    """The ratio for a small model, whose steps are short, and for a large one, whose state is large."""
    return [
        Figure(f"library_cpu_ratio_{name}", cpu_ratio(name), "ratio", LIMIT, at_least=True) for name in BATCH
    ]


def cpu_ratio(name: str) -> float:
    """Plain processor time a step by the library's, both workers together."""
    words = json.dumps([name, BATCH[name], SAMPLES[name], EPOCHS[name], TURN[name], WORKERS])
    with running(Executor, SCRIPT, words, BATCH[name]) as site:
        site.go_to(WORKERS)
        site.finish()
        used = [json.loads(path.read_text()) for path in site.folder.glob("used-*.json")]
    plain_s, ours_s = (sum(column) for column in zip(*used, strict=True))
    return plain_s / ours_s
