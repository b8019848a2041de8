"""SenseTime's Helios traces: ``cluster_log.csv`` of each cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pliant.schemas.job import Job
from pliant.tools.replay.importers.csv_records import sheet
from pliant.tools.replay.importers.fields import count, moment, optional_number, submitted, text, word
from pliant.tools.replay.importers.format import (
    NEVER_STARTED,
    NO_DURATION,
    NO_GPU,
    NOT_FINISHED,
    TraceFormat,
    assume_no_models,
    assume_utc,
    executed_job,
)
from pliant.tools.replay.importers.rows import DroppedRowError, Intake, Record

COLUMNS: Final = (
    "job_id", "user", "vc", "gpu_num", "node_num", "state", "submit_time", "start_time", "duration",
)  # fmt: skip


def read(paths: Sequence[str], intake: Intake) -> Iterator[Job]:
    """Jobs of each file, one a row."""
    assume_no_models(intake)
    assume_utc(intake)
    for path in paths:
        yield from intake.convert(sheet(path, intake, COLUMNS), lambda row: _job(row, intake))


def _job(row: Record, intake: Intake) -> Job:
    submit_time_s, gpus = submitted(row, "submit_time"), count(row, "gpu_num")
    if not gpus:
        raise DroppedRowError(NO_GPU)
    if moment(row, "start_time") is None:
        raise DroppedRowError(NEVER_STARTED)
    seconds = optional_number(row, "duration")
    if seconds is None:
        raise DroppedRowError(NOT_FINISHED)
    if not seconds:
        raise DroppedRowError(NO_DURATION)
    labels = {
        "trace": "helios",
        "status": text(row, "state"),
        "vc": text(row, "vc"),
        "nodes": text(row, "node_num"),
    }
    job_id = intake.new_id(word(row, "job_id"))
    return executed_job(job_id, submit_time_s, gpus, gpus * seconds, user=text(row, "user"), labels=labels)


FORMAT: Final = TraceFormat("helios", "SenseTime Helios 2020: cluster_log.csv", read)
