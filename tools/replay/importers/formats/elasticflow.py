"""ElasticFlow's data: traces of Microsoft's ITP clusters, and throughputs by model, batch and GPUs.

A raw trace has the columns job_id, submission_time (s), duration (s) and num_gpu; that of the experiments has
num_iteration, model_name, deadline (s, on the clock of submission_time) and batch_size (global), too.

``throughputs_GPUTYPE/MODEL.csv`` has a row for each global batch and a column for each number of GPUs:
iterations per second. A100 nodes have 8 GPUs, the T4 nodes, which are those of Pollux, have 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from pliant.schemas.errors import BadInputError
from pliant.schemas.job import Batch, Gpus, IterationWork, Job, Utility
from pliant.schemas.profile import PROFILE, ProfileRow
from pliant.schemas.text import whole_number
from pliant.tools.replay.importers.conversion import (
    MOST_GPUS,
    Conversion,
    DroppedRowError,
    FolderFormat,
    Imported,
    InputRow,
    MalformedRowError,
    Reason,
    assume_no_models,
    checked,
    executed_job,
)
from pliant.tools.replay.importers.reading import csv_rows, first_line

RAW: Final = ("job_id", "submission_time", "duration", "num_gpu")
COLUMNS: Final = (
    "job_id",
    "submission_time",
    "num_iteration",
    "model_name",
    "deadline",
    "batch_size",
    "num_gpu",
)
GPUS_PER_NODE: Final = {"a100": 8, "t4": 4}
_BATCH: Final = "global_batch_size"
_FOLDER: Final = "throughputs_"

Sizes = Mapping[tuple[str, int], int]
"""The most GPUs that were measured, by model and global batch."""


def read(folder: Path, workload: Path | None, conversion: Conversion) -> Imported:
    """Measurements of all ``throughputs_GPUTYPE`` in the folder, or of one that is itself such a folder."""
    found = [folder] if folder.name.startswith(_FOLDER) else sorted(folder.glob(f"{_FOLDER}*"))
    files = [path for inner in found for path in sorted(inner.glob("*.csv"))]
    if not files:
        text = f"holds no {_FOLDER}GPUTYPE/MODEL.csv, expected the data folder"
        raise BadInputError.one(str(folder), text)
    conversion.summary.assume("nodes have 8 GPUs (a100) or 4 (t4), and a job fills nodes one after the other")
    cells = (cell for path in files for cell in _cells(path, conversion))
    profile = tuple(conversion.convert(cells, _row))
    if workload is None:
        return Imported(profile=profile)
    sizes: dict[tuple[str, int], int] = {}
    for row in profile:
        key = row.model, (row.local_batch or 0) * row.gpus
        sizes[key] = max(row.gpus, sizes.get(key, 0))
    return replace(Imported(profile=profile), jobs=tuple(_jobs(workload, sizes, conversion)))


def read_workload(workload: Path, conversion: Conversion) -> Iterator[Job]:
    return _jobs(workload, None, conversion)


FORMAT: Final = FolderFormat("elasticflow", read, read_workload)


def _cells(path: Path, conversion: Conversion) -> Iterator[InputRow]:
    """The throughput of each batch and number of GPUs."""
    gpu_type = path.parent.name.removeprefix(_FOLDER).lower()
    for row in csv_rows(path, conversion, (_BATCH,)):
        for name in row.values:
            if name != _BATCH:
                place = {"model": path.stem, "gpu_type": gpu_type, "gpus": name}
                yield replace(row, values={**row.values, **place})


def _row(row: InputRow) -> ProfileRow:
    stated, gpu_type = row.values["gpus"], row.values["gpu_type"]
    gpus, batch = whole_number(stated), row.positive_count(_BATCH)
    if not gpus or gpus > MOST_GPUS:
        raise MalformedRowError(stated, f"expected a number of GPUs from 1 to {MOST_GPUS:,} as column")
    rate = row.optional_number(stated)
    if not rate:
        raise DroppedRowError("are sizes without a throughput")
    if batch % gpus:
        raise MalformedRowError(_BATCH, f"{batch} is not divisible by {gpus} GPUs")
    node = GPUS_PER_NODE.get(gpu_type, 8)
    nodes = math.ceil(gpus / node)
    shares = [node] * (gpus // node) + [gpus % node] * (gpus % node > 0)
    return checked(
        ProfileRow(
            kind="train",
            model=row.values["model"],
            gpu_type=gpu_type,
            nodes=nodes,
            gpus=gpus,
            placement=",".join(map(str, shares)),
            local_batch=batch // gpus,
            step_seconds=1 / rate,
            samples_per_second=batch * rate,
            source="imported",
        ),
        PROFILE,
    )


def _jobs(workload: Path, sizes: Sizes | None, conversion: Conversion) -> Iterator[Job]:
    if "num_iteration" not in first_line(str(workload)):
        assume_no_models(conversion)
        rows = csv_rows(workload, conversion, RAW)
        return conversion.convert(rows, partial(_raw_job, conversion))
    conversion.summary.assume(
        "a job may have any number of GPUs up to the largest that its model and batch were measured on"
        if sizes
        else "no throughputs were imported beside the jobs, which may have any number of GPUs"
    )
    conversion.summary.assume("a job is worth 1 until its deadline and nothing later (utility)")
    rows = csv_rows(workload, conversion, COLUMNS)
    return conversion.convert(rows, partial(_job, sizes, conversion))


def _raw_job(conversion: Conversion, row: InputRow) -> Job:
    gpus, seconds = row.count("num_gpu"), row.number("duration")
    if not gpus:
        raise DroppedRowError(Reason.NO_GPU)
    if not seconds:
        raise DroppedRowError(Reason.NO_DURATION)
    job_id, submit_time_s = conversion.new_id(row.text("job_id")), row.number("submission_time")
    return executed_job(job_id, submit_time_s, gpus, gpus * seconds, labels={"trace": "elasticflow"})


def _job(sizes: Sizes | None, conversion: Conversion, row: InputRow) -> Job:
    gpus, model, batch = row.count("num_gpu"), row.text("model_name"), row.positive_count("batch_size")
    if not gpus:
        raise DroppedRowError(Reason.NO_GPU)
    iterations = row.number("num_iteration")
    if not iterations:
        raise DroppedRowError("have no iterations to do")
    most = None if sizes is None else sizes.get((model, batch))
    if sizes is not None and most is None:
        raise MalformedRowError("model_name", f"{model!r} has no throughputs for the batch {batch}")
    submit_time_s, deadline_s = row.number("submission_time"), row.optional_number("deadline")
    if deadline_s is not None and deadline_s < submit_time_s:
        raise MalformedRowError("deadline", "is before submission_time")
    labels = {"trace": "elasticflow", "duration": row.optional_text("duration")}
    return Job(
        id=conversion.new_id(row.text("job_id")),
        submit_time=submit_time_s,
        model=model,
        gpus=Gpus(requested=gpus, min=1, max=most),
        batch=Batch(size=batch),
        elastic="size",
        work=IterationWork(iterations=iterations),
        utility=Utility() if deadline_s is None else Utility(shape="step", target=deadline_s - submit_time_s),
        labels={name: stated for name, stated in labels.items() if stated},
    )
