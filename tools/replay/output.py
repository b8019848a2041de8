"""The event file and the summary of a replay."""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from io import BytesIO
from os import SEEK_END
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self

from pliant.schemas.errors import UsageError
from pliant.schemas.event import EVENT
from pliant.schemas.file_io.files import (
    PIPE,
    check_output,
    make_folder,
    write_bytes,
    write_error,
    write_with,
)
from pliant.schemas.file_io.parquet import (
    TextWeight,
    compute,
    number_array,
    text_array,
    value_array,
    within_limits,
)
from pliant.schemas.file_io.record import schema_id
from pliant.schemas.text import counted, in_gpus, span_text
from pliant.tools.replay.engine.log import BLOCK, COLUMNS, EventLog, detail_text
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.session.idle_limit import why_left
from pliant.tools.schedule.session.session import Session

if TYPE_CHECKING:
    import pyarrow as pa


PARQUET: Final = ".parquet"
_FILES: Final = (PARQUET, ".jsonl")
_JOBS_NAMED: Final = 5
_REASONS_LISTED: Final = 10


@dataclass(frozen=True, slots=True)
class Summary:
    """What the engine counted. Times are seconds."""

    policy: str
    trace_hash: str
    seed: int
    jobs: int
    finished: int
    rejected: int
    unfinished: tuple[Unfinished, ...]
    """Jobs that were left when nothing could happen any more."""
    rejections: tuple[Unfinished, ...]
    """Jobs that the policy turned away for good."""
    end_s: float
    events: int
    decisions: int
    decision_seconds: float | None
    """Time that all decisions took on this machine; null in a summary without timing."""
    mean_decision_seconds: float | None
    wall_seconds: float | None
    """Time that the engine took on this machine, reading and writing left out."""
    cpu_seconds: float | None = None
    """The part of that time in which this process had a core."""
    moves: int = 0
    """Changes of jobs to other GPUs, as many as before and with the same batch."""
    cancelled: int | None = None
    """Jobs that were to start after others which did not finish; null: none."""
    assumptions: tuple[str, ...] = ()
    """What was taken for granted because no input said it."""

    def lines(self) -> list[str]:
        """The outcome in words, with the unfinished jobs and why."""
        parts = [f"{self.finished:,} of {counted(self.jobs, 'job')} finished"]
        parts += [f"{self.rejected} rejected"] if self.rejected else []
        parts += [f"{self.cancelled} cancelled"] if self.cancelled else []
        spent = (
            "" if self.mean_decision_seconds is None else f", {1000 * self.mean_decision_seconds:.3g} ms each"
        )
        parts += [f"ends after {span_text(self.end_s)}", f"{counted(self.decisions, 'decision')}{spent}"]
        parts += [counted(self.moves, "move")] if self.moves else []
        listed = [f"{self.policy}: {', '.join(parts)}"]
        left = [*in_words(self.rejections, "rejected"), *in_words(self.unfinished, "left")]
        return [*listed, *(f"{self.policy}: {words}" for words in left)]

    def without_timing(self) -> Summary:
        """The part that is the same on every machine."""
        return replace(
            self, decision_seconds=None, mean_decision_seconds=None, wall_seconds=None, cpu_seconds=None
        )


@dataclass(frozen=True, slots=True)
class Unfinished:
    """One job that a replay did not finish, and why."""

    job: str
    reason: str


def unfinished(session: Session, *, stands_still: bool = False) -> list[Unfinished]:
    """All jobs left in a session that will not change any more, in order of arrival.

    :param stands_still: the policy moves jobs more often than they can pay for starts.
    """
    left = sorted(session.jobs.values(), key=lambda job: job.arrival)
    return [Unfinished(job.id, _reason(job, session, stands_still)) for job in left]


def _reason(job: JobState, session: Session, stands_still: bool) -> str:
    low = job.spec.min_gpus
    most = max(session.cluster.speeds.gpu_types.values(), default=0)
    if low > most:
        return f"needs at least {in_gpus(low)} of one type, the cluster has {most}"
    if (words := session.hidden.awaiting.get(job.id)) is not None:
        return words
    if stands_still:
        return (
            f'policy "{session.policy.name}" moves jobs more often than they can pay for starts and rescales'
        )
    if job.gpus:
        return f"holds {in_gpus(job.gpus)}, on which it never gets done"
    if job.spec.on_cpus:
        return "no node is left that has what it needs"
    if not session.cluster.up_gpus:
        return "no GPU is left after node failures"
    if low > session.cluster.up_gpus:
        return f"needs at least {in_gpus(low)}, {session.cluster.up_gpus} are left after node failures"
    few_left = max((job.room_now or {}).values(), default=0) < low
    if few_left and (where := session.cluster.capacities.constraint_of(job.spec)) is not None:
        return f"needs at least {in_gpus(low)} {where.words}, too few are left after node failures"
    if few_left and job.per_replica > 1:
        return f"needs nodes for replicas of {job.per_replica} GPUs, those that are left have too few"
    speeds = session.cluster.training_speeds
    if not any(speeds.rate(job, gpus) > 0 for gpus in {low, job.spec.gpus.requested}):
        return f"does not run on {in_gpus(low)}: batch {job.reference_batch} is infeasible there"
    return why_left(session.policy.name, job)


def rejections(log: EventLog) -> list[Unfinished]:
    return [Unfinished(job, json.loads(str(detail))["reason"]) for job, detail in log.rejects]


def in_words(jobs: Iterable[Unfinished], what: str) -> Iterator[str]:
    """One line for each reason, with the number of jobs and the names of the first."""
    by_reason: dict[str, list[str]] = {}
    for each in jobs:
        by_reason.setdefault(each.reason, []).append(each.job)
    for reason, names in list(by_reason.items())[:_REASONS_LISTED]:
        named = ", ".join([f'"{name}"' for name in names[:_JOBS_NAMED]] + ["…"] * (len(names) > _JOBS_NAMED))
        who = f"job {named} is" if len(names) == 1 else f"{len(names)} jobs ({named}) are"
        yield f"{who} {what}: {reason}"
    more = sum(len(names) for names in list(by_reason.values())[_REASONS_LISTED:])
    if more:
        yield f"… and {more} more {what} for other reasons"


def output_paths(output: str, policies: Sequence[str]) -> list[str]:
    """The event file of each policy: ``output`` itself if it is a pipe or a file, else one in that folder."""
    twice = sorted({name for name in policies if policies.count(name) > 1})
    if twice:
        raise UsageError(f'policy "{twice[0]}" is named twice: replay it twice, into different folders')
    if output == PIPE or output.endswith(_FILES):
        if len(policies) > 1:
            what = "stdout" if output == PIPE else output
            raise UsageError(f"{len(policies)} policies do not fit into {what}: name a folder with -o")
        return [output]
    _refuse_no_folder(output)
    return [str(Path(output) / f"{name}{PARQUET}") for name in policies]


def _refuse_no_folder(output: str) -> None:
    folder = Path(output)
    if folder.exists():
        if not folder.is_dir():
            raise UsageError(f"-o {output}: is not a folder, expected one, NAME.parquet, NAME.jsonl or -")
    elif folder.suffix[1:].isalpha() and not output.endswith("/"):
        raise UsageError(
            f"-o {output}: events go into .parquet or .jsonl; a folder of that name is written {output}/"
        )


def check_paths(paths: Iterable[str]) -> None:
    """Refuse event files that could not be written, before the replays; nothing is made."""
    for path in paths:
        check_output(path, makes_folder=True)
        if path != PIPE:
            check_output(summary_path(path), makes_folder=True)


def write(log: EventLog, summary: Summary, path: str) -> None:
    """Write the event file (Parquet or JSON Lines by its name) and, unless to stdout, a summary beside it."""
    if path == PIPE:
        write_bytes(path, log.json_lines())
        return
    make_folder(Path(path).parent)
    if path.endswith(PARQUET):
        write_bytes(path, parquet_bytes(log))
    else:
        write_bytes(path, log.json_lines())
    write_summary(summary, path)


def write_summary(summary: Summary, path: str) -> None:
    """:param path: of the event file."""
    fields = {name: value for name, value in asdict(summary).items() if value is not None}
    write_bytes(summary_path(path), f"{json.dumps(fields, ensure_ascii=False, indent=2)}\n".encode())


def summary_path(path: str) -> str:
    """``NAME.summary.json`` beside an event file ``NAME.parquet``."""
    return str(Path(path).with_suffix(".summary.json"))


def read_summary(path: str) -> dict[str, Any]:
    """The fields of a summary; none if it is missing or damaged, for the event file is what counts."""
    try:
        summary = json.loads(Path(path).read_bytes())
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def parquet_bytes(log: EventLog) -> bytes:
    """The file of all events; equal events give equal bytes."""
    blocks, weight, packed = [*encoded(log)], TextWeight(), BytesIO()
    for block in blocks:
        weight.add(block)
    _pack(blocks, weight, packed)
    return packed.getvalue()


def encoded(log: EventLog) -> Iterator[pa.RecordBatch]:
    """The rows in the columns of a log, in blocks, whose repeated texts are dictionaries."""
    import pyarrow as pa

    schema = _schema()
    known = {name: text_array(texts) for name, texts in log.texts.items()}
    numbers = {name: log.column(name) for name in COLUMNS}
    for start in range(0, log.rows, BLOCK):
        rows = range(start, min(start + BLOCK, log.rows))
        columns = [_column(log, field, rows, numbers, known) for field in schema]
        yield pa.record_batch(columns, names=schema.names)


def _plain(block: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The block with a text of its own in each row, as the file has them."""
    import pyarrow as pa
    import pyarrow.types as pt

    columns = [
        compute("take", column.dictionary, column.indices) if pt.is_dictionary(column.type) else column
        for column in block.columns
    ]
    return pa.record_batch(columns, schema=schema)


def _schema() -> pa.Schema:
    return EVENT.arrow().with_metadata({"schema": schema_id(EVENT.kind)})


def _pack(blocks: Iterable[pa.RecordBatch], weight: TextWeight, packed: IO[bytes]) -> None:
    """Write the Parquet file of blocks, which are read again for another packing."""
    import pyarrow.parquet as pq

    schema = _schema()

    def written(**packing: Any) -> IO[bytes]:
        packed.seek(0)
        packed.truncate()
        with pq.ParquetWriter(packed, schema, write_page_checksum=True, **packing) as writer:
            for block in blocks:
                writer.write_batch(_plain(block, schema), row_group_size=BLOCK)
        return packed

    within_limits(written, weight.check_file)


class StoredEvents:
    """A log in a temporary file of full blocks, so that the memory of a replay does not grow with its trace.

    What is learned of a stored event later is put in as the file of all events is written: the detail of the
    first one, and seconds without training that ended early.
    """

    def __init__(self, path: str) -> None:
        """:param path: of the file of all events; the temporary one is on the same disk."""
        self.log = EventLog(self._store)
        # Time that storing has taken.
        self.wall_s = self.cpu_s = 0.0
        self._path = path
        self._file: IO[bytes] | None = None
        # Where each begins in the temporary file.
        self._blocks: list[int] = []
        self._weight = TextWeight()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with suppress(OSError):  # of what could not be written, which was said already
                self._file.close()

    def _store(self, log: EventLog) -> None:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        for block in encoded(log):
            self._weight.add(block)
            self._keep(block)
        self.wall_s += time.perf_counter() - wall_s
        self.cpu_s += time.process_time() - cpu_s

    def _keep(self, block: pa.RecordBatch) -> None:
        from tempfile import TemporaryFile  # most replays are short and need none

        import pyarrow as pa

        try:
            if self._file is None:
                folder = next(each for each in Path(self._path).resolve().parents if each.is_dir())
                self._file = TemporaryFile(dir=folder)  # noqa: SIM115 - closed with this object
            self._blocks.append(self._file.seek(0, SEEK_END))
            with pa.ipc.new_stream(self._file, block.schema) as stream:
                stream.write_batch(block)
            self._file.flush()
        except OSError as error:
            raise write_error(error, self._path) from error

    def write(self, summary: Summary) -> None:
        """As :func:`write`, into a Parquet file; the log has no columns afterwards."""
        if not self._blocks:
            write(self.log, summary, self._path)
            return
        self.log.store()
        make_folder(Path(self._path).parent)
        write_with(self._path, partial(_pack, self, self._weight))
        write_summary(summary, self._path)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """All blocks, as they are known by now."""
        import pyarrow as pa

        first = 0
        for place in self._blocks:
            assert self._file is not None  # noqa: S101 - blocks are in it
            self._file.seek(place)
            block = pa.ipc.open_stream(self._file).read_next_batch()
            rows = range(first, first + block.num_rows)
            late: Mapping[str, Mapping[int, Any]] = {
                "overhead_seconds": self.log.late_overheads,
                "detail": {row: detail_text(detail) for row, detail in self.log.late_details.items()},
            }
            for name, values in late.items():
                if changed := {row - first: values[row] for row in rows if row in values}:
                    block = _replaced(block, name, changed)
            yield block
            first = rows.stop


def _replaced(block: pa.RecordBatch, name: str, values: Mapping[int, Any]) -> pa.RecordBatch:
    """The block with other values in some rows of a column."""
    import pyarrow as pa

    column = block.schema.get_field_index(name)
    changed = block.column(column).to_pylist()
    for row, value in values.items():
        changed[row] = value
    columns = block.columns
    columns[column] = value_array(changed, columns[column].type)
    return pa.record_batch(columns, schema=block.schema)


def _column(
    log: EventLog,
    field: pa.Field,
    rows: range,
    numbers: Mapping[str, array[Any]],
    known: Mapping[str, pa.Array],
) -> pa.Array:
    """The rows of a column: texts by their codes, as numbers, or null where a log has no such column."""
    import pyarrow as pa

    if field.name == "detail":
        return text_array(log.detail_texts(rows))
    values = numbers.get(field.name)
    if values is None:
        return pa.nulls(len(rows), field.type)
    amounts = number_array(values[rows.start : rows.stop])
    # NaN and negative numbers, which are not their own absolute value, stand for null
    is_null = compute("not_equal", compute("abs", amounts), amounts)
    stated = compute("if_else", is_null, pa.nulls(len(amounts), amounts.type), amounts)
    if field.name in known:
        return pa.DictionaryArray.from_arrays(stated, known[field.name])
    return stated
