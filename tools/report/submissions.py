"""What submissions say of jobs, in columns with a row for each job in the order of the log.

A replay submits many jobs that differ in few values. Their texts are parsed into Arrow columns, of jobs that
are alike one is validated, and the others go into a table (:mod:`pliant.schemas.job_table`) as they are. Any
other submission is validated by itself.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, pairwise
from math import nan
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from pydantic_core import ValidationError, from_json, to_json

from pliant.schemas.file_io.events import Detail
from pliant.schemas.job import SharedParts
from pliant.schemas.job_table import AMOUNTS, JobTable
from pliant.schemas.runinfo import SubmitDetail
from pliant.tools.report.job_arrays import Floats, Integers
from pliant.tools.report.job_record import Curve

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from pliant.schemas.job_rows import JobRows

_FEW: Final = 1024
"""Texts whose fields are taken to be those of others, too."""
_MOST_FIELDS: Final = 2000
"""Fields from which on submissions are validated one by one: each would take memory for every job."""
_states_null: Final = re.compile(rb"[:,\[]\s*null").search
"""Finds a null, which Arrow takes for a field that is not stated."""
_NUMBERS: Final = ("samples", "demand_gpu_s")
"""What submissions of jobs that are alike differ in, beside what jobs do."""


class StatedColumns(NamedTuple):
    """What submissions state; arrays of shape (jobs,), as :class:`~pliant.tools.report.job_arrays.Jobs` has
    them, but that times are those of the log.
    """

    submit_s: Floats
    samples: Floats
    demand_gpu_s: Floats
    curve: NDArray[np.int32]
    rates: NDArray[np.int32]


class _AlikeJobs(NamedTuple):
    """Submissions that were parsed together; arrays of shape (submissions,)."""

    jobs: JobRows
    form: NDArray[np.int32]
    """In the table of jobs; -1: it is to be validated by itself."""
    curve: NDArray[np.int32]
    rates: NDArray[np.int32]
    samples: Floats
    demand_gpu_s: Floats


class SubmittedJobs:
    """Jobs in the order in which they were submitted."""

    def __init__(self) -> None:
        self.table = JobTable()
        self.submit_s = array("d")
        # All the work; NaN: not known, as in the next.
        self.samples = array("d")
        self.demand_gpu_s = array("d")
        # Place in `curves`, as the next.
        self.curve = array("i")
        self.rates = array("i")
        # Number of the event.
        self.event = array("q")
        # Rows of jobs that their event calls something else.
        self.misnamed: set[int] = set()
        self._curves: dict[Curve, int] = {}
        self._forms: dict[bytes, int] = {}
        self._share = SharedParts().share
        # Fields of the texts so far.
        self._schema: pa.Schema | None = None

    def __len__(self) -> int:
        return len(self.submit_s)

    @property
    def curves(self) -> list[Curve]:
        return [*self._curves]

    def add(
        self, times_s: Floats, details: Sequence[Detail], numbers: Integers
    ) -> dict[int, ValidationError]:
        """Returns what is wrong with those that describe no job, by their place. The others become rows.

        :param numbers: of the events.
        """
        refused: dict[int, ValidationError] = {}
        first = 0
        for part, alike in self._parts(details):
            are_taken = [False] * len(part) if alike is None else (alike.form >= 0).tolist()
            for is_taken, places in groupby(range(len(part)), are_taken.__getitem__):
                if alike is not None and is_taken:
                    begin = next(places)
                    self._extend(alike, slice(begin, 1 + sum(1 for _ in places) + begin))
                    continue
                for at in places:
                    try:
                        self._append(part[at])
                    except ValidationError as error:
                        refused[first + at] = error
            first += len(part)
        kept = np.ones(len(details), bool)
        kept[[*refused]] = False
        self.submit_s.frombytes(times_s[kept].tobytes())
        self.event.frombytes(numbers[kept].astype(np.int64).tobytes())
        return refused

    def repeated(self) -> Iterator[int]:
        """Rows of jobs whose id an earlier one has."""
        hashes = np.fromiter(map(hash, self.table.ids()), np.int64, len(self))
        order = np.argsort(hashes, kind="stable")
        ranked = hashes[order]
        equal = np.flatnonzero(ranked[1:] == ranked[:-1])
        seen: set[str] = set()
        for row in sorted({*order[equal].tolist(), *order[equal + 1].tolist()} - self.misnamed):
            job_id = self.table.job_id(row)
            if job_id in seen:
                yield row
            seen.add(job_id)

    def columns(self, rows: Integers) -> StatedColumns:
        """What these jobs state, in this order. Only once: none of it is left here."""
        columns = (self.submit_s, self.samples, self.demand_gpu_s, self.curve, self.rates)
        stated = StatedColumns(*(np.array(column)[rows] for column in columns))
        for column in (*columns, self.event):
            del column[:]
        return stated

    def order(self) -> Integers | None:
        """The rows in order of (submission, id). Returns None if they are."""
        submit_s = np.array(self.submit_s)
        order = np.argsort(submit_s, kind="stable")
        ranked_s = submit_s[order]
        ties = np.flatnonzero(ranked_s[1:] == ranked_s[:-1])
        moved = bool((order[1:] < order[:-1]).any())
        for _, places in groupby(enumerate(ties.tolist()), lambda pair: pair[1] - pair[0]):
            tied = [place for _, place in places]
            among = slice(tied[0], tied[-1] + 2)
            rows = order[among].tolist()
            ids = [self.table.job_id(row) for row in rows]
            if any(after < before for before, after in pairwise(ids)):
                order[among] = [row for _, row in sorted(zip(ids, rows, strict=True))]
                moved = True
        return order if moved else None

    def _append(self, detail: Detail) -> None:
        """:raises ValidationError: it is not that of a submission."""
        if isinstance(detail, str):
            submission = SubmitDetail.model_validate_json(detail, strict=False)
        else:
            submission = SubmitDetail.model_validate(detail, strict=False)
        self.table.append(self._share(submission.job))
        curve, rates = self._places(submission)
        self.curve.append(curve)
        self.rates.append(rates)
        self.samples.append(nan if submission.samples is None else submission.samples)
        self.demand_gpu_s.append(nan if submission.demand_gpu_s is None else submission.demand_gpu_s)

    def _places(self, submission: SubmitDetail) -> tuple[int, int]:
        numbers = self._curves
        return (
            numbers.setdefault(submission.curve, len(numbers)),
            numbers.setdefault(submission.rates, len(numbers)),
        )

    def _extend(self, alike: _AlikeJobs, among: slice) -> None:
        jobs, form = alike.jobs, alike.form[among]
        texts = jobs.texts(among.start, len(form))
        self.table.extend(texts, jobs.times_s[among], jobs.amounts[among], form)
        for name in ("curve", "rates", *_NUMBERS):
            getattr(self, name).frombytes(getattr(alike, name)[among].tobytes())

    def _parts(self, details: Sequence[Detail]) -> Iterator[tuple[Sequence[Detail], _AlikeJobs | None]]:
        """The submissions in order; with columns where they could be parsed together."""
        texts = [detail for detail in details if isinstance(detail, str)]
        if len(texts) < len(details):
            yield details, None
            return
        table = None if self._schema is None else _parsed(texts, self._schema)
        if table is None and (schema := _schema_of(texts[:_FEW], self._schema)) is not None:
            self._schema = schema
            table = _parsed(texts, schema)
        if table is None and len(texts) > _FEW:
            half = len(texts) // 2
            yield from self._parts(texts[:half])
            yield from self._parts(texts[half:])
            return
        yield texts, None if table is None else self._alike(table, texts)

    def _alike(self, table: pa.Table, texts: Sequence[str]) -> _AlikeJobs | None:
        from pyarrow.types import is_struct

        from pliant.schemas.job_rows import JobRows, floats, is_amount, numbered, numbered_rows

        columns = {name: table.column(name).chunk(0) for name in table.column_names}
        job = columns.pop("job", None)
        if job is None or not is_struct(job.type):
            return None
        jobs = JobRows(job)
        samples, demand_gpu_s = (floats(columns.pop(name, None), len(texts)) for name in _NUMBERS)
        kinds = numbered_rows([jobs.kinds(), *map(numbered, columns.values())])
        is_plain = jobs.are_plain() & is_amount(samples) & is_amount(demand_gpu_s)
        plain = np.flatnonzero(is_plain)
        _, first, kind = np.unique(kinds[plain], return_index=True, return_inverse=True)
        of_kinds = [self._places_of_kind(jobs, row, texts[row]) for row in plain[first].tolist()]
        places = np.full((3, len(texts)), -1, np.int32)
        places[:, plain] = np.array(of_kinds, np.int32).reshape(-1, 3).T[:, kind]
        form, curve, rates = places
        return _AlikeJobs(jobs, form, curve, rates, samples, demand_gpu_s)

    def _places_of_kind(self, jobs: JobRows, row: int, text: str) -> tuple[int, int, int]:
        """Form, curve and rates of submissions that are alike, by one of them."""
        try:
            submission = SubmitDetail.model_validate_json(text, strict=False)
        except ValidationError:
            return -1, -1, -1
        if submission.job.after:  # it may wait for another of its form
            return -1, -1, -1
        labels = jobs.labels(row)
        key = _form_key(from_json(text)["job"], labels)
        if key not in self._forms:
            self._forms[key] = self.table.add_form(self._share(submission.job), labels)
        return (self._forms[key], *self._places(submission))


def _form_key(job: Mapping[str, Any], labels: Sequence[str]) -> bytes:
    """What all jobs of the form of a job have in common."""
    work = {name: None if name in AMOUNTS else value for name, value in job.get("work", {}).items()}
    return to_json({**job, "id": None, "submit_time": None, "work": work, "labels": labels})


def _parsed(texts: Sequence[str], schema: pa.Schema | None) -> pa.Table | None:
    """A row for each text. Returns None if Arrow may not read in them what a JSON parser does.

    :param schema: of all their fields; None: take it from them.
    """
    import pyarrow as pa
    from pyarrow import json

    data = "\n".join(texts).encode()
    if b"null" in data and _states_null(data):
        return None
    try:
        table = json.read_json(
            pa.BufferReader(data),
            json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            json.ParseOptions(schema, unexpected_field_behavior="infer" if schema is None else "error"),
        )
    except pa.ArrowException:
        return None
    return table if table.num_rows == len(texts) else None


def _schema_of(texts: Sequence[str], known: pa.Schema | None) -> pa.Schema | None:
    """The fields of texts, and those known before if they go together. Returns None if they are too many."""
    import pyarrow as pa

    table = _parsed(texts, None)
    if table is None:
        return None
    schema = pa.schema([field.with_type(_with_texts(field.type)) for field in table.schema])
    if known is not None:
        with suppress(pa.ArrowException):
            schema = pa.unify_schemas([known, schema], promote_options="permissive")
    return schema if sum(map(_fields, schema.types)) <= _MOST_FIELDS else None


def _with_texts(kind: pa.DataType) -> pa.DataType:
    """Texts that look like times stay texts."""
    import pyarrow as pa
    import pyarrow.types as pt

    if pt.is_struct(kind):
        return pa.struct([field.with_type(_with_texts(field.type)) for field in kind])
    if pt.is_list(kind):
        return pa.list_(_with_texts(kind.value_type))
    return pa.string() if pt.is_timestamp(kind) else kind


def _fields(kind: pa.DataType) -> int:
    return 1 + sum(_fields(kind.field(number).type) for number in range(kind.num_fields))
