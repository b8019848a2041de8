"""The data of the Pollux and Sia artifacts: measured applications, and workloads over them.

Pollux measured nodes of T4 GPUs, Sia the same applications on several GPU types. A workload has the columns
name, time, application, num_replicas, batch_size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from pliant.schemas.file_io.record import LARGEST_BATCH, MOST, MOST_GPUS, MOST_SAMPLES
from pliant.schemas.job import Batch, EpochWork, Gpus, Job
from pliant.schemas.profile import ConvergenceRow
from pliant.tools.replay.importers.blocks import RowBlock, WordColumn, convert_blocks
from pliant.tools.replay.importers.conversion import Conversion, FolderFormat, Imported
from pliant.tools.replay.importers.formats.applications import read_measurements
from pliant.tools.replay.importers.job_lines import JobBlock, check_rows, integers, job_block
from pliant.tools.replay.importers.reading import csv_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMNS: Final = ("name", "time", "application", "num_replicas", "batch_size")


@dataclass(frozen=True, slots=True)
class Application:
    """What validation runs say of an application's jobs."""

    smallest_batch: int
    largest_batch: int
    epochs: int
    """Epochs that every validation run has."""
    dataset_size: int
    """Samples an epoch at the smallest batch."""


_NONE: Final = Application(1, 1, 1, 1)
"""Of jobs that are refused."""


def read_pollux(folder: Path, workload: Path | None, conversion: Conversion) -> Imported:
    """Measurements and jobs; GPU type ``t4``."""
    conversion.summary.assume("all measurements are of the GPU type t4")
    return _read("pollux", "t4", folder, workload, conversion)


def read_sia(folder: Path, workload: Path | None, conversion: Conversion) -> Imported:
    """Measurements and jobs; the GPU type is the ending of a file's name, ``aws`` where it has none."""
    return _read("sia", "aws", folder, workload, conversion)


def _read(name: str, gpu_type: str, folder: Path, workload: Path | None, conversion: Conversion) -> Imported:
    measured = read_measurements(folder, gpu_type, conversion)
    if workload is None:
        return measured
    known = _applications(measured.convergence)
    return replace(measured, jobs=tuple(_jobs(name, workload, known, conversion)))


def _applications(rows: Iterable[ConvergenceRow]) -> dict[str, Application]:
    runs: dict[str, dict[int, list[ConvergenceRow]]] = {}
    for row in rows:
        runs.setdefault(row.model, {}).setdefault(row.batch, []).append(row)
    return {model: _application(by_batch) for model, by_batch in runs.items()}


def _application(runs: Mapping[int, list[ConvergenceRow]]) -> Application:
    smallest = min(runs)
    last = max(runs[smallest], key=lambda row: row.epoch)
    dataset_size = round(last.iterations * smallest / (last.epoch + 1))
    epochs = min(max(row.epoch for row in run) + 1 for run in runs.values())
    return Application(smallest, max(runs), epochs, max(1, dataset_size))


def _jobs(
    name: str, workload: Path, known: Mapping[str, Application], conversion: Conversion
) -> Iterator[JobBlock]:
    conversion.summary.assume(
        "jobs run the epochs that every validation run of their application has (label max_epochs); an epoch "
        "is as many samples as the run of the smallest batch took"
    )
    conversion.summary.assume("batches may move between the smallest and the largest validated one")
    blocks = csv_blocks(workload, conversion, COLUMNS)
    return convert_blocks(blocks, partial(_job_lines, name, known))


def _job_lines(trace: str, known: Mapping[str, Application], block: RowBlock) -> JobBlock:
    model = block.optional_text("application")
    names = ", ".join(sorted(known)) or "none"
    block.refuse(
        model.marks(lambda text: text not in known),
        "application",
        lambda row: f"{model[row]!r} has no validation runs (there are: {names})",
    )
    ids, submit_time_s = block.ids("name"), block.number("time")
    gpus = block.positive_count("num_replicas")
    check_rows(block, gpus <= MOST_GPUS, lambda row: Gpus(requested=int(gpus[row]), min=1))
    batch = block.positive_count("batch_size")
    found = [known.get(text, _NONE) for text in model.texts]

    def job_of(row: int) -> Job:
        application = found[model.places[row]]
        return Job(
            id=ids[row].as_py(),
            submit_time=float(submit_time_s[row]),
            model=model[row],
            gpus=Gpus(requested=int(gpus[row]), min=1),
            batch=Batch(size=int(batch[row]), min=application.smallest_batch, max=application.largest_batch),
            elastic="size+batch",
            work=EpochWork(epochs=float(application.epochs), dataset_size=application.dataset_size),
            convergence=model[row],
        )

    def of_each(name: str) -> NDArray[np.int64]:
        by_word = np.array([getattr(each, name) for each in found], dtype=np.int64)
        return by_word.take(model.places)

    least, most, samples = of_each("smallest_batch"), of_each("largest_batch"), of_each("dataset_size")
    within = (batch >= least) & (batch <= most) & (most <= LARGEST_BATCH) & (samples <= MOST_SAMPLES)
    check_rows(block, within & (submit_time_s <= MOST), job_of)
    fields = {
        "model": model,
        "gpus": {"requested": integers(gpus), "min": 1},
        "batch": {"size": integers(batch), "min": least, "max": most},
        "elastic": "size+batch",
        "work": {"epochs": of_each("epochs").astype(np.float64), "dataset_size": samples},
        "convergence": model,
        "labels": {
            "trace": trace,
            "row": WordColumn.of([str(line - 1) for line in block.lines.tolist()]),
            "max_epochs": model.map(lambda text: str(known.get(text, _NONE).epochs)),
        },
    }
    return job_block(block, ids, submit_time_s, fields)


FORMAT: Final = FolderFormat("pollux", read_pollux)
SIA: Final = FolderFormat("sia", read_sia)
