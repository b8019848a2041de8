"""TableKind-shaped kinds: each is declared once, as the dataclass of its rows.

The type of a field says what its column holds and whether it may be null; :class:`About` says the rest. The
Arrow schema, the check of a row, the JSON description and the page of the docs come from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic_core import ArgsKwargs, SchemaValidator, ValidationError, core_schema

from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.file_io.record import problems_of, schema_id

if TYPE_CHECKING:
    import pyarrow as pa


R = TypeVar("R")
Broken = list[tuple[str, str]]
"""(pointer, message) of values that contradict each other."""
_TYPES: Final = {str: "string", int: "int64", float: "float64", bool: "bool"}
"""Arrow types by Python type; every other type is JSON, which Parquet holds as compact text."""
_INT64: Final = 2**63


@dataclass(frozen=True, slots=True)
class About:
    """What the type of a field does not say about its column."""

    doc: str = ""
    least: float | None = None
    """Smallest allowed value."""
    added: bool = False
    """Added after the first version: may be missing in a file, and may be null."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column: its name, what it holds, and what it means."""

    name: str
    hint: Any
    """The Python type without None."""
    nullable: bool
    about: About

    @property
    def type(self) -> str:
        """Name of the Arrow type, or ``json``."""
        return "string" if self.words else _TYPES.get(self.hint, "json")

    @property
    def words(self) -> tuple[str, ...]:
        """The allowed words; empty if any text is."""
        return get_args(self.hint) if get_origin(self.hint) is Literal else ()


class TableKind(Generic[R]):
    """A table-shaped kind: its name, its rows, and its columns in the order in which they are written."""

    def __init__(
        self,
        kind: str,
        row: type[R],
        *,
        first: Sequence[str] = (),
        broken: Callable[[R], Broken] = lambda _row: [],
    ) -> None:
        """:param first: columns that are written before the others, which keep the order of the fields.
        :param broken: finds values that contradict each other.
        """
        self.kind = kind
        self.row = row
        self.broken = broken
        hints = get_type_hints(row, include_extras=True)
        self.names = tuple(dict.fromkeys((*first, *hints)))
        self.columns = tuple(_column(name, hints[name]) for name in self.names)

    def arrow(self) -> pa.Schema:
        """The Arrow schema, with the schema identifier in its metadata."""
        import pyarrow as pa

        fields = [
            pa.field(column.name, pa.type_for_alias(column.type.replace("json", "string")), column.nullable)
            for column in self.columns
        ]
        return pa.schema(fields, metadata={"schema": schema_id(self.kind)})


def _column(name: str, hint: Any) -> TableColumn:
    plain, about = get_args(hint)
    options = get_args(plain) if get_origin(plain) in (Union, UnionType) else (plain,)
    (held,) = (option for option in options if option is not NoneType)
    return TableColumn(name, held, NoneType in options, about)


def rows_from_columns(
    columns: Mapping[str, Sequence[Any]], table: TableKind[R], source: str, *, json_as_text: bool = False
) -> tuple[R, ...]:
    """Rows from columns of equal length.

    :raises BadInputError: with every problem; rows are counted from 1.
    """
    _check_names(columns, table, source)
    missing = [None] * len(next(iter(columns.values())))
    in_order = [columns.get(name, missing) for name in table.names]
    try:
        checked = _columns_validator(table, json_as_text=json_as_text).validate_python(in_order)
    except ValidationError:
        return _rows_one_by_one(in_order, table, source, json_as_text=json_as_text)
    rows = _rows_of(checked, table)
    problems = [
        Problem(source, None, f"row {number}: {pointer}", text)
        for number, row in enumerate(rows, 1)
        for pointer, text in table.broken(row)
    ]
    if problems:
        raise BadInputError(problems)
    return rows


def _rows_of(columns: Iterable[Sequence[Any]], table: TableKind[R]) -> tuple[R, ...]:
    """Rows of checked values, filled a column at a time: one at a time takes three times as long."""
    first, *others = columns
    rows = tuple([object.__new__(table.row) for _ in first])
    for name, values in zip(table.names, (first, *others), strict=True):
        deque(map(getattr(table.row, name).__set__, rows, values), maxlen=0)
    return rows


def _rows_one_by_one(
    in_order: Sequence[Sequence[Any]], table: TableKind[R], source: str, *, json_as_text: bool
) -> tuple[R, ...]:
    """Says where each wrong value is.

    :raises BadInputError: with every problem.
    """
    check = validator(table, json_as_text=json_as_text).validate_python
    rows: list[R] = []
    problems: list[Problem] = []
    for number, values in enumerate(zip(*in_order, strict=True), 1):
        try:
            rows.append(check(ArgsKwargs(values)))
        except ValidationError:
            problems += _problems(check, dict(zip(table.names, values, strict=True)), source, number)
            continue
        problems += [
            Problem(source, None, f"row {number}: {pointer}", text)
            for pointer, text in table.broken(rows[-1])
        ]
    if problems:
        raise BadInputError(problems)
    return tuple(rows)


def _check_names(columns: Mapping[str, Sequence[Any]], table: TableKind[Any], source: str) -> None:
    problems = [
        Problem(source, None, f"/{column.name}", f"column is missing, expected {column.type}")
        for column in table.columns
        if column.name not in columns and not column.about.added
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


def _problems(
    check: Callable[[Any], object], fields: Mapping[str, Any], source: str, number: int
) -> list[Problem]:
    try:
        check(fields)
    except ValidationError as error:
        return problems_of(error, source, where=f"row {number}: ")
    return []


def validate_row(row: R, table: TableKind[R]) -> None:
    """Check each value by itself; ``table.broken`` checks them together.

    :raises ValidationError: pydantic's, with every wrong value.
    """
    validator(table).validate_python({name: getattr(row, name) for name in table.names})


@cache
def validator(table: TableKind[Any], *, json_as_text: bool = False) -> SchemaValidator:
    """``json_as_text``: ``json`` columns are text, as in Parquet."""
    schemas = [_column_schema(column, json_as_text=json_as_text) for column in table.columns]
    fields = [
        core_schema.dataclass_field(column.name, schema, kw_only=False)
        for column, schema in zip(table.columns, schemas, strict=True)
    ]
    arguments = core_schema.dataclass_args_schema(table.row.__name__, fields, extra_behavior="forbid")
    return SchemaValidator(
        core_schema.dataclass_schema(table.row, arguments, list(table.names), slots=True, frozen=True)
    )


@cache
def _columns_validator(table: TableKind[Any], *, json_as_text: bool) -> SchemaValidator:
    """Of all columns, each a list, up to the first wrong value."""
    schemas = [_column_schema(column, json_as_text=json_as_text) for column in table.columns]
    lists: list[core_schema.CoreSchema] = [
        core_schema.list_schema(schema, fail_fast=True) for schema in schemas
    ]
    return SchemaValidator(core_schema.tuple_schema(lists, fail_fast=True))


def _column_schema(column: TableColumn, *, json_as_text: bool) -> core_schema.CoreSchema:
    schema = _value_schema(column.hint, column.about)
    if column.type == "json" and json_as_text:
        schema = core_schema.json_schema(schema)
    if not column.nullable:
        return schema
    return core_schema.with_default_schema(core_schema.nullable_schema(schema), default=None)


def _value_schema(hint: Any, about: About) -> core_schema.CoreSchema:
    origin, inside = get_origin(hint), get_args(hint)
    if hint is int:
        least = -_INT64 if about.least is None else int(about.least)
        return core_schema.int_schema(strict=True, ge=least, lt=_INT64)
    if hint is float:
        return core_schema.float_schema(strict=True, allow_inf_nan=False, ge=about.least)
    if hint is bool:
        return core_schema.bool_schema(strict=True)
    if origin is Literal:
        return core_schema.literal_schema(list(inside))
    if origin is Annotated:
        return _value_schema(*inside)
    if origin is tuple:
        items = [_value_schema(each, About()) for each in inside if each is not Ellipsis]
        return core_schema.tuple_schema(items, variadic_item_index=0 if Ellipsis in inside else None)
    if hint is str:
        return core_schema.str_schema(strict=True)
    return core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema())
