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
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.record import LARGEST_BATCH, MOST, MOST_GPUS
from pliant.schemas.job import Batch, Gpus, IterationWork, Job, Utility
from pliant.schemas.profile import PROFILE, ProfileRow
from pliant.schemas.text import whole_number
from pliant.tools.replay.importers.blocks import RowBlock, RowIds, WordColumn, convert_blocks
from pliant.tools.replay.importers.conversion import (
    MOST_ROW_GPUS,
    Conversion,
    DroppedRowError,
    FolderFormat,
    Imported,
    InputRow,
    MalformedRowError,
    Reason,
    assume_no_models,
    checked,
)
from pliant.tools.replay.importers.job_lines import (
    JobBlock,
    Raw,
    check_rows,
    executed_jobs,
    integers,
    job_block,
)
from pliant.tools.replay.importers.reading import csv_blocks, csv_rows, first_line

if TYPE_CHECKING:
    from pliant.tools.replay.importers.blocks import Numbers

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
    folders = [folder] if folder.name.startswith(_FOLDER) else sorted(folder.glob(f"{_FOLDER}*"))
    files = [path for inner in folders for path in sorted(inner.glob("*.csv"))]
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


def read_workload(workload: Path, conversion: Conversion) -> Iterator[JobBlock]:
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
    if not gpus or gpus > MOST_ROW_GPUS:
        raise MalformedRowError(stated, f"expected a number of GPUs from 1 to {MOST_ROW_GPUS:,} as column")
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


def _jobs(workload: Path, sizes: Sizes | None, conversion: Conversion) -> Iterator[JobBlock]:
    if "num_iteration" not in first_line(str(workload)):
        assume_no_models(conversion)
        return convert_blocks(csv_blocks(workload, conversion, RAW), _raw_jobs)
    conversion.summary.assume(
        "a job may have any number of GPUs up to the largest that its model and batch were measured on"
        if sizes
        else "no throughputs were imported beside the jobs, which may have any number of GPUs"
    )
    conversion.summary.assume("a job is worth 1 until its deadline and nothing later (utility)")
    return convert_blocks(csv_blocks(workload, conversion, COLUMNS), partial(_job_lines, sizes))


def _raw_jobs(block: RowBlock) -> JobBlock:
    gpus, seconds = block.count("num_gpu"), block.number("duration")
    block.drop(gpus == 0, Reason.NO_GPU)
    block.drop(seconds == 0, Reason.NO_DURATION)
    ids, submit_time_s = RowIds(block).of("job_id"), block.number("submission_time")
    return executed_jobs(block, ids, submit_time_s, gpus, seconds, labels={"trace": "elasticflow"})


def _job_lines(sizes: Sizes | None, block: RowBlock) -> JobBlock:
    gpus, model, batch = block.count("num_gpu"), block.text("model_name"), block.positive_count("batch_size")
    block.drop(gpus == 0, Reason.NO_GPU)
    iterations = block.number("num_iteration")
    block.drop(iterations == 0, "have no iterations to do")
    most = _most(sizes, block, model, batch)
    submit_time_s, deadline_s = block.number("submission_time"), block.optional_number("deadline")
    block.refuse(deadline_s < submit_time_s, "deadline", "is before submission_time")
    target_s = deadline_s - submit_time_s
    duration = block.optional_text("duration")
    ids = RowIds(block).of("job_id")

    def job_of(row: int) -> Job:
        target = None if np.isnan(target_s[row]) else float(target_s[row])
        return Job(
            id=ids[row].as_py(),
            submit_time=float(submit_time_s[row]),
            model=model[row],
            gpus=Gpus(requested=int(gpus[row]), min=1, max=None if sizes is None else int(most[row])),
            batch=Batch(size=int(batch[row])),
            elastic="size",
            work=IterationWork(iterations=float(iterations[row])),
            utility=Utility() if target is None else Utility(shape="step", target=target),
        )

    within = (gpus <= np.minimum(most, MOST_GPUS)) & (batch <= LARGEST_BATCH) & (iterations <= MOST)
    check_rows(block, within & (submit_time_s <= MOST), job_of)
    size: dict[str, Any] = {"requested": integers(gpus), "min": 1}
    fields = {
        "model": model,
        "gpus": size if sizes is None else {**size, "max": integers(most)},
        "batch": {"size": integers(batch)},
        "elastic": "size",
        "work": {"iterations": iterations},
        "utility": _utility(target_s),
        "labels": {"trace": "elasticflow", "duration": duration},
    }
    return job_block(block, ids, submit_time_s, fields)


def _most(sizes: Sizes | None, block: RowBlock, model: WordColumn, batch: Numbers) -> Numbers:
    """The largest size of each job. Jobs without throughputs are refused."""
    if sizes is None:
        return np.full(len(block), np.inf)
    batches, places = np.unique(batch, return_inverse=True)
    pairs, at = np.unique(model.places.astype(np.int64) * len(batches) + places, return_inverse=True)
    keys = [(model.texts[pair // len(batches)], batches[pair % len(batches)]) for pair in pairs.tolist()]
    sizes_of_rows = np.array([float(sizes.get(key, math.nan)) for key in keys])[at]
    block.refuse(
        np.isnan(sizes_of_rows),
        "model_name",
        lambda row: f"{model[row]!r} has no throughputs for the batch {int(batch[row])}",
    )
    return sizes_of_rows


def _utility(target_s: Numbers) -> Raw | dict[str, Any]:
    """Worth 1 until the deadline, where there is one."""
    if not np.isnan(target_s).any():
        return {"shape": "step", "target": target_s}
    targets = target_s.tolist()
    texts = ["" if math.isnan(each) else f'{{"shape":"step","target":{each!r}}}' for each in targets]
    return Raw(WordColumn.of(texts))
