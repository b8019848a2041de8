"""Gzipped input as a stream of its own bytes, which may not be far more than were read."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Final

from pliant.schemas.formats.limits import check_bytes

GZIP: Final = b"\x1f\x8b"
"""Bytes that a gzipped file begins with."""


@contextmanager
def unpacked(packed: BinaryIO, source: str) -> Iterator[BinaryIO]:
    """The bytes that were gzipped; ``packed`` stays open.

    Reading raises :class:`~pliant.schemas.errors.BadInputError` where they are too many for what was read
    so far (:mod:`pliant.schemas.formats.limits`), and what gzip raises where the stream is damaged.
    """
    raw: Any = _Unpacked(packed, source)
    with io.BufferedReader(raw) as plain:
        yield plain


class _Counted:
    """A stream that counts what was read from it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.bytes = 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.bytes += len(data)
        return data


class _Unpacked(io.RawIOBase):
    def __init__(self, packed: BinaryIO, source: str) -> None:
        self._packed = _Counted(packed)
        self._plain = gzip.GzipFile(fileobj=self._packed)  # type: ignore[call-overload]
        self._source = source
        self._bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        size: int = self._plain.readinto(buffer)
        self._bytes += size
        check_bytes(self._bytes, self._packed.bytes, self._source, f"{self._bytes:,} bytes so far")
        return size
