"""The data of the Pollux and Sia artifacts: measured applications, and workloads over them.

Pollux measured nodes of T4 GPUs, Sia the same applications on several GPU types. A workload has the columns
name, time, application, num_replicas, batch_size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from pliant.schemas.job import Batch, EpochWork, Gpus, Job
from pliant.schemas.profile import ConvergenceRow
from pliant.tools.replay.importers.conversion import (
    Conversion,
    FolderFormat,
    Imported,
    InputRow,
    MalformedRowError,
)
from pliant.tools.replay.importers.formats.applications import read_measurements
from pliant.tools.replay.importers.reading import csv_rows

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
) -> Iterator[Job]:
    conversion.summary.assume(
        "jobs run the epochs that every validation run of their application has (label max_epochs); an epoch "
        "is as many samples as the run of the smallest batch took"
    )
    conversion.summary.assume("batches may move between the smallest and the largest validated one")
    rows = csv_rows(workload, conversion, COLUMNS)
    return conversion.convert(rows, partial(_job, name, known, conversion))


def _job(trace: str, known: Mapping[str, Application], conversion: Conversion, row: InputRow) -> Job:
    model = row.optional_text("application")
    found = known.get(model)
    if found is None:
        names = ", ".join(sorted(known)) or "none"
        raise MalformedRowError("application", f"{model!r} has no validation runs (there are: {names})")
    return Job(
        id=conversion.new_id(row.text("name")),
        submit_time=row.number("time"),
        model=model,
        gpus=Gpus(requested=row.positive_count("num_replicas"), min=1),
        batch=Batch(size=row.positive_count("batch_size"), min=found.smallest_batch, max=found.largest_batch),
        elastic="size+batch",
        work=EpochWork(epochs=float(found.epochs), dataset_size=found.dataset_size),
        convergence=model,
        labels={"trace": trace, "row": str(row.row_number), "max_epochs": str(found.epochs)},
    )


FORMAT: Final = FolderFormat("pollux", read_pollux)
SIA: Final = FolderFormat("sia", read_sia)
