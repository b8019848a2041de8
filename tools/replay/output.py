"""Where replays go: one event file and one summary for each.

Parquet is written block by block, so that only one block of text is in memory at a time.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pliant.schemas.errors import UsageError
from pliant.schemas.event import EVENT
from pliant.schemas.file_io.arrays import number_array, text_array
from pliant.schemas.file_io.files import make_folder, write_bytes
from pliant.schemas.file_io.kernels import compute
from pliant.schemas.file_io.outputs import check_output
from pliant.schemas.file_io.pipes import PIPE
from pliant.schemas.file_io.tables import within_limits
from pliant.schemas.file_io.version import schema_id
from pliant.tools.replay.engine.log import EventLog
from pliant.tools.replay.summary import Summary

_PARQUET: Final = ".parquet"
_FILES: Final = (_PARQUET, ".jsonl")
_BLOCK: Final = 1 << 16
"""Events in one block (row group)."""

if TYPE_CHECKING:
    import pyarrow as pa


def output_paths(output: str, policies: Sequence[str]) -> list[str]:
    """The event file of each policy: ``output`` itself if it is a pipe or a file, else one in that folder.

    :raises UsageError: several policies and one file, a policy named twice, or neither
        a file of events nor a folder.
    """
    twice = sorted({name for name in policies if policies.count(name) > 1})
    if twice:
        raise UsageError(f'policy "{twice[0]}" is named twice: replay it twice, into different folders')
    if output == PIPE or output.endswith(_FILES):
        if len(policies) > 1:
            what = "stdout" if output == PIPE else output
            raise UsageError(f"{len(policies)} policies do not fit into {what}: name a folder with -o")
        return [output]
    _refuse_no_folder(output)
    return [str(Path(output) / f"{name}{_PARQUET}") for name in policies]


def _refuse_no_folder(output: str) -> None:
    """Refuse what is there and no folder, and what looks like a file of a form that is not written."""
    folder = Path(output)
    if folder.exists():
        if not folder.is_dir():
            raise UsageError(f"-o {output}: is not a folder, expected one, NAME.parquet, NAME.jsonl or -")
    elif folder.suffix[1:].isalpha() and not output.endswith("/"):
        raise UsageError(
            f"-o {output}: events go into .parquet or .jsonl; a folder of that name is written {output}/"
        )


def check_paths(paths: Iterable[str]) -> None:
    """Refuse event files that could not be written, before the replays; nothing is made.

    :raises PliantError: as :func:`~pliant.schemas.file_io.outputs.check_output` does.
    """
    for path in paths:
        check_output(path, makes_folder=True)
        if path != PIPE:
            check_output(summary_path(path), makes_folder=True)


def write(log: EventLog, summary: Summary, path: str) -> None:
    """Write the event file, Parquet by its name, else JSON Lines, and unless to stdout a summary beside it.

    :raises UsageError: the place cannot be written.
    """
    if path == PIPE:
        write_bytes(path, log.json_lines())
        return
    make_folder(Path(path).parent)
    write_bytes(path, parquet_bytes(log) if path.endswith(_PARQUET) else log.json_lines())
    write_bytes(summary_path(path), summary_bytes(summary))


def summary_path(path: str) -> str:
    """``NAME.summary.json`` beside an event file ``NAME.parquet``."""
    return str(Path(path).with_suffix(".summary.json"))


def read_summary(path: str) -> dict[str, Any]:
    """The fields of a summary; none where it was removed or is damaged, for the event file is what counts."""
    try:
        found = json.loads(Path(path).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def summary_bytes(summary: Summary) -> bytes:
    """The summary as JSON, one field a line; what is null is left out."""
    fields = {name: value for name, value in asdict(summary).items() if value is not None}
    return (json.dumps(fields, ensure_ascii=False, indent=2) + "\n").encode()


def parquet_bytes(log: EventLog) -> bytes:
    """The file of all events. Equal events give equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = EVENT.arrow().with_metadata({"schema": schema_id(EVENT.kind)})
    known = {name: text_array(texts) for name, texts in log.texts.items()}

    def written(**packing: Any) -> bytes:
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, schema, write_page_checksum=True, **packing) as writer:
            for start in range(0, len(log), _BLOCK):
                rows = range(start, min(start + _BLOCK, len(log)))
                columns = [_column(log, field, rows, known) for field in schema]
                writer.write_batch(pa.record_batch(columns, schema=schema), row_group_size=_BLOCK)
        return bytes(sink.getvalue().to_pybytes())

    return within_limits(written)


def _column(log: EventLog, field: pa.Field, rows: range, known: dict[str, pa.Array]) -> pa.Array:
    """The rows of a column: as text from codes, as numbers, or null where a log has no such column."""
    import pyarrow as pa

    if field.name == "detail":
        return text_array([log.detail(row) for row in rows])
    values = getattr(log, field.name, None)
    if values is None:
        return pa.nulls(len(rows), field.type)
    numbers = _numbers(values[rows.start : rows.stop])
    return compute("take", known[field.name], numbers) if field.name in known else numbers


def _numbers(values: array[Any]) -> pa.Array:
    """What is not its own absolute value is null: NaN and negative numbers."""
    import pyarrow as pa

    found = number_array(values)
    is_null = compute("not_equal", compute("abs", found), found)
    return compute("if_else", is_null, pa.nulls(len(found), found.type), found)
