"""What the library costs beside plain DistributedDataParallel: processor time of whole training loops.

Two workers on CPU slots train a model by the library, under the executor that ``pliant run`` uses, and after
each epoch as many steps of the same model by PyTorch alone, so that both see the same neighbours. The ratio
is plain processor time by the library's, over all threads and processes of both workers: everything that a
loop does counts, checkpoints and the ends of epochs included, up to the save at its end; starting up and the
first epoch do not. Beside it stands the median over epochs, which a checkpoint hardly moves.

The library reads datasets of tensors a batch at a time, which PyTorch's loader does not. So a third figure
is that of the small model on samples that both read one by one. It is the closest to its limit, so it takes
the mean of more epochs: beside other work the ratios of single epochs have a standard deviation of 0.08 to
0.15 (as have those of plain loops by plain loops), which leaves 0.02 of the mean of 40.

The plain steps come between epochs because there the library takes no time for that of a step: steps that
seem long would have votes more often.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Mapping
from typing import Final

from benchmarks.parts.figure import Figure
from benchmarks.parts.training_job import running
from pliant.tools.run.service.executor import Executor

LIMIT: Final = 0.95
LIMITED: Final = ("mlp", "mlp_by_sample", "transformer")
WORKERS: Final = 2
BATCH: Final = {"mlp": 256, "mlp_by_sample": 256, "transformer": 16}
SAMPLES: Final = {"mlp": 51_200, "mlp_by_sample": 51_200, "transformer": 80}
EPOCHS: Final = {"mlp": 21, "mlp_by_sample": 41, "transformer": 17}

MODELS: Final = """
import json, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Transformer(nn.Module):
    def __init__(self, width, layers, dropout):
        super().__init__()
        self.word = nn.Embedding(4096, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, 4096)

    def forward(self, x):
        return self.head(self.layers(self.word(x))).transpose(1, 2)


def train(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss
"""
SCRIPT: Final = (
    MODELS
    + """
import itertools, resource
from torch.utils.data.distributed import DistributedSampler
from pliant.tools.run import elastic

NAME, BATCH, SAMPLES, EPOCHS, WORKERS = json.loads(sys.argv[1])


def make():
    torch.manual_seed(0)
    if NAME == "transformer":
        return Transformer(416, 6, 0.1)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32), nn.ReLU(), nn.Linear(32, 10))


class BySample(TensorDataset):
    pass  # might give other samples, so the library asks it for each one


def samples():
    if NAME == "transformer":
        return TensorDataset(*torch.randint(4096, (2, SAMPLES, 32)))
    kind = BySample if NAME == "mlp_by_sample" else TensorDataset
    return kind(torch.randn(SAMPLES, 64), torch.randint(10, (SAMPLES,)))


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
pairs, began_s = [], 0.0
for epoch in job.epochs(EPOCHS):
    passes = 0
    for x, y in loader:
        job.log(loss=train(model, optimizer, x, y))
        passes += 1
    ours_s = used_s() - began_s
    began_s = used_s()
    for _ in range(passes):
        next(steps)
    pairs.append((used_s() - began_s, ours_s))
    began_s = used_s()
with open(f"used-{job.rank}.json", "w") as file:
    json.dump(pairs[1:], file)
if job.rank == 0:
    with open("took.json", "w") as file:
        json.dump({"weights": [weights], "pairs": [len(pairs) - 1]}, file)
"""
)


def figures(
    epochs: Mapping[str, int] = EPOCHS,
    limited: Collection[str] = LIMITED,
    samples: Mapping[str, int] = SAMPLES,
) -> list[Figure]:
    """The ratios for a small model, whose steps are short, and for a large one, whose state is large.

    :param epochs: of each model that is measured.
    :param limited: the models whose ratio has a limit.
    :param samples: of an epoch of each model.
    """
    found = []
    for name, count in epochs.items():
        overall, median = cpu_ratios(name, count, samples[name])
        found += [
            Figure(
                f"library_cpu_ratio_{name}",
                overall,
                "ratio",
                LIMIT if name in limited else None,
                at_least=True,
            ),
            Figure(f"library_cpu_ratio_{name}_median", median, "ratio"),
        ]
    return found


def by_sample(epochs: int = EPOCHS["mlp_by_sample"]) -> list[Figure]:
    """The ratio for the small model on samples that both read one by one."""
    return figures({"mlp_by_sample": epochs}, ("mlp_by_sample",))


def cpu_ratios(name: str, epochs: int, samples: int) -> tuple[float, float]:
    """Plain processor time by the library's, both workers together: of all epochs, and their median."""
    words = json.dumps([name, BATCH[name], samples, epochs, WORKERS])
    with running(Executor, SCRIPT, words, BATCH[name]) as training:
        training.go_to(WORKERS)
        training.finish()
        used = [json.loads(path.read_text()) for path in training.folder.glob("used-*.json")]
    by_epoch = [[sum(column) for column in zip(*pairs, strict=True)] for pairs in zip(*used, strict=True)]
    plain_s, ours_s = (sum(column) for column in zip(*by_epoch, strict=True))
    return plain_s / ours_s, statistics.median(plain / ours for plain, ours in by_epoch)
