"""Generate the JSON descriptions of all kinds: ``python -m pliant.schemas.generate`` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from pliant.schemas.cluster import Cluster
from pliant.schemas.event import EVENT
from pliant.schemas.file_io.columns import About, TableColumn, TableKind
from pliant.schemas.file_io.files import atomic_write
from pliant.schemas.file_io.json_lines import CRC_DOC
from pliant.schemas.file_io.record import KINDS, MINORS, Record, schema_id
from pliant.schemas.job import Job
from pliant.schemas.kinds import check_kind
from pliant.schemas.metrics import Metrics
from pliant.schemas.predictor import Predictor
from pliant.schemas.profile import CONVERGENCE, PROFILE
from pliant.schemas.schedule import Schedule

FOLDER: Final = Path(__file__).parent / "json"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_DOCUMENTS: Final[dict[str, type[Record]]] = {
    "cluster": Cluster,
    "schedule": Schedule,
    "metrics": Metrics,
    "predictor": Predictor,
}
_TABLES: Final[dict[str, TableKind[Any]]] = {table.kind: table for table in (PROFILE, CONVERGENCE, EVENT)}
_JSON_TYPES: Final = {str: "string", int: "integer", float: "number", bool: "boolean"}


def schema_text(kind: str) -> str:
    """A JSON Schema, or for a table its columns.

    :raises UsageError: there is no such kind.
    """
    check_kind(kind)
    if kind == "job":
        described = _lines_schema(kind, Job.model_json_schema())
    elif kind in _DOCUMENTS:
        described = _document_schema(kind, _DOCUMENTS[kind].model_json_schema())
    else:
        described = _table_schema(_TABLES[kind])
    return json.dumps(described, indent=2, ensure_ascii=False) + "\n"


def main(folder: Path = FOLDER) -> None:
    """Write the description of every kind into ``folder``."""
    folder.mkdir(exist_ok=True)
    for kind in KINDS:
        atomic_write(folder / f"{kind}.json", schema_text(kind).encode())


def _document_schema(kind: str, described: dict[str, Any]) -> dict[str, Any]:
    if kind in MINORS:
        _allow_minors(kind, described["properties"]["schema"])
    return {"$schema": _DIALECT, "$id": schema_id(kind), **described}


def _allow_minors(kind: str, named: dict[str, Any]) -> None:
    """A file says the minor version that first had all that it holds."""
    named["enum"] = [named.pop("const"), *(schema_id(kind, n + 1) for n in range(MINORS.get(kind, 0)))]


def _lines_schema(kind: str, described: dict[str, Any]) -> dict[str, Any]:
    named = {"const": schema_id(kind), "description": "On every line, or alone in a first header line."}
    _allow_minors(kind, named)
    described["properties"] = {"schema": named, **described["properties"]}
    return {"$schema": _DIALECT, "$id": schema_id(kind), **described}


def _table_schema(table: TableKind[Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "schema": schema_id(table.kind),
        "form": "Parquet, the schema in the file's metadata",
        "columns": [_column(column) for column in table.columns],
    }
    if table is EVENT:
        described["form"] = "Parquet, the schema in the file's metadata; while live JSON Lines"
        described["json_lines"] = _log_schema()
    return described


def _log_schema() -> dict[str, Any]:
    """A line of a live log may end in a checksum; then its header names the minor version that brought it."""
    described = _lines_schema(EVENT.kind, _object_schema(EVENT))
    described["properties"]["crc"] = {"type": "string", "pattern": "^[0-9a-f]{16}$", "description": CRC_DOC}
    return described


def _column(column: TableColumn) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": column.name,
        "type": column.type,
        "nullable": column.nullable,
        "description": column.about.doc,
    }
    if column.about.least is not None:
        described["minimum"] = column.about.least
    if column.words:
        described["enum"] = list(column.words)
    if column.about.added:
        described["may_be_missing"] = True
    return described


def _object_schema(table: TableKind[Any]) -> dict[str, Any]:
    return {
        "title": table.kind.capitalize(),
        "type": "object",
        "properties": {column.name: _property(column) for column in table.columns},
        "required": [column.name for column in table.columns if not column.nullable],
        "additionalProperties": False,
    }


def _property(column: TableColumn) -> dict[str, Any]:
    value = _value(column.hint, column.about)
    if column.nullable:
        value = {"anyOf": [value, {"type": "null"}]}
    return {**value, "description": column.about.doc}


def _value(hint: Any, about: About) -> dict[str, Any]:
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"type": "string", "enum": list(inside)}
    if origin is Annotated:
        return _value(*inside)
    if origin is tuple:
        items = [_value(each, About()) for each in inside if each is not Ellipsis]
        if Ellipsis in inside:
            return {"type": "array", "items": items[0]}
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    limit = {} if about.least is None else {"minimum": about.least}
    return {"type": _JSON_TYPES.get(hint, "object"), **limit}


if __name__ == "__main__":
    main()
