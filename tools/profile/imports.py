"""Profile rows measured elsewhere: CSV or Parquet with the columns of the schema, checked."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.file_io.columns import TableColumn, rows_from_columns
from pliant.schemas.file_io.files import PARQUET_MAGIC, read_bytes, source_name
from pliant.schemas.file_io.limits import ROWS_BYTES
from pliant.schemas.file_io.parquet import cast_columns, read_arrow
from pliant.schemas.profile import PROFILE, ProfileRow
from pliant.tools.profile.throughput import merged

_TRUTH: Final = {"true": True, "1": True, "false": False, "0": False}
_EXPECTED: Final = {"int64": "a whole number", "float64": "a number", "bool": "true or false"}


def import_rows(path: str | Path) -> tuple[ProfileRow, ...]:
    """All rows of a CSV or Parquet file (recognised by content), marked as imported, ordered by key.

    Nullable columns may be missing.

    :raises BadInputError: with every problem of the file.
    """
    data, source = read_bytes(path, most=ROWS_BYTES), source_name(path)
    if data.startswith(PARQUET_MAGIC):
        columns = cast_columns(read_arrow(data, source, "profile"), source, PROFILE)
    else:
        columns = _from_csv(data, source)
    length = len(next(iter(columns.values()), ()))
    for column in PROFILE.columns:
        if column.nullable:
            columns.setdefault(column.name, [None] * length)
    rows = rows_from_columns(columns, PROFILE, source)
    return merged((), (replace(row, source="imported") if row.source == "measured" else row for row in rows))


def _from_csv(data: bytes, source: str) -> dict[str, list[Any]]:
    reader = csv.DictReader(io.StringIO(_text(data, source), newline=""), strict=True)
    known = {column.name: column for column in PROFILE.columns}
    columns: dict[str, list[Any]] = {name: [] for name in reader.fieldnames or ()}
    problems: list[Problem] = []
    try:
        for record in reader:
            problems += _read_record(record, columns, known, source, reader.line_num)
    except csv.Error as error:
        raise BadInputError.one(source, f"is not CSV: {error}", line=reader.line_num) from error
    if problems:
        raise BadInputError(problems)
    return columns


def _text(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInputError.one(source, f"is neither Parquet nor text: {error.reason}") from error


def _read_record(
    record: Mapping[str | None, Any],
    columns: dict[str, list[Any]],
    known: Mapping[str, TableColumn],
    source: str,
    line: int,
) -> list[Problem]:
    if None in record:
        return [Problem(source, line, "", f"has more than the {len(columns)} fields of the header")]
    problems = []
    for name, values in columns.items():
        text = record[name]
        column = known.get(name)
        try:
            values.append(text if column is None else _value(text or "", column))
        except ValueError:
            expected = _EXPECTED[column.type] if column else "text"
            problems.append(Problem(source, line, f"/{name}", f"{text!r}, expected {expected}"))
    return problems


def _value(text: str, column: TableColumn) -> object:
    """:raises ValueError: it is not of the column's type."""
    if text == "" and (column.nullable or column.type != "string"):
        return None
    return _READ[column.type](text)


def _truth(text: str) -> bool:
    try:
        return _TRUTH[text.strip().lower()]
    except KeyError:
        raise ValueError(text) from None


_READ: Final[dict[str, Callable[[str], object]]] = {
    "string": str,
    "int64": int,
    "float64": float,
    "bool": _truth,
}
