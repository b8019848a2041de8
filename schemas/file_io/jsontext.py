"""JSON text before it is validated: its syntax, the schema it names, fields of newer versions."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, TypeVar

from pydantic_core import ValidationError, from_json

from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.file_io.files import PARQUET_MAGIC
from pliant.schemas.file_io.problems import as_pointer, details, location
from pliant.schemas.file_io.version import a_file, is_newer
from pliant.schemas.text.digits import TOO_MANY

T = TypeVar("T")

BOM: Final = b"\xef\xbb\xbf"
SCHEMA_FIRST: Final = re.compile(rb'\{\s*"schema"\s*:\s*"([^"\\]*)"\s*([,}])\s*')
"""An object whose first field is the schema."""
_keys: Final = re.compile(rb'"([^"]*)"\s*:').findall
"""Roughly the keys in JSON text, a few more or less where strings hold quotes."""
_TWICE: Final = 'key "{}" is given twice in one object, expected once'
_UNKNOWN: Final = ("extra_forbidden", "unexpected_keyword_argument")
_log = logging.getLogger("pliant")


def stated_schema(data: bytes) -> str | None:
    """The schema that JSON text names in its first field."""
    match = SCHEMA_FIRST.match(data.removeprefix(BOM).lstrip())
    return match[1].decode(errors="replace") if match else None


def refuse_other_kind(data: bytes, source: str, kind: str) -> None:
    """Refuse a file whose first bytes say that it is of another kind, form or major version."""
    if data.startswith(PARQUET_MAGIC):
        raise BadInputError.one(source, f"is a Parquet file, expected {a_file(kind)} in JSON")
    found = stated_schema(data)
    if found is not None:
        is_newer(found, kind, source, line=1)


def syntax_problem(data: bytes, source: str, line: int | None = None) -> Problem | None:
    """What is wrong with the syntax of JSON text, or None; ``line`` is its number where it is one of many."""
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


def parse_json(data: bytes, source: str) -> Any:
    """The value of a JSON text in which no object gives a key twice; a byte order mark is skipped.

    :raises BadInputError: it is not JSON, or a key is given twice.
    """
    data = data.removeprefix(BOM)
    problem = syntax_problem(data, source) or key_given_twice(data, source)
    if problem is not None:
        raise BadInputError([problem])
    return json.loads(data)


def _line_of_digits(data: bytes) -> int | None:
    """The line of the first number that Python does not convert."""
    found = re.search(rb"[0-9]{%d,}" % sys.get_int_max_str_digits(), data)
    return None if found is None else data.count(b"\n", 0, found.start()) + 1


def key_given_twice(text: bytes, source: str, line: int | None = None) -> Problem | None:
    """What is wrong where one object of JSON text gives a key twice: only its last value would count.

    Cheap where no key occurs again in another object either. None, too, of text that is not JSON.
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
    """Whether the bytes are one whole JSON value."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def validate_value(value: Any, validate: Callable[[bytes], T], *, drop_unknown: bool) -> tuple[T, list[str]]:
    """Validate parsed JSON; with ``drop_unknown`` without the fields that this version does not know.

    Returns the record and the pointers of the dropped fields.
    """
    try:
        return validate(json.dumps(value).encode()), []
    except ValidationError as error:
        unknown = [location(found) for found in details(error) if found["type"] in _UNKNOWN]
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
    """Say which fields of a newer minor version are left out."""
    if names:
        _log.warning("%s: from a newer minor version, fields left out: %s", source, ", ".join(names))
