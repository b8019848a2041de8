"""JSON documents, which hold one record with its schema, and job files, which hold a job a line.

A document that is not valid is parsed again, slowly, to name the line of every problem.
"""

from __future__ import annotations

import contextlib
import json
import re
from array import array
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from pydantic_core import ValidationError

from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.file_io.json_lines import (
    BOM,
    encode,
    key_given_twice,
    read_lines,
    refuse_other_kind,
    stated_schema,
    syntax_problem,
    validate_value,
    warn_dropped,
)
from pliant.schemas.file_io.record import (
    MAYBE_NOT_FINITE,
    NOT_FINITE,
    Record,
    a_file,
    as_pointer,
    details,
    is_newer,
    location,
    message,
    nonfinite,
    pointer,
    schema_id,
)
from pliant.schemas.job import Job, SharedParts
from pliant.schemas.job_table import JobTable

R = TypeVar("R", bound=Record)
_maybe_not_finite: Final = re.compile(MAYBE_NOT_FINITE.encode()).search
_SPACE: Final = re.compile(r"[\s,:]*")
_DECODER: Final = json.JSONDecoder()
_text: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def parse_document(
    data: bytes, source: str, kind: str, record: type[R], *, schema_required: bool = True
) -> R:
    """The record in a JSON document.

    :raises BadInputError: with every problem of the file.
    """
    data = data.removeprefix(BOM)
    if (twice := key_given_twice(data, source)) is not None:
        raise BadInputError([twice])
    if stated_schema(data) == schema_id(kind) and not _maybe_not_finite(data):
        with contextlib.suppress(ValidationError):
            return record.model_validate_json(data)
    return _parse_slowly(data, source, kind, record, schema_required=schema_required)


def _parse_slowly(data: bytes, source: str, kind: str, record: type[R], *, schema_required: bool) -> R:
    """Also leaves out what a newer minor version added."""
    value = _object(data, source, kind)
    text = data.decode()
    newer = _version(value, source, kind, line_of(text, ("schema",)), schema_required=schema_required)
    named = {**value, "schema": schema_id(kind)}
    try:
        document, dropped = validate_value(named, record.model_validate_json, drop_unknown=newer)
    except ValidationError as error:
        places = [
            (line_of(text, location(each)), pointer(each), message(each, error.title))
            for each in details(error)
        ]
    else:
        places = [(line_of(text, path), as_pointer(path), NOT_FINITE) for path in nonfinite(value)]
        if not places:
            warn_dropped(source, dropped)
            return document
    raise BadInputError([Problem(source, *place) for place in places])


def document_bytes(record: Record, kind: str, *, with_defaults: bool = False) -> bytes:
    """One line for each field, and for each element of a field that is a list.

    Fields that equal their default are left out unless ``with_defaults``. NaN is a ``ValueError``.
    """
    fields = record.model_dump(mode="json", by_alias=True, exclude_defaults=not with_defaults)
    fields = {"schema": "", **fields} | {"schema": schema_id(kind, record.minor)}
    lines = [f"{_text(name)}: {_field(value)}" for name, value in fields.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _field(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return _text(value)
    return "[\n" + ",\n".join(f"  {_text(item)}" for item in value) + "\n]"


def _object(data: bytes, source: str, kind: str) -> dict[str, Any]:
    refuse_other_kind(data, source, kind)
    syntax = syntax_problem(data, source)
    if syntax is not None:
        raise BadInputError([syntax])
    value = json.loads(data)
    if not isinstance(value, dict):
        raise BadInputError.one(source, f"expected a JSON object ({a_file(kind)})", line=1)
    return value


def _version(value: dict[str, Any], source: str, kind: str, line: int, *, schema_required: bool) -> bool:
    """Whether the document comes from a newer minor version."""
    if "schema" in value:
        return is_newer(value["schema"], kind, source, line)
    if schema_required:
        text = f"is missing, expected {schema_id(kind)!r}"
        raise BadInputError.one(source, text, line=line, pointer="/schema")
    return False


def line_of(text: str, path: tuple[str | int, ...]) -> int:
    """The line (from 1) of the value at ``path``, or of its nearest container if it is missing."""
    at = _skip(text, 0)
    for part in path:
        inside = _object_member(text, at, part) if text[at] == "{" else _list_item(text, at, part)
        if inside is None:
            break
        at = inside
    return text.count("\n", 0, at) + 1


def _object_member(text: str, at: int, name: str | int) -> int | None:
    at, value_at = _skip(text, at + 1), None
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if key == name:
            value_at = at
        at = _skip(text, _DECODER.raw_decode(text, at)[1])
    return value_at


def _list_item(text: str, at: int, index: str | int) -> int | None:
    if text[at] != "[" or not isinstance(index, int):
        return None
    at = _skip(text, at + 1)
    for _ in range(index):
        if text[at] == "]":
            return None
        at = _skip(text, _DECODER.raw_decode(text, at)[1])
    return None if text[at] == "]" else at


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


def parse_jobs(data: bytes, source: str, defaults: Mapping[str, Any] | None = None) -> tuple[Job, ...]:
    """All jobs of a file, in order. A file without a schema is read as version 1.

    Jobs that state no ``submit_time`` arrive with the first that does, else at 0.

    :param defaults: JSON values of fields for jobs that do not state them. Of ``env`` and ``labels`` each key
        counts by itself.
    """
    share = SharedParts().share

    def job_of(line: bytes) -> Job:
        return share(Job.model_validate_json(_completed(line, defaults) if defaults else line))

    lines, problems = read_lines(data, source, "job", job_of, written_by_people=True)
    refuse_same_ids(problems, [(number, job.id) for number, job in lines], source)
    jobs = tuple(job for _, job in lines)
    stated = [job.submit_time for job in jobs if "submit_time" in job.model_fields_set]
    if stated and len(stated) < len(jobs):
        for job in jobs:
            if "submit_time" not in job.model_fields_set:
                job.__dict__["submit_time"] = min(stated)
    return jobs


def parse_job_table(data: bytes, source: str) -> JobTable:
    """As :func:`parse_jobs`, in columns."""
    table = _TableInProgress()
    lines, problems = read_lines(data, source, "job", table.row_of, written_by_people=True, known=table.takes)
    return table.done(lines, problems, source)


class _TableInProgress:
    """A table, and the line of each job in the file."""

    def __init__(self) -> None:
        self.table = JobTable()
        self._share = SharedParts().share
        self._numbers = array("q")

    def takes(self, number: int, line: bytes) -> bool:
        """Whether the line is of a known form: then the table has its job."""
        if not self.table.take(line):
            return False
        self._numbers.append(number)
        return True

    def row_of(self, line: bytes) -> int:
        """:raises ValidationError: it is no job."""
        row = self.table.append(self._share(Job.model_validate_json(line)), line)
        self._numbers.append(0)
        return row

    def done(self, lines: list[tuple[int, int]], problems: list[Problem], source: str) -> JobTable:
        """:param lines: numbers and rows of those that were not of a known form.
        :raises BadInputError: there are problems, or ids are there twice.
        """
        table = self.table
        for number, row in lines:
            self._numbers[row] = number
        if problems or table.may_repeat_ids():
            refuse_same_ids(problems, list(zip(self._numbers, table.ids(), strict=True)), source)
        table.complete_times()
        return table


def refuse_same_ids(problems: list[Problem], lines: list[tuple[int, str]], source: str) -> None:
    """:param lines: numbers and ids of the good ones.
    :raises BadInputError: there are problems, or ids occur twice.
    """
    all_problems = sorted(problems + _duplicates(lines, source), key=lambda problem: problem.line or 0)
    if all_problems:
        raise BadInputError(all_problems)


def _completed(line: bytes, defaults: Mapping[str, Any]) -> bytes:
    """The line with what it does not state; one that is not a JSON object stays as it is."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(value, dict):
        return line
    maps = {
        name: {**defaults[name], **value[name]}
        for name in ("env", "labels")
        if isinstance(defaults.get(name), dict) and isinstance(value.get(name), dict)
    }
    return json.dumps({**defaults, **value, **maps}, default=str).encode()


def job_fields(job: Job) -> dict[str, object]:
    """A job as JSON values, without fields that equal their default."""
    return job.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def job_lines(jobs: Iterable[Job]) -> bytes:
    """Jobs as JSON Lines, without the header.

    :raises ValueError: an id occurs twice.
    """
    listed = tuple(jobs)
    if len({job.id for job in listed}) < len(listed):
        raise ValueError("two jobs have the same id")
    return b"".join(encode(job_fields(job)) for job in listed)


def _duplicates(lines: list[tuple[int, str]], source: str) -> list[Problem]:
    first: dict[str, int] = {}
    problems = []
    for number, job_id in lines:
        known = first.setdefault(job_id, number)
        if known != number:
            text = f'"{job_id}" is used twice, first on line {known}, expected unique ids'
            problems.append(Problem(source, number, "/id", text))
    return problems
