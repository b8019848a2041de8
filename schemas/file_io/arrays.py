"""Arrow arrays made without ``pa.array``: it imports pandas, which takes longer than most commands."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pliant.schemas.file_io.kernels import cast, compute

if TYPE_CHECKING:
    import pyarrow as pa


def text_array(texts: Iterable[str | None]) -> pa.Array:
    """The texts, null where there is none."""
    import pyarrow as pa

    builder = pa.lib.StringBuilder()
    builder.append_values(texts)
    return builder.finish()


def number_array(values: array[Any]) -> pa.Array:
    """The numbers as they lie in memory."""
    import pyarrow as pa

    types = {"b": pa.int8(), "q": pa.int64(), "d": pa.float64()}
    return pa.Array.from_buffers(types[values.typecode], len(values), [None, pa.py_buffer(values)])


def value_array(values: Sequence[Any], arrow_type: pa.DataType) -> pa.Array:
    """Texts, numbers or truth values as an array of that type, None as null."""
    import pyarrow as pa

    if arrow_type == pa.string():
        return text_array(values)
    code = {pa.int64(): "q", pa.float64(): "d", pa.bool_(): "b"}[arrow_type]
    found = cast(number_array(array(code, [value or 0 for value in values])), arrow_type)
    there = cast(number_array(array("b", [value is not None for value in values])), pa.bool_())
    return compute("if_else", there, found, pa.nulls(len(values), arrow_type))
