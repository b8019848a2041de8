"""What a worker's process runs: one shape of the table, with the names that all of them share.

Its argument says which, where results go, and where to wait for the driver.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import os
import random
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils import data as datasets
from torch.utils.data import Dataset

from benchmarks.parts.shapes.plain_job import PlainJob
from benchmarks.parts.shapes.table import shapes
from pliant.tools.run import elastic

BATCH, SAMPLES, EPOCHS = 32, 243, 3


class Numbers(Dataset[Any]):
    """Samples of eight numbers with a target, a class and their own number."""

    def __init__(self, count: int = SAMPLES, seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(count, 8, generator=generator)
        self.y = (self.x[:, :1] * self.x[:, 1:2] + self.x[:, 2:3]).tanh()
        self.c = self.x[:, :4].argmax(1)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index], self.c[index], index


class Recorder:
    """Writes what a shape trains on and ends with, and holds it where the driver asks for it."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options, self._out = options, Path(options["out"])
        self._worker = os.environ.get("PLIANT_WORKER", "0")
        self._passes = 0
        self._file = (self._out / f"seen-{self._worker}.jsonl").open("a")
        self.prepared: list[Any] = []

    def saw(self, epoch: int, numbers: Iterable[Any]) -> None:
        """The loop body has trained these samples."""
        self._file.write(json.dumps([int(epoch), [int(one) for one in numbers]]) + "\n")
        self._file.flush()
        self._passes += 1
        time.sleep(self._options.get("slow_s", 0.0))
        if self._worker == "0" and self._passes in self._options.get("holds", ()):
            (self._out / f"holds-{self._passes}").touch()
            while not (self._out / f"go-{self._passes}").exists():
                time.sleep(0.01)

    def note(self, job: Any) -> Any:
        """The job, whose models and optimizers are noted."""
        prepare = job.prepare

        def noted(*objects: Any, **named: Any) -> Any:
            self.prepared += [*objects, *named.values()]
            return prepare(*objects, **named)

        job.prepare = noted
        return job

    def end(self, result: Any) -> None:
        """The shape has come to its end: write its weights, buffers, learning rates and own result."""
        models = [one for one in self.prepared if isinstance(one, nn.Module)]
        optimizers = [one for one in self.prepared if isinstance(one, torch.optim.Optimizer)]
        rates = [float(group["lr"]) for one in optimizers for group in one.param_groups]
        final = {
            "weights": _flat(one for model in models for one in model.parameters()),
            "buffers": _flat(one for model in models for one in model.buffers()),
            "rates": rates,
            "result": [] if result is None else np.ravel(result).tolist(),
        }
        (self._out / f"final-{self._worker}.json").write_text(json.dumps(final))


def _flat(tensors: Iterable[torch.Tensor]) -> list[float]:
    parts = [one.detach() for one in tensors]
    real = [torch.view_as_real(one) if one.is_complex() else one for one in parts]
    return [float(number) for one in real for number in one.double().flatten()]


def mlp(out: int = 1, *between: nn.Module, into: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(into, 16), *between, nn.Tanh(), nn.Linear(16, out))


def main() -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    options = json.loads(sys.argv[1])
    recorder = Recorder(options)
    names: dict[str, Any] = {
        **{
            one.__name__.rpartition(".")[2]: one
            for one in (copy, itertools, math, random, torch, nn, elastic)
        },
        "np": np,
        "F": functional,
        "lr_scheduler": lr_scheduler,
        "datasets": datasets,
        "partial": partial,
        "Dataset": Dataset,
        "Numbers": Numbers,
        "mlp": mlp,
        "saw": recorder.saw,
        "EPOCHS": EPOCHS,
        "optim": torch.optim,
        "SimpleNamespace": SimpleNamespace,
        "result": None,
        "data": Numbers(),
    }
    shape = shapes()[options["shape"]]
    make = PlainJob if options.get("plain") else elastic.init
    names["job"] = recorder.note(make(batch_size=BATCH, seed=0, **shape.settings))
    exec(compile(shape.code, f"shape {shape.name}", "exec"), names)  # noqa: S102 - of our own table
    recorder.end(names["result"])


if __name__ == "__main__":
    main()
