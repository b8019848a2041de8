"""Column definitions shared by the table-shaped kinds: one source for Arrow schemas, rows and docs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pliant.schemas.formats.version import schema_id

if TYPE_CHECKING:
    import pyarrow as pa

ColumnType = Literal["string", "int64", "float64", "bool", "json"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: name, type, whether it may be null, smallest allowed value, allowed words, meaning.

    ``json`` is an object in JSON Lines and its compact text in Parquet. A column that was ``added`` after
    the first version may be null and may be missing in a file.
    """

    name: str
    type: ColumnType
    doc: str
    nullable: bool = True
    least: float | None = None
    words: tuple[str, ...] = ()
    added: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table-shaped kind: its name and columns, in the order they are written."""

    kind: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(column.name for column in self.columns)

    def arrow(self) -> pa.Schema:
        """The Arrow schema, with the schema identifier in its metadata."""
        import pyarrow as pa

        types = {
            "string": pa.string(),
            "int64": pa.int64(),
            "float64": pa.float64(),
            "bool": pa.bool_(),
            "json": pa.string(),
        }
        fields = [pa.field(c.name, types[c.type], nullable=c.nullable) for c in self.columns]
        return pa.schema(fields, metadata={"schema": schema_id(self.kind)})
