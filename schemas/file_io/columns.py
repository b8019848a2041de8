"""Table-shaped kinds: each is declared once, as the dataclass of its rows.

The type of a field says what its column holds and whether it may be null; :class:`About` says the rest. The
Arrow schema, the check of a row, the JSON description and the page of the docs come from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
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

from pliant.schemas.file_io.version import schema_id

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R")
Broken = list[tuple[str, str]]
"""What is wrong with values that are each right by themselves: (pointer, message)."""

_TYPES: Final = {str: "string", int: "int64", float: "float64", bool: "bool"}
"""Names of the types in Arrow; what is not among them is JSON, in Parquet its compact text."""


@dataclass(frozen=True, slots=True)
class About:
    """What the type of a field does not say about its column."""

    doc: str = ""
    least: float | None = None
    """Smallest allowed value."""
    added: bool = False
    """Added after the first version: may be missing in a file, and may be null."""
    former: tuple[str, ...] = ()
    """Words that files may hold and that nothing writes any more."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, what it holds, and what it means."""

    name: str
    hint: Any
    """The Python type of a value that is not null."""
    nullable: bool
    about: About

    @property
    def type(self) -> str:
        """Name of the Arrow type, or ``json``."""
        return "string" if self.words else _TYPES.get(self.hint, "json")

    @property
    def words(self) -> tuple[str, ...]:
        """The allowed words; empty: any."""
        return get_args(self.hint) if get_origin(self.hint) is Literal else ()


class Table(Generic[R]):
    """A table-shaped kind: its name, its rows, and its columns in the order in which they are written."""

    def __init__(
        self,
        kind: str,
        row: type[R],
        *,
        first: Sequence[str] = (),
        broken: Callable[[R], Broken] = lambda _row: [],
    ) -> None:
        """``first``: columns written before the others, which come in the order of the fields.

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


def _column(name: str, hint: Any) -> Column:
    plain, about = get_args(hint)
    options = get_args(plain) if get_origin(plain) in (Union, UnionType) else (plain,)
    (held,) = (option for option in options if option is not NoneType)
    return Column(name, held, NoneType in options, about)
