"""Microsoft's Philly trace: ``cluster_job_log``, one JSON list; also its reduction to a CSV.

The CSV has the columns timestamp, duration (s), num_gpus, gpu_time (s), cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from pliant.schemas.job import Job
from pliant.tools.replay.importers.blocks import RowBlock, WordColumn, convert_blocks
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
    parse_timestamp,
)
from pliant.tools.replay.importers.job_lines import JobBlock, executed_jobs
from pliant.tools.replay.importers.reading import csv_blocks, first_line, json_rows

REDUCED: Final = ("timestamp", "duration", "num_gpus")
_RESIZED: Final = "a job whose attempts had different numbers of GPUs requests the largest"
_UNENDED: Final = "an attempt without an end was left out of its job's work"
_BACKWARDS: Final = "an attempt that ended before it started took no time"


def read(paths: Sequence[str], conversion: Conversion) -> Iterator[Job | JobBlock]:
    assume_no_models(conversion)
    assume_utc(conversion)
    for path in paths:
        if first_line(path).startswith(REDUCED[0]):
            blocks = csv_blocks(path, conversion, REDUCED)
            yield from convert_blocks(blocks, _reduced_jobs)
        else:
            conversion.summary.assume("work is summed over a job's attempts, failed ones included")
            yield from conversion.convert(json_rows(path), partial(_job, conversion))


def _job(conversion: Conversion, row: InputRow) -> Job:
    for name in ("jobid", "submitted_time", "attempts"):
        if name not in row.values:
            raise MalformedRowError(name, "is missing")
    job_id = row.values["jobid"]
    if not isinstance(job_id, str) or not job_id.strip():
        raise MalformedRowError("jobid", "is not text, expected the name of the job")
    submit_time_s = row.optional_timestamp("submitted_time")
    if submit_time_s is None:
        raise DroppedRowError(Reason.NO_SUBMISSION)
    gpus, runs = _executed(row.values["attempts"], conversion)
    return executed_job(
        conversion.new_id(job_id),
        submit_time_s,
        gpus,
        sum(held * (end_s - start_s) for start_s, end_s, held in runs),
        user=str(row.values.get("user") or ""),
        labels={
            "trace": "philly",
            "status": row.values.get("status"),
            "vc": row.values.get("vc"),
            "attempts": len(row.values["attempts"]),
        },
        runs=runs,
    )


def _executed(attempts: Any, conversion: Conversion) -> tuple[int, list[tuple[float, float, int]]]:
    """GPUs of the largest attempt; start, end and GPUs of all that held some for a time."""
    if not isinstance(attempts, list):
        raise MalformedRowError("attempts", "is not a list")
    found = [_attempt(attempt, index) for index, attempt in enumerate(attempts)]
    started = [attempt for attempt in found if attempt[1] is not None]
    if not started:
        raise DroppedRowError(Reason.NEVER_STARTED)
    sizes = {gpus for gpus, _, _ in started if gpus}
    if not sizes:
        raise DroppedRowError(Reason.NO_GPU)
    ended = [(gpus, start, end) for gpus, start, end in started if start is not None and end is not None]
    if not ended:
        raise DroppedRowError(Reason.NOT_FINISHED)
    runs = [(start, end, gpus) for gpus, start, end in ended if gpus and end > start]
    if not runs:
        raise DroppedRowError(Reason.NO_DURATION)
    if any(end < start for _, start, end in ended):
        conversion.summary.assume_here(_BACKWARDS)
    if len(sizes) > 1:
        conversion.summary.assume_here(_RESIZED)
    if len(ended) < len(started):
        conversion.summary.assume_here(_UNENDED)
    return max(sizes), runs


def _attempt(attempt: Any, index: int) -> tuple[int, float | None, float | None]:
    field = f"attempts/{index}"
    try:
        machines = [machine["gpus"] for machine in attempt["detail"] or ()]
        start, end = attempt["start_time"], attempt["end_time"]
    except (KeyError, TypeError):
        machines = [None]
    if not all(isinstance(gpus, list) for gpus in machines):
        raise MalformedRowError(field, "expected start_time, end_time and detail with gpus")
    gpus = sum(map(len, machines))
    return gpus, parse_timestamp(start, f"{field}/start_time"), parse_timestamp(end, f"{field}/end_time")


def _reduced_jobs(block: RowBlock) -> JobBlock:
    submit_time_s, gpus = block.timestamp("timestamp"), block.count("num_gpus")
    seconds = block.number("duration")
    block.drop(gpus == 0, Reason.NO_GPU)
    block.drop(gpus * seconds == 0, Reason.NO_DURATION)
    ids = block.numbered_ids("philly")
    labels: dict[str, str | WordColumn] = {"trace": "philly", "cluster": block.optional_text("cluster")}
    return executed_jobs(block, ids, submit_time_s, gpus, seconds, labels=labels)


FORMAT: Final = TraceFormat("philly", read)
