"""One row of an input, with its fields as numbers, times and words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

NOTHING: Final = frozenset({"", "none", "null", "nan", "n/a", "unknown"})
"""How traces write a missing value, in lower case."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_NAIVE: Final = datetime(1970, 1, 1)


class MalformedRowError(Exception):
    """The row does not say what the format asks for."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row of an input and where it stands; ``line`` is None where there are no lines.

    The methods return the field of a column and raise :class:`MalformedRowError` where it has another form.
    A column that the file does not have states nothing: importers ask for those that they need in advance.
    """

    source: str
    line: int | None
    values: Mapping[str, Any]

    @property
    def row_number(self) -> int:
        """The row's number from 1, in a file with one header line."""
        return (self.line or 1) - 1

    def optional_text(self, name: str) -> str:
        """A field without the blanks around it; empty where nothing is stated."""
        value = str(self.values.get(name, "")).strip()
        return "" if value.lower() in NOTHING else value

    def text(self, name: str) -> str:
        """A field that must not be empty."""
        found = self.optional_text(name)
        if not found:
            raise MalformedRowError(name, "is empty, expected some text")
        return found

    def optional_number(self, name: str) -> float | None:
        """A finite number, 0 or more; None where nothing is stated."""
        found = self.optional_text(name)
        return parse_number(found, name) if found else None

    def number(self, name: str) -> float:
        """A finite number, 0 or more."""
        value = self.optional_number(name)
        if value is None:
            raise MalformedRowError(name, "is empty, expected a number")
        return value

    def count(self, name: str) -> int:
        """A whole number, 0 or more; ``20.0`` is one."""
        value = self.number(name)
        if value != int(value):
            raise MalformedRowError(name, f"{self.values[name]!r} is not a whole number")
        return int(value)

    def positive_count(self, name: str) -> int:
        """A whole number, 1 or more."""
        value = self.count(name)
        if not value:
            raise MalformedRowError(name, "is 0, expected 1 or more")
        return value

    def optional_timestamp(self, name: str) -> float | None:
        """Seconds since 1970, times without a zone taken as UTC; None where nothing is stated."""
        return parse_timestamp(self.values.get(name), name)

    def timestamp(self, name: str) -> float:
        """Seconds since 1970, times without a zone taken as UTC."""
        found = self.optional_timestamp(name)
        if found is None:
            raise MalformedRowError(name, "is empty, expected a time")
        return found


def parse_number(found: str, name: str) -> float:
    """A finite number, 0 or more, of a text."""
    try:
        value = float(found.replace("_", "?"))  # Python reads 1_000 as a number, traces do not write it
    except ValueError:
        raise MalformedRowError(name, f"{found!r} is not a number") from None
    if not math.isfinite(value) or value < 0:
        raise MalformedRowError(name, f"{found!r}, expected a finite number, 0 or more")
    return value


def parse_timestamp(value: object, name: str) -> float | None:
    """A date and time, or seconds since 1970, as seconds since 1970; None for nothing."""
    found = "" if value is None else str(value).strip()
    if found.lower() in NOTHING:
        return None
    if found[0].isdecimal() and found.replace(".", "", 1).isdecimal():
        return parse_number(found, name)
    try:
        stamp = datetime.fromisoformat(found)
    except ValueError:
        raise MalformedRowError(name, f"{found!r}, expected a time like 2017-10-09 07:01:55") from None
    origin = _EPOCH_NAIVE if stamp.tzinfo is None else _EPOCH
    return (stamp - origin).total_seconds()
