"""Alibaba's PAI trace of 2020: ``pai_job_table`` and ``pai_task_table``, each beside its header file.

A job is one row of the job table (its start_time is the submission) joined with the rows of the task table
that hold GPUs; plan_gpu is per instance, in percent of a GPU. The GPU tasks wait in memory for their jobs.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.text import counted
from pliant.tools.replay.importers.blocks import RowBlock, WordColumn, convert_blocks, words_of
from pliant.tools.replay.importers.conversion import (
    UNKNOWN_MODEL,
    Conversion,
    Reason,
    TraceFormat,
    assume_no_models,
)
from pliant.tools.replay.importers.job_lines import JobBlock, executed_jobs
from pliant.tools.replay.importers.reading import csv_blocks, open_text

if TYPE_CHECKING:
    from pliant.tools.replay.importers.blocks import Numbers

JOBS: Final = "pai_job_table"
TASKS: Final = "pai_task_table"
TAGS: Final = "pai_group_tag_table"
"""Optional: names of workloads, as bert or ctr."""
JOB_COLUMNS: Final = ("job_name", "start_time")
TASK_COLUMNS: Final = ("job_name", "inst_num", "start_time", "end_time", "plan_gpu")
_SHARED: Final = "a job with shares of GPUs holds whole ones (label gpu_share)"


@dataclass(frozen=True, slots=True)
class TaskDemands:
    """What GPU tasks of each job held; NaN: no task states its start, or one no end."""

    rows: dict[str, int]
    """Place in the columns, by job; a job that was asked for is taken out. The last place is of no job."""
    gpus: Numbers
    start_s: Numbers
    end_s: Numbers
    gpu_type: WordColumn


def read(paths: Sequence[str], conversion: Conversion) -> Iterator[JobBlock]:
    workloads = _workloads(paths, conversion)
    if workloads:
        conversion.summary.assume("models are the workloads of the group tags, where a job has one")
    else:
        assume_no_models(conversion)
    conversion.summary.assume("a job runs from the start of its first GPU task to the end of its last")
    jobs, tasks = _table(paths, JOBS), _table(paths, TASKS)
    demands = _joined(convert_blocks(_blocks(tasks, conversion, TASK_COLUMNS), _tasks))
    blocks = _blocks(jobs, conversion, JOB_COLUMNS)
    yield from convert_blocks(blocks, partial(_jobs, demands, workloads))
    if demands.rows:
        conversion.summary.assume(
            f"GPU tasks of {counted(len(demands.rows), 'job')} that {JOBS} does not have were left out"
        )


def _workloads(paths: Sequence[str], conversion: Conversion) -> dict[str, str]:
    """Names of workloads by inst_id, of the group tags that may be beside the other tables."""
    found: dict[str, str] = {}
    for path in _tables(paths, TAGS):
        for block in _blocks(path, conversion, ("inst_id", "workload")):
            for line, fault in block.others:
                conversion.refuse_row(block.source, line, fault)
            if len(block):
                columns = (block.optional_text(name).listed() for name in ("inst_id", "workload"))
                found |= {instance: workload for instance, workload in zip(*columns, strict=True) if workload}
    return found


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


def _blocks(path: Path, conversion: Conversion, needed: Sequence[str]) -> Iterator[RowBlock]:
    header = path.with_name(path.name.removesuffix(".gz")).with_suffix(".header")
    with open_text(header) as stream:
        names = [name.strip() for name in stream.readline().split(",")]
    missing = [name for name in needed if name not in names]
    if missing:
        raise BadInputError.one(str(header), f"names no column {', '.join(missing)}", line=1)
    return csv_blocks(path, conversion, needed, names=names)


def _tasks(block: RowBlock) -> tuple[list[str], list[str], Numbers, Numbers, Numbers]:
    """Of tasks that hold GPUs: jobs and GPU types, then GPUs, starts and ends."""
    gpus = np.nan_to_num(block.optional_number("plan_gpu")) / 100 * block.number("inst_num")
    block.drop(gpus == 0, "are tasks without GPUs")
    start_s, end_s = block.optional_timestamp("start_time"), block.optional_timestamp("end_time")
    rows = np.flatnonzero(block.live)
    jobs, types = (block.optional_text(name).take(rows).listed() for name in ("job_name", "gpu_type"))
    return jobs, types, gpus[rows], start_s[rows], end_s[rows]


def _joined(tasks: Iterable[tuple[list[str], list[str], Numbers, Numbers, Numbers]]) -> TaskDemands:
    """The tasks of each job taken together."""
    rows: dict[str, int] = {}
    gpu_types: list[str] = []
    places, numbers = array("q"), (array("d"), array("d"), array("d"))
    for jobs, types, *columns in tasks:
        found = [rows.setdefault(job, len(rows)) for job in jobs]
        firsts = dict(zip(reversed(found), reversed(types), strict=True))
        gpu_types += [firsts[place] for place in range(len(gpu_types), len(rows))]
        places.extend(found)
        for known, column in zip(numbers, columns, strict=True):
            known.frombytes(column.tobytes())
    at = np.array(places, dtype=np.int64)
    gpus, starts_s, ends_s = map(np.array, numbers)
    start_s, end_s = np.full(len(rows) + 1, np.nan), np.full(len(rows) + 1, -np.inf)
    np.fmin.at(start_s, at, starts_s)
    with np.errstate(invalid="ignore"):
        np.maximum.at(end_s, at, ends_s)
    held = np.bincount(at, gpus, len(rows) + 1)
    whole = np.array([round(each, 6) for each in held.tolist()])  # tenths add up to a little less
    return TaskDemands(rows, whole, start_s, end_s, WordColumn.of([*gpu_types, ""]))


def _jobs(demands: TaskDemands, workloads: Mapping[str, str], block: RowBlock) -> JobBlock:
    names = block.optional_text("job_name").listed()
    rows = np.array([demands.rows.pop(name, -1) for name in names])
    submit_time_s = block.optional_timestamp("start_time")
    block.drop(np.isnan(submit_time_s), Reason.NO_SUBMISSION)
    block.drop(rows < 0, Reason.NO_GPU)
    start_s = demands.start_s[rows]
    seconds = block.executed_seconds(start_s, demands.end_s[rows])
    held = demands.gpus[rows]
    gpus = np.ceil(held)
    block.assume(held < gpus, _SHARED)
    labels: dict[str, str | WordColumn] = {
        "trace": "pai",
        "status": block.optional_text("status"),
        "gpu_type": demands.gpu_type.take(rows),
        "gpu_share": words_of(held, lambda share: "" if share == math.ceil(share) else f"{share:g}"),
    }
    return executed_jobs(
        block,
        block.ids("job_name"),
        submit_time_s,
        gpus,
        seconds,
        user=block.optional_text("user"),
        model=block.optional_text("inst_id").map(lambda instance: workloads.get(instance, UNKNOWN_MODEL)),
        labels=labels,
        start_s=start_s,
    )


FORMAT: Final = TraceFormat("pai", read)
