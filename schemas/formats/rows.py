"""Validate the rows of the table-shaped kinds: one validator, built from the column definitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final, TypeVar

from pydantic_core import SchemaValidator, ValidationError, core_schema

from pliant.schemas.convergence import CONVERGENCE, ConvergenceRow
from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.event import EVENT, OF_THE_CLUSTER, Event
from pliant.schemas.formats.columns import Column, Table
from pliant.schemas.formats.digits import whole_number
from pliant.schemas.formats.problems import NOT_FINITE, as_pointer, nonfinite, problems_of
from pliant.schemas.profile import MEASURED, PROFILE, ProfileRow

Row = ProfileRow | ConvergenceRow | Event
AnyRow = TypeVar("AnyRow", ProfileRow, ConvergenceRow, Event)
Rule = Callable[[Any], list[tuple[str, str]]]

TABLES: Final[dict[type[Row], Table]] = {ProfileRow: PROFILE, ConvergenceRow: CONVERGENCE, Event: EVENT}
_ROWS: Final = {table.kind: row for row, table in TABLES.items()}
_INT64: Final = 2**63
_RATE_TOLERANCE: Final = 0.01
"""Between samples_per_second and the rest of its row: files from elsewhere round their numbers."""
_SHAPES: Final[dict[str, core_schema.CoreSchema]] = {
    "placement": core_schema.tuple_schema(
        [core_schema.tuple_schema([core_schema.str_schema(), core_schema.int_schema(strict=True, ge=1)])],
        variadic_item_index=0,
    ),
    "detail": core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()),
}
"""What the ``json`` columns hold."""


@cache
def validator(table: Table, *, json_as_text: bool = False) -> SchemaValidator:
    """The validator of one row. ``json_as_text``: its ``json`` columns come as text, as in Parquet."""
    row = _ROWS[table.kind]
    fields = [
        core_schema.dataclass_field(column.name, _column_schema(column, json_as_text=json_as_text))
        for column in table.columns
    ]
    arguments = core_schema.dataclass_args_schema(row.__name__, fields, extra_behavior="forbid")
    return SchemaValidator(
        core_schema.dataclass_schema(row, arguments, list(table.names), slots=True, frozen=True)
    )


def _column_schema(column: Column, *, json_as_text: bool) -> core_schema.CoreSchema:
    schema = _value_schema(column, json_as_text=json_as_text)
    if not column.nullable:
        return schema
    return core_schema.with_default_schema(core_schema.nullable_schema(schema), default=None)


def _value_schema(column: Column, *, json_as_text: bool) -> core_schema.CoreSchema:
    match column.type:
        case "string" if column.words:
            return core_schema.literal_schema(list(column.words))
        case "string":
            return core_schema.str_schema(strict=True)
        case "int64":
            least = -_INT64 if column.least is None else int(column.least)
            return core_schema.int_schema(strict=True, ge=least, lt=_INT64)
        case "float64":
            return core_schema.float_schema(strict=True, allow_inf_nan=False, ge=column.least)
        case "bool":
            return core_schema.bool_schema(strict=True)
        case "json":
            shape = _SHAPES[column.name]
            return core_schema.json_schema(shape) if json_as_text else shape


def rows_from_columns(
    columns: Mapping[str, Sequence[Any]], row: type[AnyRow], source: str, *, json_as_text: bool = False
) -> tuple[AnyRow, ...]:
    """The rows of a table given as columns of equal length.

    :raises BadInputError: with every problem; the row is counted from 1.
    """
    table = TABLES[row]
    _check_names(columns, table, source)
    check = validator(table, json_as_text=json_as_text)
    rows: list[AnyRow] = []
    problems: list[Problem] = []
    for number, values in enumerate(_each(columns), 1):
        try:
            rows.append(check.validate_python(values))
        except ValidationError as error:
            problems += problems_of(error, source, where=f"row {number}: ")
            continue
        problems += [
            Problem(source, None, f"row {number}: {pointer}", text)
            for pointer, text in broken_rules(rows[-1])
        ]
    if problems:
        raise BadInputError(problems)
    return tuple(rows)


def validate_row(row: Row) -> None:
    """Check the values of a row, each for itself.

    :raises ValidationError: pydantic's, with every value that is wrong.
    """
    table = TABLES[type(row)]
    validator(table).validate_python({name: getattr(row, name) for name in table.names})


def broken_rules(row: Row) -> list[tuple[str, str]]:
    """What is wrong with values that are each right for themselves, as (pointer, message)."""
    if isinstance(row, ProfileRow):
        return _profile_rules(row)
    if isinstance(row, Event):
        return _event_rules(row)
    return []


def _each(columns: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    names = tuple(columns)
    return (dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True))


def _check_names(columns: Mapping[str, Sequence[Any]], table: Table, source: str) -> None:
    problems = [
        Problem(source, None, f"/{column.name}", f"column is missing, expected {column.type}")
        for column in table.columns
        if column.name not in columns and not column.added
    ]
    problems += [
        Problem(source, None, f"/{name}", "is not a column that this version knows")
        for name in columns
        if name not in table.names
    ]
    longest = max((len(values) for values in columns.values()), default=0)
    problems += [
        Problem(source, None, f"/{name}", f"has {len(values)} rows, expected {longest} as in the others")
        for name, values in columns.items()
        if len(values) != longest
    ]
    if problems:
        raise BadInputError(problems)


def _profile_rules(row: ProfileRow) -> list[tuple[str, str]]:
    if not row.feasible:
        return [
            (f"/{name}", f"is {getattr(row, name)} in a row that is not feasible, expected null")
            for name in MEASURED
            if getattr(row, name) is not None
        ] + _placement_rules(row)
    found = _placement_rules(row)
    if row.step_seconds is None:
        found.append(("/step_seconds", "is null in a feasible row, expected a number"))
    elif row.kind == "train" and row.step_seconds == 0:
        found.append(("/step_seconds", "0.0 is not above 0, expected more than 0 in a training row"))
    if row.kind == "train" and row.local_batch == 0:
        found.append(("/local_batch", "0 is below 1, expected 1 or more in a training row"))
    return found + _rate_rules(row)


def _rate_rules(row: ProfileRow) -> list[tuple[str, str]]:
    """Whether the samples per second of a training row are those of its batch and its step."""
    if row.kind != "train" or not (row.step_seconds and row.local_batch) or row.samples_per_second is None:
        return []
    expected = row.gpus * row.local_batch * row.accum_steps / row.step_seconds
    if math.isclose(row.samples_per_second, expected, rel_tol=_RATE_TOLERANCE):
        return []
    text = f"{row.samples_per_second:g} contradicts the row, expected {expected:g}"
    return [("/samples_per_second", f"{text} (gpus × local_batch × accum_steps / step_seconds)")]


def _placement_rules(row: ProfileRow) -> list[tuple[str, str]]:
    problem = _placement_problem(row.placement, row.nodes, row.gpus, row.node_order)
    return [] if problem is None else [problem]


@lru_cache(maxsize=4096)
def _placement_problem(
    placement: str, nodes: int, gpus: int, node_order: str | None
) -> tuple[str, str] | None:
    """What is wrong with a placement; kept, because most rows of a profile repeat those of others."""
    shares = _shares(placement)
    fits = len(shares) == nodes and sum(shares) == gpus and min(shares) >= 1
    if not fits or shares != sorted(shares, reverse=True):
        expected = f'{gpus} GPUs on {nodes} nodes, largest first, like "4,2"'
        return "/placement", f'"{placement}" does not fit, expected {expected}'
    if node_order is not None and sorted(_shares(node_order), reverse=True) != shares:
        expected = f'the nodes of placement "{placement}" in any order, or null'
        return "/node_order", f'"{node_order}" does not fit, expected {expected}'
    return None


def _shares(placement: str) -> list[int]:
    """GPUs per node; 0 for what is not a number."""
    return [whole_number(part) or 0 for part in placement.split(",")]


def _event_rules(row: Event) -> list[tuple[str, str]]:
    found = (
        [] if row.detail is None else [("/detail" + as_pointer(p), NOT_FINITE) for p in nonfinite(row.detail)]
    )
    if row.job is None and row.event not in OF_THE_CLUSTER:
        found.append(("/job", f"is null in a {row.event!r} event, expected a job id"))
    if row.event == "preempt" and row.gpus:
        found.append(("/gpus", f"is {row.gpus:,} in a 'preempt' event, expected 0"))
    return found
