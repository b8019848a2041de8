"""Inputs as a stream of rows: CSV, and one big JSON list of which only one object is in memory.

Python's csv reads them, not Arrow: 6 % of an import is reading, most is making and checking jobs one by one.
Arrow would have to make the same Python rows, and names no line where quotes hold line breaks.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TextIO, cast

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.files import PIPE, NoWriterError, open_file, open_stdin, read_failure, source_name
from pliant.schemas.file_io.limits import check_bytes, check_text, longest_text
from pliant.schemas.text import TOO_MANY
from pliant.tools.replay.importers.conversion import Conversion, InputRow

GZIP: Final = b"\x1f\x8b"
_BEGINNING: Final = 1000
"""Characters of a first line that tell formats apart."""
BLOCK: Final = 1 << 18
"""Characters read at a time."""
_BLANKS: Final = re.compile(r"[ \t\r\n]*")
_decode: Final = json.JSONDecoder().raw_decode


def csv_rows(
    path: str | Path,
    conversion: Conversion,
    needed: Collection[str],
    *,
    names: Sequence[str] | None = None,
    delimiter: str = ",",
    quoted: bool = True,
    any_case: bool = False,
    written_by: str = "",
) -> Iterator[InputRow]:
    """The rows of a CSV file by column name.

    :param names: columns of a file without a header line; else the first line names them.
    :param quoted: whether ``"`` encloses fields.
    :param any_case: names of columns become lower case, as those that are needed are.
    :param written_by: the command that writes such files, for who has none with this delimiter.
    """
    source = source_name(path)
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    with open_text(path) as stream:
        reader = csv.reader(stream, delimiter=delimiter, quoting=quoting)
        try:
            header = next(reader, []) if names is None else list(names)
            header = [name.strip().lower() for name in header] if any_case else header
            _check_header(header, needed, source, _other_delimiter(header, delimiter, written_by))
            for fields in reader:
                if len(fields) == len(header):
                    yield InputRow(source, reader.line_num, dict(zip(header, fields, strict=True)))
                elif fields:
                    extra = f': a "{delimiter}" within a field?' if len(fields) > len(header) else ""
                    message = f"has {len(fields)} fields, expected {len(header)}{extra}"
                    conversion.refuse_row(source, reader.line_num, message)
        except csv.Error as error:
            raise BadInputError.one(source, f"is not CSV: {error}", line=reader.line_num) from None


def _other_delimiter(header: Sequence[str], delimiter: str, written_by: str) -> str:
    if not written_by or len(header) != 1:
        return ""
    return f"; fields are expected with {delimiter} between them, as {written_by} writes them"


def _check_header(header: Sequence[str], needed: Collection[str], source: str, hint: str) -> None:
    twice = [name for name in needed if header.count(name) > 1]
    if twice:
        raise BadInputError.one(source, f"has more than one column {', '.join(twice)}", line=1)
    missing = [name for name in needed if name not in header]
    if missing:
        found = ", ".join(header) or "nothing"
        text = f"has no column {', '.join(missing)}; it has: {found[:200]}{hint}"
        raise BadInputError.one(source, text, line=1)


def json_rows(path: str | Path, *, block: int = BLOCK) -> Iterator[InputRow]:
    """The objects of a JSON list with the lines on which they begin."""
    with open_text(path) as stream:
        yield from _Reader(stream, source_name(path), block).objects()


class _Reader:
    """A window on the text; ``at`` is the place in it, ``line`` the line of that place."""

    def __init__(self, stream: TextIO, source: str, block: int) -> None:
        self.stream, self.source, self.block = stream, source, block
        self.text, self.at, self.line = "", 0, 1

    def objects(self) -> Iterator[InputRow]:
        self.expect("[", "a JSON list")
        first = self.next()
        while first != "]":
            if first != "{":
                raise self.problem("is not an object, expected the objects of one JSON list")
            line = self.line
            yield InputRow(self.source, line, self.object())
            if self.next() == ",":
                self.skip(1)
                first = self.next()
            else:
                first = self.expect("]", "',' or ']' after an object", stay=True)
        self.skip(1)
        if self.next():
            raise self.problem("there is text behind the list")

    def object(self) -> dict[str, Any]:
        while True:
            try:
                value, end = _decode(self.text, self.at)
            except (ValueError, RecursionError) as error:
                # The end of the text at hand may be in the middle of the object.
                check_text(len(self.text) - self.at, self.source, line=self.line)
                if not self.more():
                    reason = "too deep" if isinstance(error, RecursionError) else _reason(error)
                    raise self.problem(f"is not readable JSON: {reason}") from None
            else:
                self.skip(end - self.at)
                found: dict[str, Any] = value
                return found

    def expect(self, character: str, what: str, *, stay: bool = False) -> str:
        found = self.next()
        if found != character:
            raise self.problem(f"found {found or 'the end of the file'!r}, expected {what}")
        if not stay:
            self.skip(1)
        return found

    def next(self) -> str:
        """The next character that is not a blank; empty at the end."""
        while True:
            blanks = _BLANKS.match(self.text, self.at)
            self.skip((blanks.end() if blanks else self.at) - self.at)
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def skip(self, characters: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + characters)
        self.at += characters

    def more(self) -> bool:
        """Read on: as much again as is waiting, so that a long object is not parsed once per block."""
        waiting = self.text[self.at :]
        fresh = self.stream.read(max(self.block, len(waiting)))
        self.text, self.at = waiting + fresh, 0
        return bool(fresh)

    def problem(self, message: str) -> BadInputError:
        return BadInputError.one(self.source, message, line=self.line)


def _reason(error: ValueError) -> str:
    return error.msg.lower() if isinstance(error, json.JSONDecodeError) else TOO_MANY


def first_line(path: str) -> str:
    """The beginning of a file's first line; empty for stdin, which can be read only once."""
    if path == PIPE:
        return ""
    with open_text(path) as stream:
        return stream.readline(_BEGINNING)


@contextmanager
def open_text(path: str | Path) -> Iterator[TextIO]:
    """A text file, or stdin for ``-``; gzipped or not, with a byte order mark or without."""
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


@contextmanager
def _text(binary: io.BufferedReader, source: str) -> Iterator[TextIO]:
    packed = binary.peek(2).startswith(GZIP)
    stream = _Lines(_Unpacked(binary, source) if packed else binary, source)
    try:
        yield stream
    finally:
        stream.detach()


class _Lines(io.TextIOWrapper):
    """Text whose lines have a limit."""

    def __init__(self, binary: io.BufferedIOBase, source: str) -> None:
        super().__init__(cast(BinaryIO, binary), encoding="utf-8-sig", newline="")
        self._source = source
        self._longest = longest_text()

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        line = super().readline(self._longest + 1 if size < 0 else size)
        check_text(len(line), self._source)
        return line


class _Unpacked(gzip.GzipFile):
    """The bytes that were gzipped, within the limits for what was read (:mod:`..file_io.limits`)."""

    def __init__(self, packed: BinaryIO, source: str) -> None:
        self._counted = _Counted(packed)
        super().__init__(fileobj=self._counted)  # type: ignore[call-overload]
        self._source = source
        self._bytes = 0

    def read1(self, size: int = -1) -> bytes:
        data = super().read1(size)
        self._bytes += len(data)
        check_bytes(self._bytes, self._counted.bytes, self._source, f"{self._bytes:,} bytes so far")
        return data


class _Counted:
    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.bytes = 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.bytes += len(data)
        return data
