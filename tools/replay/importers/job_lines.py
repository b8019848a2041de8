"""Lines of a job file, made of columns for a whole block of jobs, and checked once for each of their shapes.

A block keeps what its lines consist of. The text is made when the time of submission is known, which it is
not until all jobs were read. The bytes are those that :func:`~pliant.schemas.file_io.json_lines.encode`
makes of a job.
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
from pliant.schemas.file_io.record import MOST, MOST_GPUS, Record, problems_of
from pliant.schemas.job import Job
from pliant.tools.replay.importers.blocks import RowBlock, WordColumn, arrow_array, numbers_of, words_of
from pliant.tools.replay.importers.conversion import (
    EARLY,
    LATEST_S,
    MOST_JOB_GPUS,
    OUT_OF_BOUNDS,
    TOO_LATE,
    UNKNOWN_MODEL,
    cpu_demand,
    executed_job,
    too_many_gpus,
)
from pliant.tools.replay.recorded import LABEL, plain_seconds

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from pliant.tools.replay.importers.blocks import Marks, Numbers, Rows

_JOBS: Final = 1000
"""Jobs made one by one that become a block."""
_WHOLE: Final = 1e15
"""Smaller floats without a fraction are written with all their digits."""
_ALIKE: Final = (1e-4, 1e10)
"""From here to there Arrow and Python write floats alike, but for the .0 of whole ones."""
_FEW: Final = 1000
"""Fewer integers than that are words."""
_NEAR_HALF: Final = 1e-4
"""Part of a millisecond: further from a half of one, rounding does not depend on the last bits."""
_SUBMIT_TIME: Final = ',"submit_time":'
_json: Final = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class JobBlock:
    """What the lines of some jobs consist of, and what a selection goes by."""

    submit_time_s: Numbers
    pieces: Sequence[str | pa.Array | None]
    """One after the other: a text that all lines have; the time of submission (None); or an Arrow array of
    texts, of words (a dictionary), of integers or of numbers, which are written as JSON has them.
    """
    user: WordColumn
    team: WordColumn
    labels: Mapping[str, WordColumn]

    def __len__(self) -> int:
        return len(self.submit_time_s)

    def take(self, rows: Rows) -> JobBlock:
        return JobBlock(
            self.submit_time_s[rows],
            taken(self.pieces, rows),
            self.user.take(rows),
            self.team.take(rows),
            {name: words.take(rows) for name, words in self.labels.items()},
        )


def taken(pieces: Sequence[str | pa.Array | None], rows: Rows) -> list[str | pa.Array | None]:
    """The pieces of some of the lines."""
    import pyarrow as pa

    at = arrow_array(rows.astype(np.int64, copy=False), pa.int64())
    return [
        piece if piece is None or isinstance(piece, str) else compute("take", piece, at) for piece in pieces
    ]


def lines_of(pieces: Sequence[str | pa.Array | None], times_s: Numbers) -> pa.Array:
    """The lines as large texts.

    :param times_s: what they say as time of submission.
    """
    import pyarrow as pa

    written: list[str | pa.Array] = []
    for piece in pieces:
        if piece is None:
            written += _number_texts(times_s)
        elif isinstance(piece, str) or piece.type not in (pa.int64(), pa.float64()):
            written.append(piece)
        elif piece.type == pa.int64():
            written.append(cast(piece, pa.large_string()))
        else:
            written += _number_texts(numbers_of(piece))
    return _joined(written, len(times_s))


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
        [
            text_array([head for head, _ in parts]),
            _SUBMIT_TIME,
            None,
            text_array([tail for _, tail in parts]),
        ],
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
    gpu_seconds: Numbers | None = None,
    start_s: Numbers | None = None,
    end_s: Numbers | None = None,
    runs: WordColumn | None = None,
    cpus: Numbers | None = None,
    memory_bytes: Numbers | None = None,
) -> JobBlock:
    """The live rows of a block as :func:`~.conversion.executed_job` makes jobs of single rows.

    :param seconds: how long each job held its GPUs.
    :param gpu_seconds: work. Default: GPUs times seconds; of jobs without GPUs, the seconds.
    :param start_s: when each job started, NaN where that is not recorded.
    :param end_s: when it ended. Default: after those seconds.
    :param runs: the label of recorded runs, instead of both.
    :param cpus: cores that jobs without GPUs used, 0 or NaN where that is not recorded.
    :param memory_bytes: memory of these, in the same way.
    """
    if start_s is not None and end_s is None:
        end_s = start_s + seconds
    nothing = WordColumn.same("", len(block))
    user, team = user or nothing, team or nothing
    gpu_seconds = np.maximum(1.0, gpus) * seconds if gpu_seconds is None else gpu_seconds
    priority = np.zeros(len(block)) if priority is None else priority

    def job_of(row: int) -> Job:
        held = int(gpus[row])
        return executed_job(
            ids[row].as_py(),
            float(submit_time_s[row]),
            held,
            float(gpu_seconds[row]),
            labels={name: words if isinstance(words, str) else words[row] for name, words in labels.items()},
            user=user[row],
            team=team[row],
            model=model if isinstance(model, str) else model[row],
            priority=float(priority[row]),
            demand=demand_of(row),
        )

    def demand_of(row: int) -> dict[str, float] | None:
        amounts = (0.0 if column is None else float(column[row]) for column in (cpus, memory_bytes))
        return None if gpus[row] else cpu_demand(*amounts)

    within = are_within(submit_time_s, gpus, gpu_seconds) & (abs(priority) <= MOST)
    check_rows(block, within, job_of)
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
    on_cpus = (gpus == 0) & block.live
    if on_cpus.any():
        words = ["" if not on_cpu else _demand_text(demand_of(row)) for row, on_cpu in enumerate(on_cpus)]
        fields |= {"resources": Raw(WordColumn.of(words)), "labels": fields.pop("labels")}
        start_s = None if start_s is None else np.where(on_cpus, np.nan, start_s)
    if runs is not None:
        fields["labels"][LABEL] = runs
    elif start_s is not None and end_s is not None:
        late_s = np.maximum(0.0, submit_time_s - start_s)
        block.assume(late_s > 0, EARLY, named=True)
        block.refuse(end_s + late_s > MOST, LABEL, OUT_OF_BOUNDS)
        fields["labels"][LABEL] = _Runs(start_s + late_s - submit_time_s, end_s + late_s - submit_time_s)
    return job_block(block, ids, submit_time_s, fields)


def _demand_text(worker: Mapping[str, float] | None) -> str:
    return encode({"worker": worker}).decode().rstrip("\n")


def are_within(submit_time_s: Numbers, gpus: Numbers, gpu_seconds: Numbers) -> Marks:
    """The jobs whose times and sizes the schema takes."""
    sizes = (gpus <= MOST_GPUS) & (gpu_seconds > 0) & (gpu_seconds <= MOST)
    return sizes & (submit_time_s >= 0) & (submit_time_s <= MOST)


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

    gpus = fields["gpus"]["requested"]
    block.refuse(submit_time_s > LATEST_S, "submit_time", TOO_LATE)
    block.refuse(gpus > MOST_JOB_GPUS, "requested", lambda row: too_many_gpus(gpus[row]))
    every = bool(block.live.all())
    rows: Rows | slice = slice(None) if every else np.flatnonzero(block.live)
    chosen = ids if isinstance(rows, slice) else compute("take", ids, arrow_array(rows, pa.int64()))
    labels = fields.get("labels", {})
    pieces = _Pieces(rows)
    pieces.add('{"id":"', chosen, '"' + _SUBMIT_TIME, None)
    pieces.add_fields(fields, first=False)
    pieces.add("}\n")
    result = JobBlock(
        submit_time_s[rows],
        pieces.finished(),
        _column(fields.get("user", ""), len(chosen), rows),
        _column(fields.get("team", ""), len(chosen), rows),
        {
            name: _column(words, len(chosen), rows)
            for name, words in labels.items()
            if isinstance(words, str | WordColumn)
        },
    )
    for row, shape in pieces.shapes(len(chosen)):
        if block.conversion.is_new_shape(shape):
            _check_line(result, row)
    return result


def _column(words: str | WordColumn, count: int, rows: Rows | slice) -> WordColumn:
    return WordColumn.same(words, count) if isinstance(words, str) else words.take(rows)


def _check_line(block: JobBlock, row: int) -> None:
    """:raises AssertionError: the line is not what the schema writes."""
    times_s = block.submit_time_s[row : row + 1]
    line = bytes(text_of(lines_of(taken(block.pieces, np.array([row])), times_s)))
    written = encode(job_fields(Job.model_validate_json(line)))
    if written != line:
        raise AssertionError(f"columns gave {line!r}, which the schema writes as {written!r}")


@dataclass(frozen=True, slots=True)
class Raw:
    """A column of words that are JSON."""

    words: WordColumn


@dataclass(frozen=True, slots=True)
class _Runs:
    """One recorded run of each job; NaN: none of that job."""

    begun_s: Numbers
    ended_s: Numbers


@dataclass(slots=True)
class _Pieces:
    """Texts and columns that together are the lines of some rows."""

    rows: Rows | slice
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
                self.add_runs(key, value.begun_s[self.rows], value.ended_s[self.rows])
            else:
                self.add(key, _numbers(value[self.rows]))

    def add(self, *pieces: Any) -> None:
        for piece in pieces:
            last = self.found[-1]
            if isinstance(piece, WordColumn):
                together = _together(last, piece)
                self.found[-1:] = [last, piece] if together is None else [together]
            elif not isinstance(piece, str):
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
        self.add(WordColumn(texts, words.places))

    def add_runs(self, key: str, begun_s: Numbers, ended_s: Numbers) -> None:
        import pyarrow as pa

        stated = ~np.isnan(begun_s)
        if stated.all():
            self.add(f'{key}"', _seconds(begun_s), "-", _seconds(ended_s), '"')
            return
        spans = [_seconds(np.where(stated, each, 0.0)) for each in (begun_s, ended_s)]
        texts = _joined([f'{key}"', spans[0], "-", spans[1], '"'], len(stated))
        kept = cast(arrow_array(stated.view(np.uint8), pa.uint8()), pa.bool_())
        self.present.append(stated)
        self.add(compute("if_else", kept, texts, pa.scalar("", pa.large_string())))

    def finished(self) -> list[str | pa.Array | None]:
        return [piece.array() if isinstance(piece, WordColumn) else piece for piece in self.found]

    def shapes(self, count: int) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """A row of each shape that there is, and which fields it has."""
        if not count:
            return
        texts = [piece for piece in self.found if isinstance(piece, str)]
        if not self.present:
            yield 0, (0, *texts)
            return
        codes = np.zeros(count, dtype=np.int64)
        for place, marks in enumerate(self.present):
            codes |= marks.astype(np.int64) << place
        for code, row in zip(*np.unique(codes, return_index=True), strict=True):
            yield int(row), (int(code), *texts)


def _together(first: Any, second: WordColumn) -> WordColumn | None:
    """Both pieces as one. Returns None where there would be too many words."""
    if isinstance(first, str):
        return second.map(lambda text: first + text)
    if not isinstance(first, WordColumn):
        return None
    count = len(second.texts)
    if len(first.texts) * count > min(_FEW, len(second.places)):
        return None
    texts = [before + text for before in first.texts for text in second.texts]
    return WordColumn(texts, first.places.astype(np.int32) * np.int32(count) + second.places.astype(np.int32))


def _numbers(values: Numbers | NDArray[np.int64]) -> WordColumn | pa.Array:
    """Numbers as a piece of lines."""
    import pyarrow as pa

    if values.dtype != np.int64:
        return arrow_array(values, pa.float64())
    if len(values) and values.min() >= 0 and values.max() < _FEW:
        places = values.astype(np.int64, copy=False)
        return WordColumn(list(map(str, range(int(values.max()) + 1))), places)
    return arrow_array(values, pa.int64())


def _number_texts(values: Numbers) -> list[Any]:
    """Texts that together are the numbers as JSON has them: ``7.0``."""
    import pyarrow as pa

    if (np.abs(values) < _WHOLE).all() and not np.signbit(values).any():
        whole = values.astype(np.int64)
        if (whole == values).all():
            return [cast(arrow_array(whole, pa.int64()), pa.large_string()), ".0"]
        low, high = _ALIKE
        if (((values >= low) & (values < high)) | (values == 0)).all():
            ends = WordColumn(["", ".0"], (whole == values).view(np.int8))
            return [_float_texts(values), ends.array()]
    return [large(text_array(map(repr, values.tolist())))]


def _float_texts(values: Numbers) -> pa.Array:
    import pyarrow as pa

    return cast(arrow_array(values, pa.float64()), pa.large_string())


def integers(values: Numbers) -> NDArray[np.int64]:
    """Whole numbers; what is none, as of a row that is not live, is undefined."""
    with np.errstate(invalid="ignore"):
        return values.astype(np.int64)


def _seconds(values: Numbers) -> Any:
    """As :func:`~pliant.tools.replay.recorded.plain_seconds`."""
    import pyarrow as pa

    whole = values.astype(np.int64) if (values < _WHOLE).all() else None
    if whole is None:
        return text_array(map(plain_seconds, values.tolist()))
    if (whole == values).all():
        return arrow_array(whole, pa.int64())
    if values.max() >= _ALIKE[1] / 10:
        return text_array(map(plain_seconds, values.tolist()))
    ms = values * 1000
    rounded = np.rint(ms) / 1000
    near_half = np.abs(ms - np.floor(ms) - 0.5) < _NEAR_HALF
    rounded[near_half] = [float(plain_seconds(each)) for each in values[near_half].tolist()]
    return cast(arrow_array(rounded, pa.float64()), pa.string())


def large(texts: pa.Array) -> pa.Array:
    """Texts that together may have more than 2 GiB."""
    import pyarrow as pa

    return cast(texts, pa.large_string())


def _joined(pieces: Sequence[str | pa.Array], rows: int) -> pa.Array:
    """Large texts: for each row what the columns and texts among the pieces say, one after the other."""
    if not rows:
        return large(text_array(()))
    merged: list[Any] = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    return compute("binary_join_element_wise", *map(_column_of, merged), _column_of(""))


def _column_of(piece: Any) -> Any:
    """Large texts, one for all rows or one for each; integers become texts."""
    import pyarrow as pa

    if isinstance(piece, str):
        return large(text_array((piece,)))[0]
    if isinstance(piece, pa.DictionaryArray):
        return compute("take", large(piece.dictionary), piece.indices)
    return large(piece)


def ends_of(texts: pa.Array) -> NDArray[np.int64]:
    """Where each of large texts ends in :func:`text_of` them."""
    ends = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    ends_in_block: NDArray[np.int64] = ends[1:] - ends[0]
    return ends_in_block


def text_of(texts: pa.Array) -> memoryview:
    """The bytes of large texts, one after the other."""
    ends = np.frombuffer(texts.buffers()[1], np.int64)
    first, last = int(ends[texts.offset]), int(ends[texts.offset + len(texts)])
    return memoryview(texts.buffers()[2] or b"")[first:last]
