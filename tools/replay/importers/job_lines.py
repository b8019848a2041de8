"""Lines of a job file, made of columns for a whole block of jobs, and checked once for each of their shapes.

A line is in two parts, before and behind the time of submission, which is not known until all jobs are
sorted. The bytes are those that :func:`~pliant.schemas.file_io.json_lines.encode` makes of a job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pydantic_core import ValidationError

from pliant.schemas.errors import Problem
from pliant.schemas.file_io.documents import job_fields
from pliant.schemas.file_io.json_lines import encode
from pliant.schemas.file_io.parquet import cast, compute, text_array
from pliant.schemas.file_io.record import MOST, Record, problems_of
from pliant.schemas.file_io.record import MOST_GPUS as MOST_GPUS_OF_A_JOB
from pliant.schemas.job import Job
from pliant.tools.replay.importers.blocks import RowBlock, WordColumn, arrow_array, words_of
from pliant.tools.replay.importers.conversion import OUT_OF_BOUNDS, UNKNOWN_MODEL, executed_job
from pliant.tools.replay.recorded import LABEL, plain_seconds

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from pliant.tools.replay.importers.blocks import Marks, Numbers, Rows

_JOBS: Final = 1000
"""Jobs made one by one that become a block."""
_WHOLE: Final = 1e15
"""Smaller floats without a fraction are written with all their digits."""
_json: Final = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class JobBlock:
    """Lines of jobs in two parts, and what a selection goes by."""

    submit_time_s: Numbers
    heads: pa.Array
    """Large texts: each line up to its id."""
    tails: pa.Array
    """What follows the time of submission, with the line end."""
    user: WordColumn
    team: WordColumn
    labels: Mapping[str, WordColumn]

    def __len__(self) -> int:
        return len(self.submit_time_s)

    def take(self, rows: Rows) -> JobBlock:
        import pyarrow as pa

        at = arrow_array(rows.astype(np.int64), pa.int64())
        return JobBlock(
            self.submit_time_s[rows],
            compute("take", self.heads, at),
            compute("take", self.tails, at),
            self.user.take(rows),
            self.team.take(rows),
            {name: words.take(rows) for name, words in self.labels.items()},
        )


def blocks_of(jobs: Iterable[Job | JobBlock]) -> Iterator[JobBlock]:
    """The same jobs, those that were made one by one in blocks."""
    single: list[Job] = []
    for each in jobs:
        if isinstance(each, Job):
            single.append(each)
        if single and (len(single) == _JOBS or isinstance(each, JobBlock)):
            yield _block(single)
            single = []
        if isinstance(each, JobBlock):
            yield each
    if single:
        yield _block(single)


def _block(jobs: Sequence[Job]) -> JobBlock:
    parts = [_parts(job) for job in jobs]
    names = dict.fromkeys(name for job in jobs for name in job.labels)
    return JobBlock(
        np.array([job.submit_time for job in jobs]),
        large(text_array([head for head, _ in parts])),
        large(text_array([tail for _, tail in parts])),
        WordColumn.of([job.user for job in jobs]),
        WordColumn.of([job.team for job in jobs]),
        {name: WordColumn.of([job.labels.get(name, "") for job in jobs]) for name in names},
    )


def _parts(job: Job) -> tuple[str, str]:
    fields = job_fields(job)
    del fields["submit_time"]
    head, comma, tail = encode(fields).decode().partition(",")  # an id holds no comma
    return head, comma + tail


def executed_jobs(
    block: RowBlock,
    ids: pa.Array,
    submit_time_s: Numbers,
    gpus: Numbers,
    seconds: Numbers,
    *,
    labels: Mapping[str, str | WordColumn],
    user: WordColumn | None = None,
    team: WordColumn | None = None,
    model: str | WordColumn = UNKNOWN_MODEL,
    priority: Numbers | None = None,
    start_s: Numbers | None = None,
) -> JobBlock:
    """The live rows of a block as :func:`~.conversion.executed_job` makes jobs of single rows.

    :param seconds: how long each job held its GPUs.
    :param start_s: when each job started, if that is recorded.
    """
    nothing = WordColumn.same("", len(block))
    user, team = user or nothing, team or nothing
    gpu_seconds = gpus * seconds
    priority = np.zeros(len(block)) if priority is None else priority

    def job_of(row: int) -> Job:
        held, start = int(gpus[row]), None if start_s is None else float(start_s[row])
        return executed_job(
            ids[row].as_py(),
            float(submit_time_s[row]),
            held,
            held * float(seconds[row]),
            labels={name: words if isinstance(words, str) else words[row] for name, words in labels.items()},
            user=user[row],
            team=team[row],
            model=model if isinstance(model, str) else model[row],
            priority=float(priority[row]),
            runs=() if start is None else [(start, start + float(seconds[row]), held)],
        )

    within = (
        (gpus <= MOST_GPUS_OF_A_JOB) & (gpu_seconds > 0) & (gpu_seconds <= MOST) & (abs(priority) <= MOST)
    )
    check_rows(block, within & (submit_time_s >= 0) & (submit_time_s <= MOST), job_of)
    fields: dict[str, Any] = {
        "model": model,
        "gpus": {"requested": integers(gpus)},
        "user": user,
        "team": team,
        "priority": Raw(words_of(priority, lambda each: repr(each) if each else ""))
        if priority.any()
        else "",
        "work": {"gpu_seconds": gpu_seconds},
        "labels": dict(labels),
    }
    if start_s is not None:
        begun_s, ended_s = start_s - submit_time_s, (start_s + seconds) - submit_time_s
        fields["labels"][LABEL] = _Runs(np.maximum(0.0, begun_s), np.maximum(0.0, ended_s))
    return job_block(block, ids, submit_time_s, fields)


def check_rows(block: RowBlock, within: Marks, record_of: Callable[[int], Record]) -> None:
    """Refuse live rows that are not within the limits of the schema, in its own words.

    :param record_of: makes the record of a row, which the schema then does not take.
    """
    for row in np.flatnonzero(block.live & ~within).tolist():
        try:
            record_of(row)
        except ValidationError as error:
            block.fail(row, problems_of(error, block.source, block.line(row)))
        except OverflowError:
            block.fail(row, [Problem(block.source, block.line(row), "", OUT_OF_BOUNDS)])
        else:
            raise AssertionError(f"{block.source}:{block.line(row)}: the schema takes what columns do not")


def job_block(block: RowBlock, ids: pa.Array, submit_time_s: Numbers, fields: Mapping[str, Any]) -> JobBlock:
    """The live rows of a block as lines.

    :param fields: what follows the time of submission, in the order of the schema: texts, columns of words,
        floats or integers, and mappings of such. An empty word is left out; the first field of a mapping is
        always there.
    """
    import pyarrow as pa

    rows = np.flatnonzero(block.live)
    at = None if len(rows) == len(block) else arrow_array(rows.astype(np.int64), pa.int64())
    chosen = ids if at is None else compute("take", ids, at)
    labels = fields.get("labels", {})
    pieces = _Pieces(rows)
    pieces.add_fields(fields, first=False)
    tails = pieces.joined("}\n")
    submit_time_s = submit_time_s[rows]
    found = JobBlock(
        submit_time_s,
        joined(['{"id":"', large(chosen), '"'], len(rows)),
        tails,
        _column(fields.get("user", ""), rows),
        _column(fields.get("team", ""), rows),
        {name: _column(words, rows) for name, words in labels.items() if isinstance(words, str | WordColumn)},
    )
    for row, shape in pieces.shapes():
        if block.conversion.is_new_shape(shape):
            _check_line(found, row)
    return found


def _column(words: str | WordColumn, rows: Rows) -> WordColumn:
    return WordColumn.same(words, len(rows)) if isinstance(words, str) else words.take(rows)


def _check_line(block: JobBlock, row: int) -> None:
    """:raises AssertionError: the line is not what the schema writes."""
    time_s = float(block.submit_time_s[row])
    line = f'{block.heads[row].as_py()},"submit_time":{time_s!r}{block.tails[row].as_py()}'.encode()
    written = encode(job_fields(Job.model_validate_json(line)))
    if written != line:
        raise AssertionError(f"columns gave {line!r}, which the schema writes as {written!r}")


@dataclass(frozen=True, slots=True)
class Raw:
    """A column of words that are JSON."""

    words: WordColumn


@dataclass(frozen=True, slots=True)
class _Runs:
    """One recorded run of each job."""

    begun_s: Numbers
    ended_s: Numbers


@dataclass(slots=True)
class _Pieces:
    """Texts and columns that together are the lines of some rows."""

    rows: Rows
    found: list[Any] = field(default_factory=lambda: [""])
    present: list[Marks] = field(default_factory=list)
    """Where fields are that not all rows have."""

    def add_fields(self, fields: Mapping[str, Any], *, first: bool = True) -> None:
        for name, value in fields.items():
            key = f"{'' if first else ','}{_json(name)}:"
            first = False
            if isinstance(value, str):
                self.add(f"{key}{_json(value)}" if value else "")
            elif isinstance(value, int):
                self.add(f"{key}{value}")
            elif isinstance(value, Mapping):
                self.add(key + "{")
                self.add_fields(value)
                self.add("}")
            elif isinstance(value, WordColumn):
                written = [_json(text) if text else "" for text in value.texts]
                self.add_words(key, value.take(self.rows), written)
            elif isinstance(value, Raw):
                self.add_words(key, value.words.take(self.rows), value.words.texts)
            elif isinstance(value, _Runs):
                self.add(f'{key}"', _seconds(value.begun_s[self.rows]), "-")
                self.add(_seconds(value.ended_s[self.rows]), '"')
            else:
                self.add(key, *numbers(value[self.rows]))

    def add(self, *pieces: Any) -> None:
        for piece in pieces:
            last = self.found[-1]
            if not isinstance(piece, str):
                self.found.append(piece)
            elif isinstance(last, str):
                self.found[-1] = last + piece
            elif isinstance(last, WordColumn):
                self.found[-1] = last.map(lambda text, piece=piece: text + piece)  # type: ignore[misc]
            else:
                self.found.append(piece)

    def add_words(self, key: str, words: WordColumn, written: Sequence[str]) -> None:
        """:param written: as JSON, empty where it is left out."""
        texts = [key + text if text else "" for text in written]
        if len(texts) == 1:
            self.add(texts[0])
            return
        stated = words.stated()
        if not stated.all():
            self.present.append(stated)
        before = self.found.pop() if isinstance(self.found[-1], str) else ""
        self.found.append(WordColumn([before + text for text in texts], words.places))

    def joined(self, end: str) -> pa.Array:
        self.add(end)
        return joined(self.found, len(self.rows))

    def shapes(self) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """A row of each shape that there is, and which fields it has."""
        if not len(self.rows):
            return
        codes = np.zeros(len(self.rows), dtype=np.int64)
        for place, marks in enumerate(self.present):
            codes |= marks.astype(np.int64) << place
        for code, row in zip(*np.unique(codes, return_index=True), strict=True):
            yield int(row), (int(code), *(piece for piece in self.found if isinstance(piece, str)))


def numbers(values: Numbers | NDArray[np.int64]) -> list[Any]:
    """Pieces that together are the numbers as JSON has them: ``7`` of an integer, ``7.0`` of a float."""
    import pyarrow as pa

    if values.dtype == np.int64:
        return [cast(arrow_array(values, pa.int64()), pa.large_string())]
    whole = values.astype(np.int64) if (np.abs(values) < _WHOLE).all() else None
    if whole is None or (whole != values).any() or np.signbit(values).any():
        return [large(text_array(map(repr, values.tolist())))]
    return [cast(arrow_array(whole, pa.int64()), pa.large_string()), ".0"]


def integers(values: Numbers) -> NDArray[np.int64]:
    """Whole numbers; what is none, as of a row that is not live, is undefined."""
    with np.errstate(invalid="ignore"):
        return values.astype(np.int64)


def _seconds(values: Numbers) -> Any:
    """As :func:`~pliant.tools.replay.recorded.plain_seconds`."""
    import pyarrow as pa

    whole = values.astype(np.int64) if (values < _WHOLE).all() else None
    if whole is None or (whole != values).any():
        return large(text_array(map(plain_seconds, values.tolist())))
    return cast(arrow_array(whole, pa.int64()), pa.large_string())


def large(texts: pa.Array) -> pa.Array:
    """Texts that together may have more than 2 GiB."""
    import pyarrow as pa

    return cast(texts, pa.large_string())


def joined(pieces: Sequence[Any], rows: int) -> pa.Array:
    """Large texts: for each row what the columns and texts among the pieces say, one after the other."""
    import pyarrow as pa

    if not rows:
        return large(text_array(()))
    if all(isinstance(piece, str) for piece in pieces):
        same = arrow_array(np.zeros(rows, np.int64), pa.int64())
        return compute("take", large(text_array(("".join(pieces),))), same)
    if len(pieces) == 1:
        return _column_of(pieces[0])
    return compute("binary_join_element_wise", *map(_column_of, pieces), _column_of(""))


def _column_of(piece: Any) -> Any:
    """Large texts, one for all rows or one for each."""
    if isinstance(piece, str):
        return large(text_array((piece,)))[0]
    if isinstance(piece, WordColumn):
        at = arrow_array(piece.places, _arrow_integers(piece.places))
        return compute("take", large(text_array(piece.texts)), at)
    return piece


def ends_of(texts: pa.Array) -> NDArray[np.int64]:
    """Where each of large texts ends in :func:`text_of` them."""
    ends = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    found: NDArray[np.int64] = ends[1:] - ends[0]
    return found


def text_of(texts: pa.Array) -> memoryview:
    """The bytes of large texts, one after the other."""
    ends = np.frombuffer(texts.buffers()[1], np.int64)
    first, last = int(ends[texts.offset]), int(ends[texts.offset + len(texts)])
    return memoryview(texts.buffers()[2] or b"")[first:last]


def _arrow_integers(values: NDArray[Any]) -> pa.DataType:
    import pyarrow as pa

    return pa.int32() if values.dtype == np.int32 else pa.int64()
