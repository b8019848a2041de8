"""Slurm accounting: what ``sacct -P`` prints, its columns named in the first line; or ``sacct --json``.

Needed: JobID, Submit, Start, one of ElapsedRaw, Elapsed or End, and one of AllocTRES, ReqTRES, AllocGRES or
ReqGRES. Cluster, User, State, Partition, QOS, Priority, JobName, NNodes, NodeList, TimelimitRaw (minutes) and
Suspended are used where they are there.

One job may have several rows, in any order and in several files: a run that was requeued or resized (``-D``)
has a row of its own, a component of a heterogeneous job, too, and exports of spans that overlap repeat rows.
Rows are of one job if they have its cluster, id and user, and its submission or one soon after its last run:
a requeue is a submission, while an id that Slurm gives out a second time comes later, and one of a cluster
that is not named at any time. Rows that no other one has the id of, nearly all, are read in columns.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timezone
from io import BufferedReader
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from pydantic_core import ValidationError

from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.file_io.files import source_name
from pliant.schemas.file_io.json_lines import BOM
from pliant.schemas.file_io.parquet import compute, text_array
from pliant.schemas.file_io.record import MOST, problems_of
from pliant.schemas.job import Job
from pliant.tools.replay.importers.blocks import RowBlock, RowIds, WordColumn, arrow_array, matches, settle
from pliant.tools.replay.importers.conversion import (
    EARLY,
    NOTHING,
    OUT_OF_BOUNDS,
    Conversion,
    DroppedRowError,
    InputRow,
    MalformedRowError,
    Reason,
    TraceFormat,
    assume_no_models,
    assume_zone,
    check_bounds,
    cpu_demand,
    executed_job,
    executed_seconds,
    hashes,
    in_order,
    later_reading,
    parse_number,
    settle_runs,
)
from pliant.tools.replay.importers.job_lines import JobBlock, are_within, executed_jobs
from pliant.tools.replay.importers.reading import HEADERS, csv_blocks, json_rows, open_bytes
from pliant.tools.replay.importers.spool import Columns
from pliant.tools.replay.recorded import PastRun, side_by_side

if TYPE_CHECKING:
    from datetime import tzinfo

    from numpy.typing import NDArray

    from pliant.tools.replay.importers.blocks import Numbers

T = TypeVar("T")
COLUMNS: Final = ("JobID", "Submit", "Start")
TIMES: Final = ("ElapsedRaw", "Elapsed", "End")
SIZES: Final = ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES")
_LABELS: Final = (
    "Partition",
    "JobName",
    "NNodes",
    "QOS",
    "Priority",
    "NodeList",
    "TimelimitRaw",
    "Cluster",
    "Constraints",
)
_USED: Final = (*COLUMNS, *TIMES, *SIZES, *_LABELS, "User", "State", "Suspended")
_GOING_ON: Final = {
    *("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING"),
    *("STAGE_OUT", "SIGNALING", "STOPPED", "RESV_DEL_HOLD"),
}
_CONTINUED: Final = ("REQUEUED", "RESIZING")
_OPEN_END: Final = (
    "a job whose last run was requeued or resized ends with it: what came after it is not there"
)
_FREE: Final = {
    *("JobName", "Comment", "AdminComment", "SystemComment", "Reason", "Extra"),
    *("WorkDir", "SubmitLine", "StdIn", "StdOut", "StdErr"),
}
"""Columns in which users may write anything."""
_STEPS: Final = "are steps of jobs"
_COMPONENTS: Final = "are components of heterogeneous jobs"
_RUNS: Final = "are runs of jobs that were requeued or resized"
_REPEATED: Final = "are there before, or with what was known later"
_REQUEUE_S: Final = 86_400.0
"""A job of the same id and user that is submitted this long after the last run is another one."""
_CLOCKS_S: Final = 3600.0
"""A requeue may be this long before the end of the run, where clocks were set back meanwhile."""
_JSON_ROWS: Final = 1 << 13
"""Jobs of a JSON list that become a block."""
_TRES: Final = re.compile(r"(?:^|,)gres/gpu(?::([^=,]+))?=(\d{1,18})(?!\d)", re.ASCII)
_GRES: Final = re.compile(r"(?:^|,)(?:gres:)?gpu(?::([^:,(]*[^:,(0-9][^:,(]*))?:(\d{1,18})(?!\d)", re.ASCII)
_CPU: Final = re.compile(r"(?:^|,)cpu=(\d{1,9})(?!\d)", re.ASCII)
_MEMORY: Final = re.compile(r"(?:^|,)mem=(\d{1,18}(?:\.\d+)?)([KMGTP]?)", re.ASCII)
_NODES: Final = re.compile(r"(?:^|,)node=(\d{1,9})(?!\d)", re.ASCII)
_UNITS: Final = {"": 1 << 20, **{unit: 1 << 10 * power for power, unit in enumerate("KMGTP", 1)}}
_ELAPSED: Final = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})(?:\.\d+)?", re.ASCII)
_BACKWARDS: Final = "INVALID"
"""What Slurm prints for the time from a start to an end before it."""


def read(paths: Sequence[str], conversion: Conversion) -> Iterator[Job | JobBlock]:
    assume_no_models(conversion)
    assume_zone(conversion)
    with closing(_Rows(conversion)) as rows:
        for path in paths:
            with open_bytes(path, conversion.refuse_byte) as stream:
                is_json = stream.peek(1).removeprefix(BOM).lstrip().startswith(b"{")
                for block in (_json_blocks if is_json else _blocks)(path, conversion, stream):
                    rows.add(block)
        yield from rows.jobs()


def _blocks(path: str, conversion: Conversion, stream: BufferedReader) -> Iterator[RowBlock]:
    """The rows of a table, after a look at its columns."""
    form: dict[str, Any] = {"delimiter": "|", "quoted": False, "written_by": "sacct -P", "free": _FREE}
    for block in csv_blocks(path, conversion, COLUMNS, **form, stream=stream):
        for names in (TIMES, SIZES):
            if len(block) and not any(name in block for name in names):
                text = f"has none of the columns {', '.join(names)}: add one to sacct --format"
                raise BadInputError.one(source_name(block.source), text, line=1)
        yield block


def _json_blocks(path: str, conversion: Conversion, stream: BufferedReader) -> Iterator[RowBlock]:
    """The jobs of ``sacct --json`` with the columns of ``sacct -P``."""
    source = source_name(path)
    rows = json_rows(path, conversion, within="jobs", written_by="sacct --json", stream=stream)
    while batch := list(islice(rows, _JSON_ROWS)):
        lines: list[int] = []
        texts: list[list[str]] = []
        others: list[tuple[int, str]] = []
        for row in batch:
            try:
                values = _columns(row.values)
                fields = ["" if values[name] is None else str(values[name]) for name in values]
                "".join(fields).encode()
            except (TypeError, KeyError, AttributeError, IndexError, UnicodeEncodeError) as error:
                others.append((row.line or 0, f"is not a job as sacct --json prints it: {error!r}"))
            else:
                lines.append(row.line or 0)
                texts.append(fields)
        columns = zip(*texts, strict=True) if texts else ([] for _ in _JSON_COLUMNS)
        arrays = {name: text_array(column) for name, column in zip(_JSON_COLUMNS, columns, strict=True)}
        yield RowBlock(conversion, source, np.array(lines, dtype=np.int64), arrays, others)


_JSON_COLUMNS: Final = (
    *("JobID", "JobName", "Cluster", "User", "State", "Submit", "Start", "ElapsedRaw", "Suspended"),
    *(
        "TimelimitRaw",
        "AllocTRES",
        "ReqTRES",
        "Partition",
        "QOS",
        "Priority",
        "NNodes",
        "NodeList",
        "Constraints",
    ),
)


def _columns(job: Mapping[str, Any]) -> dict[str, Any]:
    """Times of 0 are those that are not known; numbers may come with whether they are set."""
    time, state = job["time"], job["state"]["current"]
    return {
        "JobID": _json_id(job),
        "JobName": job.get("name"),
        "Cluster": job.get("cluster"),
        "User": job.get("user") or (job.get("association") or {}).get("user"),
        "State": state if isinstance(state, str) else state[0],
        "Submit": _plain(time["submission"]),
        "Start": _plain(time["start"]) or None,
        "ElapsedRaw": _plain(time["elapsed"]),
        "Suspended": _seconds(_plain(time.get("suspended"))),
        "TimelimitRaw": _plain(time.get("limit")),
        "AllocTRES": _tres(job["tres"]["allocated"]),
        "ReqTRES": _tres(job["tres"]["requested"]),
        "Partition": job.get("partition"),
        "QOS": job.get("qos"),
        "Priority": _plain(job.get("priority")),
        "NNodes": _plain(job.get("allocation_nodes")),
        "NodeList": job.get("nodes"),
        "Constraints": job.get("constraints"),
    }


def _json_id(job: Mapping[str, Any]) -> str:
    """As ``sacct -P`` writes it: ``7``, of an array ``7_1``, of a heterogeneous job ``7+1``."""
    for name, number, sign in (("array", "task_id", "_"), ("het", "job_offset", "+")):
        whole = job.get(name) or {}
        part = _plain(whole.get(number))
        if whole.get("job_id") and part is not None:
            return f"{whole['job_id']}{sign}{part}"
    return str(job["job_id"])


def _plain(number: Any) -> Any:
    if isinstance(number, Mapping) and "number" in number:
        return number["number"] if number.get("set") and not number.get("infinite") else None
    return number


_TRES_OF_JSON: Final = {
    "gres": "gres/{name}={count}",
    "cpu": "cpu={count}",
    "mem": "mem={count}M",
    "node": "node={count}",
}


def _seconds(time: Any) -> float:
    return time["seconds"] + time.get("microseconds", 0) / 1e6 if isinstance(time, Mapping) else time or 0


def _tres(listed: Sequence[Mapping[str, Any]]) -> str:
    kinds = _TRES_OF_JSON
    return ",".join(kinds[each["type"]].format(**each) for each in listed if each["type"] in kinds)


class _Rows:
    """The rows of all files, without those of steps, until it is known which of them are of one job."""

    def __init__(self, conversion: Conversion) -> None:
        self._conversion = conversion
        self._columns = Columns()
        # Source and names of the columns of each block.
        self._layouts: list[tuple[str, Sequence[str]]] = []
        # By block, of each row: a number of its cluster and id.
        self._keys: list[NDArray[np.uint64]] = []

    def close(self) -> None:
        self._columns.close()

    def add(self, block: RowBlock) -> None:
        """Keep the rows of a block; steps and what is no row at all are counted here."""
        for line, fault in block.others:
            self._conversion.refuse_row(block.source, line, fault)
        if not len(block):
            return
        steps, headers = matches(block.columns["JobID"], r"\."), ~block.live
        for marks, reason in ((steps, _STEPS), (headers, HEADERS)):
            if count := int(marks.sum()):
                self._conversion.count_rows(count)
                self._conversion.summary.dropped[reason] += count
        kept = block.take(np.flatnonzero(~steps & ~headers), _USED)
        if len(kept):
            import pyarrow as pa

            self._keys.append(_keys(kept))
            self._layouts.append((kept.source, tuple(kept.columns)))
            self._columns.add([arrow_array(kept.lines, pa.int64()), *kept.columns.values()])

    def jobs(self) -> Iterator[Job | JobBlock]:
        """Those of one row first, then the others in the order of their first rows."""
        together: defaultdict[tuple[str, str], list[InputRow]] = defaultdict(list)
        repeated = _repeated(self._keys)
        for keys, block in zip(self._keys, self._blocks(), strict=True):
            joined = np.isin(keys, repeated) | matches(block.columns["JobID"], r"\+")
            for row in block.take(np.flatnonzero(joined)).rows():
                together[row.optional_text("Cluster"), _base(row)[0]].append(row)
            yield from self._single(block if not joined.any() else block.take(np.flatnonzero(~joined)))
        for rows in together.values():
            yield from _jobs_of(rows, self._conversion)

    def _single(self, block: RowBlock) -> Iterator[Job | JobBlock]:
        if not len(block):
            return
        with np.errstate(all="ignore"):
            made = _usual_jobs(block)
        if made is not None:
            settle(block)
            yield made
        else:
            for row in block.rows():
                yield from _jobs_of([row], self._conversion)

    def _blocks(self) -> Iterator[RowBlock]:
        for (source, names), (pieces, _) in zip(self._layouts, self._columns.read(), strict=True):
            lines: Any = pieces[0]
            numbers = np.frombuffer(lines.buffers()[1], np.int64)[lines.offset :][: len(lines)]
            yield RowBlock(self._conversion, source, numbers, dict(zip(names, pieces[1:], strict=True)))


def _keys(block: RowBlock) -> NDArray[np.uint64]:
    """Equal for rows of one cluster and id, and very seldom for others."""
    ids = block.columns["JobID"]
    if matches(ids, r"\+").any():
        ids = text_array([text.partition("+")[0] for text in ids.to_pylist()])
    if "Cluster" in block:
        ids = compute("binary_join_element_wise", ids, block.columns["Cluster"], text_array(("@",))[0])
    return hashes(ids)


def _repeated(keys: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    ordered = np.sort(np.concatenate([np.zeros(0, dtype=np.uint64), *keys]))
    repeated: NDArray[np.uint64] = ordered[1:][ordered[1:] == ordered[:-1]]
    return repeated


def _base(row: InputRow) -> tuple[str, str]:
    """The id of a job, and which component of it the row is: ``10+1`` is component 1 of 10."""
    base, _, component = row.optional_text("JobID").partition("+")
    return base, component


def _usual_jobs(block: RowBlock) -> JobBlock | None:
    """As :func:`_jobs_of` makes jobs of single rows. Returns None if there is anything unusual: a malformed
    row, a job that has only an end, was requeued or started before its submission, or clocks are set back.
    """
    if not isinstance(block.conversion.zone, timezone):
        return None
    try:
        return _of_columns(block)
    except MalformedRowError:
        return None


def _of_columns(block: RowBlock) -> JobBlock | None:
    block.text("JobID")
    submit_time_s = block.timestamp("Submit")
    state = block.optional_text("State").map(_state)
    gpus, gpu_type = _gpu_columns(block)
    start_s = block.optional_timestamp("Start")
    block.drop(np.isnan(start_s), Reason.NEVER_STARTED)
    cpus, memory_bytes, nodes = _demand_columns(block)
    block.drop_without_gpus(gpus, nodes)
    block.drop(state.marks(lambda text: text in _GOING_ON), Reason.NOT_FINISHED)
    seconds = block.optional_number("ElapsedRaw")
    seconds = np.where(np.isnan(seconds), _spelled(block, "Elapsed", math.nan), seconds)
    end_s = start_s + seconds + _spelled(block, "Suspended", 0.0)
    words = {name: block.optional_text(name) for name in _LABELS}
    words["TimelimitRaw"] = words["TimelimitRaw"].map(_limit)
    words["NodeList"] = words["NodeList"].map(_node_list)
    continued = state.marks(lambda text: text in _CONTINUED)
    if block.problems or (np.isnan(seconds) | continued | (start_s < submit_time_s))[block.live].any():
        return None
    block.drop(seconds == 0, Reason.NO_DURATION)
    within = are_within(submit_time_s, gpus, np.maximum(1.0, gpus) * seconds) & (end_s <= MOST)
    if not within[block.live].all():
        return None
    return executed_jobs(
        block,
        RowIds(block).of("JobID"),
        submit_time_s,
        gpus,
        seconds,
        user=block.optional_text("User"),
        labels=_labels(state.map(_stated), gpu_type, words),
        start_s=start_s,
        end_s=end_s,
        cpus=cpus,
        memory_bytes=memory_bytes,
    )


def _demand_columns(block: RowBlock) -> Sequence[Numbers | None]:
    """As :func:`_demand`, where jobs without GPUs are kept."""
    if not block.conversion.cpu_jobs:
        return None, None, None
    columns = [block.optional_text(name) for name in ("AllocTRES", "ReqTRES")]
    allocated, requested = (
        np.array([_tres_demand(text) for text in words.texts])[words.places] for words in columns
    )
    return list(np.where(np.isnan(allocated), requested, allocated).T)


def _demand(row: InputRow) -> list[float]:
    """Cores, memory in bytes and nodes of a job; NaN where neither column states them."""
    texts = (row.optional_text(name) for name in ("AllocTRES", "ReqTRES"))
    stated = zip(*map(_tres_demand, texts), strict=True)
    return [requested if math.isnan(allocated) else allocated for allocated, requested in stated]


def _tres_demand(text: str) -> tuple[float, float, float]:
    cpus, memory, nodes = (pattern.search(text) for pattern in (_CPU, _MEMORY, _NODES))
    return (
        float(cpus[1]) if cpus else math.nan,
        float(memory[1]) * _UNITS[memory[2]] if memory else math.nan,
        float(nodes[1]) if nodes else math.nan,
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
        allocated = np.array([float(count) for count, _ in counted])[words.places]
        if not name.endswith("TRES"):
            nodes = block.optional_text("NNodes")
            numbers = [float(int(parse_number(text or "1", "NNodes"))) for text in nodes.texts]
            allocated = allocated * np.array(numbers)[nodes.places]
        rows = (gpus == 0) & (allocated > 0)
        gpus[rows] = allocated[rows]
        types[rows] = np.array([kinds for _, kinds in counted], dtype=object)[words.places[rows]]
    return gpus, WordColumn.of(types.tolist()).map(_stated)


def _spelled(block: RowBlock, name: str, unstated: float) -> Numbers:
    """As :func:`_spelled_seconds`."""

    def read_one(row: InputRow) -> float:
        return _spelled_seconds(row, name) if row.optional_text(name) else unstated

    return block.read_words(name, read_one)


def _limit(minutes: str) -> str:
    """The label of a time limit."""
    return f"{60 * parse_number(minutes, 'TimelimitRaw'):.0f}" if minutes.isdecimal() else ""


def _stated(text: str) -> str:
    return "" if text.lower() in NOTHING else text


def _labels(status: T, gpu_type: T, words: Mapping[str, T]) -> dict[str, str | T]:
    """:param words: what the columns of :data:`_LABELS` say."""
    return {
        "trace": "slurm",
        "status": status,
        "partition": words["Partition"],
        "name": words["JobName"],
        "nodes": words["NNodes"],
        "gpu_type": gpu_type,
        "qos": words["QOS"],
        "slurm_priority": words["Priority"],
        "node_list": words["NodeList"],
        "time_limit": words["TimelimitRaw"],
        "cluster": words["Cluster"],
        "constraint": words["Constraints"],
    }


@dataclass(frozen=True, slots=True)
class _Row:
    """One row: a run of a job, or its wait for one."""

    row: InputRow
    component: str
    submit_s: float
    start_s: float | None
    gpus: int
    gpu_type: str
    state: str
    seconds: float
    """Seconds of training; Slurm counts no suspended time as elapsed."""
    held_s: float
    reason: str
    """Why it counts for nothing, where its times say so."""

    @property
    def when(self) -> tuple[float, float]:
        """The place among the rows of a job: no run starts before its submission."""
        return max(self.submit_s, self.start_s or 0.0), self.submit_s

    @property
    def end_s(self) -> float:
        return self.when[0] + self.held_s

    @property
    def counts(self) -> bool:
        """Whether it held GPUs for some time."""
        return self.start_s is not None and self.gpus > 0 and self.seconds > 0

    @property
    def goes_on(self) -> bool:
        return self.state in _GOING_ON

    def run(self, conversion: Conversion) -> PastRun:
        if self.start_s is not None and self.start_s < self.submit_s:
            conversion.summary.assume_here(EARLY, place=self.row.place)
        return PastRun(self.when[0], self.end_s, self.gpus)


def _read_row(row: InputRow, zone: tzinfo, *, keeps_all: bool) -> _Row:
    """:param keeps_all: jobs without GPUs are kept, too."""
    row.text("JobID")
    submit_s, start_s = row.timestamp("Submit", zone), row.optional_timestamp("Start", zone)
    state, (gpus, gpu_type) = _state(row.optional_text("State")), _gpus(row)
    seconds, suspended_s, reason = 0.0, 0.0, ""
    if start_s is not None:
        try:
            start_s, seconds, suspended_s = _spent(row, submit_s, start_s, zone)
        except DroppedRowError as error:
            reason = str(error)
        except MalformedRowError:
            if (gpus or keeps_all) and state not in _GOING_ON:
                raise
    return _Row(
        row, _base(row)[1], submit_s, start_s, gpus, gpu_type, state, seconds, seconds + suspended_s, reason
    )


def _spent(row: InputRow, submit_s: float, start_s: float, zone: tzinfo) -> tuple[float, float, float]:
    """Start, seconds of training and of suspension.

    Where clocks are set back, the hour that they show twice is that in which times follow each other, and
    from start to end it is as long as Slurm has counted.
    """
    suspended_s, seconds = _spelled_seconds(row, "Suspended"), _elapsed_seconds(row)
    end_s = row.optional_timestamp("End", zone) if seconds is None or not isinstance(zone, timezone) else None
    *_, started_s, end_s = in_order((submit_s, start_s, end_s), zone)
    start_s = started_s or 0.0
    if seconds is None:
        return start_s, max(0.0, executed_seconds(start_s, end_s) - suspended_s), suspended_s
    again_s = later_reading(start_s, zone)
    if end_s is not None and end_s - again_s == seconds + suspended_s:
        start_s = again_s
    return start_s, seconds, suspended_s


def _jobs_of(rows: Sequence[InputRow], conversion: Conversion) -> Iterator[Job]:
    """The jobs of all rows of one cluster and id."""
    conversion.count_rows(len(rows))
    rows_read = []
    for row in rows:
        try:
            rows_read.append(_read_row(row, conversion.zone, keeps_all=conversion.cpu_jobs))
        except MalformedRowError as error:
            conversion.refuse([Problem(row.source, row.line, f"/{error.field}", error.message)])
        except OverflowError:
            conversion.refuse([Problem(row.source, row.line, "", OUT_OF_BOUNDS)])
    for job in _submissions(_once(rows_read, conversion), conversion.zone):
        last = job[-1].row
        try:
            made = _job(job, conversion)
            check_bounds(made)
        except DroppedRowError as reason:
            conversion.summary.dropped[str(reason)] += len(job)
            continue
        except MalformedRowError as error:
            problems = [Problem(last.source, last.line, f"/{error.field}", error.message)]
        except ValidationError as error:
            problems = problems_of(error, last.source, last.line)
        except OverflowError:
            problems = [Problem(last.source, last.line, "", OUT_OF_BOUNDS)]
        else:
            components = len({row.component for row in job})
            for what, count in ((_COMPONENTS, components - 1), (_RUNS, len(job) - components)):
                if count:
                    conversion.summary.joined[what] += count
            yield made
            continue
        conversion.refuse(problems, rows=len(job))


def _once(rows: Sequence[_Row], conversion: Conversion) -> list[_Row]:
    """Each run once, as it ended or with its longest time; a wait for a run that is there is none."""
    best: dict[tuple[object, ...], _Row] = {}
    started = {_wait(row) for row in rows if row.start_s is not None}
    for row in rows:
        if row.start_s is None and _wait(row) in started:
            continue
        key = (*_wait(row), row.start_s)
        known = best.get(key)
        if known is None or (known.goes_on, -known.seconds) > (row.goes_on, -row.seconds):
            best[key] = row
    if len(best) < len(rows):
        conversion.summary.joined[_REPEATED] += len(rows) - len(best)
    return list(best.values())


def _wait(row: _Row) -> tuple[str, str, float]:
    return row.row.optional_text("User"), row.component, row.submit_s


def _submissions(rows: Sequence[_Row], zone: tzinfo) -> list[list[_Row]]:
    """The rows of each job by start, jobs by submission."""
    jobs: dict[str, list[list[_Row]]] = defaultdict(list)
    for row in sorted(rows, key=lambda each: (each.when, each.component)):
        known = jobs[row.row.optional_text("User")]
        after_s = [_requeued_after_s(row, job) for job in known]
        nearest = min(range(len(known)), key=lambda place: abs(after_s[place]), default=None)
        if nearest is None or not -_CLOCKS_S <= after_s[nearest] <= _REQUEUE_S:
            known.append([row])
        else:
            known[nearest].append(row if after_s[nearest] >= 0 else _read_later(row, -after_s[nearest], zone))
    return sorted((job for known in jobs.values() for job in known), key=lambda job: job[0].when)


def _read_later(row: _Row, seconds: float, zone: tzinfo) -> _Row:
    """The row as it is read after clocks were set back, if its submission is that many seconds later then."""
    submit_s = later_reading(row.submit_s, zone)
    if submit_s < row.submit_s + seconds:
        return row
    _, start_s = in_order((submit_s, row.start_s), zone)
    return replace(row, submit_s=submit_s, start_s=start_s)


def _requeued_after_s(row: _Row, job: Sequence[_Row]) -> float:
    """Seconds from the last run of a job to the submission of a row; 0 for one of the same submission."""
    if any(row.submit_s == each.submit_s for each in job):
        return 0.0
    return row.submit_s - max(each.end_s for each in job)


def _job(rows: Sequence[_Row], conversion: Conversion) -> Job:
    """The job of rows in order."""
    components: defaultdict[str, list[_Row]] = defaultdict(list)
    for row in rows:
        components[row.component].append(row)
    if all(row.start_s is None for row in rows):
        raise DroppedRowError(Reason.NEVER_STARTED)  # nothing is allocated to it, whatever it asked for
    on_cpus = not any(row.gpus and row.start_s is not None for row in rows)
    if on_cpus and not conversion.cpu_jobs:
        raise DroppedRowError(Reason.NO_GPU)
    if any(each[-1].goes_on for each in components.values()):
        raise DroppedRowError(Reason.NOT_FINISHED)
    counted = [row for row in rows if row.counts or (on_cpus and row.start_s is not None and row.seconds)]
    if not counted:
        raise DroppedRowError(next((row.reason for row in rows if row.reason), Reason.NO_DURATION))
    submit_time_s = min(row.submit_s for row in rows)
    if on_cpus:
        return _cpu_job(counted, submit_time_s, conversion)
    gangs, gpu_seconds = [], 0.0
    for each in components.values():
        stated = [row.run(conversion) for row in each if row.counts]
        place = each[-1].row.place
        gang = settle_runs(stated, submit_time_s, place, conversion.summary.assume_here)
        lost = _gpu_seconds(stated) - _gpu_seconds(gang)
        gpu_seconds += max(0.0, sum(row.gpus * row.seconds for row in each if row.counts) - lost)
        gangs.append(gang)
    runs = side_by_side(gangs)
    if not runs:
        raise DroppedRowError(Reason.NO_DURATION)
    gpus = max(run.gpus for run in runs)
    last = counted[-1].row
    latest = [each[-1] for rows_of in components.values() if (each := [row for row in rows_of if row.counts])]
    words = {name: last.optional_text(name) for name in _LABELS}
    words["TimelimitRaw"] = _limit(words["TimelimitRaw"])
    words["NNodes"] = _nodes([row.row.optional_text("NNodes") for row in latest])
    lists = (_node_list(row.row.optional_text("NodeList")) for row in latest)
    words["NodeList"] = ",".join(filter(None, lists))
    types = ",".join(dict.fromkeys(row.gpu_type for row in latest if row.gpu_type))
    if rows[-1].state in _CONTINUED:
        conversion.summary.assume_here(_OPEN_END, place=rows[-1].row.place)
    return executed_job(
        conversion.new_id(_base(last)[0], last.place),
        submit_time_s,
        gpus,
        gpu_seconds,
        user=last.optional_text("User"),
        labels=_labels(rows[-1].state, types, words),
        runs=runs,
    )


def _cpu_job(rows: Sequence[_Row], submit_time_s: float, conversion: Conversion) -> Job:
    """A job without GPUs, which runs when nodes have room for it, and not when it did."""
    last = rows[-1]
    cpus, memory_bytes, nodes = _demand(last.row)
    if nodes > 1 or len({row.component for row in rows}) > 1:
        raise DroppedRowError(Reason.SEVERAL_NODES)
    words = {name: last.row.optional_text(name) for name in _LABELS}
    words["TimelimitRaw"], words["NodeList"] = _limit(words["TimelimitRaw"]), _node_list(words["NodeList"])
    return executed_job(
        conversion.new_id(_base(last.row)[0], last.row.place),
        submit_time_s,
        0,
        sum(row.seconds for row in rows),
        user=last.row.optional_text("User"),
        labels=_labels(last.state, "", words),
        demand=cpu_demand(cpus, memory_bytes),
    )


def _gpu_seconds(runs: Sequence[PastRun]) -> float:
    return sum(run.gpus * (run.end_s - run.start_s) for run in runs)


def _nodes(stated: Sequence[str]) -> str:
    """Of all components."""
    return str(sum(map(int, stated))) if len(stated) > 1 and all(map(str.isdecimal, stated)) else stated[0]


def _state(text: str) -> str:
    """Without who cancelled it."""
    return text.partition(" ")[0].removesuffix("+")


def _node_list(text: str) -> str:
    return _stated(text.removeprefix("None assigned"))


def _gpus(row: InputRow) -> tuple[int, str]:
    """GPUs of the whole job and their type, of the first column that names some."""
    for name in SIZES:
        text = row.optional_text(name)
        if name.endswith("TRES"):
            gpus, gpu_type = _counted(_TRES.findall(text))
        else:
            gpus, gpu_type = _counted(_GRES.findall(text))
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


def _elapsed_seconds(row: InputRow) -> float | None:
    """Returns None if neither column states it."""
    if raw := row.optional_text("ElapsedRaw"):
        return parse_number(raw, "ElapsedRaw")
    spelled = row.optional_text("Elapsed")
    if spelled == _BACKWARDS:
        raise DroppedRowError(Reason.BACKWARDS)
    return _spelled_seconds(row, "Elapsed") if spelled else None


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


FORMAT: Final = TraceFormat("slurm", read, zoned=True, has_cpu_jobs=True)
