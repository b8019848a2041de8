"""SenseTime's Helios traces: ``cluster_log.csv`` of each cluster.

Columns that are needed: job_id, gpu_num,
submit_time and duration. user, vc, state, node_num and start_time are read where they are there.
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
    assume_no_models,
    assume_utc,
    executed_job,
)
from pliant.tools.replay.importers.reading import csv_rows

COLUMNS: Final = ("job_id", "gpu_num", "submit_time", "duration")


def read(paths: Sequence[str], conversion: Conversion) -> Iterator[Job]:
    assume_no_models(conversion)
    assume_utc(conversion)
    for path in paths:
        yield from conversion.convert(csv_rows(path, conversion, COLUMNS), partial(_job, conversion))


def _job(conversion: Conversion, row: InputRow) -> Job:
    submit_time_s, gpus = row.timestamp("submit_time"), row.count("gpu_num")
    if not gpus:
        raise DroppedRowError(Reason.NO_GPU)
    if "start_time" in row.values and row.optional_timestamp("start_time") is None:
        raise DroppedRowError(Reason.NEVER_STARTED)
    seconds = row.optional_number("duration")
    if seconds is None:
        raise DroppedRowError(Reason.NOT_FINISHED)
    if not seconds:
        raise DroppedRowError(Reason.NO_DURATION)
    labels = {
        "trace": "helios",
        "status": row.optional_text("state"),
        "vc": row.optional_text("vc"),
        "nodes": row.optional_text("node_num"),
    }
    start_s = row.optional_timestamp("start_time")
    return executed_job(
        conversion.new_id(row.text("job_id")),
        submit_time_s,
        gpus,
        gpus * seconds,
        user=row.optional_text("user"),
        labels=labels,
        runs=() if start_s is None else [(start_s, start_s + seconds, gpus)],
    )


FORMAT: Final = TraceFormat("helios", read)
