"""Inputs as blocks of columns or as a stream of rows: CSV, and one big JSON list of which only one object is
in memory.

Arrow reads blocks of lines that hold nothing but fields. Python's csv reads those with quotes, blank lines or
rows of other lengths: it alone says on which line they are. Both read the same.
"""

from __future__ import annotations

import csv
import io
import json
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, getincrementaldecoder
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, TextIO, cast

import numpy as np

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.files import (
    PARQUET_MAGIC,
    PIPE,
    NoWriterError,
    open_file,
    open_stdin,
    read_failure,
    source_name,
)
from pliant.schemas.file_io.foreign import format_of
from pliant.schemas.file_io.json_lines import BOM
from pliant.schemas.file_io.limits import check_text, longest_text
from pliant.schemas.file_io.packing import unpacked
from pliant.schemas.file_io.parquet import text_array
from pliant.schemas.text import TOO_MANY
from pliant.tools.replay.importers.blocks import RowBlock, is_in
from pliant.tools.replay.importers.conversion import Conversion, InputRow

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import WriteableBuffer
    from numpy.typing import NDArray

Report = Callable[[str, int, int], None]
_ESCAPE: Final = 0xDC00
"""Before a byte that was not UTF-8, as Python decodes it."""
_ESCAPED: Final = re.compile("[\udc80-\udcff]")
_BEGINNING: Final = 1000
"""Characters of a first line that tell formats apart."""
BLOCK: Final = 1 << 18
"""Characters read at a time."""
_CSV_BLOCK: Final = 1 << 21
"""Bytes of lines that become a block."""
_RECORDS: Final = 1 << 13
"""Records of csv that become a block."""
_OTHER_BLANKS: Final = (b";", b"\v", b"\f", b"\x1c", b"\x1d", b"\x1e", b"\x1f")
"""What lines of words between blanks seldom hold: a comment, or what Python splits at, too."""
_DELIMITERS: Final = ",;\t|"
_MARK: Final = BOM.decode()
HEADERS: Final = "are lines of column names"
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
    with open_text(path, conversion.refuse_byte) as stream:
        records = _records(stream, source, delimiter, quoted=quoted)
        written = _first(records)[1] if names is None else list(names)
        header = _lower(written) if any_case else written
        _check_header(header, needed, source, _other_delimiter(header, delimiter, written_by))
        for line, fields in records:
            if _are_names(fields, written):
                conversion.count_rows()
                conversion.summary.dropped[HEADERS] += 1
            elif len(fields) == len(header):
                yield InputRow(source, line, dict(zip(header, fields, strict=True)))
            elif fields:
                conversion.refuse_row(source, line, _wrong_length(fields, header, delimiter))


def _records(
    lines: Iterable[str], source: str, delimiter: str, *, before: int = 0, quoted: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """The fields of each record and the line on which it ends; ``before``: lines that come before these."""
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting)
    try:
        for fields in reader:
            yield before + reader.line_num, fields
    except csv.Error as error:
        raise BadInputError.one(source, f"is not CSV: {error}", line=before + reader.line_num) from None


def _wrong_length(fields: Sequence[str], header: Sequence[str], delimiter: str) -> str:
    extra = f': a "{delimiter}" within a field?' if len(fields) > len(header) else ""
    return f"has {len(fields)} fields, expected {len(header)}{extra}"


def _first(records: Iterable[tuple[int, list[str]]]) -> tuple[int, list[str]]:
    """The first record that is no blank line."""
    return next(((line, fields) for line, fields in records if fields), (1, []))


def _are_names(fields: Sequence[str], header: Sequence[str]) -> bool:
    """Whether a row names the columns again, as where files were put one behind the other."""
    first, *others = fields or [""]
    return [first.removeprefix(_MARK), *others] == [*header]


def _lower(header: Sequence[str]) -> list[str]:
    return [name.strip().lower() for name in header]


def csv_blocks(
    path: str | Path,
    conversion: Conversion,
    needed: Collection[str],
    *,
    names: Sequence[str] | None = None,
    delimiter: str = ",",
    quoted: bool = True,
    any_case: bool = False,
    written_by: str = "",
    free: Collection[str] = (),
    stream: io.BufferedReader | None = None,
) -> Iterator[RowBlock]:
    """The rows of a CSV file in blocks of columns; parameters as those of :func:`csv_rows`.

    :param free: columns of free text: where there is one of them, what a row has too much belongs to it.
    :param stream: the file, where it is open.
    """
    blocks = _CsvBlocks(
        conversion,
        source_name(path),
        needed,
        delimiter,
        quoted=quoted,
        any_case=any_case,
        written_by=written_by,
        free=free,
    )
    if names is not None:
        blocks.take_header(names)
    with nullcontext(stream) if stream is not None else open_bytes(path, conversion.refuse_byte) as binary:
        yield from blocks.blocks(binary)


class _CsvBlocks:
    """Reads one file; ``line`` is the number of its last line that was read."""

    def __init__(
        self,
        conversion: Conversion,
        source: str,
        needed: Collection[str],
        delimiter: str,
        *,
        quoted: bool,
        any_case: bool,
        written_by: str,
        free: Collection[str],
    ) -> None:
        self.conversion = conversion
        self.source, self.needed, self.delimiter, self.any_case = source, needed, delimiter, any_case
        self.quoted, self.written_by, self.free = quoted, written_by, free
        self.header: list[str] | None = None
        # The header as the file has it.
        self.written: Sequence[str] = ()
        self.line = 0

    def take_header(self, names: Sequence[str]) -> None:
        self.written = names
        self.header = _lower(names) if self.any_case else list(names)
        hint = _other_delimiter(self.header, self.delimiter, self.written_by)
        _check_header(self.header, self.needed, self.source, hint)

    def blocks(self, stream: io.BufferedReader) -> Iterator[RowBlock]:
        data = _whole_lines(stream, self.source).removeprefix(BOM)
        simple = self.delimiter.isascii() and self.delimiter not in '"\r\n'
        while data and simple and data.endswith(b"\n") and not (self.quoted and b'"' in data):
            yield from self._plain(data) if _has_lines(data) else self._by_csv(_lines_of(data))
            data = _whole_lines(stream, self.source)
        rest = _Lines(stream, self.source, encoding="utf-8")
        try:
            yield from self._by_csv(chain(_lines_of(data), rest))
        finally:
            rest.detach()

    def _plain(self, data: bytes) -> Iterator[RowBlock]:
        if self.header is None:
            first = b""
            while data and not first.strip():
                first, _, data = data.partition(b"\n")
                self.line += 1
            self.take_header(first.decode().removesuffix("\r").split(self.delimiter))
        columns = _columns(data, self.header or (), self.delimiter)
        if columns is None:
            yield from self._by_csv(_lines_of(data))
            return
        rows = data.count(b"\n")
        yield self._block(np.arange(self.line + 1, self.line + rows + 1), columns)
        self.line += rows

    def _block(
        self,
        lines: NDArray[np.int64],
        columns: Mapping[str, pa.Array],
        others: Sequence[tuple[int, str]] = (),
    ) -> RowBlock:
        """Rows, those dropped that name the columns again."""
        block = RowBlock(self.conversion, self.source, lines, columns, others)
        first = self.written[0] if self.written else ""
        if columns and is_in(next(iter(columns.values())), text_array((first, _MARK + first))).any():
            texts = (column.to_pylist() for column in columns.values())
            again = [_are_names(fields, self.written) for fields in zip(*texts, strict=True)]
            block.drop(np.array(again), HEADERS)
        return block

    def _by_csv(self, lines: Iterable[str]) -> Iterator[RowBlock]:
        before = self.line
        records = _records(lines, self.source, self.delimiter, before=before, quoted=self.quoted)
        if self.header is None:
            self.line, names = _first(records)
            self.take_header(names)
        header = self.header or []
        free = [place for place, name in enumerate(header) if name in self.free]
        while batch := list(islice(records, _RECORDS)):
            self.line = batch[-1][0]
            if len(free) == 1:
                batch = [(line, self._with_whole_text(line, fields, free[0])) for line, fields in batch]
            good = [(line, fields) for line, fields in batch if len(fields) == len(header)]
            others = [
                (line, _wrong_length(fields, header, self.delimiter))
                for line, fields in batch
                if fields and len(fields) != len(header)
            ]
            texts = zip(*(fields for _, fields in good), strict=True)
            columns = {name: text_array(column) for name, column in zip(header, texts, strict=False)}
            yield self._block(np.array([line for line, _ in good], dtype=np.int64), columns, others)

    def _with_whole_text(self, line: int, fields: list[str], place: int) -> list[str]:
        """Fields of which the one at a place may have been split, as it holds the delimiter."""
        header = self.header or []
        end = place + 1 + len(fields) - len(header)
        if end <= place + 1:
            return fields
        said = f'a "{self.delimiter}" in {header[place]} was taken as part of it'
        self.conversion.summary.assume_here(said, place=f"{self.source}:{line}")
        return [*fields[:place], self.delimiter.join(fields[place:end]), *fields[end:]]


def _lines_of(data: bytes) -> io.StringIO:
    return io.StringIO(data.decode(), newline="")


def word_blocks(path: str | Path, conversion: Conversion, names: Sequence[str]) -> Iterator[RowBlock]:
    """Rows of words between blanks, in blocks of columns; lines that begin with ``;`` are comments.

    The word -1 stands for nothing, and becomes empty.
    """
    source, line = source_name(path), 0
    with open_bytes(path, conversion.refuse_byte) as stream:
        data = _whole_lines(stream, source).removeprefix(BOM)
        while data:
            while data.startswith(b";") and _has_lines(data):
                data, line = data.partition(b"\n")[2], line + 1
            columns = _words(data, names)
            if columns is not None:
                count = data.count(b"\n")
                yield RowBlock(conversion, source, np.arange(line + 1, line + count + 1), columns)
            else:
                count, block = _words_one_by_one(data, conversion, source, line, names)
                yield block
            line += count
            data = _whole_lines(stream, source)


def _words(data: bytes, names: Sequence[str]) -> dict[str, pa.Array] | None:
    """The columns of lines that all have the same number of words. Returns None for others."""
    if not data.isascii() or not data.endswith(b"\n") or any(sign in data for sign in _OTHER_BLANKS):
        return None
    data = data.replace(b"\r\n", b"\n").replace(b"\t", b" ")
    while b"  " in data:
        data = data.replace(b"  ", b" ")
    data = (b"\n" + data).replace(b"\n ", b"\n").replace(b" \n", b"\n")
    for _ in range(2):  # one that follows another one shares its blank
        data = data.replace(b" -1 ", b"  ")
    data = data.replace(b"\n-1 ", b"\n ").replace(b" -1\n", b" \n")
    return None if b"\r" in data else _columns(data[1:], names, " ")


def _words_one_by_one(
    data: bytes, conversion: Conversion, source: str, before: int, names: Sequence[str]
) -> tuple[int, RowBlock]:
    """The number of lines, and their rows."""
    number, lines, rows, others = 0, [], [], []
    for number, content in enumerate(_lines_of(data), 1):
        fields = content.split()
        if not fields or fields[0].startswith(";"):
            continue
        if len(fields) == len(names):
            lines.append(before + number)
            rows.append(["" if field == "-1" else field for field in fields])
        else:
            message = f"has {len(fields)} fields separated by blanks, expected {len(names)}"
            others.append((before + number, message))
    texts = zip(*rows, strict=True) if rows else ([] for _ in names)
    columns = {name: text_array(column) for name, column in zip(names, texts, strict=True)}
    return number, RowBlock(conversion, source, np.array(lines, dtype=np.int64), columns, others)


def _has_lines(data: bytes) -> bool:
    """Whether no line ends in a carriage return alone."""
    return b"\r" not in data or data.count(b"\r") == data.count(b"\r\n")


def _columns(data: bytes, header: Sequence[str], delimiter: str) -> dict[str, pa.Array] | None:
    """The columns of lines of plain fields. Returns None if Arrow does not read them, or csv would not."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    if not data:
        return {name: text_array(()) for name in header}
    names = [str(place) for place in range(len(header))]
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(data),
            arrow_csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
            arrow_csv.ParseOptions(delimiter=delimiter, quote_char=False, double_quote=False),
            arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), check_utf8=False),
        )
    except pa.ArrowInvalid:
        return None
    if len(table) != data.count(b"\n"):
        return None  # Arrow leaves blank lines out
    columns = [column.combine_chunks() for column in table.columns]
    longest = max(
        int(np.diff(np.frombuffer(each.buffers()[1], np.int32)[: len(each) + 1]).max()) for each in columns
    )
    return None if longest > csv.field_size_limit() else dict(zip(header, columns, strict=True))


def _whole_lines(stream: io.BufferedReader, source: str) -> bytes:
    """About :data:`_CSV_BLOCK` bytes that end in a line end, if the file has one there."""
    data = stream.read(_CSV_BLOCK)
    if data and not data.endswith(b"\n"):
        data += stream.readline(4 * longest_text())  # a character has four bytes at most
    if len(data) > longest_text():
        check_text(max(map(len, re.split("[\r\n]", data.decode(errors="replace")))), source)
    if data and b'"' not in data and not data.endswith(b"\n") and not stream.peek(1):
        return data + b"\n"
    return data


def _other_delimiter(header: Sequence[str], delimiter: str, written_by: str) -> str:
    if written_by and header and header[0][:1].isdecimal():
        return f"; the first line is expected to name the columns, as {written_by} does without -n"
    sign = next((sign for sign in _DELIMITERS if header and sign in header[0]), "")
    if len(header) != 1 or not (written_by or sign):
        return ""
    if not written_by:
        stated = f" (--map of a csv says otherwise, as in delimiter={sign})"
        return f"; fields are expected with {delimiter} between them{stated}"
    return f"; fields are expected with {delimiter} between them, as {written_by} writes them"


def _check_header(header: Sequence[str], needed: Collection[str], source: str, hint: str) -> None:
    twice = [name for name in needed if header.count(name) > 1]
    if twice:
        raise BadInputError.one(source, f"has more than one column {', '.join(twice)}", line=1)
    missing = [name for name in needed if name not in header]
    if missing:
        present = ", ".join(header) or "nothing"
        if not hint and (name := format_of(",".join(header).encode())) is not None:
            hint = f"; it seems to be of the format {name}"
        text = f"has no column {', '.join(missing)}; it has: {present[:200]}{hint}"
        raise BadInputError.one(source, text, line=1)


def json_rows(
    path: str | Path,
    conversion: Conversion,
    *,
    within: str | None = None,
    written_by: str = "",
    stream: io.BufferedReader | None = None,
    block: int = BLOCK,
) -> Iterator[InputRow]:
    """The objects of a JSON list with the lines on which they begin.

    :param within: the field of an object that holds the list, which the command ``written_by`` prints.
        Default: the list is all there is.
    :param stream: the file, where it is open.
    """
    with open_text(path, conversion.refuse_byte, stream) as text:
        reader = _Reader(text, source_name(path), block)
        yield from reader.objects() if within is None else reader.objects_within(within, written_by)


class _Reader:
    """A window on the text; ``at`` is the place in it, ``line`` the line of that place."""

    def __init__(self, stream: TextIO, source: str, block: int) -> None:
        self.stream, self.source, self.block = stream, source, block
        self.text, self.at, self.line = "", 0, 1

    def objects(self) -> Iterator[InputRow]:
        yield from self._listed()
        if self.next():
            raise self.problem("there is text behind the list")

    def objects_within(self, field: str, written_by: str) -> Iterator[InputRow]:
        """Those of the list that an object has in a field; the rest of the object is read over."""
        self.expect("{", "a JSON object")
        missing = True
        while self.next() == '"':
            name = self.value()
            self.expect(":", "':' after a name")
            if name == field and self.next() == "[":
                missing = False
                yield from self._listed()
            else:
                self.next()
                self.value()
            if self.next() == ",":
                self.skip(1)
        self.expect("}", "the end of the object")
        if missing:
            text = f"has no list of {field}, expected what {written_by} prints"
            raise BadInputError.one(self.source, text)

    def _listed(self) -> Iterator[InputRow]:
        self.expect("[", "a JSON list")
        first = self.next()
        while first != "]":
            if first != "{":
                raise self.problem("is not an object, expected the objects of one JSON list")
            line = self.line
            yield InputRow(self.source, line, self.value())
            if self.next() == ",":
                self.skip(1)
                first = self.next()
            else:
                first = self.expect("]", "',' or ']' after an object", stay=True)
        self.skip(1)

    def value(self) -> Any:
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
                if end == len(self.text) and isinstance(value, int | float) and self.more():
                    continue  # more digits may follow
                self.skip(end - self.at)
                return value

    def expect(self, character: str, what: str, *, stay: bool = False) -> str:
        token = self.next()
        if token != character:
            raise self.problem(f"found {token or 'the end of the file'!r}, expected {what}")
        if not stay:
            self.skip(1)
        return token

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
    with open_text(path, lambda *_: None) as stream:
        return stream.readline(_BEGINNING)


@contextmanager
def open_text(path: str | Path, report: Report, stream: io.BufferedReader | None = None) -> Iterator[TextIO]:
    """A text file, or stdin for ``-``; packed or not, with a byte order mark or without.

    :param report: as that of :func:`open_bytes`.
    :param stream: what that gives, where the file is open.
    """
    with nullcontext(stream) if stream is not None else open_bytes(path, report) as binary:
        text = _Lines(binary, source_name(path))
        try:
            yield text
        finally:
            text.detach()


@contextmanager
def open_bytes(path: str | Path, report: Report) -> Iterator[io.BufferedReader]:
    """What a text file holds in UTF-8, unpacked; stdin for ``-``.

    :param report: takes file, line and value of each byte that is not UTF-8; a character stands for it.
    """
    source = source_name(path)
    try:
        if str(path) == PIPE:
            yield _as_utf8(cast(io.BufferedReader, open_stdin()), source, report)
        else:
            with open_file(path) as binary:
                yield _as_utf8(cast(io.BufferedReader, binary), source, report)
    except FileNotFoundError:
        raise BadInputError.one(source, "no such file") from None
    except IsADirectoryError:
        raise BadInputError.one(source, "is a folder, expected a file") from None
    except (PermissionError, NoWriterError) as error:
        raise read_failure(error, source) from None


def _as_utf8(binary: io.BufferedReader, source: str, report: Report) -> io.BufferedReader:
    stream = unpacked(binary, source)
    if stream.peek(len(PARQUET_MAGIC)).startswith(PARQUET_MAGIC):
        raise BadInputError.one(source, "is a Parquet file, expected text: write it as CSV")
    first = stream.peek(2)[:2]
    if first in (BOM_UTF16_LE, BOM_UTF16_BE) or b"\0" in first:
        text = "is not UTF-8 text but UTF-16: convert it, as iconv -f UTF-16 -t UTF-8 does"
        raise BadInputError.one(source, text)
    return io.BufferedReader(_Utf8(stream, partial(report, source)), BLOCK)


class _Utf8(io.RawIOBase):
    """The bytes of a stream; for those that are not UTF-8 stands the character U+FFFD."""

    def __init__(self, stream: io.BufferedReader, report: Callable[[int, int], None]) -> None:
        super().__init__()
        self._stream, self._report = stream, report
        self._decoder = getincrementaldecoder("utf-8")("surrogateescape")
        self._ready = memoryview(b"")
        self._line = 1

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        room = memoryview(buffer)
        more = True
        while more and not self._ready:
            data = self._stream.read1(BLOCK)
            more = bool(data)
            self._ready = memoryview(self._valid(data))
        count = min(len(room), len(self._ready))
        room[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _valid(self, data: bytes) -> bytes:
        """:param data: what follows; empty at the end of the stream."""
        if data.isascii() and not self._decoder.getstate()[0]:
            self._line += data.count(b"\n")
            return data
        text = self._decoder.decode(data, final=not data)
        line, before = self._line, 0
        for match in _ESCAPED.finditer(text):
            line += text.count("\n", before, match.start())
            before = match.start()
            self._report(line, ord(match[0]) - _ESCAPE)
        self._line += text.count("\n")
        return _ESCAPED.sub("\ufffd", text).encode()


class _Lines(io.TextIOWrapper):
    """Text whose lines have a limit."""

    def __init__(self, binary: io.BufferedIOBase, source: str, encoding: str = "utf-8-sig") -> None:
        super().__init__(cast(BinaryIO, binary), encoding=encoding, newline="")
        self._source = source
        self._longest = longest_text()

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        line = super().readline(self._longest + 1 if size < 0 else size)
        check_text(len(line), self._source)
        return line
