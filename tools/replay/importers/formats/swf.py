"""The Standard Workload Format 2.2 (Chapin et al., JSSPP 1999), read and written.

A line a job of 18 numbers separated by blanks, -1 where nothing is known; lines that begin with ``;`` are
comments. Its processors are read as GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np

from pliant.schemas.job import GpuTimeWork, Job
from pliant.schemas.quantities import read_duration
from pliant.tools.replay.importers.blocks import RowBlock, RowIds, convert_usual
from pliant.tools.replay.importers.conversion import (
    Conversion,
    DroppedRowError,
    InputRow,
    Reason,
    TraceFormat,
    assume_no_models,
    executed_job,
)
from pliant.tools.replay.importers.job_lines import JobBlock, are_within, executed_jobs
from pliant.tools.replay.importers.reading import word_blocks
from pliant.tools.replay.recorded import PastRun, runs_of

COLUMNS: Final = (
    "job", "submit", "wait", "run", "allocated", "cpu_time", "memory", "requested", "requested_time",
    "requested_memory", "status", "user", "group", "executable", "queue", "partition", "preceding",
    "think_time",
)  # fmt: skip
STATUS: Final = {
    "0": "FAILED",
    "1": "COMPLETED",
    "2": "PARTIAL",
    "3": "PARTIAL",
    "4": "PARTIAL",
    "5": "CANCELLED",
}
_ENDED: Final = {"COMPLETED": 1, "FAILED": 0, "CANCELLED": 5}
_LABELS: Final = {
    "queue": "queue",
    "partition": "partition",
    "group": "group",
    "executable": "executable",
    "requested_time": "time_limit",
    "preceding": "preceding",
    "think_time": "think_time_s",
}
"""Labels by column."""
_PARTS: Final = "are parts of jobs, whose sum is in a line of its own"


def read(paths: Sequence[str], conversion: Conversion) -> Iterator[Job | JobBlock]:
    assume_no_models(conversion)
    conversion.summary.assume("processors are read as GPUs")
    make_each = partial(conversion.convert, make=partial(_job, conversion))
    for path in paths:
        yield from convert_usual(word_blocks(path, conversion, COLUMNS), _jobs, make_each)


FORMAT: Final = TraceFormat("swf", read, absolute=False)


def _jobs(block: RowBlock) -> JobBlock | None:
    """As :func:`_job`. Returns None if a row is malformed."""
    names = ("submit", "wait", "run", "allocated", "requested")
    submit_time_s, wait_s, run_s, allocated, requested = map(block.optional_number, names)
    gpus = np.where(np.isnan(allocated), requested, allocated)
    if block.problems or not (gpus == np.floor(gpus)).all():
        return None
    status = block.optional_text("status").map(lambda text: STATUS.get(text, ""))
    block.drop(np.isnan(submit_time_s), Reason.NO_SUBMISSION)
    block.drop(gpus == 0, "asked for no processor")
    idle = np.isnan(run_s) | (run_s == 0)
    block.drop(idle & status.marks(lambda text: text == "CANCELLED"), Reason.NEVER_STARTED)
    block.drop(idle, Reason.NO_DURATION)
    block.drop(status.marks(lambda text: text == "PARTIAL"), _PARTS)
    block.text("job")
    if block.problems or not are_within(submit_time_s, gpus, gpus * run_s)[block.live].all():
        return None
    user = block.optional_text("user").map(lambda user: f"u{user}" if user else "")
    return executed_jobs(
        block,
        RowIds(block).of("job", block.keys()),
        submit_time_s,
        gpus,
        run_s,
        user=user,
        labels={
            "trace": "swf",
            "status": status,
            **{label: block.optional_text(name) for name, label in _LABELS.items()},
        },
        start_s=submit_time_s + wait_s,
    )


def _job(conversion: Conversion, row: InputRow) -> Job:
    submit_time_s, wait_s, run_s = (row.optional_number(name) for name in ("submit", "wait", "run"))
    gpus = row.count("allocated" if row.optional_text("allocated") else "requested")
    status = STATUS.get(row.optional_text("status"), "")
    if submit_time_s is None:
        raise DroppedRowError(Reason.NO_SUBMISSION)
    if not gpus:
        raise DroppedRowError("asked for no processor")
    if not run_s:
        raise DroppedRowError(Reason.NEVER_STARTED if status == "CANCELLED" else Reason.NO_DURATION)
    if status == "PARTIAL":
        raise DroppedRowError(_PARTS)
    user = f"u{number}" if (number := row.optional_text("user")) else ""
    start_s = None if wait_s is None else submit_time_s + wait_s
    return executed_job(
        conversion.new_id(row.text("job"), row.place, row.whole),
        submit_time_s,
        gpus,
        gpus * run_s,
        user=user,
        labels={
            "trace": "swf",
            "status": status,
            **{label: row.optional_text(name) for name, label in _LABELS.items()},
        },
        runs=() if start_s is None else [PastRun(start_s, start_s + run_s, gpus)],
    )


def lines(jobs: Iterable[Job]) -> Iterator[str]:
    """The lines of a trace; names of users, teams, models, queues and partitions become numbers.

    Wait and run time are those that a recording states, else the run time follows from the work, where that
    is GPU time.
    """
    yield "; Version: 2.2"
    yield "; Note: processors are GPUs; times are seconds since the start of the trace"
    numbers: dict[str, dict[str, int]] = {
        name: {} for name in ("user", "team", "model", "queue", "partition")
    }

    def number(kind: str, text: str) -> int:
        return numbers[kind].setdefault(text, len(numbers[kind]) + 1) if text else -1

    for place, job in enumerate(jobs, 1):
        runs, gpus = runs_of(job), job.gpus.requested
        wait_s = round(runs[0].start_s - job.submit_time) if runs else -1
        run_s = round(sum(run.end_s - run.start_s for run in runs)) if runs else _run_s(job)
        fields = [place, round(job.submit_time), wait_s, run_s, gpus if run_s >= 0 else -1, -1, -1, gpus]
        fields += [_limit_s(job), -1, _ENDED.get(job.labels.get("status", ""), -1)]
        fields += [number("user", job.user), number("team", job.team), number("model", job.model)]
        fields += [number(name, job.labels.get(name, "")) for name in ("queue", "partition")]
        yield " ".join(map(str, [*fields, -1, -1]))


def _limit_s(job: Job) -> int:
    try:
        return round(read_duration(job.labels.get("time_limit", "")))
    except ValueError:
        return -1


def _run_s(job: Job) -> int:
    return (
        round(job.work.gpu_seconds / (job.gpus.requested or 1)) if isinstance(job.work, GpuTimeWork) else -1
    )
