"""A table is declared once: its columns follow from the fields of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pyarrow as pa

from pliant.schemas.file_io.columns import About, TableKind


@dataclass(frozen=True, slots=True)
class Sighting:
    bird: Annotated[str, About("its name")]
    size: Annotated[Literal["small", "large"] | None, About("as seen")]
    count: Annotated[int, About("how many", least=1)] = 1
    nests: Annotated[tuple[tuple[str, int], ...] | None, About("[[place, nests], …]", added=True)] = None
    more: Annotated[Mapping[str, Any] | None, About("free")] = None


SIGHTING = TableKind("sighting", Sighting, first=("count",))


def test_columns_come_in_the_order_of_the_fields_after_those_that_come_first() -> None:
    assert SIGHTING.names == ("count", "bird", "size", "nests", "more")


def test_types_words_and_nulls_are_those_of_the_fields() -> None:
    types = {column.name: (column.type, column.nullable) for column in SIGHTING.columns}
    assert types == {
        "count": ("int64", False),
        "bird": ("string", False),
        "size": ("string", True),
        "nests": ("json", True),
        "more": ("json", True),
    }
    (size,) = (column for column in SIGHTING.columns if column.name == "size")
    assert size.words == ("small", "large")


def test_the_arrow_schema_names_the_kind_and_keeps_json_as_text() -> None:
    schema = SIGHTING.arrow()
    assert schema.metadata == {b"schema": b"pliant.sighting/1"}
    assert [(field.type, field.nullable) for field in schema] == [
        (pa.int64(), False),
        *[(pa.string(), False), (pa.string(), True), (pa.string(), True), (pa.string(), True)],
    ]
