"""CSV and its kin as a stream of records; no more than a row in memory."""

from __future__ import annotations

import csv
import gzip
import sys
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import BinaryIO, Literal, TextIO, cast

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.formats.files import PIPE, source_name
from pliant.schemas.formats.limits import check_text, longest_text
from pliant.tools.replay.importers.gunzip import GZIP, unpacked
from pliant.tools.replay.importers.rows import Intake, Record


@contextmanager
def open_text(path: str | Path) -> Iterator[TextIO]:
    """A text file, or stdin for ``-``; gzipped or not, with a byte order mark or without.

    :raises BadInputError: it is missing, unreadable, a folder, cut short, or no UTF-8 text.
    """
    source = source_name(path)
    try:
        if str(path) == PIPE:
            if sys.stdin is None:
                raise UsageError("stdin is closed: pipe the trace in, or name a file")
            with _text(cast(BufferedReader, sys.stdin.buffer), source) as stream:
                yield stream
        else:
            with Path(path).open("rb") as binary, _text(binary, source) as stream:
                yield stream
    except FileNotFoundError:
        raise BadInputError.one(source, "no such file") from None
    except IsADirectoryError:
        raise BadInputError.one(source, "is a folder, expected a file") from None
    except PermissionError:
        raise BadInputError.one(source, "cannot be read: permission denied") from None
    except UnicodeDecodeError as error:
        raise BadInputError.one(source, f"is not UTF-8 text: {error.reason}") from None
    except (gzip.BadGzipFile, zlib.error, EOFError):
        raise BadInputError.one(source, "is gzipped, and cut short or damaged") from None


@contextmanager
def _text(binary: BufferedReader, source: str) -> Iterator[TextIO]:
    """The text in a stream of bytes, which stays open."""
    packed = binary.peek(2).startswith(GZIP)
    with unpacked(binary, source) if packed else nullcontext(binary) as plain:
        stream = _Lines(plain, source)
        try:
            yield stream
        finally:
            stream.detach()


class _Lines(TextIOWrapper):
    """Text whose lines have a limit: they are read whole, before any field of them is looked at."""

    def __init__(self, binary: BinaryIO, source: str) -> None:
        super().__init__(binary, encoding="utf-8-sig", newline="")
        self._source = source
        self._longest = longest_text()

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        """The next line; iterating comes here, too."""
        line = super().readline(self._longest + 1 if size < 0 else size)
        check_text(len(line), self._source)
        return line


def sheet(
    path: str | Path,
    intake: Intake,
    needed: Collection[str],
    *,
    names: Sequence[str] | None = None,
    delimiter: str = ",",
    quoted: bool = True,
) -> Iterator[Record]:
    """The rows of a CSV file by column name.

    :param names: columns of a file without a header line; else the first line names them.
    :param quoted: whether ``"`` encloses fields.
    :raises BadInputError: a needed column is missing, or the file is no CSV at all.
    """
    source = source_name(path)
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    with open_text(path) as stream:
        reader = csv.reader(stream, delimiter=delimiter, quoting=quoting)
        try:
            header = next(reader, []) if names is None else list(names)
            _check_header(header, needed, source)
            for fields in reader:
                if len(fields) == len(header):
                    yield Record(source, reader.line_num, dict(zip(header, fields, strict=True)))
                elif fields:
                    message = f"has {len(fields)} fields, expected {len(header)}"
                    intake.refuse_row(source, reader.line_num, message)
        except csv.Error as error:
            raise BadInputError.one(source, f"is not CSV: {error}", line=reader.line_num) from None


def _check_header(header: Sequence[str], needed: Collection[str], source: str) -> None:
    twice = [name for name in needed if header.count(name) > 1]
    if twice:
        raise BadInputError.one(source, f"has more than one column {', '.join(twice)}", line=1)
    missing = [name for name in needed if name not in header]
    if missing:
        found = ", ".join(header) or "nothing"
        text = f"has no column {', '.join(missing)}; it has: {found[:200]}"
        raise BadInputError.one(source, text, line=1)
