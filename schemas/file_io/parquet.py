"""Parquet files of the table-shaped kinds. Equal rows give equal bytes.

Reading checks the size before a file is unpacked, then its columns, then its rows. Neither reading nor
writing imports pandas or ``pyarrow.compute``, which take longer than most commands: arrays are made without
``pa.array``, and functions are called by name.
"""

from __future__ import annotations

import json
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from os import SEEK_END
from pathlib import Path
from types import NoneType
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

from pydantic_core import ValidationError, to_json

from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.file_io.columns import TableKind, rows_from_columns, validate_row
from pliant.schemas.file_io.files import PARQUET_MAGIC
from pliant.schemas.file_io.json_lines import warn_dropped
from pliant.schemas.file_io.limits import (
    ROW_BYTES,
    check_bytes,
    check_text,
    garbage_collection_paused,
    unscaled,
)
from pliant.schemas.file_io.record import a_file, is_newer, schema_id

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from numpy.typing import NDArray


R = TypeVar("R")
D = TypeVar("D")
Metadata = tuple[tuple[str, str], ...]
_NOT_OURS: Final = ("schema", "ARROW:schema", "pandas")
_THREADS_FROM: Final = 1 << 22
"""Larger files are read by several threads. After a smaller one a command may end while threads still start,
which the C++ library answers with an abort."""
_GROUP_ROWS: Final = 1 << 16
"""Rows of a file that are read at a time, or one row group."""
_PACKINGS: Final[tuple[Mapping[str, Any], ...]] = (
    {"compression": "zstd"},
    {"compression": "none"},
    {"compression": "none", "use_dictionary": False},
)
"""Ways to write a file, the smallest first; the last repeats every value."""
_PLAIN: Final = {str, int, bool, NoneType}
"""Equal values of one of these types are written alike."""
_OFTEN: Final = 4
"""From this often on, on average, a value is written once and repeated."""
_LEAST: Final = 1e-4
_MOST: Final = 1e16
"""In this range Python and pydantic write numbers alike, without an exponent."""
_VALUE_BYTES: Final = 32
_CONTAINER_BYTES: Final = 150
"""Memory of a list or an object of JSON, roughly."""
_ELEMENT_BYTES: Final = 60
_PART_BYTES: Final = {"[": _CONTAINER_BYTES, "{": _CONTAINER_BYTES, ",": _ELEMENT_BYTES}
"""By the sign in JSON text that a list, an object or an element has."""
_TEXT_COPIES: Final = 2
"""A string is in memory in the table and in the row."""


def to_columns(rows: Sequence[R], table: TableKind[R], *, json_as_text: bool = False) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for column in table.columns:
        values = list(map(attrgetter(column.name), rows))
        columns[column.name] = (
            [_as_text(v) for v in values] if column.type == "json" and json_as_text else values
        )
    return columns


def check_rows(rows: Sequence[R], table: TableKind[R]) -> None:
    """:raises ValueError: no reader would accept a row: a bug of the program that made it."""
    for number, row in enumerate(rows, 1):
        try:
            validate_row(row, table)
        except ValidationError as error:
            raise ValueError(f"{table.kind} row {number} breaks the schema: {error}") from error
        broken = table.broken(row)
        if broken:
            raise ValueError(f"{table.kind} row {number} breaks the schema: {broken[0][0]}: {broken[0][1]}")


@garbage_collection_paused()
def parquet_bytes(rows: Sequence[R], table: TableKind[R], metadata: Metadata = ()) -> bytes:
    """A file with its schema and ``metadata`` in its own metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_rows(rows, table)
    schema = table.arrow().with_metadata({"schema": schema_id(table.kind), **dict(metadata)})
    columns = to_columns(rows, table, json_as_text=True)
    arrays = [value_array(columns[field.name], field.type) for field in schema]
    arrow = pa.Table.from_arrays(arrays, schema=schema)

    def written(**packing: Any) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(arrow, sink, write_page_checksum=True, **packing)
        return bytes(sink.getvalue().to_pybytes())

    return within_limits(written, check_packed)


def check_packed(data: bytes) -> None:
    """:raises BadInputError: a reader would refuse it."""
    deque(_packed(data, ""), maxlen=0)


def within_limits(written: Callable[..., D], check: Callable[[D], None]) -> D:
    """A Parquet file that :func:`read_arrow` accepts.

    Rows that are much alike pack so small that readers cannot tell them from an attack; these are packed less
    tightly.

    :param written: makes the file, from pyarrow's options for ``compression`` and ``use_dictionary``.
    :param check: raises BadInputError where a reader would.
    """
    for packing in _PACKINGS[:-1]:
        data = written(**packing)
        with suppress(BadInputError), unscaled():
            check(data)
            return data
    return written(**_PACKINGS[-1])


@dataclass(slots=True)
class TextWeight:
    """What the rows of a table will take in memory, as if each had strings of its own."""

    rows: int = 0
    longest: int = 0
    """Bytes of the longest string."""
    text_bytes: int = 0
    parts_bytes: int = 0
    """Bytes of lists, objects and their elements if each string is read as JSON."""

    def add(self, block: pa.RecordBatch) -> None:
        """:param block: its strings may be dictionaries."""
        import pyarrow.types as pt

        self.rows += block.num_rows
        for column in block.columns:
            if pt.is_dictionary(column.type):
                longest, text_bytes = _lengths(column)
                self.parts_bytes += _parts_bytes(column)
            elif pt.is_string(column.type):
                longest, text_bytes, parts_bytes = _weight_of(column)
                self.parts_bytes += parts_bytes
            else:
                continue
            self.longest = max(self.longest, longest)
            self.text_bytes += text_bytes

    def check(self, file_bytes: int, source: str) -> None:
        """:raises BadInputError: a string is too long, or all together are."""
        check_text(self.longest, source)
        needed = self.text_bytes * _TEXT_COPIES + self.rows * ROW_BYTES
        check_bytes(needed, file_bytes, source, f"{self.text_bytes:,} bytes of text")
        check_bytes(self.parts_bytes, file_bytes, source, "nested values in its texts")

    def check_file(self, file: IO[bytes]) -> None:
        """:raises BadInputError: a file of these rows would become too large."""
        import pyarrow.parquet as pq

        size = file.seek(0, SEEK_END)
        check_footer(pq.ParquetFile(file), size, "")
        self.check(size, "")


@garbage_collection_paused()
def parse_parquet(data: bytes, source: str, table: TableKind[R]) -> tuple[tuple[R, ...], Metadata]:
    """The rows and the metadata of a Parquet file.

    :raises BadInputError: with every problem of the file.
    """
    arrow = read_arrow(data, source, table.kind)
    metadata = file_metadata(arrow)
    if "schema" not in metadata:
        text = f"metadata is missing, expected {schema_id(table.kind)!r}"
        raise BadInputError.one(source, text, pointer="/schema")
    if is_newer(metadata["schema"], table.kind, source):
        unknown = [name for name in arrow.column_names if name not in table.names]
        arrow = arrow.drop_columns(unknown)
        warn_dropped(source, [f"/{name}" for name in unknown])
    columns = cast_columns(arrow, source, table)
    rows = rows_from_columns(columns, table, source, json_as_text=True)
    return rows, tuple((name, text) for name, text in metadata.items() if name not in _NOT_OURS)


def read_arrow(data: bytes, source: str, kind: str) -> pa.Table:
    """:raises BadInputError: the file is damaged, or would become too large."""
    (table,) = _tables(data, source, kind)
    return table


def row_groups(data: bytes | Path, source: str, kind: str) -> Iterator[pa.Table]:
    """As :func:`read_arrow`, but a row group is in memory at a time, and read when its turn comes.

    :param data: the file's bytes, or where it is.
    :raises BadInputError: as there, at the row group of which it is true.
    """
    return _tables(data, source, kind, by_group=True)


def _opened(data: bytes | memoryview | Path) -> pa.NativeFile:
    import pyarrow as pa

    return pa.OSFile(str(data)) if isinstance(data, Path) else pa.BufferReader(data)


def _tables(data: bytes | Path, source: str, kind: str, *, by_group: bool = False) -> Iterator[pa.Table]:
    import pyarrow as pa

    with _opened(data) as file:
        size, start = file.size(), file.read(len(PARQUET_MAGIC))
        file.seek(max(0, size - len(PARQUET_MAGIC)))
        end = file.read()
    if start != PARQUET_MAGIC:
        raise BadInputError.one(source, f"is not a Parquet file, expected {a_file(kind)} (Parquet)")
    if end != PARQUET_MAGIC or size < 12:
        raise BadInputError.one(source, "the Parquet file is truncated (no footer), expected a whole file")
    try:
        for packed in _packed(data, source, by_group=by_group):
            arrow = _with_plain_strings(packed)
            arrow.validate(full=True)
            _check_names(arrow, source)
            yield arrow
    except (BadInputError, MemoryError):  # pyarrow's own MemoryError is an ArrowException, too
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise BadInputError.one(source, f"the Parquet file is damaged: {reason}") from error


def _check_names(arrow: pa.Table, source: str) -> None:
    twice = {name for name in arrow.column_names if arrow.column_names.count(name) > 1}
    if twice:
        raise BadInputError(
            [Problem(source, None, f"/{name}", "column is there twice") for name in sorted(twice)]
        )


def _with_plain_strings(packed: pa.Table) -> pa.Table:
    import pyarrow as pa
    import pyarrow.types as pt

    plain = [
        field.with_type(field.type.value_type) if pt.is_dictionary(field.type) else field
        for field in packed.schema
    ]
    columns = [
        column if column.type == field.type else cast(column, field.type)
        for column, field in zip(packed.columns, plain, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(plain, packed.schema.metadata))


def _packed(data: bytes | memoryview | Path, source: str, *, by_group: bool = False) -> Iterator[pa.Table]:
    """The table, or each of its row groups, with its strings as dictionaries, once it is known that they
    fit.
    """
    import pyarrow.parquet as pq
    import pyarrow.types as pt

    opened = _opened(data)
    size = opened.size()
    footer = pq.ParquetFile(opened)
    check_footer(footer, size, source)
    fields = list(footer.schema_arrow)
    nested = [
        Problem(source, None, f"/{field.name}", f"column is {field.type}, expected one value a row")
        for field in fields
        if field.type.num_fields
    ]
    if nested:
        raise BadInputError(nested)
    is_text = (pt.is_string, pt.is_large_string, pt.is_binary, pt.is_large_binary)
    texts = [field.name for field in fields if any(check(field.type) for check in is_text)]
    file = pq.ParquetFile(opened, read_dictionary=texts, page_checksum_verification=True)
    threads, weight = size >= _THREADS_FROM, TextWeight()
    groups = _groups(footer) if by_group else [None]
    for group in groups:
        packed = (
            file.read(use_threads=threads)
            if group is None
            else file.read_row_groups(group, use_threads=threads)
        )
        for block in packed.to_batches():
            weight.add(block)
        weight.check(size, source)
        yield packed


def _groups(file: pq.ParquetFile) -> Iterator[list[int]]:
    """Row groups that are read together: small ones with their neighbours."""
    groups: list[int] = []
    rows = 0
    for group in range(file.num_row_groups):
        groups.append(group)
        rows += file.metadata.row_group(group).num_rows
        if rows >= _GROUP_ROWS or group == file.num_row_groups - 1:
            yield groups
            groups, rows = [], 0


def check_footer(file: pq.ParquetFile, file_bytes: int, source: str) -> None:
    """Check the rows, values and uncompressed bytes that a footer states.

    :raises BadInputError: the file would become too large.
    """
    footer = file.metadata
    chunks = [
        footer.row_group(group).column(column)
        for group in range(footer.num_row_groups)
        for column in range(footer.num_columns)
    ]
    widths = [max(_VALUE_BYTES, file.schema.column(column).length) for column in range(footer.num_columns)]
    values_bytes = sum(chunk.num_values * widths[number % len(widths)] for number, chunk in enumerate(chunks))
    rows = f"{footer.num_rows:,} rows"
    check_bytes(footer.num_rows * ROW_BYTES, file_bytes, source, rows)
    check_bytes(values_bytes, file_bytes, source, f"{sum(chunk.num_values for chunk in chunks):,} values")
    unpacked_bytes = sum(chunk.total_uncompressed_size for chunk in chunks)
    check_bytes(unpacked_bytes, file_bytes, source, f"{unpacked_bytes:,} bytes")


def _weight_of(texts: pa.Array) -> tuple[int, int, int]:
    """Bytes of the longest string, of all strings, and of their parts, as :class:`TextWeight` has them.

    To count signs in all texts at once takes a twentieth of the time of counting them in each.
    """
    import numpy as np

    _, ends, data = texts.buffers()
    if not len(texts) or not data:
        return 0, 0, 0
    bounds = np.frombuffer(ends, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    signs = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    parts = sum(weight * np.count_nonzero(signs == ord(sign)) for sign, weight in _PART_BYTES.items())
    return int(np.diff(bounds).max()), len(signs), int(parts)


def _lengths(chunk: Any) -> tuple[int, int]:
    """Bytes of the longest string of a chunk, and of all with repetitions."""
    each = compute("binary_length", chunk.dictionary)
    return compute("max", each).as_py() or 0, _sum_of(each, chunk)


def _parts_bytes(chunk: Any) -> int:
    """Memory of lists, objects and their elements if each string is read as JSON.

    Most entries of a long dictionary are those of one row, so that all of them together count as
    :func:`_weight_of` has it; only the others are counted one by one.
    """
    import numpy as np
    import pyarrow.types as pt

    texts = chunk.dictionary
    if not pt.is_string(chunk.type.value_type) or not len(texts):
        return 0
    rows = numbers_of(chunk.indices, np.dtype(np.int32), -1)
    more = np.bincount(rows[rows >= 0], minlength=len(texts)) - 1
    places = np.flatnonzero(more)
    others = compute("take", texts, number_array(array("q", places.tolist())))
    total = _weight_of(texts)[2]
    for sign, weight in _PART_BYTES.items() if len(places) else ():
        counts = numbers_of(count_substring(others, sign), np.dtype(np.int32), 0)
        total += weight * int(counts @ more[places])
    return total


def _sum_of(numbers: Any, chunk: Any) -> int:
    """The sum over a chunk; ``numbers`` has one for each entry of its dictionary."""
    return int(compute("sum", compute("take", numbers, chunk.indices)).as_py() or 0)


def file_metadata(arrow: pa.Table) -> dict[str, str]:
    metadata = arrow.schema.metadata or {}
    return {name.decode(errors="replace"): text.decode(errors="replace") for name, text in metadata.items()}


def schema_in_footer(path: Path) -> str | None:
    """Returns None if the footer states no schema, or is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        stated: bytes | None = (pq.read_schema(path).metadata or {}).get(b"schema")
    except (pa.ArrowException, OSError, ValueError):
        return None
    return None if stated is None else stated.decode(errors="replace")


def cast_columns(arrow: pa.Table, source: str, table: TableKind[Any]) -> dict[str, list[Any]]:
    """Lists of Python values, from any Arrow type that holds the same values."""
    columns: dict[str, list[Any]] = {}
    problems: list[Problem] = []
    known = {column.name: column for column in table.columns}
    for name in arrow.column_names:
        values = arrow.column(name)
        if name in known and not holds(values.type, known[name].type, nullable=known[name].nullable):
            expected = known[name].type
            problems.append(
                Problem(source, None, f"/{name}", f"column is {values.type}, expected {expected}")
            )
        else:
            columns[name] = values.to_pylist()
    if problems:
        raise BadInputError(problems)
    return columns


def holds(stored: pa.DataType, expected: str, *, nullable: bool) -> bool:
    """Whether a column of a type can hold values of the expected one."""
    import pyarrow.types as pt

    if pt.is_dictionary(stored):
        stored = stored.value_type
    match expected:
        case "int64":
            fits = pt.is_integer(stored)
        case "float64":
            fits = pt.is_floating(stored) or pt.is_integer(stored)
        case "bool":
            fits = pt.is_boolean(stored)
        case _:
            fits = pt.is_string(stored) or pt.is_large_string(stored) or pt.is_string_view(stored)
    return bool(fits or (pt.is_null(stored) and nullable))


def _as_text(value: object) -> str | None:
    if value is None:
        return None
    plain = dict(value) if isinstance(value, Mapping) else value
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def columns_hash(columns: Mapping[str, Sequence[Any]]) -> str:
    """SHA-256, in hexadecimal, of ``json.dumps(columns, sort_keys=True)``, which recorded hashes are of."""
    import hashlib

    digest = hashlib.sha256(b"{")
    for number, name in enumerate(sorted(columns)):
        digest.update(f"{', ' if number else ''}{json.dumps(name)}: ".encode())
        digest.update(_json(columns[name]))
    digest.update(b"}")
    return digest.hexdigest()


def _json(values: Sequence[Any]) -> bytes:
    """As ``json.dumps``; fast for floats, and for values that are there many times."""
    kinds = set(map(type, values))
    if len(kinds) == 1 and kinds <= _PLAIN and values.count(values[0]) == len(values):
        return f"[{f', {json.dumps(values[0])}' * len(values)}]".replace("[, ", "[", 1).encode()
    if kinds == {float} and min(values) >= _LEAST and max(values) < _MOST:
        return to_json(values).replace(b",", b", ")
    if len(kinds - {NoneType}) <= 1 and kinds <= _PLAIN:
        distinct = set(values)
        if len(distinct) * _OFTEN <= len(values):
            texts = {value: json.dumps(value) for value in distinct}
            return f"[{', '.join(map(texts.__getitem__, values))}]".encode()
    return json.dumps(values, sort_keys=True).encode()


def text_array(texts: Iterable[str | None]) -> pa.Array:
    """The texts, null where there is none."""
    import pyarrow as pa

    builder = pa.lib.StringBuilder()
    builder.append_values(texts)
    return builder.finish()


def number_array(values: array[Any]) -> pa.Array:
    import pyarrow as pa

    types = {"b": pa.int8(), "i": pa.int32(), "q": pa.int64(), "d": pa.float64()}
    return pa.Array.from_buffers(types[values.typecode], len(values), [None, pa.py_buffer(values)])


def numbers_of(values: pa.Array, kind: np.dtype[Any], otherwise: float) -> NDArray[Any]:
    """The numbers of an array without a copy, unless nulls have to become ``otherwise``.

    :param kind: that of the numbers in memory. Arrow's own way imports pandas.
    """
    import numpy as np

    valid, data = values.buffers()
    place = slice(values.offset, values.offset + len(values))
    numbers: NDArray[Any] = np.frombuffer(data or b"", kind)[place]
    if values.null_count:
        there = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[place]
        numbers = np.where(there, numbers, np.asarray(otherwise, kind))
    return numbers


def value_array(values: Sequence[Any], arrow_type: pa.DataType) -> pa.Array:
    """Texts, numbers or truth values; None becomes null."""
    import pyarrow as pa

    if arrow_type == pa.string():
        return text_array(values)
    code = {pa.int64(): "q", pa.float64(): "d", pa.bool_(): "b"}[arrow_type]
    numbers = cast(number_array(array(code, [value or 0 for value in values])), arrow_type)
    there = cast(number_array(array("b", [value is not None for value in values])), pa.bool_())
    return compute("if_else", there, numbers, pa.nulls(len(values), arrow_type))


def compute(name: str, *values: Any, options: Any = None) -> Any:
    """The result of Arrow's function of that name: an array, a chunked array or a scalar.

    ``pyarrow.compute`` would make a Python function of each of some 300, which takes about as long as all
    decisions of a short replay. Methods such as ``take``, ``filter`` and ``cast`` import it, too.
    """
    return kernels().call_function(name, list(values), options)


def cast(values: Any, arrow_type: pa.DataType) -> Any:
    """The same values of another type; a value that it cannot hold is an error."""
    return compute("cast", values, options=kernels().CastOptions(arrow_type))


def count_substring(texts: Any, part: str) -> Any:
    """How often each text has that part."""
    return compute("count_substring", texts, options=kernels().MatchSubstringOptions(part))


def match_pattern(texts: Any, pattern: str) -> Any:
    """Whether each text has a part that the regular expression matches."""
    return compute("match_substring_regex", texts, options=kernels().MatchSubstringOptions(pattern))


def join_texts(columns: Sequence[pa.Array], between: str) -> pa.Array:
    """The texts of each row, one after the other, without nulls."""
    options = kernels().JoinOptions(null_handling="skip")
    rows = len(columns[0])
    return compute("binary_join_element_wise", *columns, text_array([between] * rows), options=options)


def among(name: str, values: Any, words: Iterable[str]) -> Any:
    """``is_in`` or ``index_in`` of values in words. Comparing with a Python string would import pandas."""
    return compute(name, values, options=kernels().SetLookupOptions(text_array(words)))


def kernels() -> Any:
    """Where pyarrow has the functions; its public module where a later version keeps them elsewhere."""
    try:
        from pyarrow import _compute as kernels
    except ImportError:
        import pyarrow.compute as kernels
    return kernels
