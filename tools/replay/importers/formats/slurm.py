"""Slurm accounting: what ``sacct -P`` prints, its columns named in the first line; or ``sacct --json``.

Needed: JobID, Submit, Start, one of ElapsedRaw, Elapsed or End, and one of AllocTRES, ReqTRES, AllocGRES or
ReqGRES. User, State, Partition, QOS, Priority, JobName, NNodes, NodeList, TimelimitRaw (minutes) and
Suspended are used where they are there. With ``-D``, the earlier runs of a requeued job are in rows of its
own id, one after the other: they become one job.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.files import read_bytes, source_name
from pliant.schemas.file_io.json_lines import parse_json
from pliant.schemas.file_io.parquet import compute, text_array
from pliant.schemas.job import Job
from pliant.tools.replay.importers.blocks import RowBlock, WordColumn, convert_usual, matches, truths
from pliant.tools.replay.importers.conversion import (
    NOTHING,
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
from pliant.tools.replay.importers.job_lines import JobBlock, are_within, executed_jobs
from pliant.tools.replay.importers.reading import csv_blocks, first_line

if TYPE_CHECKING:
    from pliant.tools.replay.importers.blocks import Marks, Numbers

COLUMNS: Final = ("JobID", "Submit", "Start")
TIMES: Final = ("ElapsedRaw", "Elapsed", "End")
SIZES: Final = ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES")
_GOING_ON: Final = ("PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING")
_STEPS: Final = "are steps of jobs"
_TRES: Final = re.compile(r"(?:^|,)gres/gpu(?::([^=,]+))?=(\d{1,18})(?!\d)", re.ASCII)
_GRES: Final = re.compile(r"(?:^|,)(?:gres:)?gpu(?::([^:,(]*[^:,(0-9][^:,(]*))?:(\d{1,18})(?!\d)", re.ASCII)
_ELAPSED: Final = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})(?:\.\d+)?", re.ASCII)


def read(paths: Sequence[str], conversion: Conversion) -> Iterator[Job | JobBlock]:
    assume_no_models(conversion)
    assume_utc(conversion)
    make_each = partial(_each_job, conversion)
    for path in paths:
        if first_line(path).lstrip().startswith("{"):
            yield from make_each(_json_rows(path))
        else:
            blocks = csv_blocks(path, conversion, COLUMNS, delimiter="|", quoted=False, written_by="sacct -P")
            yield from convert_usual(_whole_groups(_checked(blocks)), _jobs, make_each)


def _each_job(conversion: Conversion, rows: Iterator[InputRow]) -> Iterator[Job]:
    return conversion.convert(_whole_jobs(rows, conversion), partial(_job, conversion))


def _json_rows(path: str) -> Iterator[InputRow]:
    """The jobs of ``sacct --json`` with the columns of ``sacct -P``."""
    document = parse_json(read_bytes(path), source_name(path))
    jobs = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(jobs, list):
        raise BadInputError.one(source_name(path), "has no list of jobs, expected what sacct --json prints")
    for number, job in enumerate(jobs):
        try:
            values = _columns(job)
        except (TypeError, KeyError, AttributeError, IndexError) as error:
            text = f"is not a job as sacct --json prints it: {error!r}"
            raise BadInputError.one(source_name(path), text, pointer=f"/jobs/{number}") from None
        yield InputRow(source_name(path), None, values)


def _columns(job: Mapping[str, Any]) -> dict[str, Any]:
    """Times of 0 are those that are not known; numbers may come with whether they are set."""
    time, limit = job["time"], _plain(job["time"].get("limit"))
    state = job["state"]["current"]
    return {
        "JobID": job["job_id"],
        "JobName": job.get("name"),
        "User": job.get("user") or job.get("association", {}).get("user"),
        "State": state if isinstance(state, str) else state[0],
        "Submit": time["submission"],
        "Start": time["start"] or None,
        "ElapsedRaw": time["elapsed"],
        "Suspended": str(_seconds(time.get("suspended"))),
        "TimelimitRaw": limit,
        "AllocTRES": _tres(job["tres"]["allocated"]),
        "ReqTRES": _tres(job["tres"]["requested"]),
        "Partition": job.get("partition"),
        "QOS": job.get("qos"),
        "Priority": _plain(job.get("priority")),
        "NodeList": job.get("nodes"),
    }


def _plain(number: Any) -> Any:
    if isinstance(number, Mapping):
        return number["number"] if number.get("set") and not number.get("infinite") else None
    return number


def _seconds(time: Any) -> float:
    return time["seconds"] + time.get("microseconds", 0) / 1e6 if isinstance(time, Mapping) else time or 0


def _tres(listed: Sequence[Mapping[str, Any]]) -> str:
    gpus = [each for each in listed if each["type"] == "gres"]
    return ",".join(f"gres/{each['name']}={each['count']}" for each in gpus)


def _whole_jobs(rows: Iterator[InputRow], conversion: Conversion) -> Iterator[InputRow]:
    """One row for each job: of several runs the last, with the others in ``earlier``. Steps stay rows."""
    for _, group in groupby(rows, key=lambda row: str(row.values["JobID"]).partition(".")[0]):
        runs: list[InputRow] = []
        for row in group:
            if "." in str(row.values["JobID"]):
                yield row
            else:
                runs.append(row)
        if len(runs) > 1:
            conversion.summary.assume_here("the earlier runs of a requeued job were added to its last one")
        if runs:
            yield replace(runs[-1], values={**runs[-1].values, "earlier": runs[:-1]})


def _checked(blocks: Iterator[RowBlock]) -> Iterator[RowBlock]:
    """The blocks, after a look at the columns of the first row."""
    for block in blocks:
        for names in (TIMES, SIZES):
            if len(block) and not any(name in block for name in names):
                text_ = f"has none of the columns {', '.join(names)}: add one to sacct --format"
                raise BadInputError.one(source_name(block.source), text_, line=1)
        yield block


def _whole_groups(blocks: Iterator[RowBlock]) -> Iterator[RowBlock]:
    """The same rows; those of one job, its steps and its runs, are in one block."""
    held: RowBlock | None = None
    for each in blocks:
        block = each if held is None else held.followed_by(each)
        last = int(np.flatnonzero(_begins(block))[-1]) if len(block) else 0
        if last:
            yield block.part(0, last)
        held = block.part(last, len(block)) if last else block
    if held is not None:
        yield held


def _begins(block: RowBlock) -> Marks:
    """The rows of another job than the row before them; a step has the id of its job before a dot."""
    ids = block.columns["JobID"]
    if matches(ids, r"\.").any():
        ids = text_array([text.partition(".")[0] for text in ids.to_pylist()])
    return np.append(True, truths(compute("not_equal", ids.slice(1), ids.slice(0, len(ids) - 1))))


def _jobs(block: RowBlock) -> JobBlock | None:
    """As :func:`_job`. Returns None if a row is malformed, or a job has several runs or only an end."""
    steps = matches(block.columns["JobID"], r"\.")
    if (np.bincount(np.cumsum(_begins(block)), ~steps) > 1).any():
        return None
    try:
        return _usual_jobs(block, steps)
    except MalformedRowError:
        return None


def _usual_jobs(block: RowBlock, steps: Marks) -> JobBlock | None:
    block.text("JobID")
    block.drop(steps, _STEPS)
    submit_time_s = block.timestamp("Submit")
    state = block.optional_text("State").map(lambda text: text.partition(" ")[0])
    gpus, gpu_type = _gpu_columns(block)
    start_s = block.optional_timestamp("Start")
    block.drop(np.isnan(start_s), Reason.NEVER_STARTED)
    block.drop(gpus == 0, Reason.NO_GPU)
    block.drop(state.marks(lambda text: text in _GOING_ON), Reason.NOT_FINISHED)
    seconds = block.optional_number("ElapsedRaw")
    seconds = np.where(np.isnan(seconds), _spelled(block, "Elapsed", math.nan), seconds)
    suspended_s = _spelled(block, "Suspended", 0.0)
    limit = block.optional_text("TimelimitRaw").map(_limit)
    if block.problems or np.isnan(seconds[block.live]).any():
        return None
    block.drop(seconds == 0, Reason.NO_DURATION)
    if not are_within(submit_time_s, gpus, gpus * seconds)[block.live].all():
        return None
    labels: dict[str, str | WordColumn] = {
        "trace": "slurm",
        "status": state.map(_said),
        "partition": block.optional_text("Partition"),
        "name": block.optional_text("JobName"),
        "nodes": block.optional_text("NNodes"),
        "gpu_type": gpu_type,
        "qos": block.optional_text("QOS"),
        "slurm_priority": block.optional_text("Priority"),
        "node_list": block.optional_text("NodeList").map(
            lambda text: _said(text.removeprefix("None assigned"))
        ),
        "time_limit": limit,
    }
    return executed_jobs(
        block,
        block.ids("JobID"),
        submit_time_s,
        gpus,
        seconds,
        user=block.optional_text("User"),
        labels=labels,
        start_s=start_s,
        end_s=start_s + seconds + suspended_s,
    )


def _gpu_columns(block: RowBlock) -> tuple[Numbers, WordColumn]:
    """As :func:`_gpus`.

    :raises MalformedRowError: a number of nodes is none.
    """
    gpus, types = np.zeros(len(block)), np.full(len(block), "", dtype=object)
    for name in SIZES:
        words = block.optional_text(name)
        counted = [
            _counted((_TRES if name.endswith("TRES") else _GRES).findall(text)) for text in words.texts
        ]
        found = np.array([float(count) for count, _ in counted])[words.places]
        if not name.endswith("TRES"):
            nodes = block.optional_text("NNodes")
            numbers = [float(int(parse_number(text or "1", "NNodes"))) for text in nodes.texts]
            found = found * np.array(numbers)[nodes.places]
        rows = (gpus == 0) & (found > 0)
        gpus[rows] = found[rows]
        types[rows] = np.array([kinds for _, kinds in counted], dtype=object)[words.places[rows]]
    return gpus, WordColumn.of(types.tolist()).map(_said)


def _spelled(block: RowBlock, name: str, unstated: float) -> Numbers:
    """As :func:`_spelled_seconds`."""

    def read_one(row: InputRow) -> float:
        return _spelled_seconds(row, name) if row.optional_text(name) else unstated

    return block.read_words(name, read_one)


def _limit(minutes: str) -> str:
    """The label of a time limit."""
    return f"{60 * parse_number(minutes, 'TimelimitRaw'):.0f}" if minutes.isdecimal() else ""


def _said(text: str) -> str:
    return "" if text.lower() in NOTHING else text


def _job(conversion: Conversion, row: InputRow) -> Job:
    job_id = row.text("JobID")
    if "." in job_id:
        raise DroppedRowError(_STEPS)
    row.timestamp("Submit")  # a row without it is malformed, whatever else it says
    state = row.optional_text("State").partition(" ")[0]
    gpus, gpu_type = _gpus(row)
    if row.optional_timestamp("Start") is None:
        raise DroppedRowError(Reason.NEVER_STARTED)  # nothing is allocated to it, whatever it asked for
    if not gpus:
        raise DroppedRowError(Reason.NO_GPU)
    if state in _GOING_ON:
        raise DroppedRowError(Reason.NOT_FINISHED)
    runs = [run for each in (*row.values["earlier"], row) if (run := _run(each)) is not None]
    if not runs:
        raise DroppedRowError(Reason.NO_DURATION)
    gpus = max(held for _, _, held, _ in runs)
    limit = row.optional_number("TimelimitRaw") if row.optional_text("TimelimitRaw").isdecimal() else None
    labels = {
        "trace": "slurm",
        "status": state,
        "partition": row.optional_text("Partition"),
        "name": row.optional_text("JobName"),
        "nodes": row.optional_text("NNodes"),
        "gpu_type": gpu_type,
        "qos": row.optional_text("QOS"),
        "slurm_priority": row.optional_text("Priority"),
        "node_list": row.optional_text("NodeList").removeprefix("None assigned"),
        "time_limit": None if limit is None else f"{60 * limit:.0f}",
    }
    user = row.optional_text("User")
    return executed_job(
        conversion.new_id(job_id),
        min(row.timestamp("Submit") for row in (*row.values["earlier"], row)),
        gpus,
        sum(held * seconds for _, _, held, seconds in runs),
        user=user,
        labels=labels,
        runs=[(start_s, end_s, held) for start_s, end_s, held, _ in runs],
    )


def _run(row: InputRow) -> tuple[float, float, int, float] | None:
    """Start, end, GPUs and seconds of training; Slurm counts no suspended time as elapsed. None: it had no
    GPU or no time.
    """
    start_s, (gpus, _) = row.optional_timestamp("Start"), _gpus(row)
    seconds = 0.0 if start_s is None else _elapsed_seconds(row)
    if start_s is None or not gpus or not seconds:
        return None
    return start_s, start_s + seconds + _spelled_seconds(row, "Suspended"), gpus, seconds


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
    raw = row.optional_text("ElapsedRaw")
    if raw:
        return parse_number(raw, "ElapsedRaw")
    if row.optional_text("Elapsed"):
        return _spelled_seconds(row, "Elapsed")
    held_s = executed_seconds(row.optional_timestamp("Start"), row.optional_timestamp("End"))
    return max(0.0, held_s - _spelled_seconds(row, "Suspended"))


def _spelled_seconds(row: InputRow, name: str) -> float:
    """``1-02:03:04`` or plain seconds; 0 where nothing is stated."""
    spelled = row.optional_text(name)
    if not spelled or spelled.replace(".", "", 1).isdecimal():
        return parse_number(spelled or "0", name)
    match = _ELAPSED.fullmatch(spelled)
    if match is None:
        raise MalformedRowError(name, f"{spelled!r}, expected a time like 1-02:03:04")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


FORMAT: Final = TraceFormat("slurm", read)
