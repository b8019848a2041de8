"""Text from a file or stdin, gzipped or not, whose lines and total size have a limit."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, TextIO, cast

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.files import read_failure, source_name
from pliant.schemas.file_io.limits import check_bytes, check_text, longest_text
from pliant.schemas.file_io.pipes import PIPE, NoWriterError, open_file, open_stdin

GZIP: Final = b"\x1f\x8b"
"""Bytes that a gzipped file begins with."""
_BEGINNING: Final = 1000
"""Characters of a first line that tell formats apart."""


@contextmanager
def open_text(path: str | Path) -> Iterator[TextIO]:
    """A text file, or stdin for ``-``; gzipped or not, with a byte order mark or without.

    :raises BadInputError: it is missing, unreadable, a folder, cut short, or no UTF-8 text.
    """
    source = source_name(path)
    try:
        if str(path) == PIPE:
            with _text(cast(io.BufferedReader, open_stdin()), source) as stream:
                yield stream
        else:
            with open_file(path) as binary, _text(cast(io.BufferedReader, binary), source) as stream:
                yield stream
    except FileNotFoundError:
        raise BadInputError.one(source, "no such file") from None
    except IsADirectoryError:
        raise BadInputError.one(source, "is a folder, expected a file") from None
    except (PermissionError, NoWriterError) as error:
        raise read_failure(error, source) from None
    except UnicodeDecodeError as error:
        raise BadInputError.one(source, f"is not UTF-8 text: {error.reason}") from None
    except (gzip.BadGzipFile, zlib.error, EOFError):
        raise BadInputError.one(source, "is gzipped, and cut short or damaged") from None


def first_line(path: str) -> str:
    """The beginning of a file's first line; empty for stdin, which can be read only once."""
    if path == PIPE:
        return ""
    with open_text(path) as stream:
        return stream.readline(_BEGINNING)


@contextmanager
def _text(binary: io.BufferedReader, source: str) -> Iterator[TextIO]:
    """The text in a stream of bytes, which stays open."""
    packed = binary.peek(2).startswith(GZIP)
    stream = _Lines(_Unpacked(binary, source) if packed else binary, source)
    try:
        yield stream
    finally:
        stream.detach()


class _Lines(io.TextIOWrapper):
    """Text whose lines have a limit: they are read whole, before any field of them is looked at."""

    def __init__(self, binary: io.BufferedIOBase, source: str) -> None:
        super().__init__(cast(BinaryIO, binary), encoding="utf-8-sig", newline="")
        self._source = source
        self._longest = longest_text()

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        """The next line; iterating comes here, too."""
        line = super().readline(self._longest + 1 if size < 0 else size)
        check_text(len(line), self._source)
        return line


class _Counted:
    """A stream that counts what was read from it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.bytes = 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.bytes += len(data)
        return data


class _Unpacked(gzip.GzipFile):
    """The bytes that were gzipped; the stream of packed ones stays open.

    Reading raises :class:`~pliant.schemas.errors.BadInputError` where they are too many for what was read
    so far (:mod:`pliant.schemas.file_io.limits`), and what gzip raises where the stream is damaged.
    """

    def __init__(self, packed: BinaryIO, source: str) -> None:
        self._counted = _Counted(packed)
        super().__init__(fileobj=self._counted)  # type: ignore[call-overload]
        self._source = source
        self._bytes = 0

    def read1(self, size: int = -1) -> bytes:
        """What is read next; text is read by this alone."""
        data = super().read1(size)
        self._bytes += len(data)
        check_bytes(self._bytes, self._counted.bytes, self._source, f"{self._bytes:,} bytes so far")
        return data
