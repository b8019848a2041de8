"""What reading may cost: bytes of an input, memory that it may become, and garbage collection meanwhile.

A small file can hold a value a million times. :data:`FACTOR` in the environment raises all bounds.
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from pliant.schemas.errors import BadInputError, UsageError

FACTOR: Final = "PLIANT_INPUT_LIMITS"
"""Environment variable that multiplies all limits. Default: 1."""
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
_scales: ContextVar[bool] = ContextVar("_scales", default=True)
ROW_BYTES: Final = 500
"""Memory of a row without its strings."""


@contextmanager
def unscaled() -> Iterator[None]:
    """Without the factor of the environment: files that are written must be readable elsewhere."""
    token = _scales.set(False)
    try:
        yield
    finally:
        _scales.reset(token)


def factor() -> float:
    """:raises UsageError: the environment does not state a number above 0."""
    if not _scales.get():
        return 1.0
    stated = os.environ.get(FACTOR, "1")
    try:
        value = float(stated)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UsageError(f"{FACTOR} is {stated!r}, expected a number above 0")
    return value


def allowed_bytes(file_bytes: int) -> float:
    return max(FREE_BYTES, EXPANSION * file_bytes) * factor()


def longest_text() -> int:
    """Of a string, line or object: bytes or characters."""
    return int(LONGEST_TEXT * factor())


def check_size(size: int, most: int, source: str) -> None:
    """:param size: bytes of the input, or those read so far.
    :param most: the limit, before the environment multiplies it.
    :raises BadInputError: the input is larger.
    """
    if size > most * factor():
        raise BadInputError.one(source, f"has more than {int(most * factor()):,} bytes; {_advice()}")


def check_bytes(needed: float, file_bytes: int, source: str, what: str) -> None:
    """:param needed: bytes in memory.
    :param what: what takes them, for the message.
    :raises BadInputError: it is more than the file may become.
    """
    if needed > allowed_bytes(file_bytes):
        raise BadInputError.one(
            source, f"expands too far: {what} in a file of {file_bytes:,} bytes; {_advice()}"
        )


def check_text(length: int, source: str, *, line: int | None = None) -> None:
    """:raises BadInputError: a string, line or object is too long."""
    if length > longest_text():
        raise BadInputError.one(
            source, f"holds a text of more than {longest_text():,} characters; {_advice()}", line=line
        )


def _advice() -> str:
    return f"{FACTOR}={math.ceil(10 * factor())} in the environment makes all such limits ten times as large"


_OBJECTS_BETWEEN_SCANS: Final = 500_000
"""New objects between two garbage collections: of a replay, most are gone again by then, without a scan."""


@contextmanager
def garbage_collection_paused(*, to_the_end: bool = False) -> Iterator[None]:
    """No garbage collection while records are made: they hold no cycles, and it triples the time.

    :param to_the_end: the process ends soon, so that nothing made so far is ever scanned.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if to_the_end:
            gc.freeze()
        if was_on:
            gc.enable()


@contextmanager
def spared_by_garbage_collection() -> Iterator[None]:
    """Garbage collection scans new objects only, and less often."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_SCANS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
