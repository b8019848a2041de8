"""JSON Lines: one record a line, the schema in a header line or on every line.

:func:`read_lines` reads a whole file, :class:`LineReader` one that grows. A line that does not validate is
parsed again, slowly, to say what is wrong or to leave out what a newer minor version added. Lines of logs
are sealed: they end in ``"crc":"PPPPPPPPOOOOOOOO"``, the CRC-32 of the line before (00000000 after a
header) and their own. So readers notice changed bytes, and lost, moved or repeated lines.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any, Final, Generic, TypeVar
from zlib import crc32

from pydantic_core import ValidationError, from_json

from pliant.schemas.errors import BadInputError, OutOfMemoryError, Problem
from pliant.schemas.file_io.files import PARQUET_MAGIC
from pliant.schemas.file_io.foreign import foreign
from pliant.schemas.file_io.limits import garbage_collection_paused
from pliant.schemas.file_io.record import (
    a_file,
    as_pointer,
    check_schema_id,
    details,
    is_newer,
    location,
    problems_of,
    schema_id,
)
from pliant.schemas.text import TOO_MANY

BOM: Final = b"\xef\xbb\xbf"
SCHEMA_FIRST: Final = re.compile(rb'\{\s*"schema"\s*:\s*"([^"\\]*)"\s*([,}])\s*')
"""An object whose first field is the schema."""
_keys: Final = re.compile(rb'"([^"]*)"\s*:').findall
"""The keys in JSON text, roughly: strings may hold quotes."""
_TWICE: Final = 'key "{}" is given twice in one object, expected once'
_UNKNOWN: Final = ("extra_forbidden", "unexpected_keyword_argument")
FIRST: Final = b"00000000"
"""What the first sealed line after a header continues."""
CRC_DOC: Final = (
    "in logs, as the last field: CRC-32 of the line before (00000000 after a header), "
    "then of this line up to here"
)
DAMAGED: Final = "the line is damaged: its checksum is wrong"
OUT_OF_ORDER: Final = "does not follow the line before it: lines are missing, moved or there twice"
_CRC_FIELD: Final = b',"crc":"'
_CRC_END: Final = b'"}'
_CRC_DIGITS: Final = len(FIRST)
_OWN_CRC: Final = _CRC_DIGITS + len(_CRC_END)
_SEAL_LENGTH: Final = len(_CRC_FIELD) + _CRC_DIGITS + _OWN_CRC
_WHOLE_SEAL: Final = re.compile(_CRC_FIELD + rb'[0-9a-f]{16}"\}')
T = TypeVar("T")
_log = logging.getLogger("pliant")
_compact: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def header(kind: str, minor: int = 0) -> bytes:
    """The first line of a JSON Lines file.

    :param minor: the version that first had all that the file holds.
    """
    return json.dumps({"schema": schema_id(kind, minor)}, separators=(",", ":")).encode() + b"\n"


def encode(value: object) -> bytes:
    """One line of compact JSON. NaN is a ``ValueError``."""
    return _compact(value).encode() + b"\n"


@garbage_collection_paused()
def read_lines(
    data: bytes,
    source: str,
    kind: str,
    validate: Callable[[bytes], T],
    *,
    schema_required: bool = False,
    torn_end_allowed: bool = False,
    written_by_people: bool = False,
    seals: Seals | None = None,
    known: Callable[[int, bytes], bool] | None = None,
) -> tuple[list[tuple[int, T]], list[Problem]]:
    """All good records with their line numbers, and all problems.

    :param validate: makes a record of the bytes of one JSON object, or raises pydantic's ``ValidationError``.
    :param schema_required: the first line must name the schema; else version 1 is assumed.
    :param torn_end_allowed: drop a last line that a crash cut short, with a warning.
    :param written_by_people: refuse keys that one object gives twice; takes a sixth more time.
    :param seals: verifies checksums.
    :param known: takes a line, with its number, whose record it need not be given; false: it does not.
    :raises BadInputError: the file is of another kind or major version.
    :raises OutOfMemoryError: the file is too large.
    """
    reader = LineReader(source, kind, validate, keys_once=written_by_people, seals=seals, known=known)
    try:
        refuse_other_kind(data, source, kind)
        text = data.removeprefix(BOM)
        last = text.rpartition(b"\n")[2] if torn_end_allowed else b""
        if is_torn(last):
            line = text.count(b"\n") + 1
            where = f"{source}:{line}"
            _log.warning("%s: the last line is torn (a crash while writing) and is dropped", where)
            text = text[: -len(last)]
        reader.feed(BytesIO(text), schema_required=schema_required)
    except MemoryError:
        read = len(reader.records) + reader.taken
        reader.records.clear()
        raise OutOfMemoryError(f"{read} records of {source}") from None
    if reader.problems and is_json(data) and not is_json(data.strip().partition(b"\n")[0]):
        raise BadInputError.one(source, "is one JSON text over many lines, expected one JSON object a line")
    return reader.records, reader.problems


def is_torn(line: bytes) -> bool:
    """Whether bytes after the last line end are a line that a crash cut short."""
    return bool(line.strip()) and not is_json(line) and not holds_seal(line)


class LineReader(Generic[T]):
    """Reads one file, whole or as its lines come.

    :param first_line: the number of the first line that it is fed.
    """

    def __init__(
        self,
        source: str,
        kind: str,
        validate: Callable[[bytes], T],
        *,
        keys_once: bool = False,
        seals: Seals | None = None,
        first_line: int = 1,
        known: Callable[[int, bytes], bool] | None = None,
    ) -> None:
        self.known = known
        # Lines that `known` took.
        self.taken = 0
        self.keys_once = keys_once
        self.source, self.kind, self.validate = source, kind, validate
        self.seals = seals
        self.number = first_line
        self.records: list[tuple[int, T]] = []
        self.problems: list[Problem] = []
        self.newer = False
        self.warned: set[str] = set()

    def feed(self, lines: Iterable[bytes], *, schema_required: bool = False) -> None:
        """:param lines: further lines; their ends may be left out.
        :raises BadInputError: they are of another kind or major version.
        """
        known = self.known
        for number, raw in enumerate(lines, self.number):
            self.number = number + 1
            line = raw.strip()
            if known is not None and known(number, line):
                self.taken += 1
                continue
            if not line:
                continue
            headless = schema_required and not _names_schema(line)
            if headless:
                expected = json.dumps({"schema": schema_id(self.kind)})
                self.problem(number, "/schema", f"is missing, expected {expected} as the first line")
            schema_required = False
            if self.seals is not None:
                line, broken = self.seals.open(line)
                if broken is not None:
                    self.problem(number, "", broken)
                    continue
            self.line(number, line)
            if headless and len(self.problems) > 1:  # a file of another kind: the rest says no more
                del self.problems[1:]
                return

    def line(self, number: int, line: bytes) -> None:
        newer, body = self.newer, line
        match = SCHEMA_FIRST.match(line)
        if match is not None:
            newer = self.version(number, match[1].decode(errors="replace"))
            if match.end() == len(line):
                self.newer = newer
                if self.seals is not None:
                    self.seals.restart()
                return
            body = b"{" + line[match.end() :] if match[2] == b"," else line
        if self.keys_once and (twice := key_given_twice(line, self.source, number)) is not None:
            self.problems.append(twice)
            return
        try:
            self.records.append((number, self.validate(body)))
        except ValidationError:
            self.recover(number, line, newer=newer)

    def recover(self, number: int, line: bytes, *, newer: bool) -> None:
        syntax = syntax_problem(line, self.source, number)
        if syntax is not None:
            self.problems.append(syntax)
            return
        value = json.loads(line)
        if isinstance(value, dict) and "schema" in value:
            newer = self.version(number, value.pop("schema"))
        try:
            record, dropped = validate_value(value, self.validate, drop_unknown=newer)
        except ValidationError as error:
            self.problems.extend(problems_of(error, self.source, number))
        else:
            warn_dropped(self.source, [name for name in dropped if name not in self.warned])
            self.warned.update(dropped)
            self.records.append((number, record))

    def version(self, number: int, found: object) -> bool:
        """Whether the line is of a newer minor version.

        :raises BadInputError: it cannot be read at all.
        """
        problem, newer = check_schema_id(found, self.kind)
        if problem is not None:
            self.problem(number, "/schema", problem)
            raise BadInputError(self.problems)
        return newer

    def problem(self, number: int, pointer: str, message: str) -> None:
        self.problems.append(Problem(self.source, number, pointer, message))


def _names_schema(line: bytes) -> bool:
    value = json.loads(line) if is_json(line) else None
    return isinstance(value, dict) and "schema" in value


def validate_value(value: Any, validate: Callable[[bytes], T], *, drop_unknown: bool) -> tuple[T, list[str]]:
    """Validate parsed JSON. With ``drop_unknown`` unknown fields are dropped, and their pointers returned."""
    try:
        return validate(json.dumps(value).encode()), []
    except ValidationError as error:
        unknown = [location(detail) for detail in details(error) if detail["type"] in _UNKNOWN]
        if not drop_unknown or not unknown:
            raise
    for path in unknown:
        _remove(value, path)
    return validate(json.dumps(value).encode()), [as_pointer(path) for path in unknown]


def _remove(value: Any, path: tuple[str | int, ...]) -> None:
    for part in path[:-1]:
        value = value[part]
    del value[path[-1]]


def warn_dropped(source: str, names: list[str]) -> None:
    if names:
        _log.warning("%s: from a newer minor version, fields left out: %s", source, ", ".join(names))


def stated_schema(data: bytes) -> str | None:
    """The schema that JSON text names in its first field."""
    match = SCHEMA_FIRST.match(data.removeprefix(BOM).lstrip())
    return match[1].decode(errors="replace") if match else None


def refuse_other_kind(data: bytes, source: str, kind: str) -> None:
    if data.startswith(PARQUET_MAGIC):
        raise BadInputError.one(source, f"is a Parquet file, expected {a_file(kind)} in JSON")
    stated = stated_schema(data)
    if stated is not None:
        is_newer(stated, kind, source, line=1)
    elif (text := foreign(data, source)) is not None:
        raise BadInputError.one(source, f"is not {a_file(kind)}: it {text}")


def parse_json(data: bytes, source: str) -> Any:
    """A byte order mark is skipped.

    :raises BadInputError: it is not JSON, or an object gives a key twice.
    """
    data = data.removeprefix(BOM)
    problem = syntax_problem(data, source) or key_given_twice(data, source)
    if problem is not None:
        raise BadInputError([problem])
    return json.loads(data)


def syntax_problem(data: bytes, source: str, line: int | None = None) -> Problem | None:
    """What is wrong with the syntax of JSON text; ``line`` is its number if it is one of many."""
    try:
        json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        at = line or data.count(b"\n", 0, error.start) + 1
        return Problem(
            source, at, "", f"not valid UTF-8 (byte {data[error.start]:#04x}), expected JSON in UTF-8"
        )
    except json.JSONDecodeError as error:
        text = f"not valid JSON: {error.msg[:1].lower()}{error.msg[1:]} (column {error.colno})"
        return Problem(source, line or error.lineno, "", text)
    except RecursionError:
        return Problem(source, line, "", "not readable JSON: nested too deeply")
    except ValueError:
        return Problem(source, line or _line_of_digits(data), "", f"not readable JSON: {TOO_MANY}")
    try:
        from_json(data)
    except ValueError as error:
        return Problem(source, line, "", f"not readable JSON: {str(error).partition(' at line')[0]}")
    return None


def _line_of_digits(data: bytes) -> int | None:
    digits = re.search(rb"[0-9]{%d,}" % sys.get_int_max_str_digits(), data)
    return None if digits is None else data.count(b"\n", 0, digits.start()) + 1


def key_given_twice(text: bytes, source: str, line: int | None = None) -> Problem | None:
    """What is wrong if an object gives a key twice: only its last value would count.

    Cheap where no key occurs twice. Returns None for text that is not JSON, too.
    """
    keys = _keys(text)
    if len(set(keys)) == len(keys):
        return None
    twice: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        counts = Counter(name for name, _ in pairs)
        twice.extend(name for name, count in counts.items() if count > 1)

    try:
        json.loads(text, object_pairs_hook=look)
    except (ValueError, RecursionError):
        return None
    return Problem(source, line, "", _TWICE.format(twice[0])) if twice else None


def is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def seal(line: bytes, link: bytes) -> tuple[bytes, bytes]:
    """A sealed line, and the link for the next one.

    :param line: a JSON object with at least one field, without a line end.
    :param link: of the line before it.
    """
    head = line[:-1] + _CRC_FIELD + link
    own = b"%08x" % crc32(head)
    return head + own + _CRC_END, own


def link_of(line: bytes) -> bytes | None:
    """What the line after this one continues. Returns None if this one is not sealed."""
    return line[-_OWN_CRC : -len(_CRC_END)] if _is_sealed(line) else None


def followed_by(line: bytes) -> bytes:
    """The link that a sealed line continues."""
    return line[-_OWN_CRC - _CRC_DIGITS : -_OWN_CRC]


def holds_seal(line: bytes) -> bool:
    """Whether bytes hold a whole seal, so that no crash cut them short."""
    return _WHOLE_SEAL.search(line) is not None


class Seals:
    """Opens the sealed lines of one file in order."""

    def __init__(self, link: bytes | None = FIRST) -> None:
        # What the next line continues; None if unknown, as after a damaged line.
        self.link = link

    def restart(self) -> None:
        """What follows a header continues nothing."""
        self.link = FIRST

    def open(self, line: bytes) -> tuple[bytes, str | None]:
        """The line without its seal, and what is wrong with it."""
        if not _is_sealed(line):
            self.link = None
            return line, None
        own, before = line[-_OWN_CRC : -len(_CRC_END)], followed_by(line)
        expected, self.link = self.link, own
        if b"%08x" % crc32(line[:-_OWN_CRC]) != own:
            self.link = None
            return line, DAMAGED
        follows = expected is None or expected == before
        return line[:-_SEAL_LENGTH] + b"}", None if follows else OUT_OF_ORDER


def _is_sealed(line: bytes) -> bool:
    return line.endswith(_CRC_END) and line[-_SEAL_LENGTH : -_SEAL_LENGTH + len(_CRC_FIELD)] == _CRC_FIELD
