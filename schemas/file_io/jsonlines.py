"""JSON Lines: one record a line, the schema in a header line or on every line."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from pydantic_core import ValidationError

from pliant.schemas.errors import BadInputError, OutOfMemoryError, Problem
from pliant.schemas.file_io.bulk import garbage_collection_paused
from pliant.schemas.file_io.jsontext import (
    BOM,
    SCHEMA_FIRST,
    is_json,
    key_given_twice,
    refuse_other_kind,
    syntax_problem,
    validate_value,
    warn_dropped,
)
from pliant.schemas.file_io.problems import problems_of
from pliant.schemas.file_io.seals import Seals, holds_seal
from pliant.schemas.file_io.version import check_schema_id, schema_id

T = TypeVar("T")

_log = logging.getLogger("pliant")
_compact: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def header(kind: str, minor: int = 0) -> bytes:
    """The first line of a JSON Lines file; ``minor``: the version that first had all that the file holds."""
    return json.dumps({"schema": schema_id(kind, minor)}, separators=(",", ":")).encode() + b"\n"


def encode(value: object) -> bytes:
    """One line of compact JSON. NaN is a ``ValueError``: no reader would accept it."""
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
) -> tuple[list[tuple[int, T]], list[Problem]]:
    """All good records with their line numbers, and all problems.

    :param validate: makes a record of the bytes of one JSON object, or raises pydantic's ``ValidationError``.
    :param schema_required: the first line must name the schema; else version 1 is assumed.
    :param torn_end_allowed: drop a last line that a crash has cut short, with a warning.
    :param written_by_people: look for keys that one object gives twice; takes a sixth more time.
    :param seals: verifies the checksums of lines that have some.
    :raises BadInputError: the file cannot be read any further, being of another kind or major version.
    :raises OutOfMemoryError: the file is too large.
    """
    reader = LineReader(source, kind, validate, keys_once=written_by_people, seals=seals)
    try:
        refuse_other_kind(data, source, kind)
        lines = data.removeprefix(BOM).split(b"\n")
        if torn_end_allowed and is_torn(lines[-1]):
            where = f"{source}:{len(lines)}"
            _log.warning("%s: the last line is torn (a crash while writing) and is dropped", where)
            lines.pop()
        reader.feed(lines, schema_required=schema_required)
    except MemoryError:
        read = len(reader.records)
        reader.records.clear()
        raise OutOfMemoryError(f"{read} records of {source}") from None
    if reader.problems and is_json(data) and not is_json(data.strip().partition(b"\n")[0]):
        raise BadInputError.one(source, "is one JSON text over many lines, expected one JSON object a line")
    return reader.records, reader.problems


def is_torn(line: bytes) -> bool:
    """Whether bytes after the last line end are the beginning of a line that a crash cut short."""
    return bool(line.strip()) and not is_json(line) and not holds_seal(line)


class LineReader(Generic[T]):
    """Reads one file, all of it or line by line as they come: the version in force, records and problems.

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
    ) -> None:
        self.keys_once = keys_once
        self.source, self.kind, self.validate = source, kind, validate
        self.seals = seals
        self.number = first_line
        """Of the next line."""
        self.records: list[tuple[int, T]] = []
        self.problems: list[Problem] = []
        self.newer = False
        self.warned: set[str] = set()

    def feed(self, lines: Iterable[bytes], *, schema_required: bool = False) -> None:
        """Read further lines, without their line ends.

        :raises BadInputError: they are of another kind or major version.
        """
        for number, raw in enumerate(lines, self.number):
            self.number = number + 1
            line = raw.strip()
            if not line:
                continue
            if schema_required and not _names_schema(line):
                expected = json.dumps({"schema": schema_id(self.kind)})
                self.problem(number, "/schema", f"is missing, expected {expected} as the first line")
            schema_required = False
            if self.seals is not None:
                line, broken = self.seals.open(line)
                if broken is not None:
                    self.problem(number, "", broken)
                    continue
            self.line(number, line)

    def line(self, number: int, line: bytes) -> None:
        """One line that is not empty."""
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
        """The slow path of a line that does not validate as it stands."""
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
        """Whether the line is of a newer minor version; ends the reading if it cannot be read at all."""
        problem, newer = check_schema_id(found, self.kind)
        if problem is not None:
            self.problem(number, "/schema", problem)
            raise BadInputError(self.problems)
        return newer

    def problem(self, number: int, pointer: str, message: str) -> None:
        """Note what is wrong with a line."""
        self.problems.append(Problem(self.source, number, pointer, message))


def _names_schema(line: bytes) -> bool:
    value = json.loads(line) if is_json(line) else None
    return isinstance(value, dict) and "schema" in value
