"""Keeping profiles: several made one, two compared, rows taken out, and rows from elsewhere brought in.

Rows that were measured elsewhere come as CSV or Parquet with the columns of the schema, and are checked.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.file_io.columns import TableColumn, rows_from_columns
from pliant.schemas.file_io.files import PARQUET_MAGIC, read_bytes, source_name
from pliant.schemas.file_io.limits import ROWS_BYTES
from pliant.schemas.file_io.parquet import cast_columns, read_arrow
from pliant.schemas.profile import PROFILE, ProfileRow
from pliant.tools.profile.predict import with_model_errors
from pliant.tools.profile.throughput import APART, BUSY, key, merged


def is_doubtful(row: ProfileRow) -> bool:
    """Whether it is of a busy machine, or was measured differently each time."""
    return (row.busy_share or 0.0) > BUSY or (row.spread or 0.0) > APART


def merge(profiles: Iterable[Iterable[ProfileRow]]) -> tuple[ProfileRow, ...]:
    """All rows. Of those that measure the same one is kept: an undisturbed one, and of these the newest.

    Where times of measurement are equal or unknown, later profiles come before earlier ones.
    """
    best: dict[object, ProfileRow] = {}
    for rows in profiles:
        for row in rows:
            known = best.get(key(row))
            if known is None or _rank(row) >= _rank(known):
                best[key(row)] = row
    return with_model_errors(sorted(best.values(), key=key))


def _rank(row: ProfileRow) -> tuple[bool, float]:
    return not is_doubtful(row), row.measured_at or 0.0


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row of one profile beside that of another; None: it has none."""

    row: ProfileRow
    """One of the two; both measure the same."""
    before: ProfileRow | None
    after: ProfileRow | None

    @property
    def slower(self) -> float | None:
        """How much longer the step takes afterwards, as a fraction; None if one of the two did not fit."""
        before = self.before and self.before.step_seconds
        after = self.after and self.after.step_seconds
        return after / before - 1.0 if before and after else None


def changes(before: Iterable[ProfileRow], after: Iterable[ProfileRow], least: float) -> list[RowChange]:
    """What differs, ordered by what the rows measure: rows of one profile alone, rows that fit in one
    alone, and steps that changed by more than ``least``, a fraction.
    """
    old, new = ({key(row): row for row in rows} for rows in (before, after))
    either = old | new
    pairs = [RowChange(either[each], old.get(each), new.get(each)) for each in sorted(either)]
    return [pair for pair in pairs if _differs(pair, least)]


def _differs(pair: RowChange, least: float) -> bool:
    if pair.before is None or pair.after is None:
        return True
    return pair.before.feasible != pair.after.feasible or abs(pair.slower or 0.0) > least


@dataclass(frozen=True, slots=True)
class Pruning:
    """Which rows to take out: those that match all that is stated."""

    models: Collection[str] = ()
    gpu_types: Collection[str] = ()
    doubtful: bool = False
    before_s: float | None = None
    """Rows measured before this time (UTC seconds), or at an unknown one."""

    def takes(self, row: ProfileRow) -> bool:
        return (
            (not self.models or row.model in self.models)
            and (not self.gpu_types or row.gpu_type in self.gpu_types)
            and (not self.doubtful or is_doubtful(row))
            and (self.before_s is None or (row.measured_at or 0.0) < self.before_s)
        )


def pruned(rows: Sequence[ProfileRow], pruning: Pruning) -> tuple[ProfileRow, ...]:
    """The rows that stay."""
    return with_model_errors([row for row in rows if not pruning.takes(row)])


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
