"""Slurm accounting: what ``sacct -P`` prints, its columns named in the first line.

Needed: JobID, Submit, Start, one of ElapsedRaw, Elapsed or End, and one of AllocTRES, ReqTRES, AllocGRES or
ReqGRES. User, State, Partition, JobName and NNodes are used where they are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.files import source_name
from pliant.schemas.job import Job
from pliant.tools.replay.importers.conversion import (
    Conversion,
    DroppedRowError,
    InputRow,
    MalformedRowError,
    Reason,
    TraceFormat,
    assume_no_models,
    assume_utc,
    executed_job,
    executed_seconds,
    parse_number,
)
from pliant.tools.replay.importers.reading import csv_rows

COLUMNS: Final = ("JobID", "Submit", "Start")
TIMES: Final = ("ElapsedRaw", "Elapsed", "End")
SIZES: Final = ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES")
_GOING_ON: Final = ("PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING")
_TRES: Final = re.compile(r"(?:^|,)gres/gpu(?::([^=,]+))?=(\d{1,18})(?!\d)", re.ASCII)
_GRES: Final = re.compile(r"(?:^|,)(?:gres:)?gpu(?::([^:,(]*[^:,(0-9][^:,(]*))?:(\d{1,18})(?!\d)", re.ASCII)
_ELAPSED: Final = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})(?:\.\d+)?", re.ASCII)


def read(paths: Sequence[str], conversion: Conversion) -> Iterator[Job]:
    assume_no_models(conversion)
    assume_utc(conversion)
    for path in paths:
        rows = csv_rows(path, conversion, COLUMNS, delimiter="|", quoted=False, written_by="sacct -P")
        yield from conversion.convert(_checked(rows), partial(_job, conversion))


def _checked(rows: Iterator[InputRow]) -> Iterator[InputRow]:
    """The rows, after a look at the columns of the first."""
    for number, row in enumerate(rows):
        if number == 0:
            for names in (TIMES, SIZES):
                if not any(name in row.values for name in names):
                    text_ = f"has none of the columns {', '.join(names)}: add one to sacct --format"
                    raise BadInputError.one(source_name(row.source), text_, line=1)
        yield row


def _job(conversion: Conversion, row: InputRow) -> Job:
    job_id = row.text("JobID")
    if "." in job_id:
        raise DroppedRowError("are steps of jobs")
    submit_time_s = row.timestamp("Submit")
    state = row.optional_text("State").partition(" ")[0]
    gpus, gpu_type = _gpus(row)
    if row.optional_timestamp("Start") is None:
        raise DroppedRowError(Reason.NEVER_STARTED)  # nothing is allocated to it, whatever it asked for
    if not gpus:
        raise DroppedRowError(Reason.NO_GPU)
    if state in _GOING_ON:
        raise DroppedRowError(Reason.NOT_FINISHED)
    seconds = _elapsed_seconds(row)
    if not seconds:
        raise DroppedRowError(Reason.NO_DURATION)
    labels = {
        "trace": "slurm",
        "status": state,
        "partition": row.optional_text("Partition"),
        "name": row.optional_text("JobName"),
        "nodes": row.optional_text("NNodes"),
        "gpu_type": gpu_type,
    }
    user = row.optional_text("User")
    return executed_job(
        conversion.new_id(job_id), submit_time_s, gpus, gpus * seconds, user=user, labels=labels
    )


def _gpus(row: InputRow) -> tuple[int, str]:
    """GPUs of the whole job and their type, of the first column that names some."""
    for name in SIZES:
        found = row.optional_text(name)
        if name.endswith("TRES"):
            gpus, gpu_type = _counted(_TRES.findall(found))
        else:
            gpus, gpu_type = _counted(_GRES.findall(found))
            gpus *= int(parse_number(row.optional_text("NNodes") or "1", "NNodes"))
        if gpus:
            return gpus, gpu_type
    return 0, ""


def _counted(found: Sequence[tuple[str, str]]) -> tuple[int, str]:
    """The total; Slurm may state the sum and, beside it, the count of each type."""
    untyped = [int(gpus) for gpu_type, gpus in found if not gpu_type]
    typed = [int(gpus) for gpu_type, gpus in found if gpu_type]
    types = sorted({gpu_type for gpu_type, _ in found if gpu_type})
    return sum(untyped) or sum(typed), ",".join(types)


def _elapsed_seconds(row: InputRow) -> float:
    raw, spelled = row.optional_text("ElapsedRaw"), row.optional_text("Elapsed")
    if raw:
        return parse_number(raw, "ElapsedRaw")
    if not spelled:
        end_s = row.optional_timestamp("End")
        return executed_seconds(row.optional_timestamp("Start"), end_s)
    match = _ELAPSED.fullmatch(spelled)
    if match is None:
        raise MalformedRowError("Elapsed", f"{spelled!r}, expected a time like 1-02:03:04")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


FORMAT: Final = TraceFormat("slurm", read)
