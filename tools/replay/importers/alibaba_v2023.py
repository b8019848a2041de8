"""Alibaba's GPU trace of 2023: the list of pods (``openb_pod_list_*.csv``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pliant.schemas.job import Job
from pliant.tools.replay.importers.fields import count, number, optional_number, text, word
from pliant.tools.replay.importers.format import (
    NO_GPU,
    TraceFormat,
    assume_no_models,
    executed_job,
    executed_seconds,
)
from pliant.tools.replay.importers.intake import DroppedRowError, Intake, MalformedRowError, Record
from pliant.tools.replay.importers.sheets import sheet

COLUMNS: Final = (
    "name", "num_gpu", "gpu_milli", "gpu_spec", "qos", "pod_phase", "creation_time", "deletion_time",
    "scheduled_time",
)  # fmt: skip
_SHARED: Final = "a pod with a share of a GPU holds a whole one (label gpu_milli)"


def read(paths: Sequence[str], intake: Intake) -> Iterator[Job]:
    """Jobs of each file, one a pod."""
    assume_no_models(intake)
    intake.report.assume("a pod runs from scheduled_time to deletion_time, whatever its phase says")
    for path in paths:
        yield from intake.convert(sheet(path, intake, COLUMNS), lambda row: _job(row, intake))


def _job(row: Record, intake: Intake) -> Job:
    gpus, milli = count(row, "num_gpu"), count(row, "gpu_milli")
    if not gpus:
        raise DroppedRowError(NO_GPU)
    submit_time_s = number(row, "creation_time")
    start_s, end_s = optional_number(row, "scheduled_time"), optional_number(row, "deletion_time")
    if start_s is not None and start_s < submit_time_s:
        raise MalformedRowError("scheduled_time", "is before creation_time")
    seconds = executed_seconds(start_s, end_s)
    if milli < 1000:
        intake.report.assume_here(_SHARED)
    labels = {
        "trace": "alibaba-v2023",
        "status": text(row, "pod_phase"),
        "qos": text(row, "qos"),
        "gpu_spec": text(row, "gpu_spec"),
        "gpu_milli": milli if milli < 1000 else None,
    }
    return executed_job(intake.new_id(word(row, "name")), submit_time_s, gpus, gpus * seconds, labels=labels)


FORMAT: Final = TraceFormat("alibaba-v2023", "Alibaba GPU trace 2023: openb_pod_list CSV", read)
