"""Microsoft's Philly trace: ``cluster_job_log``, one JSON list; also its reduction to a CSV.

The CSV has the columns timestamp, duration (s), num_gpus, gpu_time (s), cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import tzinfo
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.parquet import text_array
from pliant.schemas.job import Job
from pliant.tools.replay.importers.blocks import RowBlock, RowIds, WordColumn, convert_blocks, settle
from pliant.tools.replay.importers.conversion import (
    NOTHING,
    Conversion,
    DroppedRowError,
    InputRow,
    MalformedRowError,
    Reason,
    TraceFormat,
    assume_no_models,
    assume_zone,
    executed_job,
    hashes,
    in_order,
    parse_timestamp,
    settle_runs,
)
from pliant.tools.replay.importers.job_lines import JobBlock, are_within, executed_jobs
from pliant.tools.replay.importers.reading import csv_blocks, first_line, json_rows
from pliant.tools.replay.recorded import PastRun, label_of, stated_runs

REDUCED: Final = ("timestamp", "duration", "num_gpus")
_ROWS: Final = 1000
"""Jobs of a log that become a block."""
_RESIZED: Final = "a job whose attempts had different numbers of GPUs requests the largest"
_UNENDED: Final = "an attempt without an end was left out of its job's work"
_BACKWARDS: Final = "an attempt that ended before it started took no time"


def read(paths: Sequence[str], conversion: Conversion) -> Iterator[Job | JobBlock]:
    assume_no_models(conversion)
    assume_zone(conversion)
    for path in paths:
        if first_line(path).startswith(REDUCED[0]):
            blocks = csv_blocks(path, conversion, REDUCED)
            yield from convert_blocks(blocks, _reduced_jobs)
        else:
            conversion.summary.assume("work is summed over a job's attempts, failed ones included")
            for rows in _batches(json_rows(path, conversion)):
                jobs = _jobs(rows, conversion)
                if jobs is not None:
                    yield jobs
                else:
                    yield from conversion.convert(rows, partial(_job, conversion))


def _batches(rows: Iterator[InputRow]) -> Iterator[list[InputRow]]:
    """The rows, those before a place that is not readable included."""
    batch: list[InputRow] = []
    try:
        for row in rows:
            batch.append(row)
            if len(batch) == _ROWS:
                yield batch
                batch = []
    except BadInputError:
        yield batch
        raise
    if batch:
        yield batch


class PhillyJob(NamedTuple):
    """What a job is made of; texts that say nothing are empty."""

    job_id: str
    submit_time_s: float
    gpus: int
    gpu_seconds: float
    runs: tuple[PastRun, ...]
    user: str
    status: str
    vc: str
    attempts: str


def _jobs(rows: Sequence[InputRow], conversion: Conversion) -> JobBlock | None:
    """As :func:`_job`, which makes single ones. Returns None if a row is malformed."""
    jobs: list[PhillyJob] = []
    lines: list[int] = []
    wholes: list[str] = []
    assumed: list[tuple[int, str, int, str]] = []
    dropped: Counter[str] = Counter()
    try:
        for row in rows:
            try:
                jobs.append(_read_job(row, conversion.zone, lambda *what: assumed.append((len(jobs), *what))))
                lines.append(row.line or 0)
                wholes.append(row.whole)
            except DroppedRowError as reason:
                dropped[str(reason)] += 1
        ids = text_array([job.job_id for job in jobs])
        keys = hashes(text_array(wholes))
        runs = WordColumn.of([label_of(job.runs, job.submit_time_s, job.gpus) for job in jobs])
        user, status, vc, attempts = (
            WordColumn.of([getattr(job, name) for job in jobs])
            for name in ("user", "status", "vc", "attempts")
        )
        text_array([*user.texts, *status.texts, *vc.texts])
        if any(stated_runs(text) is None for text in runs.texts):
            return None
    except (MalformedRowError, UnicodeEncodeError):
        return None
    submit_time_s, gpus, gpu_seconds = (
        np.array([float(getattr(job, name)) for job in jobs])
        for name in ("submit_time_s", "gpus", "gpu_seconds")
    )
    if not are_within(submit_time_s, gpus, gpu_seconds).all():
        return None
    block = RowBlock(conversion, rows[0].source if rows else "", np.array(lines, dtype=np.int64), {})
    for place, sentence, count, where in assumed:
        block.assume_row(place, sentence, count, where)
    block.dropped = list(dropped.items())
    conversion.count_rows(len(rows) - len(jobs))
    made = executed_jobs(
        block,
        RowIds(block).new(ids, keys),
        submit_time_s,
        gpus,
        gpu_seconds / gpus,
        gpu_seconds=gpu_seconds,
        user=user,
        labels={"trace": "philly", "status": status, "vc": vc, "attempts": attempts},
        runs=runs,
    )
    settle(block)
    return made


def _job(conversion: Conversion, row: InputRow) -> Job:
    job = _read_job(row, conversion.zone, conversion.summary.assume_here)
    return executed_job(
        conversion.new_id(job.job_id, row.place, row.whole),
        job.submit_time_s,
        job.gpus,
        job.gpu_seconds,
        user=job.user,
        labels={"trace": "philly", "status": job.status, "vc": job.vc, "attempts": job.attempts},
        runs=job.runs,
    )


def _read_job(row: InputRow, zone: tzinfo, assume: Callable[[str, int, str], None]) -> PhillyJob:
    for name in ("jobid", "submitted_time", "attempts"):
        if name not in row.values:
            raise MalformedRowError(name, "is missing")
    job_id = row.values["jobid"]
    if not isinstance(job_id, str) or not job_id.strip():
        raise MalformedRowError("jobid", "is not text, expected the name of the job")
    submit_time_s = row.optional_timestamp("submitted_time", zone)
    if submit_time_s is None:
        raise DroppedRowError(Reason.NO_SUBMISSION)

    def assume_here(sentence: str) -> None:
        assume(sentence, 1, row.place)

    gpus, stated = _executed(row.values["attempts"], submit_time_s, zone, assume_here)
    runs = settle_runs(stated, submit_time_s, row.place, assume)
    if not runs:
        raise DroppedRowError(Reason.NO_DURATION)
    return PhillyJob(
        job_id,
        submit_time_s,
        gpus,
        sum(held * (end_s - start_s) for start_s, end_s, held in runs),
        runs,
        user=str(row.values.get("user") or ""),
        status=_label(row.values.get("status")),
        vc=_label(row.values.get("vc")),
        attempts=str(len(row.values["attempts"])),
    )


def _label(value: object) -> str:
    text = "" if value is None else str(value)
    return "" if text.lower() in NOTHING else text


def _executed(
    attempts: Any, submit_time_s: float, zone: tzinfo, assume: Callable[[str], None]
) -> tuple[int, list[PastRun]]:
    """GPUs of the largest attempt; all that held some for a time."""
    if not isinstance(attempts, list):
        raise MalformedRowError("attempts", "is not a list")
    stated = [_attempt(attempt, index, zone) for index, attempt in enumerate(attempts)]
    times = in_order([submit_time_s, *(time_s for _, *times in stated for time_s in times)], zone)[1:]
    executed = [(gpus, times[2 * at], times[2 * at + 1]) for at, (gpus, *_) in enumerate(stated)]
    started = [attempt for attempt in executed if attempt[1] is not None]
    if not started:
        raise DroppedRowError(Reason.NEVER_STARTED)
    sizes = {gpus for gpus, _, _ in started if gpus}
    if not sizes:
        raise DroppedRowError(Reason.NO_GPU)
    ended = [(gpus, start, end) for gpus, start, end in started if start is not None and end is not None]
    if not ended:
        raise DroppedRowError(Reason.NOT_FINISHED)
    runs = [PastRun(start, end, gpus) for gpus, start, end in ended if gpus and end > start]
    if not runs:
        raise DroppedRowError(Reason.NO_DURATION)
    if any(end < start for _, start, end in ended):
        assume(_BACKWARDS)
    if len(sizes) > 1:
        assume(_RESIZED)
    if len(ended) < len(started):
        assume(_UNENDED)
    return max(sizes), runs


def _attempt(attempt: Any, index: int, zone: tzinfo) -> tuple[int, float | None, float | None]:
    field = f"attempts/{index}"
    try:
        machines = [machine["gpus"] for machine in attempt["detail"] or ()]
        start, end = attempt["start_time"], attempt["end_time"]
    except (KeyError, TypeError):
        machines = [None]
    if not all(isinstance(gpus, list) for gpus in machines):
        raise MalformedRowError(field, "expected start_time, end_time and detail with gpus")
    gpus = sum(map(len, machines))
    return (
        gpus,
        parse_timestamp(start, f"{field}/start_time", zone),
        parse_timestamp(end, f"{field}/end_time", zone),
    )


def _reduced_jobs(block: RowBlock) -> JobBlock:
    submit_time_s, gpus = block.timestamp("timestamp"), block.count("num_gpus")
    seconds = block.number("duration")
    block.drop(gpus == 0, Reason.NO_GPU)
    block.drop(gpus * seconds == 0, Reason.NO_DURATION)
    ids = RowIds(block).numbered("philly")
    labels: dict[str, str | WordColumn] = {"trace": "philly", "cluster": block.optional_text("cluster")}
    return executed_jobs(block, ids, submit_time_s, gpus, seconds, labels=labels)


FORMAT: Final = TraceFormat("philly", read, zoned=True)
