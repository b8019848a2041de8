"""Tiresias's inputs: the job list of its testbed, and its distributions of GPU time.

A job list has the columns job_id, num_gpu, submit_time, iterations, model_name, duration; a distribution has
the one column duration: the GPU-seconds of one job a row, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from pliant.schemas.job import Job
from pliant.tools.replay.importers.conversion import (
    Conversion,
    DroppedRowError,
    InputRow,
    Reason,
    TraceFormat,
    executed_job,
)
from pliant.tools.replay.importers.reading import csv_rows, first_line

COLUMNS: Final = ("job_id", "num_gpu", "submit_time", "model_name", "duration")


def read(paths: Sequence[str], conversion: Conversion) -> Iterator[Job]:
    for path in paths:
        if first_line(path).strip() == "duration":
            conversion.summary.assume(
                "a distribution states GPU time alone: every job has one GPU, the model 'unknown' and is "
                "submitted at 0; sample from it with `pliant trace synth`"
            )
            yield from conversion.convert(
                csv_rows(path, conversion, ("duration",)), partial(_sample, conversion)
            )
        else:
            conversion.summary.assume("work is duration times GPUs; the iterations are kept as a label")
            yield from conversion.convert(csv_rows(path, conversion, COLUMNS), partial(_job, conversion))


def _sample(conversion: Conversion, row: InputRow) -> Job:
    gpu_seconds = _positive(row.number("duration"))
    job_id = conversion.new_id(f"tiresias-{row.row_number}")
    return executed_job(job_id, 0.0, 1, gpu_seconds, labels={"trace": "tiresias"})


def _job(conversion: Conversion, row: InputRow) -> Job:
    gpus = row.count("num_gpu")
    if not gpus:
        raise DroppedRowError(Reason.NO_GPU)
    return executed_job(
        conversion.new_id(row.text("job_id")),
        row.number("submit_time"),
        gpus,
        gpus * _positive(row.number("duration")),
        model=row.text("model_name"),
        labels={
            "trace": "tiresias",
            "iterations": row.count("iterations") if "iterations" in row.values else None,
        },
    )


def _positive(seconds: float) -> float:
    if not seconds:
        raise DroppedRowError(Reason.NO_DURATION)
    return seconds


FORMAT: Final = TraceFormat("tiresias", read, absolute=False)
