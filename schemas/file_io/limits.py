"""How much memory an input may take, by the size of its file: a small one can hold a value a million times.

:data:`FACTOR` in the environment raises all bounds.

Arrow's compute functions by name, without ``pyarrow.compute``.

Importing that module makes a Python function, with its docstring taken apart, of each of some 300. That takes
about as long as all decisions of a short replay. Methods such as ``take``, ``filter`` and ``cast`` import it,
too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from pliant.schemas.errors import BadInputError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


FACTOR: Final = "PLIANT_INPUT_LIMITS"
"""Environment variable: by how much all limits are multiplied. Default: 1."""
EXPANSION: Final = 100
"""Bytes in memory that each byte of a file may become."""
FREE_BYTES: Final = 1 << 26
"""Bytes in memory that every file may become, however small it is."""
DOCUMENT_BYTES: Final = 1 << 28
"""Bytes of one JSON or TOML document."""
ROWS_BYTES: Final = 1 << 32
"""Bytes of a file of rows: JSON Lines, Parquet, CSV."""
STREAM_BYTES: Final = 1 << 30
"""Bytes of what does not say its size: a pipe, a device."""
LONGEST_TEXT: Final = 1 << 24
"""Bytes of one string in a table, characters of one line or object in a text."""
ROW_BYTES: Final = 500
"""What a row takes in memory, beside its strings."""
_VALUE_BYTES: Final = 32
_CONTAINER_BYTES: Final = 150
"""What a list or an object of JSON takes in memory, more or less."""
_ELEMENT_BYTES: Final = 60
_TEXT_COPIES: Final = 2
"""A string is in memory in the table, and in the row or in what its JSON says."""
_scales: ContextVar[bool] = ContextVar("_scales", default=True)
"""Whether the environment counts."""


@contextmanager
def unscaled() -> Iterator[None]:
    """The limits of an environment that does not raise them: what is written must be read there, too."""
    token = _scales.set(False)
    try:
        yield
    finally:
        _scales.reset(token)


def factor() -> float:
    """By how much the environment multiplies all limits.

    :raises UsageError: it is not a number above 0.
    """
    if not _scales.get():
        return 1.0
    stated = os.environ.get(FACTOR, "1")
    try:
        found = float(stated)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise UsageError(f"{FACTOR} is {stated!r}, expected a number above 0")
    return found


def allowed_bytes(file_bytes: int) -> float:
    """What a file of that size may become in memory."""
    return max(FREE_BYTES, EXPANSION * file_bytes) * factor()


def longest_text() -> int:
    """The longest string, line or object of an input: bytes or characters."""
    return int(LONGEST_TEXT * factor())


def check_size(size: int, most: int, source: str) -> None:
    """Refuse an input that is larger than what is read of its kind.

    :param size: its bytes, or those that came in so far.
    :param most: the limit, before the environment multiplies it.
    :raises BadInputError: it is.
    """
    if size > most * factor():
        raise BadInputError.one(source, f"has more than {int(most * factor()):,} bytes; {_advice()}")


def check_bytes(needed: float, file_bytes: int, source: str, what: str) -> None:
    """Refuse what becomes too large.

    :param needed: bytes in memory.
    :param what: what would take them, as the message says it.
    :raises BadInputError: it is more than the file may become.
    """
    if needed > allowed_bytes(file_bytes):
        raise BadInputError.one(
            source, f"expands too far: {what} in a file of {file_bytes:,} bytes; {_advice()}"
        )


def check_text(length: int, source: str, *, line: int | None = None) -> None:
    """Refuse a string, line or object that is too long.

    :raises BadInputError: it is.
    """
    if length > longest_text():
        raise BadInputError.one(
            source, f"holds a text of more than {longest_text():,} characters; {_advice()}", line=line
        )


def check_footer(file: pq.ParquetFile, file_bytes: int, source: str) -> None:
    """Refuse a Parquet file by what its footer says of rows, values and bytes before it was compressed.

    :raises BadInputError: it would become too large.
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


def check_strings(table: pa.Table, file_bytes: int, source: str) -> None:
    """Refuse a table whose strings would become too large once each row has its own.

    :param table: its strings are dictionaries, as Parquet files keep them.
    :raises BadInputError: a string is too long, or all together are.
    """
    lengths = [_lengths(chunk) for column in table.columns for chunk in column.chunks]
    check_text(max((longest for longest, _ in lengths), default=0), source)
    total = sum(total for _, total in lengths)
    needed = total * _TEXT_COPIES + table.num_rows * ROW_BYTES
    check_bytes(needed, file_bytes, source, f"{total:,} bytes of text")
    parts_bytes = sum(_parts_bytes(chunk) for column in table.columns for chunk in column.chunks)
    check_bytes(parts_bytes, file_bytes, source, "nested values in its texts")


def _lengths(chunk: Any) -> tuple[int, int]:
    """Bytes of the longest string of a column's chunk, and of all of them, repetitions counted."""
    import pyarrow.types as pt

    if not pt.is_dictionary(chunk.type):
        return 0, 0
    each = compute("binary_length", chunk.dictionary)
    return compute("max", each).as_py() or 0, _sum_of(each, chunk)


def _parts_bytes(chunk: Any) -> int:
    """What lists, objects and their elements take, were each string of a column's chunk read as JSON."""
    import pyarrow.types as pt

    if not pt.is_dictionary(chunk.type) or not (pt.is_string(chunk.type.value_type)):
        return 0
    weights = {"[": _CONTAINER_BYTES, "{": _CONTAINER_BYTES, ",": _ELEMENT_BYTES}
    return sum(
        weight * _sum_of(count_substring(chunk.dictionary, sign), chunk) for sign, weight in weights.items()
    )


def _sum_of(numbers: Any, chunk: Any) -> int:
    """The sum over a chunk of what there is for each entry of its dictionary."""
    return int(compute("sum", compute("take", numbers, chunk.indices)).as_py() or 0)


def _advice() -> str:
    return f"{FACTOR}={math.ceil(10 * factor())} in the environment makes all such limits ten times as large"


def compute(name: str, *values: Any, options: Any = None) -> Any:
    """The result of the function of that name: an array, a chunked array or a scalar."""
    return _kernels().call_function(name, list(values), options)


def cast(values: Any, arrow_type: pa.DataType) -> Any:
    """The same values of another type; a value that it cannot hold is an error."""
    return compute("cast", values, options=_kernels().CastOptions(arrow_type))


def count_substring(texts: Any, part: str) -> Any:
    """How often each text has that part."""
    return compute("count_substring", texts, options=_kernels().MatchSubstringOptions(part))


def _kernels() -> Any:
    """Where pyarrow has the functions; its public module where a later version keeps them elsewhere."""
    try:
        from pyarrow import _compute as kernels
    except ImportError:
        import pyarrow.compute as kernels
    return kernels
