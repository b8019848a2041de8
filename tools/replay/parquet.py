"""An event log as Parquet, block by block, so that only one block of text is in memory at a time."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

from pliant.schemas.event import EVENT, EVENT_NAMES
from pliant.schemas.formats.arrays import number_array, text_array
from pliant.schemas.formats.version import schema_id
from pliant.tools.replay.engine.log import EventLog

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK: Final = 1 << 16
"""Events in one block (row group)."""


def parquet_bytes(log: EventLog) -> bytes:
    """The file of all events. Equal events give equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = EVENT.arrow().with_metadata({"schema": schema_id(EVENT.kind)})
    words = {"job": log.jobs, "event": EVENT_NAMES, "placement": log.places}
    known = {name: text_array(texts) for name, texts in words.items()}
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True) as writer:
        for start in range(0, len(log), _BLOCK):
            rows = range(start, min(start + _BLOCK, len(log)))
            columns = [_column(log, field, rows, known) for field in schema]
            writer.write_batch(pa.record_batch(columns, schema=schema), row_group_size=_BLOCK)
    return bytes(sink.getvalue().to_pybytes())


def _column(log: EventLog, field: pa.Field, rows: range, known: dict[str, pa.Array]) -> pa.Array:
    """The rows of a column: as text from codes, as numbers, or null where a log has no such column."""
    import pyarrow as pa

    if field.name == "detail":
        return text_array([log.detail(row) for row in rows])
    values = getattr(log, field.name, None)
    if values is None:
        return pa.nulls(len(rows), field.type)
    numbers = _numbers(values[rows.start : rows.stop])
    return known[field.name].take(numbers) if field.name in known else numbers


def _numbers(values: array[Any]) -> pa.Array:
    """What is not its own absolute value is null: NaN and negative numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = number_array(values)
    return pc.if_else(pc.not_equal(pc.abs(found), found), pa.nulls(len(found), found.type), found)
