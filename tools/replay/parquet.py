"""An event log as Parquet, block by block, so that only one block of text is in memory at a time."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pliant.schemas.event import EVENT, EVENT_NAMES
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
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True) as writer:
        for start in range(0, len(log), _BLOCK):
            writer.write_batch(_block(log, start, schema), row_group_size=_BLOCK)
    return bytes(sink.getvalue().to_pybytes())


def _block(log: EventLog, start: int, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    rows = slice(start, min(start + _BLOCK, len(log)))
    details = [log.detail(row) for row in range(rows.start, rows.stop)]
    columns = {
        "time": _floats(log.time[rows]),
        "job": _words(log.job[rows], log.jobs),
        "event": _words(log.event[rows], EVENT_NAMES),
        "gpus": _integers(log.gpus[rows]),
        "placement": _words(log.placement[rows], log.places),
        "global_batch": _integers(log.global_batch[rows]),
        "samples_done": _floats(log.samples_done[rows]),
        "overhead_seconds": _floats(log.overhead_seconds[rows]),
        "detail": _texts(details),
    }
    found = [columns.get(field.name, pa.nulls(len(details), field.type)) for field in schema]
    return pa.record_batch(found, schema=schema)


# Arrays are made from buffers: pa.array imports pandas, which takes longer than most replays.


def _floats(values: array[float]) -> pa.Array:
    """NaN is null."""
    import numpy as np
    import pyarrow as pa

    found = np.frombuffer(values, np.float64)
    return pa.Array.from_buffers(pa.float64(), len(found), [_valid(~np.isnan(found)), pa.py_buffer(found)])


def _integers(values: array[int]) -> pa.Array:
    """A negative number is null."""
    import numpy as np
    import pyarrow as pa

    found = np.frombuffer(values, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(found), [_valid(found >= 0), pa.py_buffer(found)])


def _words(codes: array[int], known: Sequence[str]) -> pa.Array:
    """Text from codes; a negative code is null."""
    import numpy as np

    found = np.array(codes, np.int64)
    used, places = np.unique(found, return_inverse=True)
    encoded = [b"" if code < 0 else known[code].encode() for code in used]
    lengths = np.array([len(text) for text in encoded], np.int64)[places]
    return _strings(b"".join([encoded[place] for place in places.tolist()]), lengths, found >= 0)


def _texts(texts: Sequence[str | None]) -> pa.Array:
    import numpy as np

    encoded = [b"" if text is None else text.encode() for text in texts]
    there = np.array([text is not None for text in texts], bool)
    return _strings(b"".join(encoded), np.array([len(text) for text in encoded], np.int64), there)


def _strings(data: bytes, lengths: Any, there: Any) -> pa.Array:
    """Texts of the given lengths, one after the other in ``data``."""
    import numpy as np
    import pyarrow as pa

    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return pa.Array.from_buffers(
        pa.string(), len(lengths), [_valid(there), pa.py_buffer(ends), pa.py_buffer(data)]
    )


def _valid(there: Any) -> pa.Buffer | None:
    """The bitmap of what is not null; None: everything."""
    import numpy as np
    import pyarrow as pa

    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
