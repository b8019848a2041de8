"""The Shockwave artifact's data: Gavel's traces and throughputs, with jobs that change their batch.

A trace is tab separated without a header: job type, command, working folder, name of the steps option, needs
a data folder, total steps, GPUs, mode, priority, deadline (negative: none), duration (s) and arrival (s).
Throughputs (``tacc_throughputs.json``) are those of :mod:`~pliant.tools.replay.importers.formats.gavel`.

The mode says who changes the batch: ``static`` no one; ``accordion`` takes the largest batch of the model
outside of critical epochs; ``gns`` doubles it where the gradient noise scale has grown. The trace does not
say when. The artifact (github.com/uw-mad-dash/shockwave, 8a44f4a, ``scheduler/utils.py``) states the epochs,
as measured for each model, batch and number of GPUs: the tables below repeat them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

from pliant.schemas.job import Job, Regime
from pliant.tools.replay.importers.conversion import (
    Conversion,
    FolderFormat,
    Imported,
    InputRow,
    MalformedRowError,
)
from pliant.tools.replay.importers.formats.gavel import (
    model_and_batch,
    read_throughputs,
    tabbed_rows,
    training_job,
)

COLUMNS: Final = (
    "type", "command", "folder", "option", "data", "steps", "gpus", "mode", "priority", "deadline",
    "duration", "arrival",
)  # fmt: skip
FILE: Final = "tacc_throughputs.json"
DATASET_SAMPLES: Final[Mapping[str, int]] = {
    "ResNet-18": 50_000,
    "ResNet-50": 100_000,
    "Transformer": 10_000,
    "LM": 59_675,
    "Recommendation": 117_907,
    "A3C": 4,
    "CycleGAN": 6_287,
}
"""Samples of an epoch."""
LARGEST_BATCH: Final[Mapping[str, int]] = {
    "ResNet-18": 256,
    "ResNet-50": 128,
    "Transformer": 128,
    "LM": 80,
    "Recommendation": 8_192,
}
"""On one GPU, of the models that change their batch."""
_GNS: Final[Mapping[tuple[str, int, int], Sequence[int]]] = {
    ("ResNet-18", 16, 1): (31, 41, 51, 71),
    ("ResNet-18", 32, 1): (21, 31, 51),
    ("ResNet-18", 64, 1): (11, 31),
    ("ResNet-18", 128, 1): (11,),
    ("ResNet-18", 16, 2): (21, 31, 91, 111),
    ("ResNet-18", 32, 2): (11, 21, 41),
    ("ResNet-18", 64, 2): (21, 41),
    ("ResNet-18", 128, 2): (41,),
    ("ResNet-18", 16, 4): (11, 21, 81, 91),
    ("ResNet-18", 32, 4): (21, 31, 61),
    ("ResNet-18", 64, 4): (11, 61),
    ("ResNet-18", 128, 4): (11,),
    ("ResNet-50", 64, 1): (101,),
    ("ResNet-50", 32, 2): (101, 111),
    ("ResNet-50", 64, 2): (81,),
    ("ResNet-50", 32, 4): (131, 221),
    ("ResNet-50", 64, 4): (191,),
    ("LM", 5, 1): (31, 41, 61, 71),
    ("LM", 10, 1): (11, 21, 41),
    ("LM", 20, 1): (11, 41),
    ("LM", 40, 1): (11,),
    ("LM", 5, 2): (31, 51, 61, 71),
    ("LM", 10, 2): (11, 31, 41),
    ("LM", 20, 2): (31, 41),
    ("LM", 40, 2): (11,),
    ("LM", 5, 4): (11, 31, 71, 91),
    ("LM", 10, 4): (11, 31, 61),
    ("LM", 20, 4): (11, 61),
    ("LM", 40, 4): (61,),
    ("Recommendation", 512, 1): (21, 41, 71, 91),
    ("Recommendation", 1024, 1): (21, 51, 91),
    ("Recommendation", 2048, 1): (21, 41),
    ("Recommendation", 4096, 1): (41,),
}
"""Epochs, from 0, that begin with twice the batch, by model, first batch on a GPU, and GPUs."""


def read(folder: Path, workload: Path | None, conversion: Conversion) -> Imported:
    found = read_throughputs(folder / FILE, conversion)
    return found if workload is None else replace(found, jobs=tuple(read_workload(workload, conversion)))


def read_workload(workload: Path, conversion: Conversion) -> Iterator[Job]:
    conversion.summary.assume(
        "work is total steps times the batch of the type: a step is one worker's mini-batch"
    )
    conversion.summary.assume(
        "jobs do not change size; when they change their batch is what the artifact states for their model, "
        "batch and GPUs, since the trace names the mode alone"
    )
    return conversion.convert(tabbed_rows(workload, (COLUMNS,), conversion), partial(_job, conversion))


def _job(conversion: Conversion, row: InputRow) -> Job:
    mode, deadline = row.values["mode"], row.values["deadline"]
    if mode not in ("static", "accordion", "gns"):
        raise MalformedRowError("mode", f"{mode!r}, expected static, accordion or gns")
    labels = {"mode": mode} if deadline.startswith("-") else {"mode": mode, "deadline": deadline}
    job = training_job("shockwave", conversion, row, labels)
    model, batch = model_and_batch(row.values["type"])
    found = regimes(mode, model, batch, job.gpus.requested, row.number("steps"))
    return (
        job
        if not found
        else job.model_copy(update={"batch": job.batch.model_copy(update={"regimes": found})})
    )


FORMAT: Final = FolderFormat("shockwave", read, read_workload)


def regimes(mode: str, model: str, batch: int, gpus: int, steps: float) -> tuple[Regime, ...]:
    """The batches that a job changes to.

    :param batch: on each GPU, at the beginning.
    :param steps: all of them, at that batch.
    """
    if model not in DATASET_SAMPLES or mode == "static":
        return ()
    epoch_steps = math.ceil(DATASET_SAMPLES[model] / batch)
    epochs = math.ceil(steps / epoch_steps)
    by_epoch = (_accordion if mode == "accordion" else _gns)(model, batch, gpus, epochs)
    return tuple(
        Regime(after=epoch * epoch_steps / steps, size=gpus * now)
        for epoch, (before, now) in enumerate(pairwise(by_epoch), 1)
        if now != before and epoch * epoch_steps < steps
    )


def _accordion(model: str, batch: int, gpus: int, epochs: int) -> list[int]:
    """The batch on a GPU in each epoch: the first in critical epochs, else the largest.

    The artifact predicts batches as if jobs kept the first for 0.3 of their epochs, too, and neither its
    simulator nor its runs do so.
    """
    del gpus
    largest = batch if model == "Transformer" else LARGEST_BATCH.get(model, batch)
    return [batch if _is_critical(model, batch, epoch) else largest for epoch in range(epochs)]


def _is_critical(model: str, batch: int, epoch: int) -> bool:
    match model:
        case "ResNet-18":
            return (
                epoch < (20 if batch == 256 else 10) or epoch in range(150, 160) or epoch in range(250, 260)
            )
        case "ResNet-50":
            return epoch < 600 and epoch % 30 < 10
        case "LM":
            return epoch < 10
        case "Recommendation":
            first = {512: 30, 1024: 30, 2048: 40}.get(batch, 10)
            return epoch < first or epoch in range(60, 70) or epoch in range(80, 90)
        case _:
            return True


def _gns(model: str, batch: int, gpus: int, epochs: int) -> list[int]:
    """The batch on a GPU in each epoch."""
    doubled = _GNS.get((model, batch, gpus), ())
    most = max(batch, LARGEST_BATCH.get(model, batch))
    return [min(most, batch * 2 ** sum(epoch >= at for at in doubled)) for epoch in range(epochs)]
