"""Faults that are planted in one of two workers: the share that the guard finds within an epoch."""

from __future__ import annotations

import copy
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel

from benchmarks.parts.shapes.driver import AT_ONCE, end, outcomes
from benchmarks.parts.shapes.script import Numbers, mlp
from benchmarks.parts.shapes.table import entries
from pliant.tools.run import elastic
from tests.tools.run.elastic.gang import Gang
from tests.tools.run.elastic.nursery import preload

TABLE: Final = Path(__file__).with_name("faults.md")
NONE: Final = "no fault"
_BATCH: Final = 16
_AT_PASS: Final = 3


@cache
def faults() -> dict[str, tuple[str, str]]:
    """By name, where a fault is planted, and its code."""
    return {name: (place, code) for name, place, code in entries(TABLE)}


def found(name: str) -> str:
    """What two workers say of a fault; empty if nothing."""
    folder = Path(tempfile.mkdtemp(prefix="fault-"))
    gang = Gang(folder, script=Path(__file__), fault=name)
    try:
        gang.start(2, global_batch=_BATCH, seed=0, timeout_s=20, patience_s=10)
        end(gang.workers)
        messages, warnings, _ = outcomes(gang)
        return next(iter([*messages, *warnings]), "")
    finally:
        gang.kill()
        shutil.rmtree(folder, ignore_errors=True)


def all_found(names: Sequence[str]) -> Mapping[str, str]:
    preload("benchmarks.parts.shapes.faults")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(names, pool.map(found, names), strict=True))


def _train(plant: Callable[[str, dict[str, Any]], None]) -> None:
    """One epoch of an ordinary training, in which faults are planted."""
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": functional, "np": np, "math": math, "copy": copy}
    job = names["job"] = elastic.init(batch_size=_BATCH, seed=0)
    data = names["data"] = Numbers()
    plant("start", names)
    model: nn.Module = mlp()
    names["model"] = model
    optimizer = names["optimizer"] = torch.optim.AdamW(model.parameters(), 0.01)
    model, optimizer, loader = job.prepare(model, optimizer, data)
    schedule = names["schedule"] = lr_scheduler.ExponentialLR(optimizer, 0.99)
    average, best = names["average"], names["best"] = AveragedModel(model), {"loss": 9.0}
    job.register(schedule, average, best)
    plant("prepared", names)
    for _ in job.epochs(1):
        for number, (x, y, _, _) in enumerate(loader):
            at = number + 1 == _AT_PASS
            if at:
                plant("pass", names)
            optimizer.zero_grad()
            functional.mse_loss(model(x), y).backward()
            if at:
                plant("backward", names)
            optimizer.step()
            schedule.step()
            average.update_parameters(model)
            if at:
                plant("step", names)


def main() -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    name = json.loads(sys.argv[1])["fault"]
    place, code = faults().get(name, ("", ""))

    def plant(here: str, names: dict[str, Any]) -> None:
        if here == place and os.environ["PLIANT_WORKER"] == "1":
            exec(compile(code, f"fault {name}", "exec"), names)  # noqa: S102 - of our own table

    _train(plant)


if __name__ == "__main__":
    main()
