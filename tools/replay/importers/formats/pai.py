"""Alibaba's PAI trace of 2020: ``pai_job_table`` and ``pai_task_table``, each beside its header file.

A job is one row of the job table (its start_time is the submission) joined with the rows of the task table
that hold GPUs; plan_gpu is per instance, in percent of a GPU. The GPU tasks wait in memory for their jobs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.job import Job
from pliant.schemas.text import counted
from pliant.tools.replay.importers.conversion import (
    UNKNOWN_MODEL,
    Conversion,
    DroppedRowError,
    InputRow,
    Reason,
    TraceFormat,
    assume_no_models,
    executed_job,
    executed_seconds,
)
from pliant.tools.replay.importers.reading import csv_rows, open_text

JOBS: Final = "pai_job_table"
TASKS: Final = "pai_task_table"
TAGS: Final = "pai_group_tag_table"
"""Optional: names of workloads, as bert or ctr."""
JOB_COLUMNS: Final = ("job_name", "start_time")
TASK_COLUMNS: Final = ("job_name", "inst_num", "start_time", "end_time", "plan_gpu")
_BLOCK: Final = 1 << 16
"""Tasks that become columns at a time."""
_SHARED: Final = "a job with shares of GPUs holds whole ones (label gpu_share)"


class Demand(NamedTuple):
    """What GPU tasks of a job held; the start is null where no task states it, the end where one does not."""

    job: str
    gpus: float
    start_s: float | None
    end_s: float | None
    gpu_type: str


def read(paths: Sequence[str], conversion: Conversion) -> Iterator[Job]:
    workloads = _workloads(paths, conversion)
    if workloads:
        conversion.summary.assume("models are the workloads of the group tags, where a job has one")
    else:
        assume_no_models(conversion)
    conversion.summary.assume("a job runs from the start of its first GPU task to the end of its last")
    jobs, tasks = _table(paths, JOBS), _table(paths, TASKS)
    demands = _joined(conversion.convert(_rows(tasks, conversion, TASK_COLUMNS), _task))
    rows = _rows(jobs, conversion, JOB_COLUMNS)
    yield from conversion.convert(rows, partial(_job, demands, workloads, conversion))
    if demands:
        conversion.summary.assume(
            f"GPU tasks of {counted(len(demands), 'job')} that {JOBS} does not have were left out"
        )


def _workloads(paths: Sequence[str], conversion: Conversion) -> dict[str, str]:
    """Names of workloads by inst_id, of the group tags that may be beside the other tables."""
    found = _tables(paths, TAGS)
    rows = (row for path in found for row in _rows(path, conversion, ("inst_id", "workload")))
    named = ((row.optional_text("inst_id"), row.optional_text("workload")) for row in rows)
    return {instance: workload for instance, workload in named if workload}


def _table(paths: Sequence[str], name: str) -> Path:
    found = _tables(paths, name)
    if len(found) != 1:
        raise UsageError(
            f"{len(found)} files {name}.csv are given, expected one: name the trace's folder or both tables"
        )
    return found[0]


def _tables(paths: Sequence[str], name: str) -> list[Path]:
    files = (f"{name}.csv", f"{name}.csv.gz")
    given = [Path(path) for path in paths]
    found = [path for path in given if path.name in files and path.is_file()]
    return found + [path / file for path in given for file in files if (path / file).is_file()]


def _rows(path: Path, conversion: Conversion, needed: Sequence[str]) -> Iterator[InputRow]:
    header = path.with_name(path.name.removesuffix(".gz")).with_suffix(".header")
    with open_text(header) as stream:
        names = [name.strip() for name in stream.readline().split(",")]
    missing = [name for name in needed if name not in names]
    if missing:
        raise BadInputError.one(str(header), f"names no column {', '.join(missing)}", line=1)
    return csv_rows(path, conversion, needed, names=names)


def _task(row: InputRow) -> Demand:
    gpus = (row.optional_number("plan_gpu") or 0.0) / 100 * row.number("inst_num")
    if not gpus:
        raise DroppedRowError("are tasks without GPUs")
    times = row.optional_timestamp("start_time"), row.optional_timestamp("end_time")
    return Demand(row.optional_text("job_name"), gpus, *times, row.optional_text("gpu_type"))


def _joined(tasks: Iterator[Demand]) -> dict[str, Demand]:
    """The tasks of each job taken together."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = pa.schema(
        [("job", "string"), ("gpus", "f8"), ("start_s", "f8"), ("end_s", "f8"), ("gpu_type", "string")]
    )
    blocks = iter(lambda: list(islice(tasks, _BLOCK)), [])
    batches = [pa.record_batch(list(zip(*rows, strict=True)), schema=columns) for rows in blocks]
    every_end = pc.ScalarAggregateOptions(skip_nulls=False)
    sums = [("gpus", "sum"), ("start_s", "min"), ("end_s", "max", every_end), ("gpu_type", "first")]
    found = pa.Table.from_batches(batches, columns).group_by("job", use_threads=False).aggregate(sums)
    return {row[0]: Demand(*row) for row in zip(*found.to_pydict().values(), strict=True)}


def _job(
    demands: dict[str, Demand], workloads: Mapping[str, str], conversion: Conversion, row: InputRow
) -> Job:
    demand = demands.pop(row.optional_text("job_name"), None)
    submit_time_s = row.optional_timestamp("start_time")
    if submit_time_s is None:
        raise DroppedRowError(Reason.NO_SUBMISSION)
    if demand is None:
        raise DroppedRowError(Reason.NO_GPU)
    seconds = executed_seconds(demand.start_s, demand.end_s)
    held = round(demand.gpus, 6)  # tenths add up to a little less
    gpus = math.ceil(held)
    shared = held < gpus
    if shared:
        conversion.summary.assume_here(_SHARED)
    labels = {
        "trace": "pai",
        "status": row.optional_text("status"),
        "gpu_type": demand.gpu_type,
        "gpu_share": f"{held:g}" if shared else None,
    }
    job_id = conversion.new_id(row.text("job_name"))
    start_s = demand.start_s or 0.0
    return executed_job(
        job_id,
        submit_time_s,
        gpus,
        gpus * seconds,
        user=row.optional_text("user"),
        model=workloads.get(row.optional_text("inst_id"), UNKNOWN_MODEL),
        labels=labels,
        runs=[(start_s, start_s + seconds, gpus)],
    )


FORMAT: Final = TraceFormat("pai", read)
