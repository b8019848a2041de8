"""Job files in Parquet: a row for each job, a column for each field that some job states.

A column is named by the path of its field, as ``gpus.requested`` or ``labels.vc``; what is a list or a map
elsewhere is JSON text. Null is a field that is not stated. Any tool that reads Parquet opens such a file.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import cache
from types import NoneType
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import numpy as np
import pyarrow as pa
from pydantic_core import ValidationError

from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.file_io.documents import job_fields, refuse_same_ids
from pliant.schemas.file_io.json_lines import encode, warn_dropped
from pliant.schemas.file_io.parquet import (
    cast,
    check_packed,
    compute,
    file_metadata,
    holds,
    number_array,
    row_groups,
    text_array,
    value_array,
    within_limits,
)
from pliant.schemas.file_io.record import Record, is_newer, problems_of, schema_id
from pliant.schemas.job import Job, SharedParts
from pliant.schemas.job_rows import LABEL, WORKS, JobRows, varies
from pliant.schemas.job_table import JobTable

_TYPES: Final = {str: "string", int: "int64", float: "float64", bool: "bool"}
"""Arrow types by Python type; every other type is JSON text, and so is a seed, which may have 64 bits."""
_GROUP_ROWS: Final = 1 << 16
"""Rows that are read at a time."""


@cache
def column_types() -> Mapping[str, str]:
    """The Arrow type of each column by its name, ``json`` where it is JSON text; labels aside."""
    return dict(_types_of(Job, ""))


def _types_of(record: type[Record], prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in record.model_fields.items():
        path = prefix + (field.alias or name)
        parts = [part for part in _plain_types(field.annotation) if part is not NoneType]
        records = [part for part in parts if isinstance(part, type) and issubclass(part, Record)]
        for inner in records:
            yield from _types_of(inner, f"{path}.")
        if not records and path != "labels":
            is_plain = len(parts) == 1 and path != "seed"
            yield path, _TYPES.get(parts[0], "json") if is_plain else "json"


def _plain_types(hint: Any) -> Iterator[Any]:
    """The types of which a value is one, without what restricts them."""
    if get_origin(hint) is Literal:
        yield str
    elif get_origin(hint) is Annotated:
        yield from _plain_types(get_args(hint)[0])
    elif isinstance(hint, type) or not get_args(hint) or get_origin(hint) in (tuple, dict):
        yield hint
    else:
        for part in get_args(hint):
            yield from _plain_types(part)


def job_parquet(jobs: Iterable[Job]) -> bytes:
    """A job file's bytes.

    :raises ValueError: an id occurs twice.
    """
    import pyarrow.parquet as pq

    table = jobs if isinstance(jobs, JobTable) else JobTable(jobs)
    if table.may_repeat_ids() and len(set(table.ids())) < len(table):
        raise ValueError("two jobs have the same id")
    columns = dict(_columns(table))
    minor = max((form.template.minor for form in table.forms), default=0)
    arrow = pa.table(columns).replace_schema_metadata({"schema": schema_id("job", minor)})

    def written(**packing: Any) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(arrow, sink, write_page_checksum=True, row_group_size=_GROUP_ROWS, **packing)
        return bytes(sink.getvalue().to_pybytes())

    return within_limits(written, check_packed)


def _columns(table: JobTable) -> Iterator[tuple[str, pa.Array]]:
    fields = [_flat(job_fields(form.template)) for form in table.forms]
    names = {name for each in fields for name in each}
    kinds = number_array(table.kind)
    for name, arrow_type in column_types().items():
        if name == "id":
            yield name, text_array(table.ids())
        elif name == "submit_time":
            yield name, number_array(table.submit_time)
        elif name in names:
            of_forms = value_array(
                [each.get(name) for each in fields],
                pa.type_for_alias(arrow_type.replace("json", "string")),
            )
            column = compute("take", of_forms, kinds)
            if name in WORKS:
                nothing = pa.nulls(len(table), pa.float64())
                column = compute("if_else", compute("is_valid", column), number_array(table.amount), nothing)
            yield name, column
    for name in dict.fromkeys(name for form in table.forms for name in form.template.labels):
        yield LABEL + name, text_array(table.label(name))


def _flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The fields of a job by their paths, without labels."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        path = prefix + name
        if path == "labels":
            continue
        if (kind := column_types().get(path)) is None:
            flat |= _flat(value, f"{path}.")
        else:
            flat[path] = encode(value).decode().strip() if kind == "json" else value
    return flat


def parse_job_parquet(data: bytes, source: str) -> JobTable:
    """All jobs of a file, in order.

    :raises BadInputError: with every problem of the file; rows are counted from 1.
    """
    reader = _Reader(source)
    for arrow in row_groups(data, source, "job"):
        reader.read(arrow)
    return reader.done()


class _Reader:
    """Reads one file, a table of rows at a time."""

    def __init__(self, source: str) -> None:
        self.table = JobTable()
        self._problems: list[Problem] = []
        # Rows that were read, and the row of each job once one was wrong.
        self._rows = 0
        self._good: list[int] = []
        # Forms by the values of all their columns.
        self._forms: dict[Hashable, int] = {}
        self._share = SharedParts().share
        self._source = source
        self._warned = False

    def read(self, arrow: pa.Table) -> None:
        columns = self._known_columns(arrow)
        rows = JobRows(pa.StructArray.from_arrays([*columns.values()], [*columns]))
        plain, first = rows.are_plain(), self._rows + 1
        self._rows += len(plain)
        good: Iterable[int] = range(first, self._rows + 1)
        if self._problems or not (len(plain) and plain.all() and self._take(rows)):
            good = [number for row, number in enumerate(good) if self._append(rows.fields(row), number)]
        self._good.extend(good)

    def _take(self, rows: JobRows) -> bool:
        """Add all rows if each is of a form that is right."""
        kinds = rows.kinds()
        numbers = []
        for row in np.unique(kinds, return_index=True)[1].tolist():
            fields = rows.fields(row)
            key = tuple((name, None if varies(name) else value) for name, value in fields.items())
            if key not in self._forms:
                try:
                    job = self._job(fields)
                except (ValidationError, _NotJsonError):
                    return False
                if job.after:  # it may wait for another of its form
                    return False
                self._forms[key] = self.table.add_form(job, rows.labels(row))
            numbers.append(self._forms[key])
        texts = rows.texts(0, len(kinds))
        self.table.extend(texts, rows.times_s, rows.amounts, np.array(numbers, np.int32)[kinds])
        return True

    def _append(self, fields: Mapping[str, Any], number: int) -> bool:
        """Add the job of one row, or say what is wrong with it."""
        where = f"row {number}: "
        try:
            self.table.append(self._job(fields))
        except ValidationError as error:
            self._problems += problems_of(error, self._source, where=where)
        except _NotJsonError as error:
            self._problems.append(Problem(self._source, None, f"{where}/{error}", "not valid JSON"))
        else:
            return True
        return False

    def _job(self, fields: Mapping[str, Any]) -> Job:
        """:raises ValidationError, _NotJsonError: it is none."""
        return self._share(Job.model_validate_json(json.dumps(_nested(fields))))

    def _known_columns(self, arrow: pa.Table) -> dict[str, pa.Array]:
        metadata = file_metadata(arrow)
        if "schema" not in metadata:
            text = f"metadata is missing, expected {schema_id('job')!r}"
            raise BadInputError.one(self._source, text, pointer="/schema")
        newer, types = is_newer(metadata["schema"], "job", self._source), column_types()
        columns: dict[str, pa.Array] = {}
        problems: list[Problem] = []
        unknown = []
        for name, column in zip(arrow.column_names, arrow.columns, strict=True):
            expected = "string" if name.startswith(LABEL) else types.get(name)
            if expected is None:
                unknown.append(name)
            elif holds(column.type, expected, nullable=True):
                alias = expected.replace("json", "string")
                columns[name] = cast(column, pa.type_for_alias(alias)).combine_chunks()
            else:
                text = f"column is {column.type}, expected {expected}"
                problems.append(Problem(self._source, None, f"/{name}", text))
        if not newer:
            text = "is not a column that this version knows"
            problems += [Problem(self._source, None, f"/{name}", text) for name in unknown]
        elif not self._warned:
            warn_dropped(self._source, [f"/{name}" for name in unknown])
            self._warned = True
        if problems:
            raise BadInputError(problems)
        return columns

    def done(self) -> JobTable:
        if self._problems or self.table.may_repeat_ids():
            refuse_same_ids(
                self._problems, list(zip(self._good, self.table.ids(), strict=True)), self._source
            )
        self.table.complete_times()
        return self.table


class _NotJsonError(Exception):
    """The column of a text that is not JSON."""


def _json_value(path: str, text: str) -> Any:
    """:raises _NotJsonError: it is not."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _NotJsonError(path) from None


def _nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON values of a job, by the paths of its columns."""
    nested: dict[str, Any] = {}
    for path, stored in fields.items():
        value = _json_value(path, stored) if column_types().get(path) == "json" else stored
        *parents, name = ("labels", path.removeprefix(LABEL)) if path.startswith(LABEL) else path.split(".")
        inner = nested
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[name] = value
    return nested
