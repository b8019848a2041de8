"""Tiresias's inputs: the job list of its testbed, and its distributions of GPU time.

A job list has the columns job_id, num_gpu, submit_time, iterations, model_name, duration; a distribution has
the one column duration: the GPU-seconds of one job a row, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pliant.schemas.job import Job
from pliant.tools.replay.importers.csv_records import open_text, sheet
from pliant.tools.replay.importers.fields import count, number, word
from pliant.tools.replay.importers.format import NO_DURATION, NO_GPU, TraceFormat, executed_job
from pliant.tools.replay.importers.rows import DroppedRowError, Intake, Record

COLUMNS: Final = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration")


def read(paths: Sequence[str], intake: Intake) -> Iterator[Job]:
    """Jobs of each file."""
    for path in paths:
        if _is_distribution(path):
            intake.report.assume(
                "a distribution states GPU time alone: every job has one GPU, the model 'unknown' and is "
                "submitted at 0; sample from it with `pliant trace synth`"
            )
            yield from intake.convert(sheet(path, intake, ("duration",)), lambda row: _sample(row, intake))
        else:
            intake.report.assume("work is duration times GPUs; the iterations are kept as a label")
            yield from intake.convert(sheet(path, intake, COLUMNS), lambda row: _job(row, intake))


def _is_distribution(path: str) -> bool:
    if path == "-":
        return False
    with open_text(path) as stream:
        return stream.readline().strip() == "duration"


def _sample(row: Record, intake: Intake) -> Job:
    gpu_seconds = _positive(number(row, "duration"))
    job_id = intake.new_id(f"tiresias-{row.number}")
    return executed_job(job_id, 0.0, 1, gpu_seconds, labels={"trace": "tiresias"})


def _job(row: Record, intake: Intake) -> Job:
    gpus = count(row, "num_gpu")
    if not gpus:
        raise DroppedRowError(NO_GPU)
    return executed_job(
        intake.new_id(word(row, "job_id")),
        number(row, "submit_time"),
        gpus,
        gpus * _positive(number(row, "duration")),
        model=word(row, "model_name"),
        labels={"trace": "tiresias", "iterations": count(row, "iterations")},
    )


def _positive(seconds: float) -> float:
    if not seconds:
        raise DroppedRowError(NO_DURATION)
    return seconds


FORMAT: Final = TraceFormat(
    "tiresias", "Tiresias: the testbed's job list, or a distribution of GPU times", read, absolute=False
)
