"""What ``pliant init`` writes for a beginning: settings, a training script and a job that runs it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from pliant.schemas.cluster import Cluster

CLUSTER: Final = "cluster.json"
SETTINGS: Final = "pliant.toml"
SCRIPT: Final = "train.py"
JOBS: Final = "jobs.jsonl"
_MOST_WORKERS: Final = 4
"""Of the first job; on more it would wait for its workers rather than train."""

_ELASTIC_SCRIPT: Final = '''\
"""A first job: a small network that learns a sum. Put your own model and data in their place."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from pliant.tools.run import elastic

EPOCHS, SAMPLES, BATCH = 5, 4096, 64


def main() -> None:
    job = elastic.init(batch_size=BATCH, seed=0)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 8, generator=generator)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = job.prepare(model, optimizer, data)
    for _ in job.epochs(EPOCHS):
        for batch, wanted in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch), wanted)
            loss.backward()
            optimizer.step()
            job.log(loss=loss)


if __name__ == "__main__":
    main()
'''

_PLAIN_SCRIPT: Final = '''\
"""A first job: a line fitted to noisy points. Put your own training in its place."""

import random

EPOCHS, SAMPLES, RATE = 5, 4096, 0.01


def main() -> None:
    random.seed(0)
    inputs = [random.uniform(-1, 1) for _ in range(SAMPLES)]
    points = [(x, 3 * x + 1 + random.gauss(0, 0.1)) for x in inputs]
    slope = offset = 0.0
    for epoch in range(EPOCHS):
        random.shuffle(points)
        squares = 0.0
        for x, y in points:
            error = slope * x + offset - y
            slope -= RATE * error * x
            offset -= RATE * error
            squares += error * error
        print(f"epoch {epoch + 1}: loss {squares / SAMPLES:.4f}", flush=True)


if __name__ == "__main__":
    main()
'''


def settings_text(user: str) -> str:
    """``pliant.toml``."""
    return f"""\
# What commands in this folder and below it need not be given.
# The command line counts before PLIANT_STATE, and that before this file.
cluster = "{CLUSTER}"
state = "pliant-state"
# fair-share needs to know nothing of the jobs; with a profile of them take shadow-price.
policy = "fair-share"

# Fields of jobs that do not state them.
[job]
user = {json.dumps(user)}
"""


def first_job(cluster: Cluster, *, elastic: bool | None = None) -> tuple[str, str]:
    """A training script and the line of a job file that runs it.

    :param elastic: whether the script uses PyTorch and can be resized; None: if PyTorch is installed.
    """
    if not (find_spec("torch") is not None if elastic is None else elastic):
        return _PLAIN_SCRIPT, _line({"id": "first", "command": [SCRIPT]})
    most = min(_MOST_WORKERS, max(node.gpus for node in cluster.nodes))
    job: dict[str, object] = {
        "id": "first",
        "command": [SCRIPT],
        "gpus": {"requested": 1, "max": most},
        "elastic": "size",
        "batch": {"size": 64},
        "work": {"epochs": 5, "dataset_size": 4096},
    }
    return _ELASTIC_SCRIPT, _line(job)


def _line(job: Mapping[str, object]) -> str:
    return json.dumps(job) + "\n"
